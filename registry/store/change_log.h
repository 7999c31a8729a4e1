// The last changes of all instances together: a ring, so that an operator can see what became of
// one of them, and who did it under the name of that time. An entry shares the bytes of its
// instance; adding one allocates nothing, but for the former name of an incarnation.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_STORE_CHANGE_LOG_H_
#define FAILBACK_REGISTRY_STORE_CHANGE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "registry/model/blob.h"
#include "registry/store/lease_end.h"

namespace failback {

class ChangeLog {
 public:
  enum class Kind : uint8_t {
    kNone,
    kRegistered,
    kUpdated,
    kReplaced,  // taken over by another incarnation, or a detached call
    kUnregistered,
    kExpired,
    kClosed,
    kOffline,
    kOnline,
    kRenamed,  // an incarnation, not an instance; older entries of its rank are by `former_name`
  };

  struct Entry {
    Kind kind = Kind::kNone;
    Blob instance;       // as it was, if it has gone
    Blob mark;           // of kOffline
    Blob former_name;    // of kRenamed
    LeaseEnd lease_end;  // of kExpired
    Blob revoked;        // of kExpired: the owner, if it was shut out
    uint64_t rank = 0;   // whose hand it was; 0: a detached call, or an operator
    uint64_t generation = 0;
    uint64_t fence_rank =
        0;                  // of an instance that has gone: what its fence keeps; 0: there is none
    uint32_t fence_ms = 0;  // and for how long
    uint64_t revision = 0;
    int64_t unix_ms = 0;
  };

  void Add(Entry entry) {
    if (entries_.size() < kEntries) {
      entries_.push_back(std::move(entry));
      return;
    }
    entries_[next_] = std::move(entry);
    next_ = (next_ + 1) % kEntries;
  }

  // Calls `visit` with each entry, the newest first.
  template <typename Visit>
  void ForEachNewestFirst(Visit visit) const {
    for (size_t i = entries_.size(); i-- > 0;) visit(entries_[(next_ + i) % entries_.size()]);
  }

 private:
  static constexpr size_t kEntries = 8192;

  std::vector<Entry> entries_;
  size_t next_ = 0;  // the oldest, once the ring is full
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_CHANGE_LOG_H_
