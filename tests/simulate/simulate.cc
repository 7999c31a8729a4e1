// The whole system on simulated time, a story for each seed: ./dev simulate.
//
//   simulate --seeds 2000                 stories 1 to 2000, until one fails
//   simulate --seed 17                    that one, told step by step
//   simulate --seed 17 --keep 3,8,21      what is left of it when it was shortened
//   simulate --accumulate F --seeds 10⁶   what F does not say that has been told, up to story 10⁶
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/simulate/accumulated.h"
#include "tests/simulate/players.h"

namespace failback::simulate {
namespace {

struct Options {
  uint64_t seeds = 1000;
  uint64_t first = 1;
  std::optional<uint64_t> seed;
  std::string keep;
  std::string accumulate;
  bool large = false;
  bool shrink = true;
  bool keep_going = false;
  bool alone = false;
  int jobs = static_cast<int>(std::thread::hardware_concurrency());
};

int Usage() {
  std::cerr << "usage: simulate [--seeds N] [--first SEED] [--large] [--jobs N] [--no-shrink] "
               "[--all] [--alone]\n"
               "       simulate --seed SEED [--keep INDEXES] [--large]\n"
               "       simulate --accumulate FILE [--seeds N] [--large] [--jobs N]\n";
  return 2;
}

std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--large") {
      options.large = true;
    } else if (flag == "--no-shrink") {
      options.shrink = false;
    } else if (flag == "--alone") {
      options.alone = true;
    } else if (flag == "--all") {
      options.keep_going = true;
    } else if (i + 1 == argc) {
      return std::nullopt;
    } else if (flag == "--keep") {
      options.keep = argv[++i];
    } else if (flag == "--accumulate") {
      options.accumulate = argv[++i];
    } else {
      uint64_t number = 0;
      if (!absl::SimpleAtoi(argv[++i], &number)) return std::nullopt;
      if (flag == "--seeds") {
        options.seeds = number;
      } else if (flag == "--first") {
        options.first = number;
      } else if (flag == "--seed") {
        options.seed = number;
      } else if (flag == "--jobs" && number > 0) {
        options.jobs = static_cast<int>(number);
      } else {
        return std::nullopt;
      }
    }
  }
  return options;
}

Outcome PlayOne(Players* players, const Order& order) {
  Outcome outcome;
  players->Play(order, [&](const Order&, const Outcome& played) { outcome = played; });
  players->Finish();
  return outcome;
}

std::vector<int> Kept(const Order& order, size_t size) {
  std::vector<int> kept;
  for (size_t i = 0; i < size; ++i) {
    if (!order.shortened || order.kept[i]) kept.push_back(static_cast<int>(i));
  }
  return kept;
}

// Leaves out what the failure does not need: halves first, then ever smaller pieces (Zeller,
// Hildebrandt 2002).
Order Shorten(Players* players, Order order, const std::string& failed) {
  const size_t size = MakeScript(order.seed, order.large).operations.size();
  order.shortened = true;
  for (size_t i = 0; i < size; ++i) order.kept[i] = true;
  for (size_t piece = size / 2; piece >= 1; piece /= 2) {
    bool smaller = true;
    while (smaller) {
      smaller = false;
      const std::vector<int> kept = Kept(order, size);
      for (size_t begin = 0; begin < kept.size(); begin += piece) {
        Order less = order;
        bool any = false;
        for (size_t i = begin; i < kept.size() && i < begin + piece; ++i) {
          any = any || less.kept[static_cast<size_t>(kept[i])];
          less.kept[static_cast<size_t>(kept[i])] = false;
        }
        if (!any || PlayOne(players, less).failed != failed) continue;
        order = less;
        smaller = piece == 1;
      }
    }
  }
  return order;
}

void Report(Players* players, const Options& options, Order order, const Outcome& failed) {
  std::cout << "seed " << order.seed << " FAILED, " << failed.failed << ": " << failed.failure
            << "\n";
  if (!options.shrink) return;
  const size_t size = MakeScript(order.seed, order.large).operations.size();
  order = Shorten(players, order, failed.failed);
  const std::vector<int> kept = Kept(order, size);
  order.traced = true;
  std::cout << "\nThe shortest story found, " << kept.size() << " of " << size
            << " operations; seconds of simulated time:\n\n";
  for (const std::string& line : PlayOne(players, order).timeline) std::cout << line << "\n";
  std::cout << "\nAgain: ./dev simulate --seed " << order.seed << (order.large ? " --large" : "")
            << " --keep " << absl::StrJoin(kept, ",") << "\n";
}

int Replay(const Options& options) {
  Players players(1, options.large);
  Order order;
  order.seed = *options.seed;
  order.large = options.large;
  order.traced = true;
  order.shortened = !options.keep.empty();
  for (const auto index : absl::StrSplit(options.keep, ',', absl::SkipEmpty())) {
    int number = 0;
    if (!absl::SimpleAtoi(index, &number) || number < 0 || number >= Order::kMostOperations) {
      return Usage();
    }
    order.kept[static_cast<size_t>(number)] = true;
  }
  const Outcome outcome = PlayOne(&players, order);
  for (const std::string& line : outcome.timeline) std::cout << line << "\n";
  std::cout << "seed " << order.seed << ": "
            << (outcome.failed.empty() ? "all properties hold"
                                       : absl::StrCat(outcome.failed, ": ", outcome.failure))
            << absl::StrFormat("; settled after %.1f s of %.1f s\n", outcome.settled_ms / 1e3,
                               outcome.bound_ms / 1e3);
  return outcome.failed.empty() ? 0 : 1;
}

// What stories have come to in all.
class Tally {
 public:
  void Add(const Order& order, const Outcome& outcome) {
    ++played_;
    messages_ += outcome.messages;
    commits_ += outcome.commits;
    digest_ += outcome.digest;
    simulated_ms_ += outcome.simulated_ms;
    if (outcome.bound_ms > 0 && outcome.failed.empty()) {
      const double share = static_cast<double>(outcome.settled_ms) / outcome.bound_ms;
      if (share > slowest_) {
        slowest_ = share;
        slowest_seed_ = order.seed;
      }
    }
    if (!outcome.failed.empty()) ++by_property_[outcome.failed];
  }

  void Print() const {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    std::cout << absl::StrFormat(
        "%d stories in %.1f s (%.1f a second): %.0f hours simulated, %d messages, %d commits; "
        "the slowest to settle took %.0f %% of its bound (seed %d); digest %016x\n",
        played_, seconds, static_cast<double>(played_) / seconds, simulated_ms_ / 3.6e6, messages_,
        commits_, slowest_ * 100, slowest_seed_, digest_);
    if (by_property_.empty()) std::cout << "all properties hold\n";
    for (const auto& [property, count] : by_property_) {
      std::cout << count << " of " << played_ << " stories failed: " << property << "\n";
    }
    std::cout << std::flush;
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t played_ = 0, messages_ = 0, commits_ = 0, simulated_ms_ = 0;
  double slowest_ = 0;
  uint64_t slowest_seed_ = 0;
  uint64_t digest_ = 0;  // of all, in whatever order they were played
  std::map<std::string, int> by_property_;
};

// Plays what the file does not have yet. A failure is written down, and the next story told.
int Accumulate(const Options& options) {
  absl::StatusOr<Accumulated> told = Accumulated::Open(options.accumulate, options.large);
  if (!told.ok()) {
    std::cerr << told.status().message() << "\n";
    return 2;
  }
  const uint64_t most = options.large ? 10 : 1000;
  Players players(options.jobs, options.large);
  Tally tally;
  while (told->next() <= options.seeds) {
    const uint64_t count = std::min(most, options.seeds - told->next() + 1);
    std::vector<Accumulated::Failure> failures;
    for (uint64_t i = 0; i < count; ++i) {
      Order order;
      order.seed = told->next() + i;
      order.large = options.large;
      players.Play(order, [&](const Order& order, const Outcome& outcome) {
        tally.Add(order, outcome);
        if (outcome.failed.empty()) return;
        failures.emplace_back(order.seed, absl::StrCat(outcome.failed, ": ", outcome.failure));
      });
    }
    players.Finish();
    if (const absl::Status status = told->Add(count, failures); !status.ok()) {
      std::cerr << status.message() << "\n";
      return 2;
    }
  }
  tally.Print();
  std::cout << told->next() - 1 << " stories in all, of which " << told->failures().size()
            << " failed\n";
  for (const auto& [seed, what] : told->failures()) {
    std::cout << "seed " << seed << " " << what << "\n";
  }
  return told->failures().empty() ? 0 : 1;
}

int PlayMany(const Options& options) {
  Players players(options.jobs, options.large);
  Tally tally;
  std::optional<std::pair<Order, Outcome>> first;
  for (uint64_t i = 0; i < options.seeds && (options.keep_going || !first.has_value()); ++i) {
    Order order;
    order.seed = options.first + i;
    order.large = options.large;
    order.alone = options.alone;
    players.Play(order, [&](const Order& order, const Outcome& outcome) {
      tally.Add(order, outcome);
      if (outcome.failed.empty()) return;
      if (options.keep_going) {
        std::cout << "seed " << order.seed << " " << outcome.failed << ": " << outcome.failure
                  << std::endl;
      }
      if (!first.has_value() || order.seed < first->first.seed) first = {order, outcome};
    });
  }
  players.Finish();
  tally.Print();
  if (!first.has_value()) return 0;
  Report(&players, options, first->first, first->second);
  return 1;
}

}  // namespace
}  // namespace failback::simulate

int main(int argc, char** argv) {
  using namespace failback::simulate;
  FixAddresses(argv);
  const auto options = Parse(argc, argv);
  if (!options.has_value()) return Usage();
  if (!options->accumulate.empty()) return Accumulate(*options);
  return options->seed.has_value() ? Replay(*options) : PlayMany(*options);
}
