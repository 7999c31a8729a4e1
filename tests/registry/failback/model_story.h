// Stories of random operations and faults, and a model of what everyone was told to want: when the
// faults stop, the registry holds exactly the last intents, within a bounded time.
//
// Each seed is one story on simulated time. In some the agent has a journal, and is killed and
// started again; in some a rival incarnation wants the same keys, and may go in the end: then they
// are the agent's again. Who plays the agent is a Subject: the machine alone, or FailbackRegistry.
//
//   MachineSubject subject;
//   Story(seed, &subject).Run();
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_MODEL_STORY_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_MODEL_STORY_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/failback/failback_options.h"
#include "registry/model/canonical.h"
#include "registry/registry.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/registry/failback/model_registry.h"
#include "tests/registry/failback/subscriber_model.h"

namespace failback {

// The registry that the story plays against, and what else can happen to it.
class Target {
 public:
  virtual ~Target() = default;
  virtual Registry* registry() = 0;
  virtual void LoseSessions() = 0;
  virtual void Wipe() = 0;
  virtual void Backup() = 0;
  virtual void Restore() = 0;
  virtual void BreakStreams(const absl::Status& status) = 0;
  virtual void HandRemove(const InstanceKey& key) = 0;
  virtual void HandChange(const InstanceKey& key, uint32_t port) = 0;
  // Fences of keys without an instance have been kept for long enough.
  virtual void ForgetFences() = 0;
  // Ports by canonical key; of all, or of what one incarnation holds.
  virtual std::map<std::string, uint32_t> Ports(const std::string& incarnation) = 0;

  // Another incarnation registers the instance, or unregisters it (port 0). Whether it may is the
  // registry's to decide.
  void Rival(const ServiceInstance& instance, uint64_t generation);
  // Its session, opened or renewed.
  std::string RenewRival();
  // It goes, with all that it holds.
  void EndRival();
};

// The model of a registry.
class ModelTarget final : public Target {
 public:
  Registry* registry() override { return &model_; }
  void LoseSessions() override { model_.LoseSessions(); }
  void Wipe() override { model_.Wipe(); }
  void Backup() override { model_.Backup(); }
  void Restore() override { model_.Restore(); }
  void BreakStreams(const absl::Status& status) override { model_.BreakStreams(status); }
  void ForgetFences() override { model_.ForgetFences(); }
  void HandRemove(const InstanceKey& key) override { model_.HandRemove(CanonicalKey(key)); }
  void HandChange(const InstanceKey& key, uint32_t port) override {
    model_.HandChange(CanonicalKey(key), port);
  }
  std::map<std::string, uint32_t> Ports(const std::string& incarnation) override;

 private:
  ModelRegistry model_;
};

// What plays the agent, and its world.
class Subject {
 public:
  // The status of the call, and the results of its items.
  using Done =
      std::function<void(const absl::Status&, const std::vector<registry::v1::IntentResult>&)>;

  virtual ~Subject() = default;

  // Before Start().
  LinkWorld world;
  FailbackOptions options;
  bool journal = false;
  std::function<void(const IntentEvent&)> on_event;

  virtual void Start() = 0;
  // The process is gone and another takes its place: what it had accepted is in the journal.
  virtual void Crash() = 0;
  // Nothing of it is left afterwards.
  virtual void End() = 0;
  virtual Target* target() = 0;
  virtual int64_t NowNanos() = 0;
  virtual void Advance(absl::Duration duration) = 0;

  virtual void Write(Batch batch, Done done) = 0;
  // The id; empty: refused.
  virtual std::string OpenSession(const OpenSessionRequest& request) = 0;
  virtual absl::Status CloseSession(const std::string& id) = 0;
  virtual std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                                     std::shared_ptr<SubscriberModel> model) = 0;
  virtual void RetryAll() = 0;
  virtual void Drain(absl::Duration deadline, std::function<void()> done) = 0;
  virtual std::vector<agent::v1::PendingOperation> Pending() = 0;
  virtual std::string CheckInvariants() = 0;
};

// What the world was told to want of one key.
struct Want {
  std::optional<uint32_t> port;
  int owner = 0;  // local session by number; 0: none
  uint64_t version = 0;
  // While a checked intent is under way: what was wanted before it.
  bool checking = false;
  std::optional<uint32_t> before;
  int before_owner = 0;
};

class Story {
 public:
  Story(uint32_t seed, Subject* subject, bool real_store = false);
  void Run();

 private:
  struct Subscription {
    std::string service;
    std::shared_ptr<SubscriberModel> model;
    std::unique_ptr<SubscribeStream> stream;
  };

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  void Settle(absl::Duration duration);
  void CheckInvariants();
  // One line of the story, with FAILBACK_SEED.
  void Tell(const std::string& line);

  void Operate();
  void EndASubscription();
  void Crash();
  // Registers with `port`, or unregisters.
  void State(const std::vector<int>& keys, std::optional<uint32_t> port);
  void Subscribe(int key);
  std::string OpenSession(int number);
  void CloseSession();
  // A checked intent was answered.
  void Checked(int key, uint64_t version, const absl::Status& status);
  // What is wanted, and what a rival holds, by canonical key; which of ours it has, in `*lost`.
  std::map<std::string, uint32_t> Wanted(std::set<std::string>* lost);
  bool HasConverged();
  void CheckConverged();
  void CheckSubscribers(const std::map<std::string, uint32_t>& wanted);

  const bool traced_;
  const bool real_store_;
  Subject* const subject_;
  std::mt19937 random_;
  std::map<int, Want> wants_;
  std::map<int, std::string> sessions_;
  int last_session_ = 0;
  uint64_t client_generation_ = 0;
  uint64_t last_version_ = 0;
  bool alone_ = false;
  bool rivals_ = false;
  bool rival_gone_ = false;
  uint64_t rival_generation_ = 0;
  int waiting_ = 0;
  std::vector<Subscription> subscriptions_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_MODEL_STORY_H_
