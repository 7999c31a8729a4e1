#include "registry/etcd/lister.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "failback/etcd/v1/stored.pb.h"
#include "registry/canonical.h"
#include "registry/errors.h"
#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/selector.h"
#include "registry/steady_time.h"
#include "registry/validation.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::LeaseTimeToLiveRequest;
using etcdserverpb::LeaseTimeToLiveResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr size_t kMaxPageBytes = 2 << 20;
constexpr size_t kKeysPerTxn = 100;
constexpr absl::Duration kRememberKeys = absl::Seconds(30);

}  // namespace

struct Lister::Listing {
  ListRequest request;
  Callback<ListResponse> done;
  bool by_selector = false;
  std::string after;  // canonical
  std::string from;   // where the range begins, when not there
  size_t page_size = 0;

  // Of an incarnation.
  Mutex mu;
  std::vector<std::string> found ABSL_GUARDED_BY(mu);  // canonical
  CanonicalKeys keys;

  ListResponse response;
  size_t bytes = 0;

  void Fail(const absl::Status& status) { std::move(done)(status); }

  bool Wants(const ServiceInstance& instance) const {
    if (!by_selector) return true;
    const Selector& selector = request.selector();
    const std::string ns =
        selector.namespace_().empty() ? kDefaultNamespace : selector.namespace_();
    return instance.key().namespace_() == ns &&
           (selector.service().empty() || instance.key().service() == selector.service()) &&
           SelectorMatches(selector, instance);
  }

  // Adds what a key holds, with its mark (null: none), if it is asked for. False when the page is
  // full: the key is for the next.
  bool Take(const std::string& canonical, const mvccpb::KeyValue& kv,
            const mvccpb::KeyValue* mark) {
    const StoredRecord stored = DecodeStored(canonical, kv.value());
    if (!stored.instance) return true;
    if (!request.incarnation().empty() && stored.meta.owner() != request.incarnation()) return true;
    registry::v1::InstanceRecord record =
        MakeRecord(stored, kv, mark == nullptr ? Blob() : DecodeMark(mark->value()));
    if (!Wants(record.instance())) return true;
    if (static_cast<size_t>(response.records_size()) == page_size) return false;
    if (response.records_size() > 0 && bytes + stored.instance.size() > kMaxPageBytes) return false;
    bytes += stored.instance.size();
    *response.add_records() = std::move(record);
    return true;
  }
};

void Lister::List(const ListRequest& request, Callback<ListResponse> done) {
  auto listing = std::make_shared<Listing>();
  listing->request = request;
  listing->done = std::move(done);
  listing->by_selector = request.has_selector() || request.incarnation().empty();
  listing->page_size = static_cast<size_t>(
      request.page_size() == 0 ? kMaxPageSize : std::min(request.page_size(), kMaxPageSize));
  if (!request.page_token().empty()) {
    InstanceKey last;
    if (!absl::WebSafeBase64Unescape(request.page_token(), &listing->after) ||
        !ParseCanonicalKey(listing->after, &last)) {
      return listing->Fail(InvalidField("page_token", "is not a token of an earlier page"));
    }
  }
  if (request.incarnation().empty()) return ListRange(std::move(listing));
  ListIncarnation(std::move(listing));
}

void Lister::Finish(std::shared_ptr<Listing> listing, std::string next_after) {
  if (!next_after.empty()) {
    listing->response.set_next_page_token(absl::WebSafeBase64Escape(next_after));
  }
  std::move(listing->done)(std::move(listing->response));
}

void Lister::ListRange(std::shared_ptr<Listing> listing) {
  const Selector& selector = listing->request.selector();
  const std::string ns = selector.namespace_().empty() ? kDefaultNamespace : selector.namespace_();
  const KeyRange range =
      selector.service().empty()
          ? keys_->Namespace(ns)
          : keys_->Service(absl::StrCat(ns, std::string(1, '\0'), selector.service()));
  TxnRequest read;
  identity_->AddTo(&read);
  auto* get = read.mutable_success()->Add()->mutable_request_range();
  if (listing->from.empty() && !listing->after.empty()) {
    listing->from = keys_->InstanceWithMark(listing->after).end;
  }
  get->set_key(std::max(range.begin, listing->from));
  get->set_range_end(range.end);
  // One more than asked for: whether the last one has a mark is in the key after it.
  get->set_limit(static_cast<int64_t>(listing->page_size) + 1);
  if (get->key() >= range.end) get->set_range_end(get->key());  // an empty range
  client_->Txn(std::move(read), [this, listing](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return listing->Fail(response.status());
    listing->response.set_epoch(identity_->Take(*response).epoch);
    listing->response.set_revision(static_cast<uint64_t>(response->header().revision()));
    const auto& page = response->responses(Identity::kGets).response_range();
    std::string last;
    bool more = page.more();
    for (int i = 0; i < page.kvs_size(); ++i) {
      const mvccpb::KeyValue& kv = page.kvs(i);
      const auto canonical = keys_->ParseInstance(kv.key());
      if (!canonical.has_value()) {
        // A key that is not one of ours cannot be the place where a page begins.
        if (auto marked = keys_->ParseMark(kv.key()); marked.has_value()) last = *marked;
        listing->from = kv.key() + '\0';
        continue;
      }
      if (page.more() && i + 1 == page.kvs_size()) break;
      const mvccpb::KeyValue* mark = i + 1 < page.kvs_size() ? &page.kvs(i + 1) : nullptr;
      if (mark != nullptr && mark->key() != keys_->Mark(*canonical)) mark = nullptr;
      if (!listing->Take(*canonical, kv, mark)) {
        more = true;
        break;
      }
      last = *canonical;
    }
    if (more && last.empty()) return ListRange(listing);  // all of it was another hand's
    Finish(listing, more ? last : std::string());
  });
}

void Lister::ListIncarnation(std::shared_ptr<Listing> listing) {
  const std::string& incarnation = listing->request.incarnation();
  if (!listing->after.empty()) {
    MutexLock lock(&mu_);
    const auto it = remembered_.find(incarnation);
    if (it != remembered_.end()) listing->keys = it->second.keys;
  }
  if (listing->keys != nullptr) return ReadKeys(std::move(listing));
  TxnRequest read;
  AddGet(keys_->Incarnation(incarnation), read.mutable_success());
  const KeyRange persistent = keys_->PersistentOf(incarnation);
  auto* range = read.mutable_success()->Add()->mutable_request_range();
  range->set_key(persistent.begin);
  range->set_range_end(persistent.end);
  range->set_keys_only(true);
  client_->Txn(std::move(read), [this, listing](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return listing->Fail(response.status());
    const std::string& incarnation = listing->request.incarnation();
    {
      MutexLock lock(&listing->mu);
      for (const mvccpb::KeyValue& kv : response->responses(1).response_range().kvs()) {
        if (auto key = keys_->ParsePersistent(incarnation, kv.key()); key.has_value()) {
          listing->found.push_back(*std::move(key));
        }
      }
    }
    failback::etcd::v1::IncarnationRecord record;
    if (const auto* kv = Found(*response, 0); kv != nullptr) record.ParseFromString(kv->value());
    ReadLeases(listing, record.session_id());
  });
}

// The keys on the leases of the session, if there is one.
void Lister::ReadLeases(std::shared_ptr<Listing> listing, const std::string& session_id) {
  TxnRequest read;
  identity_->AddTo(&read);
  AddGet(keys_->Session(session_id), read.mutable_success());
  client_->Txn(std::move(read), [this, listing](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return listing->Fail(response.status());
    identity_->Take(*response);
    failback::etcd::v1::SessionRecord record;
    const auto* kv = Found(*response, Identity::kGets);
    if (kv != nullptr) record.ParseFromString(kv->value());
    auto gather = std::make_shared<Gather>([this, listing](const absl::Status& status) {
      if (!status.ok()) return listing->Fail(status);
      auto keys = std::make_shared<std::vector<std::string>>();
      {
        MutexLock lock(&listing->mu);
        keys->swap(listing->found);
      }
      std::sort(keys->begin(), keys->end());
      keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
      listing->keys = std::move(keys);
      ReadKeys(listing);
    });
    for (const int64_t lease : record.leases()) {
      LeaseTimeToLiveRequest keys;
      keys.set_id(lease);
      keys.set_keys(true);
      client_->LeaseTimeToLive(
          std::move(keys), [this, listing, gather](absl::StatusOr<LeaseTimeToLiveResponse> answer) {
            gather->Note(answer.status());
            if (!answer.ok()) return;
            MutexLock lock(&listing->mu);
            for (const std::string& key : answer->keys()) {
              if (auto canonical = keys_->ParseInstance(key); canonical.has_value()) {
                listing->found.push_back(*std::move(canonical));
              }
            }
          });
    }
  });
}

// One page of what is in listing->keys.
void Lister::ReadKeys(std::shared_ptr<Listing> listing) {
  const std::vector<std::string>& keys = *listing->keys;
  const auto begin = static_cast<size_t>(
      std::upper_bound(keys.begin(), keys.end(), listing->after) - keys.begin());
  const size_t end = std::min(keys.size(), begin + listing->page_size);
  const auto answers =
      std::make_shared<std::vector<TxnResponse>>((end - begin + kKeysPerTxn - 1) / kKeysPerTxn + 1);
  auto gather = std::make_shared<Gather>([this, listing, answers, begin,
                                          end](const absl::Status& status) {
    if (!status.ok()) return listing->Fail(status);
    const std::vector<std::string>& keys = *listing->keys;
    bool full = false;
    size_t next = begin;
    for (; next < end && !full; ++next) {
      const TxnResponse& answer = (*answers)[(next - begin) / kKeysPerTxn];
      const auto place = static_cast<int>((next - begin) % kKeysPerTxn);
      const auto* kv = Found(answer, place, keys_->Instance(keys[next]));
      const auto* mark = Found(answer, place, keys_->Mark(keys[next]));
      if (kv != nullptr && !listing->Take(keys[next], *kv, mark)) {
        full = true;
        --next;
      }
    }
    listing->response.set_epoch(identity_->Take(answers->back()).epoch);
    listing->response.set_revision(static_cast<uint64_t>(answers->back().header().revision()));
    const bool more = next < keys.size();
    {
      MutexLock lock(&mu_);
      if (more) {
        remembered_[listing->request.incarnation()] = {listing->keys, SteadyNow() + kRememberKeys};
      } else {
        remembered_.erase(listing->request.incarnation());
      }
    }
    Finish(listing, more && next > 0 ? keys[next - 1] : std::string());
  });
  for (size_t i = begin; i < end; i += kKeysPerTxn) {
    TxnRequest read;
    for (size_t k = i; k < std::min(end, i + kKeysPerTxn); ++k) {
      AddGet(keys_->InstanceWithMark(keys[k]), read.mutable_success());
    }
    client_->Txn(std::move(read), [gather, answers, place = (i - begin) / kKeysPerTxn](
                                      absl::StatusOr<TxnResponse> response) {
      gather->Note(response.status());
      if (response.ok()) (*answers)[place] = *std::move(response);
    });
  }
  TxnRequest read;
  identity_->AddTo(&read);
  client_->Txn(std::move(read), [gather, answers](absl::StatusOr<TxnResponse> response) {
    gather->Note(response.status());
    if (response.ok()) answers->back() = *std::move(response);
  });
}

void Lister::Sweep() {
  const SteadyTime now = SteadyNow();
  MutexLock lock(&mu_);
  absl::erase_if(remembered_, [&](const auto& entry) { return entry.second.until < now; });
}

}  // namespace etcd
}  // namespace failback
