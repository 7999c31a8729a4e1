// How one who followed a service at another server goes on here (registry/etcd/service.h).
//
// A position is the same at every server: etcd's revision. What this server has seen revision by
// revision is in the hub's log; what was before that, etcd itself remembers: the service is read as
// it was at the position, and the difference to the copy is the one delta that is sent. What etcd
// has compacted, or what would make a longer delta than a client wants, is sent as a snapshot.
//
// A copy is of the revision that changed it last, or at which it was read, however long ago that is.
// So a position may be ahead of it, though nothing has happened since: then the service is read as
// it is, which etcd never refuses. If that is what the copy has, the copy is of that revision; if
// not, what has changed is on its way here. Who is ahead waits for the one or the other, and gets no
// snapshot of an earlier revision, which an agent would refuse.

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
// How often it is read while this server's watch is behind positions.
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

void Services::Service::ReadAt(uint64_t revision, const std::shared_ptr<Contents>& contents,
                               std::string begin, ReadDone done) {
  RangeRequest read;
  read.set_key(std::move(begin));
  read.set_range_end(range_.end);
  read.set_limit(services_->options_.page_size);
  read.set_revision(static_cast<int64_t>(revision));
  services_->client_->Range(std::move(read), [self = shared_from_this(), revision, contents,
                                              done = std::move(done)](
                                                 absl::StatusOr<RangeResponse> page) mutable {
    if (!page.ok()) return done(nullptr, 0);
    for (const mvccpb::KeyValue& kv : page->kvs()) self->Take(kv, contents.get());
    // The pages after the first are of its revision.
    if (revision == 0) revision = static_cast<uint64_t>(page->header().revision());
    if (!page->more()) return done(contents.get(), revision);
    self->ReadAt(revision, contents, page->kvs(page->kvs_size() - 1).key() + '\0', std::move(done));
  });
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
  services_->client_->After(absl::ZeroDuration(), [self = shared_from_this(), position] {
    self->ReadAt(
        position, std::make_shared<Contents>(), self->range_.begin,
        [self, position](Contents* contents, uint64_t) { self->OnReadAt(position, contents); });
  });
  return true;
}

void Services::Service::OnReadAt(uint64_t position, Contents* contents) {
  SubscriptionHub::Deliveries deliveries;
  {
    MutexLock lock(&mu_);
    const auto it = resuming_.find(position);
    if (it == resuming_.end()) return;  // dropped
    const std::vector<std::shared_ptr<Stream>> streams = std::move(it->second);
    resuming_.erase(it);
    std::vector<InstanceChange> missed;
    if (contents != nullptr) missed = MissedSince(std::move(*contents));
    for (const auto& stream : streams) {
      if (contents == nullptr) {
        EnterWithSnapshot(stream, &deliveries);
      } else {
        ResumeWith(stream, missed, &deliveries);
      }
    }
  }
  SubscriptionHub::Deliver(deliveries);
}

void Services::Service::CatchUp(const std::shared_ptr<Stream>& stream) {
  ahead_.push_back(stream);
  if (ahead_.size() == 1) ReadNow(absl::ZeroDuration(), kTries);
}

void Services::Service::ReadNow(absl::Duration delay, int tries) {
  services_->client_->After(delay, [self = shared_from_this(), tries] {
    self->ReadAt(0, std::make_shared<Contents>(), self->range_.begin,
                 [self, tries](Contents* contents, uint64_t revision) {
                   self->OnReadNow(contents, revision, tries);
                 });
  });
}

void Services::Service::OnReadNow(Contents* contents, uint64_t revision, int tries) {
  std::vector<std::shared_ptr<Stream>> refused;
  SubscriptionHub::Deliveries deliveries;
  {
    MutexLock lock(&mu_);
    if (dropped_) return;
    // What happened up to there is still on its way here, unless it is nothing.
    if (contents != nullptr && revision > revision_ && MissedSince(std::move(*contents)).empty()) {
      began_ = revision_ = skip_until_ = revision;
    }
    for (const auto& stream : std::exchange(ahead_, {})) {
      const uint64_t position = stream->request().revision();
      if (position <= revision_) {
        Join(stream, &deliveries);
      } else if (contents != nullptr && position > revision) {
        EnterWithSnapshot(stream, &deliveries);  // etcd has not been there
      } else if (tries > 1) {
        ahead_.push_back(stream);
      } else {
        refused.push_back(stream);
      }
    }
    if (!ahead_.empty()) ReadNow(services_->client_->timing().round_delay, tries - 1);
  }
  for (const auto& stream : refused) {
    Services::Refuse(stream, absl::UnavailableError(
                                 "this registry has yet to be told by etcd what its client knows"));
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
  if (IsLong(seen, services_->options_.hub.delta.most_bytes)) {
    return EnterWithSnapshot(stream, deliveries);
  }
  EventPtr first = MakeDelta(epoch_, request.revision(), revision_, SetFlags(), seen);
  request.set_revision(revision_);
  Enter(stream, request, std::make_shared<ResumedListener>(stream->listener(), std::move(first)),
        deliveries);
}

}  // namespace etcd
}  // namespace failback
