// What happens in a story, decided before it begins: a list of operations with their times, made
// from a seed. A story may be played without some of them, which is how a long one is made short.
//
// Each story uses some kinds of fault and leaves others out (swarm testing, Groce et al. 2012):
// what one kind hides another seed shows.
//
// To add a fault: a kind here with its name in script.cc, its case in Story::Do, and what it may
// cost in time in Story::Bound.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_SCRIPT_H_
#define FAILBACK_TESTS_SIMULATE_SCRIPT_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace failback::simulate {

enum class Act {
  // Clients.
  kRegister,
  kRegisterMany,
  kUnregister,
  kRegisterBack,  // what is registered changes, and a moment later it is as it was before
  kClientDies,
  kClientLeaves,
  kClientForks,  // its child goes on with the same session, and ends it
  kSubscribe,
  kUnsubscribe,
  // Processes of agents.
  kAgentCrash,   // amount: 0 for good, 1 the same disk, 2 an empty one, 3 an older one
  kAgentBackup,  // of its disk, for an older one
  kAgentStop,    // amount: 1 when it continues it reads before its timeouts run
  kFleetCrash,   // amount: percent of the agents; for no time: for good
  kAgentDrain,   // amount: 0 for good, 1 it starts again
  // The registry's process.
  kRegistryCrash,
  kRegistryStop,  // amount: as kAgentStop
  kRegistryWipe,
  kRegistryBackup,
  kRegistryRestore,
  kRegistryDiesAnswering,  // the last answers that it gave an agent take their time
  // The etcd below it, in stories that have one.
  kEtcdStop,  // amount: as kAgentStop
  kEtcdCompact,
  kEtcdClog,  // of a registry's connection to it, and agents may connect again; amount: as kPartition
  // The network.
  kPartition,  // amount: 1 to the registry, 2 to the client, 3 both
  kClog,       // likewise
  kLoss,       // amount: percent
  kDuplicates,
  kLate,
  kSlow,
  kReset,
  kNumbers,  // the registry refuses every number of the agent's intents
  // Operators, and people who set clocks.
  kOffline,  // amount: 1 on, 0 off
  kRetry,
  kCancel,
  kPolicy,  // what an agent may do is taken from it; amount: 1 registering, 2 all
  kWallClock,
};
inline constexpr int kActs = static_cast<int>(Act::kWallClock) + 1;
const char* NameOf(Act act);

struct Operation {
  int64_t at_ms = 0;
  Act act = Act::kRegister;
  int agent = 0;
  int client = -1;  // of the agent; -1: none, the intent belongs to no session
  int key = 0;
  uint32_t port = 0;
  int amount = 0;
  int64_t for_ms = 0;  // how long it lasts
};
std::string TextOf(const Operation& operation);

struct Script {
  uint64_t seed = 0;
  int agents = 0;
  int services = 0;
  int keys = 0;         // of each agent
  int shared_keys = 0;  // that every agent may register
  int viewers = 0;      // that follow the registry itself
  bool sqlite = false;
  bool etcd = false;   // the registry is on etcd
  int registries = 1;  // on one etcd
  int keys_per_lease = 0;
  bool secured = false;  // there is an access policy
  std::vector<bool> journals;
  int gateways = -1;  // the agent with ways in for other programs; -1: none has
  // Clients take no long message of a Watch stream, and registries send none.
  bool short_messages = false;
  bool reads_first = false;  // of what continues as the faults stop, as kAgentStop
  // A balancer is between the registry and its clients: when the registry goes, streams and calls
  // that it has not answered break, and connections do not. Of several registries each call goes to
  // another.
  bool balanced = false;
  int64_t length_ms = 0;
  // A fault that stays: 0 none, 1 an agent's requests are lost, 2 its answers, 3 both, 4 it stops.
  int permanent = 0;
  int permanent_agent = 0;
  std::vector<Operation> operations;  // by time
};

// `large`: 30 agents and ten minutes.
Script MakeScript(uint64_t seed, bool large);

// What is left with the operations of these indexes.
Script Keep(const Script& script, const std::vector<int>& indexes);

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_SCRIPT_H_
