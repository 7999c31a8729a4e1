// Follows ranges of keys, all on one stream.
//
// A watch goes on through broken streams: on the next one, at another member, it starts after what
// it has delivered last, so that its sink receives every change once and in order. It ends when
// etcd cannot go on (compacted, not permitted), or when no stream could be had for `outage_limit`:
// then the sink's owner reads the range again. A stream that is silent is asked for a sign of life.
//
// Thread safety: all methods from any thread. A sink is called by one thread at a time; a call that
// is under way while Cancel is called may still come to its end after.

#ifndef FAILBACK_REGISTRY_ETCD_WATCHER_H_
#define FAILBACK_REGISTRY_ETCD_WATCHER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/client.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class Watcher {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    // Changes of one or several whole revisions, in order; `revision` is that of the last.
    virtual void OnEvents(int64_t revision, std::vector<mvccpb::Event> events) = 0;
    // The watch is over.
    virtual void OnEnd(const absl::Status& status) = 0;
  };

  // `client` outlives the watcher, and is closed before the watcher goes.
  Watcher(Client* client, absl::Duration outage_limit)
      : client_(client), outage_limit_(outage_limit) {}

  // Follows [key, range_end) from `start_revision` on.
  int64_t Watch(std::string key, std::string range_end, int64_t start_revision,
                std::shared_ptr<Sink> sink);
  void Cancel(int64_t id);

 private:
  struct Entry {
    std::string key;
    std::string range_end;
    int64_t next_revision;
    std::shared_ptr<Sink> sink;
    std::vector<mvccpb::Event> parts;  // of a revision that is not complete
  };

  void SendCreate(int64_t id, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A stream for all watches, to be started without the lock.
  std::shared_ptr<Client::WatchStream> NewStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Reopen();
  static std::vector<mvccpb::Event> TakeEvents(etcdserverpb::WatchResponse* response, Entry* entry);
  void OnMessage(etcdserverpb::WatchResponse response);
  void OnStreamEnd(const absl::Status& status);
  void CheckLife();

  Client* const client_;
  const absl::Duration outage_limit_;
  Mutex mu_;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Client::WatchStream> stream_ ABSL_GUARDED_BY(mu_);
  // Watches that this stream has been asked for and has not answered, in that order.
  std::deque<int64_t> unanswered_ ABSL_GUARDED_BY(mu_);
  bool reopening_ ABSL_GUARDED_BY(mu_) = false;  // in a moment
  bool checking_ ABSL_GUARDED_BY(mu_) = false;
  SteadyTime last_received_ ABSL_GUARDED_BY(mu_);
  SteadyTime asked_ ABSL_GUARDED_BY(mu_) = SteadyPast();
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_WATCHER_H_
