#include "tests/simulate/etcd/etcd_story.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/stored.h"
#include "registry/failback/failback_registry.h"
#include "registry/model/canonical.h"
#include "tests/simulate/disk/seeded_entropy.h"
#include "tests/simulate/etcd/model_client.h"
#include "tests/simulate/random.h"
#include "tests/simulate/world.h"

namespace failback::simulate {
namespace {

constexpr int kKeys = 4;  // of each agent
constexpr int kOperations = 60;
// After the faults: a retry's longest backoff, a call's deadline, a session's TTL with its spread,
// and a comparison of agent and registry.
constexpr absl::Duration kBound = absl::Seconds(130);
// After a death: a session's TTL, and what follows. A fence stays for a minute.
constexpr absl::Duration kDeath = absl::Seconds(30);

using Ports = std::map<std::string, uint32_t>;  // by canonical key

std::string TextOf(const Ports& ports) {
  return absl::StrCat("{",
                      absl::StrJoin(ports, ", ",
                                    [](std::string* out, const auto& entry) {
                                      absl::StrAppend(out, CanonicalKeyText(entry.first), ":",
                                                      entry.second);
                                    }),
                      "}");
}

class EtcdStory {
 public:
  explicit EtcdStory(uint64_t seed);
  ~EtcdStory();
  EtcdStoryResult Tell();

 private:
  // The set of one subscriber, checked at each event.
  class Follower final : public NotifyListener {
   public:
    Follower(EtcdStory* story, std::string name) : story_(story), name_(std::move(name)) {}
    void OnEvent(const EventPtr& event) override;
    void OnEnd(const absl::Status&) override { ended_ = true; }
    bool ended() const { return ended_; }
    bool stale() const { return stale_; }
    const Ports& ports() const { return ports_; }
    const std::string& name() const { return name_; }

   private:
    EtcdStory* const story_;
    const std::string name_;
    bool ended_ = false, stale_ = false;
    Ports ports_;
  };
  struct Agent {
    int index = 0;
    int lives = 0;
    bool up = false;
    std::shared_ptr<Process> process;
    ModelClient* client = nullptr;  // of the registry's
    std::unique_ptr<FailbackRegistry> registry;
    std::shared_ptr<Follower> follower;
    std::unique_ptr<SubscribeStream> stream;
    Ports wanted;
  };

  void Start(Agent* agent);
  void Kill(Agent* agent);
  void Act();
  void Register(Agent* agent);
  void Unregister(Agent* agent);
  // For a time that the seed decides.
  void Undo(std::function<void()> undo);
  Ports At(int64_t revision) const;
  std::string WhyUnsettled() const;
  // One agent dies while all is well: what it had goes, and leaves fences.
  void CheckDeath();
  std::string KeyOf(int agent, int key) const;

  World world_;
  SeededNumbers numbers_;
  std::shared_ptr<EtcdHost> etcd_;
  const etcd::Keys keys_{"/failback"};
  std::vector<std::unique_ptr<Agent>> agents_;
  Process people_;
  bool healed_ = false;
  int64_t events_ = 0;
};

EtcdStory::EtcdStory(uint64_t seed)
    : world_(seed, 4),
      numbers_(seed ^ 0xe7cd),
      etcd_(std::make_shared<EtcdHost>(&world_.clock)),
      people_("people", &world_.clock) {
  world_.traced = true;
  const int count = 1 + numbers_.Pick(3);
  for (int i = 0; i < count; ++i) {
    agents_.push_back(std::make_unique<Agent>());
    agents_.back()->index = i;
    Start(agents_.back().get());
  }
}

EtcdStory::~EtcdStory() {
  for (const auto& agent : agents_) {
    if (agent->up) Kill(agent.get());
  }
}

void EtcdStory::Start(Agent* agent) {
  agent->up = true;
  agent->process = std::make_shared<Process>(absl::StrCat("agent ", agent->index), &world_.clock);
  EtcdRegistry::Options options;
  options.sweep_interval = absl::Seconds(5);
  options.lease_spread = 0;  // its own numbers would decide it
  auto registry = std::make_unique<EtcdRegistry>(
      options, [&](const std::function<void()>&) -> std::unique_ptr<etcd::Client> {
        auto client =
            std::make_unique<ModelClient>(&world_.network, agent->index, agent->process, etcd_);
        agent->client = client.get();
        return client;
      });
  FailbackRegistry::Options failback;
  failback.timer = agent->process->timer();
  failback.upstream_name = "sim://etcd";
  failback.client_name = agent->process->name();
  failback.incarnation = absl::StrCat("agent-", agent->index, "-", ++agent->lives);
  failback.random = [this] { return numbers_.Unit(); };
  agent->registry = FailbackRegistry::Create(std::move(registry), std::move(failback)).value();
  agent->follower = std::make_shared<Follower>(
      this, absl::StrCat("follower at agent ", agent->index, ", life ", agent->lives));
  SubscribeRequest request;
  request.mutable_selector()->set_service("s");
  agent->stream = agent->registry->Subscribe(request, agent->follower);
}

// SIGKILL: nothing of it is sent any more, and its leases end.
void EtcdStory::Kill(Agent* agent) {
  agent->up = false;
  agent->wanted.clear();
  world_.network.SetOpen(agent->index, Way::kToRegistry, false);
  world_.network.SetOpen(agent->index, Way::kToClient, false);
  agent->stream.reset();
  agent->registry.reset();
  agent->process.reset();
  world_.network.SetOpen(agent->index, Way::kToRegistry, true);
  world_.network.SetOpen(agent->index, Way::kToClient, true);
}

std::string EtcdStory::KeyOf(int agent, int key) const {
  InstanceKey name;
  name.set_namespace_("default");
  name.set_service("s");
  name.set_instance_id(absl::StrCat("a", agent, "-", key));
  return CanonicalKey(name);
}

Ports EtcdStory::At(int64_t revision) const {
  Ports ports;
  for (const auto& [key, kv] : etcd_->model().At(revision)) {
    const std::optional<std::string> canonical = keys_.ParseInstance(key);
    if (!canonical.has_value()) continue;
    const etcd::StoredRecord record = etcd::DecodeStored(*canonical, kv.value());
    if (!record.instance) continue;
    ServiceInstance instance;
    instance.ParseFromString(std::string(record.instance.view()));
    ports[*canonical] = instance.port();
  }
  return ports;
}

void EtcdStory::Follower::OnEvent(const EventPtr& event) {
  ++story_->events_;
  if (event->is_snapshot()) ports_.clear();
  for (const std::string& key : event->removals()) ports_.erase(key);
  event->ForEachInstance([this](const Blob& blob) {
    ServiceInstance instance;
    instance.ParseFromString(std::string(blob.view()));
    ports_[failback::KeyOf(blob)] = instance.port();
  });
  stale_ = event->flags().stale;
  story_->world_.Tell(absl::StrCat("    ", name_, " sees ", TextOf(ports_), " at ",
                                   event->revision(), stale_ ? ", stale" : ""));
  const Ports there = story_->At(static_cast<int64_t>(event->revision()));
  if (ports_ != there) {
    story_->world_.Fail("watch", absl::StrCat(name_, " sees ", TextOf(ports_), ", and at revision ",
                                              event->revision(), " there was ", TextOf(there)));
  }
}

void EtcdStory::Register(Agent* agent) {
  const int key = numbers_.Pick(kKeys);
  const auto port = static_cast<uint32_t>(1000 + numbers_.Pick(5));
  agent->wanted[KeyOf(agent->index, key)] = port;
  RegisterRequest request;
  ServiceInstance& instance = *request.add_registrations()->mutable_instance();
  ParseCanonicalKey(KeyOf(agent->index, key), instance.mutable_key());
  instance.set_address("10.0.0.1");
  instance.set_port(port);
  agent->registry->Register(request, [](const absl::StatusOr<RegisterResponse>&) {});
}

void EtcdStory::Unregister(Agent* agent) {
  const std::string key = KeyOf(agent->index, numbers_.Pick(kKeys));
  agent->wanted.erase(key);
  UnregisterRequest request;
  ParseCanonicalKey(key, request.add_deregistrations()->mutable_key());
  agent->registry->Unregister(request, [](const absl::StatusOr<UnregisterResponse>&) {});
}

void EtcdStory::Undo(std::function<void()> undo) {
  people_.After(numbers_.Between(absl::Milliseconds(1), absl::Seconds(25)),
                [this, undo = std::move(undo)] {
                  if (!healed_) undo();
                });
}

void EtcdStory::Act() {
  Agent* const agent =
      agents_[static_cast<size_t>(numbers_.Pick(static_cast<int>(agents_.size())))].get();
  const int index = agent->index;
  Network& network = world_.network;
  Link& link = network.link(index);
  const int what = numbers_.Pick(20);
  world_.Tell(absl::StrCat("agent ", index, ": operation ", what));
  if (what == 0 && agent->up) {
    Kill(agent);
    return Undo([this, agent] {
      if (!agent->up) Start(agent);
    });
  }
  if (!agent->up) return;
  if (what < 8) return Register(agent);
  if (what < 11) return Unregister(agent);
  switch (what) {
    case 11:
    case 12: {
      const Way way = numbers_.Percent(50) ? Way::kToRegistry : Way::kToClient;
      network.SetOpen(index, way, false);
      return Undo([&network, index, way] { network.SetOpen(index, way, true); });
    }
    case 13:
      link.loss = 30;
      return Undo([&link] { link.loss = 0; });
    case 14:
      link.duplicates = 40;
      return Undo([&link] { link.duplicates = 0; });
    case 15:
      link.late = 20;
      link.latest = absl::Seconds(20);
      return Undo([&link] { link.late = 0; });
    case 16:
      return agent->client->BreakStreams();
    case 17:
      return etcd_->model().Compact(etcd_->model().revision() - numbers_.Pick(3));
    case 18:
      agent->process->Stop();
      return Undo([process = agent->process] { process->Continue(/*reads_first=*/true); });
    default:
      etcd_->process()->Stop();
      return Undo([this] { etcd_->process()->Continue(/*reads_first=*/true); });
  }
}

std::string EtcdStory::WhyUnsettled() const {
  Ports wanted;
  for (const auto& agent : agents_) wanted.insert(agent->wanted.begin(), agent->wanted.end());
  const Ports there = At(etcd_->model().revision());
  if (there != wanted) return absl::StrCat("etcd has ", TextOf(there), ", wanted ", TextOf(wanted));
  for (const auto& [key, kv] : etcd_->model().At(etcd_->model().revision())) {
    if (keys_.ParseInstance(key).has_value() && kv.lease() == 0) {
      return absl::StrCat(key, " is on no lease");
    }
  }
  for (const auto& agent : agents_) {
    if (!agent->up) continue;
    const Follower& follower = *agent->follower;
    if (follower.ended() || follower.stale() || follower.ports() != there) {
      return absl::StrCat(follower.name(), " has ", TextOf(follower.ports()),
                          follower.stale() ? ", stale" : "", follower.ended() ? ", ended" : "",
                          ", and there is ", TextOf(there));
    }
  }
  return "";
}

void EtcdStory::CheckDeath() {
  Agent* dies = nullptr;
  int up = 0;
  for (const auto& agent : agents_) {
    if (!agent->up) continue;
    ++up;
    if (dies == nullptr || agent->wanted.size() > dies->wanted.size()) dies = agent.get();
  }
  // Who follows the service is who fences what expires of it.
  if (up < 2) return;
  const Ports expired = dies->wanted;
  world_.Tell(absl::StrCat("agent ", dies->index, " dies"));
  Kill(dies);
  world_.clock.Advance(kDeath);
  if (const std::string why = WhyUnsettled(); !why.empty()) world_.Fail("liveness", why);
  const EtcdModel::Contents contents = etcd_->model().At(etcd_->model().revision());
  for (const auto& [canonical, port] : expired) {
    const auto it = contents.find(keys_.Instance(canonical));
    if (it != contents.end() &&
        etcd::DecodeStored(canonical, it->second.value()).fence().rank != 0) {
      continue;
    }
    world_.Fail("fence", absl::StrCat(CanonicalKeyText(canonical),
                                      " has expired, and its fence went with the lease"));
  }
}

EtcdStoryResult EtcdStory::Tell() {
  for (int i = 0; i < kOperations && world_.failed.empty(); ++i) {
    world_.clock.Advance(numbers_.Between(absl::Milliseconds(1), absl::Seconds(2)));
    Act();
  }
  healed_ = true;
  world_.Tell("the faults stop");
  for (int i = 0; i < world_.network.links(); ++i) world_.network.Heal(i);
  etcd_->process()->Continue(/*reads_first=*/false);
  for (const auto& agent : agents_) {
    if (agent->up) agent->process->Continue(/*reads_first=*/false);
  }
  const int64_t end = world_.now() + absl::ToInt64Nanoseconds(kBound);
  while (world_.failed.empty() && world_.now() < end) world_.clock.Advance(absl::Seconds(1));
  if (const std::string why = WhyUnsettled(); !why.empty()) world_.Fail("liveness", why);
  if (world_.failed.empty()) CheckDeath();
  EtcdStoryResult result;
  if (!world_.failed.empty()) result.violation = absl::StrCat(world_.failed, ": ", world_.failure);
  result.told = world_.timeline;
  result.revisions = etcd_->model().revision();
  result.events = events_;
  return result;
}

}  // namespace

EtcdStoryResult TellEtcdStory(uint64_t seed) {
  SeedEntropy(seed);
  EtcdStory story(seed);
  return story.Tell();
}

}  // namespace failback::simulate
