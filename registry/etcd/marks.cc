#include "registry/etcd/marks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "registry/base/proto_time.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using registry::v1::OfflineMark;

// How often a mark is tried again because a concurrent writer was faster.
constexpr int kMaxTries = 8;

}  // namespace

struct Marks::Marking {
  SetOfflineRequest request;
  Callback<SetOfflineResponse> done;
  std::string canonical;
  int64_t instance_revision = 0;  // of its key
  int64_t mark_revision = 0;      // 0: there is none
  SetOfflineResponse response;
  int tries = 0;

  void Finish(const TxnResponse& answer, bool unchanged) {
    response.set_unchanged(unchanged);
    response.set_revision(static_cast<uint64_t>(answer.header().revision()));
    std::move(done)(std::move(response));
  }
};

void Marks::Set(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) {
  auto marking = std::make_shared<Marking>();
  marking->request = request;
  marking->done = std::move(done);
  marking->canonical = CanonicalKey(request.key());
  Read(marking);
}

void Marks::Read(const std::shared_ptr<Marking>& marking) {
  if (++marking->tries > kMaxTries) {
    return std::move(marking->done)(
        absl::AbortedError("concurrent writers change the same instance all the time"));
  }
  TxnRequest read;
  identity_->AddTo(&read);
  AddGet(keys_->InstanceWithMark(marking->canonical), read.mutable_success());
  client_->Txn(std::move(read), [this, marking](absl::StatusOr<TxnResponse> answer) {
    if (!answer.ok()) return std::move(marking->done)(answer.status());
    marking->response.set_epoch(identity_->Take(*answer).epoch);
    const auto* kv = Found(*answer, Identity::kGets, keys_->Instance(marking->canonical));
    const auto* mark = Found(*answer, Identity::kGets, keys_->Mark(marking->canonical));
    marking->mark_revision = mark == nullptr ? 0 : mark->mod_revision();
    const bool there = kv != nullptr && DecodeStored(marking->canonical, kv->value()).instance;
    // A mark that its instance has left behind can be taken off.
    if (!there && (marking->request.offline() || mark == nullptr)) {
      return std::move(marking->done)(
          Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                  absl::StrCat("key: ", KeyText(marking->request.key()), " is not registered")));
    }
    if (!marking->request.offline()) {
      if (mark == nullptr) return marking->Finish(*answer, /*unchanged=*/true);
      return Write(marking);
    }
    marking->instance_revision = kv->mod_revision();
    OfflineMark& offline = *marking->response.mutable_offline();
    if (mark != nullptr) {
      const Blob known = DecodeMark(mark->value());
      if (offline.ParseFromArray(known.data(), static_cast<int>(known.size())) &&
          offline.reason() == marking->request.reason() && offline.by() == marking->request.by()) {
        return marking->Finish(*answer, /*unchanged=*/true);
      }
      offline.Clear();
    }
    offline.set_reason(marking->request.reason());
    offline.set_by(marking->request.by());
    *offline.mutable_time() = ToProto(client_->WallNow());
    Write(marking);
  });
}

void Marks::Write(const std::shared_ptr<Marking>& marking) {
  const std::string mark = keys_->Mark(marking->canonical);
  TxnRequest write;
  CompareModified(mark, marking->mark_revision, &write);
  if (marking->request.offline()) {
    // A deregistration that comes in between has to be seen.
    CompareModified(keys_->Instance(marking->canonical), marking->instance_revision, &write);
    AddPut(mark, marking->response.offline().SerializeAsString(), 0, write.mutable_success());
  } else {
    AddDelete(mark, write.mutable_success());
  }
  client_->Txn(std::move(write), [this, marking](absl::StatusOr<TxnResponse> answer) {
    if (!answer.ok()) return std::move(marking->done)(answer.status());
    if (!answer->succeeded()) return Read(marking);
    marking->Finish(*answer, /*unchanged=*/false);
  });
}

void Marks::Drop(const std::string& canonical) {
  TxnRequest write;
  CompareCreated(keys_->Instance(canonical), 0, &write);
  AddDelete(keys_->Mark(canonical), write.mutable_success());
  // If this fails the next sweep tries again.
  client_->Txn(std::move(write), [](const absl::StatusOr<TxnResponse>&) {});
}

}  // namespace etcd
}  // namespace failback
