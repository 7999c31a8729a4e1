#include "registry/etcd/limits.h"

#include <algorithm>
#include <array>
#include <utility>

#include "registry/etcd/txn.h"
#include "registry/model/shared_limit.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// How often what is limited is counted again.
constexpr absl::Duration kPeriod = absl::Seconds(5);

}  // namespace

Limits::Limits(Client* client, const Keys* keys, Options options)
    : client_(client), keys_(keys), options_(options) {
  counted_[kInstances].limit = options.max_instances;
  counted_[kSessions].limit = options.max_sessions;
}

void Limits::Start() {
  if (options_.max_instances > 0 || options_.max_sessions > 0) Count();
}

void Limits::Count() {
  // etcd counts a range by walking over it: what is not limited is not counted.
  TxnRequest read;
  std::array<Kind, 2> kinds{};
  std::array<int64_t, 2> since{};
  size_t asked = 0;
  {
    MutexLock lock(&mu_);
    for (const Kind kind : {kInstances, kSessions}) {
      if (counted_[kind].limit == 0) continue;
      AddCount(kind == kInstances ? keys_->AllInstances() : keys_->Sessions(),
               read.mutable_success());
      since[asked] = counted_[kind].since;
      kinds[asked++] = kind;
    }
  }
  client_->Txn(
      std::move(read), [this, kinds, since, asked](const absl::StatusOr<TxnResponse>& response) {
        if (client_->closed()) return;
        if (response.ok()) {
          MutexLock lock(&mu_);
          for (size_t i = 0; i < asked; ++i) {
            Counted& counted = counted_[kinds[i]];
            counted.counted = response->responses(static_cast<int>(i)).response_range().count();
            counted.since -= since[i];
          }
        }
        client_->After(kPeriod, [this] {
          if (!client_->closed()) Count();
        });
      });
}

int64_t Limits::Reserve(Kind kind, int64_t wanted) {
  MutexLock lock(&mu_);
  Counted& counted = counted_[kind];
  if (counted.limit == 0) return wanted;
  const int64_t there = counted.counted + counted.since + counted.reserved;
  const int64_t granted = std::clamp<int64_t>(counted.limit - there, 0, wanted);
  counted.reserved += granted;
  return granted;
}

void Limits::Settle(Kind kind, int64_t reserved, bool written) {
  MutexLock lock(&mu_);
  Counted& counted = counted_[kind];
  if (counted.limit == 0) return;
  counted.reserved -= reserved;
  if (written) counted.since += reserved;
}

void Limits::Removed(Kind kind, int64_t removed) {
  MutexLock lock(&mu_);
  counted_[kind].since -= removed;
}

absl::Status Limits::Reached(Kind kind) const {
  const SharedLimit limit =
      kind == kInstances ? SharedLimit{"instances", "limits.max_instances", options_.max_instances}
                         : SharedLimit{"sessions", "limits.max_sessions", options_.max_sessions};
  return limit.Reached(/*in_all=*/true);
}

absl::Status Limits::SessionIsFull() const {
  return SharedLimit{"instances in one session", "limits.max_instances_per_session",
                     options_.max_instances_per_session}
      .Reached(/*in_all=*/true);
}

}  // namespace etcd
}  // namespace failback
