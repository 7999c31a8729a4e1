#include "tests/simulate/etcd/etcd_truth.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "registry/etcd/stored.h"
#include "registry/model/canonical.h"
#include "registry/model/offline_mark.h"

namespace failback::simulate {
namespace {

// A tombstone is kept for a minute at least; less what a clock may be off by.
constexpr absl::Duration kRetention = absl::Seconds(59);

}  // namespace

EtcdTruth::EtcdTruth(EtcdHost* host, std::vector<std::string> services, Events events)
    : host_(host), services_(std::move(services)), events_(std::move(events)) {
  wake_ = host_->Wake([this] { OnRevision(); });
}

EtcdTruth::~EtcdTruth() { host_->Forget(wake_); }

void EtcdTruth::OnRevision() {
  EtcdModel& model = host_->model();
  const etcd::KeyRange instances = keys_.AllInstances();
  for (const mvccpb::Event& event : model.EventsFrom(seen_ + 1, instances.begin, instances.end)) {
    CheckFence(event);
  }
  seen_ = model.revision();
  etcd::Store store = identity_.Get();
  if (!store.known()) {
    etcdserverpb::TxnRequest read;
    identity_.AddTo(&read);
    store = identity_.Take(model.Txn(read).value());
    if (!store.known()) return;
  }
  for (const std::string& service : services_) {
    const auto known = sets_.find(service);
    Set set = SetOf(service);
    if (known != sets_.end() && known->second == set) continue;
    sets_[service] = set;
    events_.on_set(service, store.epoch, static_cast<uint64_t>(seen_), set);
  }
}

EtcdTruth::Set EtcdTruth::SetOf(const std::string& service) const {
  const EtcdModel::Contents& contents = host_->model().now();
  const etcd::KeyRange range =
      keys_.Service(absl::StrCat("default", std::string(1, '\0'), service));
  Set set;
  for (auto it = contents.lower_bound(range.begin); it != contents.end() && it->first < range.end;
       ++it) {
    const std::optional<std::string> canonical = keys_.ParseInstance(it->first);
    if (!canonical.has_value()) continue;
    const etcd::StoredRecord stored = etcd::DecodeStored(*canonical, it->second.value());
    if (!stored.instance) continue;
    const auto mark = contents.find(keys_.Mark(*canonical));
    const Blob shown = mark == contents.end()
                           ? stored.instance
                           : WithMark(stored.instance, etcd::DecodeMark(mark->second.value()));
    set[*canonical] = std::string(shown.view());
  }
  return set;
}

void EtcdTruth::CheckFence(const mvccpb::Event& event) {
  const std::optional<std::string> canonical = keys_.ParseInstance(event.kv().key());
  if (!canonical.has_value()) return;
  const auto known = fences_.find(*canonical);
  const int64_t now = host_->process()->clock().NowNanos();
  if (event.type() == mvccpb::Event::DELETE) {
    if (known == fences_.end()) return;
    const absl::Duration stayed = absl::Nanoseconds(now - known->second.since);
    if (known->second.tombstone && stayed < kRetention) {
      events_.on_wrong("fencing", absl::StrCat("the tombstone of ", CanonicalKeyText(*canonical),
                                               " is gone after ", absl::FormatDuration(stayed)));
    }
    fences_.erase(known);
    return;
  }
  const etcd::StoredRecord stored = etcd::DecodeStored(*canonical, event.kv().value());
  const Fence next = {{stored.fence().rank, stored.fence().generation}, !stored.instance, now};
  if (known != fences_.end() && next.number < known->second.number) {
    events_.on_wrong(
        "fencing",
        absl::StrCat("an older intent is accepted: ", CanonicalKeyText(*canonical), ", rank ",
                     next.number.first, ", generation ", next.number.second, ", after rank ",
                     known->second.number.first, ", generation ", known->second.number.second));
  }
  fences_[*canonical] = next;
  CheckClosed(*canonical, next);
}

void EtcdTruth::Opened(const std::string& session_id, uint64_t rank) {
  sessions_[rank] = session_id;
  closed_.erase(rank);
}

// The session's key says that it is closed before its leases go, see Sessions::CloseAsRead.
bool EtcdTruth::HadExpired(const std::string& session_id) const {
  EtcdModel& model = host_->model();
  failback::etcd::v1::SessionRecord last;
  for (const mvccpb::Event& event :
       model.EventsFrom(model.compacted() + 1, keys_.Session(session_id), "")) {
    if (event.type() == mvccpb::Event::PUT) last.ParseFromString(event.kv().value());
  }
  return !last.closed();
}

void EtcdTruth::Closed(const std::string& session_id) {
  if (HadExpired(session_id)) return;
  for (const auto& [rank, opened] : sessions_) {
    if (opened == session_id) closed_.insert(rank);
  }
  for (const auto& [key, fence] : fences_) CheckClosed(key, fence);
}

void EtcdTruth::CheckClosed(const std::string& canonical, const Fence& fence) {
  if (fence.tombstone || closed_.count(fence.number.first) == 0) return;
  events_.on_wrong("closed", absl::StrCat(CanonicalKeyText(canonical), " is there, of the session ",
                                          sessions_[fence.number.first], ", which was closed"));
}

}  // namespace failback::simulate
