// The network between the clients' machines and the registry's: it delays, reorders, loses,
// repeats and holds back what it carries.
//
// Each client machine has a link of its own, and a link has two ways. What is lost is lost without
// a word: deadlines find out. What arrives at a process that is not there is refused, as by a
// kernel. A message of a stream that cannot pass is sent again for as long as TCP would, and then
// its connection is broken.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_NETWORK_H_
#define FAILBACK_TESTS_SIMULATE_NETWORK_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "retry/simulated_clock.h"
#include "tests/simulate/process.h"
#include "tests/simulate/random.h"

namespace failback::simulate {

enum class Way { kToRegistry = 0, kToClient = 1 };

struct Link {
  // What a way does now.
  struct State {
    bool open = true;
    bool clogged = false;  // what is sent waits until it is not
    int64_t shut_since = 0;
    std::vector<absl::AnyInvocable<void()>> waiting;
  };
  std::array<State, 2> ways;
  // Shares of the messages, in percent.
  int loss = 0;
  int duplicates = 0;
  int late = 0;
  absl::Duration latest = absl::ZeroDuration();  // of those that are late
  int late_by_minutes = 0;                       // of the answers that are late
  absl::Duration slowest = absl::Milliseconds(20);
  // A registry with a fault of its own answers to each intent that its number is taken.
  bool refuses_numbers = false;

  State& way(Way way) { return ways[static_cast<size_t>(way)]; }
};

class Network {
 public:
  // How long a connection without an answer lives.
  static constexpr absl::Duration kSilence = absl::Seconds(20);

  Network(SimulatedClock* clock, uint64_t seed, int links)
      : clock_(clock), numbers_(seed), wire_("wire", clock), links_(static_cast<size_t>(links)) {}

  Link& link(int index) { return links_[static_cast<size_t>(index)]; }
  int links() const { return static_cast<int>(links_.size()); }

  using Work = std::function<void()>;

  // A call or an answer. `refused`, if given, runs when the process is not there.
  void Send(int link, Way way, std::weak_ptr<Process> to, Work arrive, Work refused = nullptr);

  // A message of a stream, which sends one at a time. Either `arrive`, or `broken` on the wire,
  // runs.
  void SendOnStream(int link, Way way, std::weak_ptr<Process> to, Work arrive, Work broken);

  // News that a connection is broken: what follows on it would find out, if this were lost.
  void SendNews(int link, Way way, std::weak_ptr<Process> to, Work arrive);

  void SetOpen(int link, Way way, bool open);
  void SetClogged(int link, Way way, bool clogged);
  // No faults any more.
  void Heal(int link);
  // Both ways have been shut for as long as a connection lives.
  bool IsSilent(int link);

  // Streams end when they are old, as the connection's certificates are.
  bool streams_age = true;

  // Clients take no long message of a Watch stream: it ends the stream.
  bool short_messages = false;
  size_t longest_message() const { return short_messages ? 512 : size_t{4} << 20; }

  // Called with what a client cannot read of what a registry has sent in order.
  std::function<void(const std::string& what)> on_protocol_error;

  int64_t sent() const { return sent_; }
  // Of when each message was sent, and on which link.
  uint64_t digest() const { return digest_; }
  int64_t now() const { return clock_->NowNanos(); }

 private:
  absl::Duration Delay(Link* link) {
    return numbers_.Between(absl::Milliseconds(1), link->slowest);
  }
  absl::Duration Lateness(const Link& link, Way way);
  void SendCopy(Link* link, Way way, std::weak_ptr<Process> to, Work arrive, Work refused);
  void TryOnStream(int link, Way way, std::weak_ptr<Process> to, Work arrive, Work broken,
                   int64_t since);

  SimulatedClock* const clock_;
  SeededNumbers numbers_;
  Process wire_;
  std::vector<Link> links_;
  void Count(int link) {
    ++sent_;
    // FNV-1a, of numbers.
    digest_ = (digest_ ^ static_cast<uint64_t>(now() * 64 + link)) * 0x100000001b3u;
  }

  int64_t sent_ = 0;
  uint64_t digest_ = 0xcbf29ce484222325u;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_NETWORK_H_
