// One story: plays a script against the real registry and real agents, and checks what happens.
//
//   Story story(MakeScript(seed, /*large=*/false), /*traced=*/false);
//   const Outcome outcome = story.Play();
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_STORY_H_
#define FAILBACK_TESTS_SIMULATE_STORY_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulate/etcd/etcd_truth.h"
#include "tests/simulate/fencing_check.h"
#include "tests/simulate/history.h"
#include "tests/simulate/hosts.h"
#include "tests/simulate/script.h"
#include "tests/simulate/story_heap.h"
#include "tests/simulate/world.h"

namespace failback::simulate {

struct Outcome {
  std::string failed;  // the property that does not hold; empty: all do
  std::string failure;
  std::vector<std::string> timeline;
  int64_t simulated_ms = 0;
  int64_t messages = 0;
  int64_t commits = 0;
  int64_t settled_ms = 0;  // after the faults had stopped
  int64_t bound_ms = 0;    // and how long it may take
  uint64_t digest = 0;     // of when each message was sent: the same for the same story
};

class Story {
 public:
  Story(const Script& script, bool traced);
  ~Story();

  Outcome Play();

 private:
  // A program beside an agent that keeps a session there.
  struct Client {
    int agent;
    int slot;
    std::string name;
    bool alive = false;
    int lives = 0;
    std::string session;
    int agents_life = 0;  // in which the session was opened
    int64_t renews_at = 0;
    bool forked = false;  // its child may have closed the session
  };
  // One that follows a service, at an agent or (agent -1) at the registry itself.
  struct Follower {
    int agent;
    int link;
    std::shared_ptr<Process> process;
    std::unique_ptr<WireRegistry> wire;
    std::shared_ptr<Viewer> viewer;
    std::unique_ptr<SubscribeStream> stream;
    std::string zone;
    int agents_life = 0;
    int64_t again_at = 0;  // after an end
    bool resumes = false;
    bool left = false;
  };

  void StartEtcd();

  // --- What happens (story_acts.cc; of registries, story_registries.cc).
  void Do(const Operation& operation);
  void DoClient(const Operation& operation);
  void DoAgent(const Operation& operation);
  void DoRegistry(const Operation& operation);
  void DoNetwork(const Operation& operation);
  void Intend(const Operation& operation, bool present, int count);
  void RegisterBack(const Operation& operation);
  void EndClient(Client* client, bool closes);
  void ForkClient(const Operation& operation);
  void CrashFleet(const Operation& operation);
  void OnIntent(int agent, const IntentEvent& event);
  void StartAgent(int agent);
  // The registry does not have the key any more. What only a journal that was put back knows waits
  // for its owner, or for an operator.
  void ExcuseWhatWasPutBack(const std::string& key);
  void KillRegistry(int index);
  void StartRegistry(int index);
  void ResetClientsOf(int registry);
  void DoEtcd(const Operation& operation);
  // The registry is not running now.
  void NoteOutage();
  void SetOffline(const Operation& operation);
  void SetPolicy(const Operation& operation);
  // The policy allows the agent all again, and its operator sees to what was refused.
  void Allow(int agent);
  // What was acknowledged may be undone: by the agent, or, with -1, by the registry.
  void ForgetAcks(int agent);
  // Intents without a session that no disk has kept.
  void ForgetDetached(int agent);
  void EndDrain(int agent);

  // --- People and their programs (story.cc).
  void Tick();
  void TickClient(Client* client);
  void TickFollower(Follower* follower);
  void AddFollower(int agent, const Operation& operation);
  void State(Client* client, int agent, const std::string& key, const Wish& wish);
  void At(absl::Duration delay, std::function<void()> work);
  void Advance(int64_t to_ms);

  std::string KeyOf(int agent, int key) const;
  ServiceInstance InstanceOf(const std::string& key, uint32_t port) const;
  bool IsShared(const std::string& key) const { return key.find("shared") != std::string::npos; }
  Client* ClientOf(int agent, int slot);
  // Where a call or a stream on this link goes now.
  std::weak_ptr<WireServer> ServerFor(int link);
  // Of the registries that run the first from `place` on, around; -1: none does.
  int RegistryFor(int place) const;
  int RegistryOf(const Operation& operation) const { return operation.agent % script_.registries; }
  int LinkToEtcd(int registry) const { return script_.agents + script_.viewers + 1 + registry; }
  // All registries run, and reach what they are on.
  bool RegistriesAreWell();

  // --- What must hold (story_checks.cc).
  void Heal();
  void CheckAlways();
  void CheckWork();
  void CheckPresent();
  void CheckGateways();
  void CheckMemory();
  // Since all was settled and quiet.
  void CheckNothingGrew(int64_t heap_bytes_then);
  // What is not as it is to be; empty: all is.
  struct Unsettled {
    std::string what;
    bool missing = false;  // an instance is not there
  };
  Unsettled WhyUnsettled();
  std::string WhyFollowersDisagree();
  std::string WhyGatewaysDisagree();
  // How long all may take, and how much of it until agent and registry have been compared.
  absl::Duration Bound() const;
  absl::Duration BoundOfAudit() const;
  bool UsedAny(std::initializer_list<Act> acts) const;
  // Of an agent: its requests arrive, its answers too, and it runs.
  bool IsHealthy(int agent) const;
  bool IsCutOff(int agent) const;  // for good
  std::string WhyNotEmpty(const Follower& follower, bool named) const;
  // Since when the agent has been well without a break is long ago.
  bool IsWellThroughout(int agent) const;
  void CheckRemoved(const std::string& key);
  void CheckAcknowledged(int agent, const IntentEvent& event);
  bool Used(Act act) const { return used_.count(act) > 0; }

  const Script script_;
  World world_;
  Wishes wishes_;
  Truth truth_;
  FencingCheck fencing_;
  Process people_;
  std::set<Act> used_;
  std::shared_ptr<EtcdHost> etcd_;  // null: the registry has a store
  std::unique_ptr<EtcdTruth> etcd_truth_;
  std::vector<std::unique_ptr<RegistryHost>> registries_;
  int turn_ = 0;  // of the balancer
  std::vector<std::unique_ptr<AgentHost>> agents_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Follower>> followers_;
  std::shared_ptr<Process> operator_process_;
  std::unique_ptr<WireRegistry> operator_;
  std::set<int> restarting_;  // agents that are to start again
  std::set<int> draining_;
  std::set<int> put_back_;              // agents that are down, and whose disk is of before
  std::map<int, int64_t> put_back_at_;  // and when they started
  std::map<int, int> denied_;           // what the policy does not allow an agent, see RegistryHost
  std::map<int, int64_t> backed_up_;    // when an agent's disk was copied
  std::map<int, int64_t> healthy_since_;  // of agents, by index
  std::map<int, int64_t> calls_before_;   // of agents, when work was last looked at
  int64_t looked_at_ = 0;
  int asked_ = 0;        // gateways
  int64_t started_ = 0;  // when an agent or a registry last was
  const int64_t heap_before_ = HeapBytes();
  bool restored_ = false;                      // the registry's disk, since it was started last
  int64_t restored_at_ = -(int64_t{1} << 60);  // when it was last started like that
  int64_t registry_since_ = 0;                 // its last start
  int64_t registry_well_since_ = 0;            // and it has not stopped since
  int64_t registry_ill_since_ = -1;            // before that
  int64_t refused_writes_ = 0;                 // when a store was last seen to do so
  bool faults_over_ = false;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_STORY_H_
