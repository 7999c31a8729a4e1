// What each operation of a script does.
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "tests/simulate/story.h"

namespace failback::simulate {
namespace {

constexpr absl::Duration kDrainDeadline = absl::Seconds(5);
constexpr absl::Duration kLatest = absl::Seconds(20);

}  // namespace

void Story::Do(const Operation& operation) {
  if (operation.act <= Act::kUnsubscribe) return DoClient(operation);
  if (operation.act <= Act::kAgentDrain) return DoAgent(operation);
  if (operation.act <= Act::kRegistryDiesAnswering) return DoRegistry(operation);
  if (operation.act <= Act::kEtcdClog) return DoEtcd(operation);
  if (operation.act <= Act::kNumbers) return DoNetwork(operation);
  AgentHost& agent = *agents_[static_cast<size_t>(operation.agent)];
  switch (operation.act) {
    case Act::kOffline:
      return SetOffline(operation);
    case Act::kRetry:
      if (agent.running()) agent.registry()->Retry({}).IgnoreError();
      return;
    case Act::kCancel: {
      if (!agent.running()) return;
      std::vector<std::string> ids;
      for (const auto& row : agent.registry()->Pending()) {
        if (row.key().service().empty()) continue;
        ids.push_back(row.id());
        wishes_.all[{operation.agent, CanonicalKey(row.key())}].any = true;
      }
      if (!ids.empty()) agent.registry()->Cancel(ids).IgnoreError();
      return;
    }
    case Act::kPolicy:
      return SetPolicy(operation);
    case Act::kWallClock:
      if (operation.key == 0) {
        return registries_[static_cast<size_t>(RegistryOf(operation))]->SetWall(
            absl::Seconds(operation.amount));
      }
      return agent.SetWall(absl::Seconds(operation.amount));
    default:
      return;
  }
}

// --- Clients.

void Story::DoClient(const Operation& operation) {
  switch (operation.act) {
    case Act::kRegister:
      return Intend(operation, true, 1);
    case Act::kRegisterMany:
      return Intend(operation, true, script_.keys);
    case Act::kUnregister:
      return Intend(operation, false, 1);
    case Act::kRegisterBack:
      return RegisterBack(operation);
    case Act::kClientDies:
    case Act::kClientLeaves: {
      if (operation.client < 0) return;
      const size_t index =
          static_cast<size_t>(operation.agent) * 3 + static_cast<size_t>(operation.client);
      return EndClient(clients_[index].get(), operation.act == Act::kClientLeaves);
    }
    case Act::kClientForks:
      return ForkClient(operation);
    case Act::kSubscribe:
      return AddFollower(operation.agent, operation);
    case Act::kUnsubscribe: {
      if (followers_.empty()) return;
      Follower& follower = *followers_[static_cast<size_t>(operation.key) % followers_.size()];
      if (follower.agent < 0) return;
      follower.left = true;
      const auto close = [&follower] {
        follower.viewer->Close();
        follower.stream.reset();
      };
      AgentHost& agent = *agents_[static_cast<size_t>(follower.agent)];
      if (!agent.up()) return close();
      return agent.process()->Run(close);
    }
    default:
      return;
  }
}

void Story::Intend(const Operation& operation, bool present, int count) {
  AgentHost& agent = *agents_[static_cast<size_t>(operation.agent)];
  if (!agent.running() || agent.registry()->draining()) return;
  Client* const client = ClientOf(operation.agent, operation.client);
  if (client != nullptr && client->session.empty()) return;
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    keys.push_back(
        KeyOf(operation.agent, (operation.key + i) % (script_.keys + script_.shared_keys)));
  }
  RegisterRequest registers;
  UnregisterRequest unregisters;
  for (const std::string& key : keys) {
    Wish& wish = wishes_.all[{operation.agent, key}];
    // The same again is acknowledged already.
    const bool same = present && wish.present && wish.port == operation.port;
    const int64_t acked_at = same ? wish.acked_at : -1;
    wish = Wish();
    wish.acked_at = acked_at;
    wish.present = present;
    wish.port = operation.port;
    wish.client = present && client != nullptr ? client->slot : -1;
    wish.since = world_.now();
    wish.open = true;
    if (present) wishes_.Wanted(key, operation.port);
    const ServiceInstance instance = InstanceOf(key, operation.port);
    *registers.add_registrations()->mutable_instance() = instance;
    *unregisters.add_deregistrations()->mutable_key() = instance.key();
  }
  // Accepted, it holds. If not, the one before may hold as well.
  const auto done = [this, agent = operation.agent, keys, since = world_.now()](
                        const absl::Status& call, const auto& results) {
    for (size_t i = 0; i < keys.size(); ++i) {
      Wish& wish = wishes_.all[{agent, keys[i]}];
      if (wish.since != since) continue;
      const bool ok = call.ok() && StatusFromProto(results[static_cast<int>(i)].status()).ok();
      wish.open = false;
      if (!ok) wish.any = true;
    }
  };
  if (present) {
    if (client != nullptr) registers.set_session_id(client->session);
    agent.registry()->Register(registers, [done](const absl::StatusOr<RegisterResponse>& response) {
      done(response.status(), response.ok() ? response->results() : RegisterResponse().results());
    });
  } else {
    if (client != nullptr) unregisters.set_session_id(client->session);
    agent.registry()->Unregister(
        unregisters, [done](const absl::StatusOr<UnregisterResponse>& response) {
          done(response.status(),
               response.ok() ? response->results() : UnregisterResponse().results());
        });
  }
}

// A subscriber whose connection is broken meanwhile misses nothing.
void Story::RegisterBack(const Operation& operation) {
  const Wish before = wishes_.all[{operation.agent, KeyOf(operation.agent, operation.key)}];
  Operation there = operation;
  if (before.present) there.client = before.client;
  Intend(there, true, 1);
  if (!before.present) return;
  Operation back = there;
  back.port = before.port;
  At(absl::Milliseconds(operation.for_ms), [this, back] {
    if (!faults_over_) Intend(back, true, 1);
  });
}

void Story::EndClient(Client* client, bool closes) {
  if (!client->alive) return;
  client->alive = false;
  for (auto& [of, wish] : wishes_.all) {
    if (of.first != client->agent || !wish.present || wish.client != client->slot) continue;
    const bool any = wish.any;
    wish = Wish();
    wish.since = world_.now();
    wish.any = any;
  }
  AgentHost& agent = *agents_[static_cast<size_t>(client->agent)];
  if (!closes || !agent.running() || client->session.empty()) return;
  CloseSessionRequest request;
  request.set_session_id(client->session);
  agent.registry()->CloseSession(request, [](const absl::StatusOr<CloseSessionResponse>&) {});
}

// The child uses the session as if it were its own, and leaves: for the agent the client has left.
void Story::ForkClient(const Operation& operation) {
  if (operation.client < 0) return;
  Client& client =
      *clients_[static_cast<size_t>(operation.agent) * 3 + static_cast<size_t>(operation.client)];
  AgentHost& agent = *agents_[static_cast<size_t>(operation.agent)];
  if (!client.alive || !agent.running() || client.session.empty()) return;
  CloseSessionRequest request;
  request.set_session_id(client.session);
  agent.registry()->CloseSession(request, [](const absl::StatusOr<CloseSessionResponse>&) {});
  client.forked = true;
  // The parent finds its session gone, opens another and states all again.
  for (auto& [of, wish] : wishes_.all) {
    if (of.first != client.agent || wish.client != client.slot) continue;
    wish.since = world_.now();
    wish.acked_at = -1;
  }
}

void Story::OnIntent(int agent, const IntentEvent& event) {
  if (event.kind != IntentEvent::Kind::kAcknowledged) return;
  const bool registers = event.operation == OperationKind::kRegister;
  if (!registers && event.operation != OperationKind::kUnregister) return;
  const auto it = wishes_.all.find({agent, CanonicalKey(event.key)});
  if (it == wishes_.all.end() || it->second.present != registers) return;
  if (!registers) it->second.removal_acked = true;
  if (registers && it->second.acked_at < 0) it->second.acked_at = world_.now();
  if (registers) CheckAcknowledged(agent, event);
}

void Story::ForgetAcks(int agent) {
  for (auto& [of, wish] : wishes_.all) {
    if (agent < 0 || of.first == agent) wish.removal_acked = false;
  }
}

// --- Agents.

void Story::StartAgent(int index) {
  AgentHost& agent = *agents_[static_cast<size_t>(index)];
  restarting_.erase(index);
  // One that is stopped for good does not come back under another name.
  if (agent.up() || (IsCutOff(index) && script_.permanent == 4)) return;
  world_.Tell(absl::StrCat("agent ", index, " starts"));
  started_ = world_.now();
  healthy_since_.erase(index);
  if (put_back_.erase(index) > 0) {
    put_back_at_[index] = world_.now();
    for (auto& [of, wish] : wishes_.all) {
      // What only one of the two knows, its journal and the registry, waits for its owner.
      const bool there = truth_.Find(of.second) != nullptr;
      if (of.first == index && wish.client < 0 && there != wish.present) wish.any = true;
    }
  }
  agent.Start();
}

// It may be gone before the agent has asked for it.
void Story::ExcuseWhatWasPutBack(const std::string& key) {
  if (put_back_at_.empty()) return;
  for (auto& [of, wish] : wishes_.all) {
    const auto since = put_back_at_.find(of.first);
    if (of.second == key && wish.client < 0 && since != put_back_at_.end() &&
        wish.since <= since->second) {
      wish.any = true;
    }
  }
}

void Story::ForgetDetached(int index) {
  for (auto& [of, wish] : wishes_.all) {
    if (of.first == index && wish.client < 0 && wish.present) {
      wish = Wish();
      wish.since = world_.now();
    }
  }
}

void Story::CrashFleet(const Operation& operation) {
  Operation one = operation;
  one.act = Act::kAgentCrash;
  one.amount = operation.for_ms > 0 ? 1 : 0;
  const int agents = (script_.agents * operation.amount + 99) / 100;
  for (int i = 0; i < agents; ++i) {
    one.agent = (operation.agent + i) % script_.agents;
    DoAgent(one);
  }
}

void Story::DoAgent(const Operation& operation) {
  if (operation.act == Act::kFleetCrash) return CrashFleet(operation);
  const int index = operation.agent;
  AgentHost& agent = *agents_[static_cast<size_t>(index)];
  if (!agent.up()) return;
  const absl::Duration lasts = absl::Milliseconds(operation.for_ms);
  const auto restart = [this, index](absl::Duration delay) {
    restarting_.insert(index);
    At(delay, [this, index] {
      if (restarting_.count(index) > 0) StartAgent(index);
    });
  };
  switch (operation.act) {
    case Act::kAgentCrash: {
      healthy_since_.erase(index);
      const auto backup = backed_up_.find(index);
      const bool older = operation.amount == 3 && agent.has_journal() && backup != backed_up_.end();
      const bool same = operation.amount == 1 && agent.has_journal();
      agent.Kill(older  ? AgentHost::Disk::kOlder
                 : same ? AgentHost::Disk::kSame
                        : AgentHost::Disk::kEmpty);
      // What a disk that has failed does not have the registry may have.
      if (older || agent.disk_failed()) ForgetAcks(index);
      if (older) {
        put_back_.insert(index);
        for (auto& [of, wish] : wishes_.all) {
          if (of.first == index && wish.since >= backup->second) wish.any = true;
        }
      } else if (!same) {
        ForgetDetached(index);
      }
      if (operation.amount != 0) restart(lasts);
      return;
    }
    case Act::kAgentBackup:
      if (!agent.running() || !agent.has_journal()) return;
      agent.Backup();
      backed_up_[index] = world_.now();
      return;
    case Act::kAgentStop:
      agent.Stop();
      At(lasts, [this, index, life = agent.life(), first = operation.amount == 1] {
        AgentHost& stopped = *agents_[static_cast<size_t>(index)];
        if (!faults_over_ && stopped.up() && stopped.life() == life) stopped.Continue(first);
      });
      return;
    case Act::kAgentDrain:
      if (!agent.running() || agent.registry()->draining()) return;
      agent.registry()->Drain(kDrainDeadline,
                              [](const absl::StatusOr<agent::v1::DrainResponse>&) {});
      draining_.insert(index);
      healthy_since_.erase(index);
      At(kDrainDeadline + absl::Seconds(1),
         [this, index, restart, again = operation.amount == 1, lasts, life = agent.life()] {
           if (agents_[static_cast<size_t>(index)]->life() != life) return;
           EndDrain(index);
           if (again) restart(lasts);
         });
      return;
    default:
      return;
  }
}

void Story::EndDrain(int index) {
  draining_.erase(index);
  AgentHost& agent = *agents_[static_cast<size_t>(index)];
  if (!agent.up()) return;
  agent.Continue(/*reads_first=*/true);
  agent.End();
  if (!agent.has_journal()) ForgetDetached(index);
}

// --- The network, and an operator.

void Story::DoNetwork(const Operation& operation) {
  const bool of_viewer = operation.key % 6 == 5;
  const int index =
      of_viewer ? script_.agents + operation.client % script_.viewers : operation.agent;
  const absl::Duration lasts = absl::Milliseconds(operation.for_ms);
  // Also if it is over before anyone looks.
  if (!of_viewer) healthy_since_.erase(index);
  Network& network = world_.network;
  Link& link = network.link(index);
  const bool ways[] = {(operation.amount & 1) != 0, (operation.amount & 2) != 0};
  const auto later = [&](std::function<void()> undo) {
    At(lasts, [this, undo = std::move(undo)] {
      if (!faults_over_) undo();
    });
  };
  switch (operation.act) {
    case Act::kPartition:
      for (const Way way : {Way::kToRegistry, Way::kToClient}) {
        if (!ways[static_cast<size_t>(way)]) continue;
        network.SetOpen(index, way, false);
        later([&network, index, way] { network.SetOpen(index, way, true); });
      }
      return;
    case Act::kClog:
      for (const Way way : {Way::kToRegistry, Way::kToClient}) {
        if (!ways[static_cast<size_t>(way)]) continue;
        network.SetClogged(index, way, true);
        later([&network, index, way] { network.SetClogged(index, way, false); });
      }
      return;
    case Act::kLoss:
      link.loss = operation.amount;
      return later([&link] { link.loss = 0; });
    case Act::kDuplicates:
      link.duplicates = operation.amount;
      return later([&link] { link.duplicates = 0; });
    case Act::kLate:
      link.late = operation.amount;
      link.latest = kLatest;
      link.late_by_minutes = 30;
      return later([&link] { link.late = link.late_by_minutes = 0; });
    case Act::kSlow:
      link.slowest = absl::Seconds(3);
      return later([&link] { link.slowest = absl::Milliseconds(20); });
    case Act::kNumbers:
      link.refuses_numbers = true;
      return later([&link] { link.refuses_numbers = false; });
    case Act::kReset:
      return agents_[static_cast<size_t>(operation.agent)]->Break(/*connection=*/true);
    default:
      return;
  }
}

void Story::SetPolicy(const Operation& operation) {
  denied_[operation.agent] = operation.amount;
  healthy_since_.erase(operation.agent);
  for (const auto& registry : registries_) registry->SetPolicy(denied_);
  At(absl::Milliseconds(operation.for_ms), [this, index = operation.agent] { Allow(index); });
}

void Story::Allow(int index) {
  if (denied_.erase(index) == 0) return;
  world_.Tell(absl::StrCat("agent ", index, " may do all again"));
  for (const auto& registry : registries_) registry->SetPolicy(denied_);
  // What was refused waits for an operator; the last refusal may be on its way for a while.
  for (int i = 0; i < 5; ++i) {
    At(absl::Seconds(6 * i), [this, index] {
      AgentHost& agent = *agents_[static_cast<size_t>(index)];
      if (!agent.up() || denied_.count(index) > 0) return;
      agent.process()->Run([&agent] { agent.registry()->Retry({}).IgnoreError(); });
    });
  }
}

void Story::SetOffline(const Operation& operation) {
  SetOfflineRequest request;
  const std::string key = KeyOf(operation.agent, operation.key);
  ParseCanonicalKey(key, request.mutable_key());
  request.set_offline(operation.amount == 1);
  request.set_by("operator");
  operator_->SetOffline(request, [](const absl::StatusOr<SetOfflineResponse>&) {});
}

}  // namespace failback::simulate
