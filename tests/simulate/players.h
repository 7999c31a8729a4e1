// Plays stories, each as if in a process of its own that begins like every other: a seed is the same
// story however many were played before it, and one that crashes or hangs harms no other.
//
// A player is forked before the first story, when all has been made that is made once, and has a
// child that plays. After a story that has freed all that it took, which is each but for a few, the
// heap goes back to where it was (story_heap.h), and the child plays the next; else, or when it has
// crashed, there is another child. With the addresses of the process fixed (FixAddresses) hash tables
// are in the same order too. smoke_test compares stories with those of processes of their own.
//
//   FixAddresses(argv);                  // first in main
//   Players players(2, /*large=*/false);
//   players.Play(order, [](const Order& order, const Outcome& outcome) { … });
//   players.Finish();
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_PLAYERS_H_
#define FAILBACK_TESTS_SIMULATE_PLAYERS_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulate/story.h"

namespace failback::simulate {

// Which story, and how.
struct Order {
  static constexpr int kMostOperations = 1024;
  uint64_t seed = 0;
  bool large = false;
  bool traced = false;
  bool alone = false;      // in a process of its own
  bool shortened = false;  // with the operations in `kept` only
  std::array<bool, kMostOperations> kept{};
};

// Runs the program again without address randomization, unless it is so already; and so that a
// child costs less.
void FixAddresses(char** argv);

class Players {
 public:
  using Then = std::function<void(const Order&, const Outcome&)>;

  // `large`: stories may be large.
  Players(int count, bool large);
  ~Players();
  Players(const Players&) = delete;
  Players& operator=(const Players&) = delete;

  // Waits for a free player, and runs `then` of orders that are done meanwhile.
  void Play(const Order& order, Then then);
  // Waits for all.
  void Finish();

 private:
  struct Player {
    pid_t pid = 0;
    int socket = -1;
    bool busy = false;
    Order order;
    Then then;
  };
  // Takes one outcome.
  void Collect();

  std::vector<Player> players_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_PLAYERS_H_
