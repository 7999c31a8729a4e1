#include "tests/simulate/script.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulate/random.h"

namespace failback::simulate {
namespace {

struct Kind {
  const char* name;
  int weight;  // among the operations of a story that uses it
  int used;    // in so many percent of the stories
  int64_t longest_ms;
};

constexpr std::array<Kind, kActs> kKinds = {{
    {"register", 30, 100, 0},
    {"register many", 4, 100, 0},
    {"unregister", 14, 100, 0},
    {"register, and back", 5, 60, 1500},
    {"client dies", 4, 60, 0},
    {"client leaves", 3, 60, 0},
    {"client forks", 2, 20, 0},
    {"subscribe", 6, 100, 0},
    {"unsubscribe", 3, 60, 0},
    {"agent crashes", 4, 40, 20000},
    {"agent's disk is copied", 3, 30, 0},
    {"agent stops", 4, 30, 25000},
    {"many agents crash", 1, 20, 20000},
    {"agent drains", 2, 20, 20000},
    {"registry crashes", 3, 35, 30000},
    {"registry stops", 3, 25, 25000},
    {"registry loses its disk", 2, 15, 5000},
    {"registry is backed up", 3, 25, 0},
    {"registry is restored", 3, 25, 5000},
    {"registry dies as it answers", 3, 20, 1000},
    {"etcd stops", 2, 40, 15000},
    {"etcd is compacted", 3, 40, 0},
    {"etcd's connection clogs", 4, 60, 15000},
    {"partition", 5, 40, 40000},
    {"clog", 5, 30, 15000},
    {"loss", 4, 30, 30000},
    {"duplicates", 4, 30, 30000},
    {"late messages", 4, 30, 20000},
    {"slow network", 3, 30, 30000},
    {"connection reset", 4, 40, 0},
    {"numbers are refused", 2, 10, 20000},
    {"offline mark", 4, 30, 0},
    {"operator retries", 3, 30, 0},
    {"operator cancels", 2, 15, 0},
    {"policy is reloaded", 3, 20, 20000},
    {"wall clock is set", 2, 20, 0},
}};

int AmountOf(Act act, SeededNumbers* numbers) {
  switch (act) {
    case Act::kAgentCrash:
      return std::array<int, 8>{0, 1, 1, 1, 1, 1, 2, 3}[static_cast<size_t>(numbers->Pick(8))];
    case Act::kAgentDrain:
      return numbers->Pick(3) == 0 ? 0 : 1;
    case Act::kFleetCrash:
      return 10 + numbers->Pick(90);
    case Act::kPartition:
    case Act::kClog:
    case Act::kEtcdClog:
      return 1 + numbers->Pick(3);
    case Act::kLoss:
    case Act::kDuplicates:
    case Act::kLate:
      return 5 + numbers->Pick(40);
    case Act::kPolicy:
      return 1 + numbers->Pick(2);
    case Act::kAgentStop:
    case Act::kRegistryStop:
    case Act::kEtcdStop:
    case Act::kOffline:
      return numbers->Pick(2);
    case Act::kWallClock:
      return numbers->Pick(7200) - 3600;
    default:
      return 0;
  }
}

}  // namespace

const char* NameOf(Act act) { return kKinds[static_cast<size_t>(act)].name; }

std::string TextOf(const Operation& operation) {
  std::string text = absl::StrCat(NameOf(operation.act), ": agent ", operation.agent);
  if (operation.act <= Act::kUnsubscribe || operation.act == Act::kOffline) {
    absl::StrAppend(&text, ", client ", operation.client, ", key ", operation.key, ", port ",
                    operation.port);
  }
  if (operation.amount != 0) absl::StrAppend(&text, ", amount ", operation.amount);
  if (operation.for_ms != 0) absl::StrAppend(&text, ", for ", operation.for_ms, " ms");
  return text;
}

Script MakeScript(uint64_t seed, bool large) {
  SeededNumbers numbers(seed * 2 + (large ? 1 : 0));
  Script script;
  script.seed = seed;
  script.agents = large ? 30 : 2 + numbers.Pick(4);
  script.services = 1 + numbers.Pick(large ? 5 : 2);
  script.keys = 1 + numbers.Pick(4);
  script.shared_keys = numbers.Percent(20) ? 1 + numbers.Pick(2) : 0;
  script.viewers = 1 + numbers.Pick(2);
  script.etcd = numbers.Percent(25);
  script.sqlite = numbers.Percent(40) && !script.etcd;
  if (script.etcd) {
    script.registries = 1 + numbers.Pick(3);
    // One that is soon full: sessions get further ones.
    script.keys_per_lease = numbers.Percent(50) ? 2 + numbers.Pick(2) : 500;
  }
  for (int i = 0; i < script.agents; ++i) script.journals.push_back(numbers.Percent(35));
  script.length_ms = large ? 600000 : 30000 + numbers.Pick(60000);
  if (numbers.Percent(25)) script.permanent = 1 + numbers.Pick(4);
  script.permanent_agent = numbers.Pick(script.agents);
  // Not of `numbers`, from which all that follows is taken.
  SeededNumbers of_gateways(seed ^ 0x6a7e);
  if (of_gateways.Percent(30)) script.gateways = of_gateways.Pick(script.agents);
  script.short_messages = SeededNumbers(seed ^ 0x540a7).Percent(25);
  script.reads_first = numbers.Percent(50);
  script.balanced = numbers.Percent(35);
  // What befalls one agent within moments finds what happens in between.
  const int bunched = numbers.Percent(50) ? 10 + numbers.Pick(50) : 0;

  std::array<bool, kActs> used{};
  const auto uses = [&](Act act) -> bool& { return used[static_cast<size_t>(act)]; };
  for (int i = 0; i < kActs; ++i) {
    used[static_cast<size_t>(i)] = numbers.Percent(kKinds[static_cast<size_t>(i)].used);
  }
  // A registry on etcd has no disk, and one that is not has no etcd.
  const std::array<Act, 3> of_disk = {Act::kRegistryWipe, Act::kRegistryBackup,
                                      Act::kRegistryRestore};
  const std::array<Act, 3> of_etcd = {Act::kEtcdStop, Act::kEtcdCompact, Act::kEtcdClog};
  for (const Act act : script.etcd ? of_disk : of_etcd) uses(act) = false;
  // What there is to be put back was copied before.
  if (uses(Act::kRegistryRestore)) uses(Act::kRegistryBackup) = script.sqlite = true;
  script.secured = uses(Act::kPolicy);
  if (uses(Act::kAgentBackup)) uses(Act::kAgentCrash) = true;
  std::vector<Act> bag;
  for (int i = 0; i < kActs; ++i) {
    if (!used[static_cast<size_t>(i)]) continue;
    bag.insert(bag.end(), static_cast<size_t>(kKinds[static_cast<size_t>(i)].weight),
               static_cast<Act>(i));
  }
  const int count = large ? 600 : 20 + numbers.Pick(50);
  for (int i = 0; i < count; ++i) {
    Operation operation;
    operation.act = bag[static_cast<size_t>(numbers.Pick(static_cast<int>(bag.size())))];
    operation.at_ms = numbers.Pick(static_cast<int>(script.length_ms));
    operation.agent = numbers.Pick(script.agents);
    if (!script.operations.empty() && numbers.Percent(bunched)) {
      operation.at_ms = script.operations.back().at_ms + numbers.Pick(200);
      operation.agent = script.operations.back().agent;
    }
    operation.client = numbers.Pick(4) - 1;
    operation.key = numbers.Pick(script.keys + script.shared_keys);
    operation.port = static_cast<uint32_t>(1000 + numbers.Pick(6));
    operation.amount = AmountOf(operation.act, &numbers);
    const int64_t longest = kKinds[static_cast<size_t>(operation.act)].longest_ms;
    // Most are short, some as long as may be, and some over at once.
    if (longest > 0) {
      operation.for_ms =
          100 + numbers.Pick(static_cast<int>(numbers.Percent(70) ? longest / 5 : longest));
      if (numbers.Percent(15)) operation.for_ms = 1;
    }
    if (operation.act == Act::kFleetCrash && numbers.Percent(40)) operation.for_ms = 0;
    script.operations.push_back(operation);
  }
  std::stable_sort(script.operations.begin(), script.operations.end(),
                   [](const Operation& a, const Operation& b) { return a.at_ms < b.at_ms; });
  return script;
}

Script Keep(const Script& script, const std::vector<int>& indexes) {
  Script kept = script;
  kept.operations.clear();
  for (const int index : indexes) {
    kept.operations.push_back(script.operations[static_cast<size_t>(index)]);
  }
  return kept;
}

}  // namespace failback::simulate
