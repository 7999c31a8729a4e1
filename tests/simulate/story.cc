#include "tests/simulate/story.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback::simulate {
namespace {

constexpr int kClientsOfAgent = 3;
constexpr absl::Duration kTick = absl::Milliseconds(500);
// A client renews its session so often, as a library does with a TTL of 10 s.
constexpr int64_t kRenewal = 2500000000;
// A state that has held for so long, which is longer than between two audits, has come to stay.
constexpr int64_t kStays = 80000000000;
// After so much of it nothing is under way any more.
constexpr int64_t kQuiet = 20000000000;

}  // namespace

Story::Story(const Script& script, bool traced)
    : script_(script),
      world_(script.seed, script.agents + script.viewers + 1 + script.registries),
      truth_(&world_, &wishes_, script.services),
      fencing_(&world_),
      people_("people", &world_.clock) {
  world_.traced = traced;
  SeededNumbers numbers(script.seed ^ 0x5eed);
  for (const Operation& operation : script_.operations) used_.insert(operation.act);
  world_.network.short_messages = script_.short_messages;
  if (script_.etcd) StartEtcd();
  for (int i = 0; i < script_.registries; ++i) {
    RegistryHost::Options options;
    if (script_.sqlite) options.disk = script.seed;
    options.etcd = etcd_;
    options.on_etcd = etcd_truth_.get();
    options.keys_per_lease = script_.keys_per_lease;
    options.link = LinkToEtcd(i);
    options.secured = script_.secured;
    options.short_messages = script_.short_messages;
    registries_.push_back(
        std::make_unique<RegistryHost>(&world_, &truth_, &fencing_, std::move(options)));
    registries_.back()->Start();
  }
  for (int i = 0; i < script_.agents; ++i) {
    AgentHost::Options options;
    options.index = i;
    options.journal = script_.journals[static_cast<size_t>(i)];
    options.seed = numbers.Next();
    options.server = [this, i] { return ServerFor(i); };
    options.on_event = [this, i](const IntentEvent& event) { OnIntent(i, event); };
    if (script_.gateways == i) options.gateways_to = script_.services;
    options.registry.max_batch = 1 + numbers.Pick(6);
    if (script_.etcd) {
      // What is written at once has room on one lease, beside the session's own key.
      options.registry.max_batch =
          std::min(options.registry.max_batch, static_cast<int>(script_.keys_per_lease) - 1);
    }
    options.registry.max_calls_in_flight = 1 + numbers.Pick(4);
    options.registry.stale_grace = absl::Milliseconds(numbers.Pick(2000));
    if (numbers.Pick(3) == 0) options.registry.retry.retry_period = absl::Seconds(1);
    agents_.push_back(std::make_unique<AgentHost>(&world_, std::move(options)));
    agents_.back()->Start();
    for (int slot = 0; slot < kClientsOfAgent; ++slot) {
      clients_.push_back(std::make_unique<Client>(Client{i, slot, "", false, 0, "", 0, 0, false}));
    }
  }
  for (int i = 0; i < script_.viewers; ++i) {
    Operation operation;
    operation.key = numbers.Pick(script_.keys);
    operation.amount = script_.agents + i;
    operation.port = static_cast<uint32_t>(numbers.Pick(4));
    AddFollower(-1, operation);
  }
  operator_process_ = std::make_shared<Process>("operator", &world_.clock);
  operator_ = std::make_unique<WireRegistry>(&world_.network, operator_process_,
                                             script_.agents + script_.viewers,
                                             [this] { return ServerFor(0); });
  world_.network.on_protocol_error = [this](const std::string& what) {
    world_.Fail("protocol", absl::StrCat("the registry sends what cannot be read: ", what));
  };
  truth_.on_removed = [this](const std::string& key) {
    fencing_.Removed(key);
    CheckRemoved(key);
  };
  truth_.on_appeared = [this](const std::string& key) {
    if (IsShared(key)) return;
    for (const auto& [of, wish] : wishes_.all) {
      if (of.second == key && wish.removal_acked && !wish.present && !wish.any) {
        world_.Fail("returned", absl::StrCat(CanonicalKeyText(key),
                                             " was removed, which was acknowledged, and is back"));
      }
    }
  };
  // A disk may end in the middle of a call, a moment before its machine does.
  for (const Operation& operation : script_.operations) {
    const absl::Duration before = absl::Milliseconds(operation.at_ms) - kTick;
    if (operation.act == Act::kRegistryCrash && script_.sqlite) {
      At(before, [this] { registries_.front()->EndDiskSoon(); });
    }
    if (operation.act == Act::kAgentCrash && operation.amount == 1) {
      At(before,
         [agent = agents_[static_cast<size_t>(operation.agent)].get()] { agent->EndDiskSoon(); });
    }
  }
  At(kTick, [this] { Tick(); });
}

Story::~Story() {
  operator_.reset();
  for (auto& follower : followers_) {
    follower->viewer->may_be_empty = nullptr;
    follower->stream.reset();
  }
  agents_.clear();
  followers_.clear();
  registries_.clear();
}

void Story::StartEtcd() {
  etcd_ = std::make_shared<EtcdHost>(&world_.clock);
  std::vector<std::string> services;
  for (int i = 0; i < script_.services; ++i) services.push_back(Truth::Service(i));
  EtcdTruth::Events events;
  events.on_set = [this](const std::string& service, uint64_t epoch, uint64_t revision,
                         const EtcdTruth::Set& instances) {
    Set set;
    for (const auto& [key, bytes] : instances) set.Put(truth_.instances()->Of(bytes));
    truth_.OnChange(service, epoch, revision, set);
  };
  events.on_wrong = [this](const std::string& property, const std::string& what) {
    world_.Fail(property, what);
  };
  etcd_truth_ = std::make_unique<EtcdTruth>(etcd_.get(), std::move(services), std::move(events));
}

int Story::RegistryFor(int place) const {
  for (int i = 0; i < script_.registries; ++i) {
    const int index = (place + i) % script_.registries;
    if (registries_[static_cast<size_t>(index)]->up()) return index;
  }
  return -1;
}

// Behind a balancer each call goes to the next registry, else a client's to the same until that is
// gone.
std::weak_ptr<WireServer> Story::ServerFor(int link) {
  const int index = RegistryFor(script_.balanced ? turn_++ : link);
  if (index < 0) return {};
  return registries_[static_cast<size_t>(index)]->server();
}

void Story::At(absl::Duration delay, std::function<void()> work) {
  people_.After(delay, std::move(work));
}

void Story::Advance(int64_t to_ms) {
  const absl::Duration left = absl::Milliseconds(to_ms) - absl::Nanoseconds(world_.now());
  if (left > absl::ZeroDuration()) world_.clock.Advance(left);
}

Outcome Story::Play() {
  for (const Operation& operation : script_.operations) {
    Advance(operation.at_ms);
    if (!world_.failed.empty()) break;
    if (world_.traced) world_.Tell(TextOf(operation));
    Do(operation);
    CheckAlways();
  }
  if (world_.failed.empty()) Advance(script_.length_ms);
  Outcome outcome;
  if (world_.failed.empty()) {
    Heal();
    const int64_t healed = world_.now();
    const absl::Duration bound = Bound();
    // What is missing is sent at once when there is a registry: it does not wait for a comparison.
    const absl::Duration bound_of_missing = Bound() - BoundOfAudit();
    // Settled, and stays so: the last time that it was not counts.
    int64_t unsettled = healed;
    int64_t heap_when_settled = 0;
    Unsettled why;
    while (world_.failed.empty() && world_.now() < unsettled + kStays) {
      Advance(world_.now() / 1000000 + 1000);
      why = WhyUnsettled();
      if (!why.what.empty()) {
        unsettled = world_.now();
        const absl::Duration most = why.missing ? bound_of_missing : bound;
        if (absl::Nanoseconds(unsettled - healed) > most) {
          world_.Fail("liveness", absl::StrCat(absl::FormatDuration(most),
                                               " after the faults have stopped: ", why.what));
        }
      }
      CheckAlways();
      if (world_.now() < std::max(unsettled, started_) + kQuiet) heap_when_settled = HeapBytes();
    }
    CheckNothingGrew(heap_when_settled);
    outcome.settled_ms = (unsettled - healed) / 1000000;
    outcome.bound_ms = absl::ToInt64Milliseconds(bound);
  }
  outcome.failed = world_.failed;
  outcome.failure = world_.failure;
  outcome.timeline = std::move(world_.timeline);
  outcome.simulated_ms = world_.now() / 1000000;
  outcome.messages = world_.network.sent();
  outcome.digest = world_.network.digest();
  outcome.commits = truth_.commits();
  return outcome;
}

// --- Names.

std::string Story::KeyOf(int agent, int key) const {
  InstanceKey name;
  name.set_namespace_("default");
  name.set_service(Truth::Service(key % script_.services));
  name.set_instance_id(key < script_.keys ? absl::StrCat("a", agent, "-", key)
                                          : absl::StrCat("shared-", key - script_.keys));
  return CanonicalKey(name);
}

ServiceInstance Story::InstanceOf(const std::string& key, uint32_t port) const {
  ServiceInstance instance;
  ParseCanonicalKey(key, instance.mutable_key());
  instance.set_address("10.0.0.1");
  instance.set_port(port);
  instance.set_status(registry::v1::HEALTH_STATUS_HEALTHY);
  instance.set_zone(port % 2 == 0 ? "even" : "odd");
  return instance;
}

Story::Client* Story::ClientOf(int agent, int slot) {
  if (slot < 0) return nullptr;
  Client* const client =
      clients_[static_cast<size_t>(agent) * kClientsOfAgent + static_cast<size_t>(slot)].get();
  if (!client->alive) {
    client->alive = true;
    client->name = absl::StrCat("client-", agent, "-", slot, "-", ++client->lives);
    client->session.clear();
    TickClient(client);
  }
  return client;
}

// --- People and their programs.

void Story::Tick() {
  for (const auto& client : clients_) TickClient(client.get());
  for (const auto& follower : followers_) TickFollower(follower.get());
  for (const auto& agent : agents_) {
    const bool healthy = IsHealthy(agent->index());
    if (!healthy) {
      healthy_since_.erase(agent->index());
    } else {
      healthy_since_.emplace(agent->index(), world_.now());
    }
  }
  if (!RegistriesAreWell()) NoteOutage();
  for (const auto& registry : registries_) {
    if (registry->refuses_writes()) refused_writes_ = world_.now();
  }
  CheckPresent();
  CheckGateways();
  CheckWork();
  CheckMemory();
  At(kTick, [this] { Tick(); });
}

// As a client library: keeps the session alive, and states all again in a new one.
void Story::TickClient(Client* client) {
  AgentHost& agent = *agents_[static_cast<size_t>(client->agent)];
  if (!client->alive || !agent.running() || agent.registry()->draining()) return;
  if (!client->session.empty() && client->agents_life == agent.life()) {
    if (world_.now() < client->renews_at) return;
    client->renews_at = world_.now() + kRenewal;
    KeepAliveRequest request;
    request.set_session_id(client->session);
    agent.registry()->KeepAlive(request, [&](const absl::StatusOr<KeepAliveResponse>& response) {
      if (response.ok()) return;
      if (!client->forked) {
        world_.Fail("session",
                    absl::StrCat(client->name, " renews its session at agent ", client->agent,
                                 " in time, and has lost it: ", response.status().ToString()));
      }
      client->session.clear();
    });
    if (!client->session.empty()) return;
  }
  OpenSessionRequest request;
  request.set_incarnation(client->name);
  request.mutable_ttl()->set_seconds(kSessionTtl);
  agent.registry()->OpenSession(request, [&](const absl::StatusOr<OpenSessionResponse>& response) {
    client->session = response.ok() ? response->session_id() : "";
    client->forked = false;
  });
  client->agents_life = agent.life();
  client->renews_at = world_.now() + kRenewal;
  if (client->session.empty()) return;
  for (const auto& [of, wish] : wishes_.all) {
    if (of.first == client->agent && wish.present && wish.client == client->slot) {
      State(client, of.first, of.second, wish);
    }
  }
}

// Tells the agent, of what is wanted already.
void Story::State(Client* client, int agent, const std::string& key, const Wish& wish) {
  RegisterRequest request;
  request.set_session_id(client->session);
  *request.add_registrations()->mutable_instance() = InstanceOf(key, wish.port);
  agents_[static_cast<size_t>(agent)]->registry()->Register(
      request, [](const absl::StatusOr<RegisterResponse>&) {});
}

void Story::AddFollower(int agent, const Operation& operation) {
  auto follower = std::make_unique<Follower>();
  follower->agent = agent;
  follower->zone = operation.port % 4 == 0 ? "even" : "";
  follower->resumes = operation.port % 2 == 0;
  if (agent < 0) {
    follower->link = operation.amount;
    follower->process = std::make_shared<Process>("follower", &world_.clock);
    follower->wire =
        std::make_unique<WireRegistry>(&world_.network, follower->process, follower->link,
                                       [this, link = follower->link] { return ServerFor(link); });
  }
  const std::string name = agent < 0
                               ? absl::StrCat("follower ", followers_.size())
                               : absl::StrCat("follower ", followers_.size(), " at agent ", agent);
  follower->viewer = std::make_shared<Viewer>(&world_, &truth_, name,
                                              Truth::Service(operation.key % script_.services),
                                              follower->zone, agent >= 0);
  follower->viewer->OnEnd(absl::OkStatus());  // there is no stream yet
  if (agent >= 0 && follower->zone.empty()) {
    follower->viewer->may_be_empty = [this, raw = follower.get()](bool named) {
      return WhyNotEmpty(*raw, named);
    };
  }
  followers_.push_back(std::move(follower));
  TickFollower(followers_.back().get());
}

void Story::TickFollower(Follower* follower) {
  Viewer& viewer = *follower->viewer;
  if (follower->left) return;
  Registry* registry = follower->wire.get();
  if (follower->agent >= 0) {
    AgentHost& agent = *agents_[static_cast<size_t>(follower->agent)];
    if (!agent.running()) return;
    registry = agent.registry();
    if (agent.registry()->draining()) return;
  }
  if (!viewer.ended()) return;
  if (follower->again_at == 0) {
    follower->again_at = world_.now() + 500000000;
    if (viewer.known()) return;
  }
  if (world_.now() < follower->again_at && viewer.known()) return;
  follower->again_at = 0;
  follower->stream.reset();
  // What does not follow cannot be resumed.
  const bool lost = absl::IsAborted(viewer.end_status());
  const bool resumes = follower->resumes && viewer.known() && !lost;
  SubscribeRequest request;
  request.mutable_selector()->set_service(viewer.service());
  if (!follower->zone.empty()) request.mutable_selector()->add_zones(follower->zone);
  if (resumes) {
    request.set_epoch(viewer.epoch());
    request.set_revision(viewer.revision());
  }
  const int life = follower->agent < 0 ? 0 : agents_[static_cast<size_t>(follower->agent)]->life();
  const bool anew = std::exchange(follower->agents_life, life) != life && script_.registries > 1;
  viewer.Begin(resumes, anew);
  follower->stream = registry->Subscribe(request, follower->viewer);
}

}  // namespace failback::simulate
