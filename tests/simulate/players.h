// Plays stories, each in a process of its own that begins like every other: a seed is the same
// story however many were played before it, and one that crashes or hangs harms no other.
//
// A player is forked before anything has happened. It forks a child for each order, and allocates
// nothing itself, so that each child finds the same heap. With the addresses of the process fixed
// (FixAddresses) hash tables are in the same order too.
//
//   FixAddresses(argv);                  // first in main
//   Players players(2);
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
  bool shortened = false;  // with the operations in `kept` only
  std::array<bool, kMostOperations> kept{};
};

// Runs the program again without address randomization, unless it is so already; and so that a
// child costs less.
void FixAddresses(char** argv);

class Players {
 public:
  using Then = std::function<void(const Order&, const Outcome&)>;

  explicit Players(int count);
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
