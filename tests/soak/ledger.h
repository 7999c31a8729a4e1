// What was asked for, version by version, and whether what is seen can be explained by it.
//
// Each key has one writer, and each of its intents is a version, one higher than the last: present
// (registered with the version in its payload) or gone. A viewer who sees a key in a state must be
// able to place it at a version that is not below the one he saw before. A state that cannot be
// placed is an older one (order), one that was taken back (a resurrected instance), or a loss.
//
//   ledger.Intend("a", true)   -> 1       a View that saw 3 (gone) and now sees 1: resurrected
//   ledger.Intend("a", true)   -> 2       a View that saw 2 and sees nothing, without a 3 (gone):
//   ledger.Intend("a", false)  -> 3       lost
//
// Thread safety: all methods of Ledger from any thread; a View belongs to one.

#ifndef FAILBACK_TESTS_SOAK_LEDGER_H_
#define FAILBACK_TESTS_SOAK_LEDGER_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "retry/mutex.h"

namespace failback {

class Ledger {
 public:
  // The next version of a key; written down before the intent is sent.
  size_t Intend(const std::string& key, bool present);

  // The newest versions of all keys that are to be there.
  std::map<std::string, size_t> Present() const;

  // The lowest version from `from` on at which the key is gone; 0 when there is none.
  size_t NextGone(const std::string& key, size_t from) const;
  // Whether the version is one that was asked for, and present.
  bool IsPresentAt(const std::string& key, size_t version) const;

 private:
  mutable Mutex mu_;
  // By version, from 1; version 0 is "not there yet".
  std::map<std::string, std::vector<bool>> present_ ABSL_GUARDED_BY(mu_);
};

// What one viewer has seen of each key.
class View {
 public:
  explicit View(const Ledger* ledger) : ledger_(ledger) {}

  // The key is there with this version in its payload.
  absl::Status SeePresent(const std::string& key, size_t version);
  absl::Status SeeGone(const std::string& key);

 private:
  const Ledger* const ledger_;
  std::map<std::string, size_t> at_least_;  // the version of what was seen last
};

}  // namespace failback

#endif  // FAILBACK_TESTS_SOAK_LEDGER_H_
