// One service that is followed, or a namespace whose services are (see registry/etcd/services.h):
// its copy, its watch, and who waits for the copy to be made.

#ifndef FAILBACK_REGISTRY_ETCD_SERVICE_H_
#define FAILBACK_REGISTRY_ETCD_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/services.h"
#include "registry/etcd/stored.h"
#include "registry/model/blob.h"
#include "registry/watch/commit_result.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

// A subscription, from the call on. Once it is followed or refused it stands for a stream of the
// hub's.
class Services::Stream {
 public:
  Stream(const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener)
      : request_(request), listener_(std::move(listener)) {}

  const SubscribeRequest& request() const { return request_; }
  const std::shared_ptr<NotifyListener>& listener() const { return listener_; }

  // `inner` is what the listener receives from now on; destroyed if it is not wanted.
  void Attach(std::unique_ptr<SubscribeStream> inner);
  // The listener is not wanted any more. As ~SubscribeStream.
  void Close();
  bool closed() const;

 private:
  const SubscribeRequest request_;
  const std::shared_ptr<NotifyListener> listener_;
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<SubscribeStream> inner_ ABSL_GUARDED_BY(mu_);
};

// Calls of the listeners are made without locks.
class Services::Service : public Watcher::Sink, public std::enable_shared_from_this<Service> {
 public:
  // `key` is `namespace NUL service`, or `namespace NUL`.
  Service(Services* services, std::string key);

  const std::string& key() const { return key_; }

  // Reads the service, then watches it.
  void Load();

  // False when the service has been dropped.
  bool Add(const std::shared_ptr<Stream>& stream, SubscriptionHub::Deliveries* deliveries);

  // Nothing more is sent; waiting calls are refused with `status`, followers receive it as the end.
  void Drop(const absl::Status& status);

  // Instances (canonical) that have had a mark, and not been there, since before `since`.
  std::vector<std::string> StaleMarks(SteadyTime since);

  // Drops the service if it had no follower since the call before; true if so.
  bool DropIfIdle();

  void OnEvents(int64_t revision, std::vector<mvccpb::Event> events) override;
  void OnEnd(const absl::Status& status) override;

 private:
  using Blobs = absl::btree_map<std::string, Blob>;  // by canonical key
  struct Held {
    Blob instance;
    uint64_t rank = 0;  // of its fence; 0: there is none
  };
  using Copy = absl::btree_map<std::string, Held>;  // by canonical key
  // What a range holds.
  struct Contents {
    Copy instances;
    Blobs marks;
  };
  // An operator's mark, and what it is on.
  struct Marked {
    Blob mark;
    Held held;          // the instance as its owner said; null when it is not there
    SteadyTime absent;  // since when, as far as is known here
  };

  void LoadMore(const std::shared_ptr<Contents>& contents, int64_t revision,
                const std::string& after, const Store& store);
  void Take(const mvccpb::KeyValue& kv, Contents* contents) const;
  // What the copy has of an instance: of a namespace only that it is there.
  Held Kept(StoredRecord record) const;
  void OnLoaded(Contents&& contents, int64_t revision, const Store& store);
  void OnLoadFailed(const absl::Status& status);
  // An instance is as its owner said now, or its mark is; null: not there.
  void SetInstance(const std::string& key, Held held, Blobs* before)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetMark(const std::string& key, Blob mark, Blobs* before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteGone(const std::string& key, int64_t revision, std::vector<Fences::Gone>* gone) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of an event of before skip_until_.
  void NotePassed(const mvccpb::Event& event, std::vector<Fences::Gone>* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts `now` (null: nothing) in the copy; what was there goes to `before` unless it is there.
  void Set(const std::string& key, Held now, Blobs* before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Publishes the difference between `before` and the copy, for the keys in `before`.
  void Publish(uint64_t revision, const Blobs& before, SubscriptionHub::Deliveries* deliveries,
               SubscriptionHub::Due* due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notifies followers with a filter: what Publish found to be due at `hub`. Without locks.
  void Compare(SubscriptionHub* hub, const SubscriptionHub::Due& due,
               SubscriptionHub::Deliveries* deliveries);
  std::vector<InstanceChange> Changes(const Blobs& before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<InstanceChange> NamespaceChanges(const Blobs& before)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Blob> Entries() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Join(const std::shared_ptr<Stream>& stream, SubscriptionHub::Deliveries* deliveries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whatever its position is.
  void EnterWithSnapshot(const std::shared_ptr<Stream>& stream,
                         SubscriptionHub::Deliveries* deliveries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the hub notify `listener`, from `request`'s position on if the hub knows that.
  void Enter(const std::shared_ptr<Stream>& stream, const SubscribeRequest& request,
             std::shared_ptr<NotifyListener> listener, SubscriptionHub::Deliveries* deliveries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // registry/etcd/service_resume.cc: positions that the hub does not know.
  bool IsFromElsewhere(const SubscribeRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads the service as it was at `revision`; 0: as it is. `done` gets null if that cannot be, or
  // the contents, and of which revision they are.
  using ReadDone = std::function<void(Contents* contents, uint64_t revision)>;
  void ReadAt(uint64_t revision, const std::shared_ptr<Contents>& contents, std::string begin,
              ReadDone done);
  // Of one whose position is behind the copy. False when too many are being looked into.
  bool Resume(const std::shared_ptr<Stream>& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnReadAt(uint64_t position, Contents* contents);
  // Of one whose position is ahead of the copy.
  void CatchUp(const std::shared_ptr<Stream>& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReadNow(absl::Duration delay, int tries);
  void OnReadNow(Contents* contents, uint64_t revision, int tries);
  // What has changed since the service was as `then`.
  std::vector<InstanceChange> MissedSince(Contents&& then) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ResumeWith(const std::shared_ptr<Stream>& stream, const std::vector<InstanceChange>& missed,
                  SubscriptionHub::Deliveries* deliveries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Services* const services_;
  const std::string key_;
  const bool is_namespace_;
  const KeyRange range_;

  Mutex mu_;
  bool dropped_ ABSL_GUARDED_BY(mu_) = false;
  bool idle_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<SubscriptionHub> hub_ ABSL_GUARDED_BY(mu_);  // null until loaded
  Copy copy_ ABSL_GUARDED_BY(mu_);                             // with the marks
  absl::btree_map<std::string, Marked> marked_ ABSL_GUARDED_BY(mu_);
  // Of a namespace: how many instances each service has.
  absl::btree_map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;  // of the hub
  // The hub has each change since then, and none of before: the revision that was loaded, or the
  // last that the copy reached without what was in between.
  uint64_t began_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;    // of the copy
  uint64_t skip_until_ ABSL_GUARDED_BY(mu_) = 0;  // events up to here are in the copy
  // By canonical key, of those of them that have come since: the rank of the fence; 0: gone.
  absl::btree_map<std::string, uint64_t> passed_ ABSL_GUARDED_BY(mu_);
  int64_t watch_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<Stream>> waiting_ ABSL_GUARDED_BY(mu_);
  // Who waits for the service to be read as it was, by position.
  absl::btree_map<uint64_t, std::vector<std::shared_ptr<Stream>>> resuming_ ABSL_GUARDED_BY(mu_);
  // Who waits for the copy to reach their positions. While there is one the service is being read.
  std::vector<std::shared_ptr<Stream>> ahead_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_SERVICE_H_
