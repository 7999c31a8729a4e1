// A subscriber of a fleet's service, and what it has seen.
//
// Thread safety: none; the events come on any thread.

#ifndef FAILBACK_TESTS_FAULT_WATCHER_H_
#define FAILBACK_TESTS_FAULT_WATCHER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "registry/registry.h"
#include "tests/util/observed_states.h"

namespace failback {

// The service that fleets register.
inline constexpr char kService[] = "orders";

// A subscriber that keeps all that it receives, and subscribes again when its stream ends.
class Watcher {
 public:
  explicit Watcher(Registry* registry);
  // As Close().
  ~Watcher();

  // Subscribes again if the stream has ended.
  void EnsureOpen();
  // Ends the subscription; from the return on every callback is a violation.
  void Close();

  // The newest state; nullopt before the first of this stream.
  std::optional<ObservedStates::State> Newest() const;
  // The first rule that was broken, over all streams so far: of order, of desire, of silence
  // after Close().
  absl::Status Check(const DesiredHistory& desired) const;
  // How many states were seen, over all streams.
  size_t state_count() const;

 private:
  struct Stream;
  class Listener;
  Registry* const registry_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::unique_ptr<SubscribeStream> handle_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_FAULT_WATCHER_H_
