// How one who followed a service at another server goes on here (registry/etcd/service.h).
//
// A position is the same at every server: etcd's revision. What this server has seen revision by
// revision is in the hub's log; what was before that, etcd itself remembers: the service is read as
// it was at the position, and the difference to the copy is the one delta that is sent. What etcd
// has compacted, or what would make a longer delta than a client wants, is sent as a snapshot.

#include <string>
#include <utility>

#include "registry/etcd/service.h"
#include "registry/etcd/stored.h"
#include "registry/model/event.h"
#include "registry/model/offline_mark.h"
#include "registry/model/set_flags.h"
#include "registry/watch/instance_changes.h"
#include "registry/watch/owned_listener.h"

namespace failback {
namespace etcd {

using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;

namespace {

// Positions that one service is read at, at a time.
constexpr size_t kMaxPositions = 4;
constexpr size_t kLongestDeltaBytes = 1 << 20;
// How often it is read while this server's watch is behind the position.
constexpr int kTries = 10;

// Sent in place of the first event, which is an empty delta: one that has what was missed.
class ResumedListener : public OwnedListener {
 public:
  ResumedListener(std::shared_ptr<NotifyListener> listener, EventPtr first)
      : owner_(OwnerOf(listener.get())), listener_(std::move(listener)), first_(std::move(first)) {}

  const std::string& owner() const override { return owner_; }

  void OnEvent(const EventPtr& event) override {
    const EventPtr first = std::exchange(first_, nullptr);
    listener_->OnEvent(first != nullptr && event->is_delta() ? first : event);
  }
  void OnEnd(const absl::Status& status) override { listener_->OnEnd(status); }

 private:
  const std::string owner_;
  const std::shared_ptr<NotifyListener> listener_;
  EventPtr first_;
};

}  // namespace

bool Services::Service::IsFromElsewhere(const SubscribeRequest& request) const {
  return request.revision() != 0 && request.epoch() == epoch_ &&
         (request.revision() < began_ || request.revision() > revision_);
}

bool Services::Service::Resume(const std::shared_ptr<Stream>& stream) {
  const uint64_t position = stream->request().revision();
  const auto it = resuming_.find(position);
  if (it != resuming_.end()) {
    it->second.push_back(stream);
    return true;
  }
  if (resuming_.size() >= kMaxPositions) return false;
  resuming_[position].push_back(stream);
  // Not here: locks are held.
  ReadLater(position, absl::ZeroDuration(), kTries);
  return true;
}

void Services::Service::ReadLater(uint64_t position, absl::Duration delay, int tries) {
  services_->client_->After(delay, [self = shared_from_this(), position, tries] {
    self->ReadAt(position, std::make_shared<Contents>(), self->range_.begin, tries);
  });
}

void Services::Service::ReadAt(uint64_t position, const std::shared_ptr<Contents>& contents,
                               std::string begin, int tries) {
  RangeRequest read;
  read.set_key(std::move(begin));
  read.set_range_end(range_.end);
  read.set_limit(services_->options_.page_size);
  read.set_revision(static_cast<int64_t>(position));
  services_->client_->Range(std::move(read), [self = shared_from_this(), position, contents,
                                              tries](absl::StatusOr<RangeResponse> page) {
    if (!page.ok()) return self->OnReadAt(position, nullptr, tries);
    for (const mvccpb::KeyValue& kv : page->kvs()) self->Take(kv, contents.get());
    if (!page->more()) return self->OnReadAt(position, contents.get(), tries);
    self->ReadAt(position, contents, page->kvs(page->kvs_size() - 1).key() + '\0', tries);
  });
}

void Services::Service::OnReadAt(uint64_t position, Contents* contents, int tries) {
  std::vector<std::shared_ptr<Stream>> streams;
  SubscriptionHub::Deliveries deliveries;
  {
    MutexLock lock(&mu_);
    const auto it = resuming_.find(position);
    if (it == resuming_.end()) return;  // dropped
    std::vector<InstanceChange> missed;
    if (contents != nullptr) missed = MissedSince(std::move(*contents));
    if (contents != nullptr && position > revision_) {
      // What happened up to there is still on its way here, unless it is nothing.
      if (!missed.empty() && tries > 1) {
        return ReadLater(position, services_->client_->timing().round_delay, tries - 1);
      }
      if (missed.empty()) began_ = revision_ = skip_until_ = position;
    }
    streams = std::move(it->second);
    resuming_.erase(it);
    for (const auto& stream : streams) {
      if (contents == nullptr || position > revision_) {
        EnterWithSnapshot(stream, &deliveries);
      } else {
        ResumeWith(stream, missed, &deliveries);
      }
    }
  }
  SubscriptionHub::Deliver(deliveries);
}

std::vector<InstanceChange> Services::Service::MissedSince(Contents&& then) const {
  Blobs before;
  for (auto& [key, held] : then.instances) before[key] = std::move(held.instance);
  for (const auto& [key, mark] : then.marks) {
    const auto it = before.find(key);
    if (it != before.end()) it->second = WithMark(it->second, mark);
  }
  std::vector<InstanceChange> missed;
  for (const auto& [key, held] : copy_) {
    const auto it = before.find(key);
    if (it == before.end()) {
      missed.push_back({Blob(), held.instance});
    } else if (it->second != held.instance) {
      missed.push_back({it->second, held.instance});
    }
  }
  for (const auto& [key, old] : before) {
    if (!copy_.contains(key)) missed.push_back({old, Blob()});
  }
  return missed;
}

void Services::Service::ResumeWith(const std::shared_ptr<Stream>& stream,
                                   const std::vector<InstanceChange>& missed,
                                   SubscriptionHub::Deliveries* deliveries) {
  SubscribeRequest request = stream->request();
  const std::vector<InstanceChange> seen = Conflate(missed, request.selector());
  if (IsLong(seen, kLongestDeltaBytes)) return EnterWithSnapshot(stream, deliveries);
  EventPtr first = MakeDelta(epoch_, request.revision(), revision_, SetFlags(), seen);
  request.set_revision(revision_);
  Enter(stream, request, std::make_shared<ResumedListener>(stream->listener(), std::move(first)),
        deliveries);
}

}  // namespace etcd
}  // namespace failback
