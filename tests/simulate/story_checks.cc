// What must hold at all times, and within a bounded time after the faults have stopped.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/model/canonical.h"
#include "tests/simulate/story.h"

namespace failback::simulate {
namespace {

// How long all may take to be as it is to be after the faults of a story have stopped: what does
// not depend on their kind, and what each kind adds at most. docs/testing.md has the table.
constexpr absl::Duration kAnyStory = absl::Seconds(45);  // backoff, a call's deadline, a local TTL
constexpr absl::Duration kAudit = absl::Seconds(80);  // anti-entropy every 60 s, give or take 25 %
constexpr absl::Duration kLateness = absl::Seconds(20);
constexpr absl::Duration kDeath = absl::Seconds(15);   // a session's TTL and a tick
constexpr absl::Duration kFence = absl::Seconds(125);  // TTL + 60 s + a slow retry of 35 s + a call
constexpr absl::Duration kGuard = absl::Seconds(110);  // the longest hold: 10 TTLs
constexpr absl::Duration kEtcdFence = absl::Seconds(70);  // a tombstone's lease is 128 s, not 60 s

// Work in ten seconds of simulated time that no agent of these stories needs.
constexpr int64_t kMostCalls = 400;

// What a story may hold at any time, the simulation and its record included, but not what is on its
// disks; 2 MB of it is what each agent's timing wheel reserves.
constexpr int64_t kMostBytes = 20 << 20;
constexpr int64_t kMostBytesOfAgent = 4 << 20;
// What may be more in the end than a minute before, when all was settled already: what waits for its
// turn at the one moment and not at the other.
constexpr int64_t kMostGrowth = 8 << 10;

// A renewal comes every third of a TTL and notices another epoch; a call's deadline; one retry.
constexpr absl::Duration kNotice = absl::Seconds(18);

// An agent that was well for so long has renewed its session: a call that was lost times out after
// 5 s, and the next renewal comes within a third of the TTL.
constexpr absl::Duration kRenewed = absl::Seconds(12);

// An instance that was there for so long, of an agent that was well for so long, is there.
constexpr absl::Duration kThroughout = absl::Seconds(35);

}  // namespace

bool Story::IsCutOff(int agent) const {
  return faults_over_ && script_.permanent != 0 && script_.permanent_agent == agent;
}

bool Story::IsHealthy(int index) const {
  const AgentHost& agent = *agents_[static_cast<size_t>(index)];
  if (!agent.running() || draining_.count(index) > 0 || denied_.count(index) > 0) return false;
  auto& network = const_cast<Network&>(world_.network);
  const Link& link = network.link(index);
  for (const Link::State& way : link.ways) {
    if (!way.open || way.clogged) return false;
  }
  return !link.refuses_numbers && link.loss == 0 && link.late == 0 &&
         link.slowest < absl::Seconds(1);
}

bool Story::RegistriesAreWell() {
  if (etcd_ != nullptr && etcd_->process()->stopped()) return false;
  for (int i = 0; i < script_.registries; ++i) {
    if (!registries_[static_cast<size_t>(i)]->running()) return false;
    for (const Link::State& way : world_.network.link(LinkToEtcd(i)).ways) {
      if (way.clogged) return false;
    }
  }
  return true;
}

bool Story::UsedAny(std::initializer_list<Act> acts) const {
  return std::any_of(acts.begin(), acts.end(), [this](Act act) { return Used(act); });
}

absl::Duration Story::BoundOfAudit() const {
  return UsedAny({Act::kRegistryRestore, Act::kAgentCrash, Act::kFleetCrash, Act::kCancel})
             ? kAudit
             : absl::ZeroDuration();
}

absl::Duration Story::Bound() const {
  absl::Duration bound = kAnyStory + BoundOfAudit();
  if (UsedAny({Act::kLate, Act::kRegistryDiesAnswering})) bound += kLateness;
  if (script_.shared_keys > 0 || UsedAny({Act::kAgentCrash, Act::kFleetCrash})) {
    bound += kFence;
    if (script_.etcd) bound += kEtcdFence;
  }
  if (script_.permanent != 0 || UsedAny({Act::kAgentDrain, Act::kAgentCrash, Act::kFleetCrash})) {
    bound += kDeath;
  }
  if (script_.agents >= 20) bound += kGuard;
  return bound;
}

// No fault any more, but one that stays.
void Story::Heal() {
  world_.Tell("the faults stop");
  faults_over_ = true;
  world_.network.streams_age = false;
  for (int i = 0; i < world_.network.links(); ++i) world_.network.Heal(i);
  if (etcd_ != nullptr) etcd_->process()->Continue(script_.reads_first);
  for (int i = 0; i < script_.registries; ++i) {
    RegistryHost& registry = *registries_[static_cast<size_t>(i)];
    registry.HealDisk();
    StartRegistry(i);
    registry.Continue(script_.reads_first);
  }
  for (const auto& agent : agents_) {
    agent->HealDisk();
    if (agent->up()) agent->Continue(script_.reads_first);
  }
  for (const int index : std::set<int>(restarting_)) StartAgent(index);
  for (const auto& [index, what] : std::map<int, int>(denied_)) Allow(index);
  if (script_.permanent == 0) return;
  const int index = script_.permanent_agent;
  world_.Tell(absl::StrCat(
      "for good: agent ", index,
      std::array<const char*, 4>{"'s requests are lost", "'s answers are lost", " is cut off",
                                 " is stopped"}[static_cast<size_t>(script_.permanent - 1)]));
  if (script_.permanent == 4) {
    if (agents_[static_cast<size_t>(index)]->up()) agents_[static_cast<size_t>(index)]->Stop();
    return;
  }
  if (script_.permanent != 2) world_.network.SetOpen(index, Way::kToRegistry, false);
  if (script_.permanent != 1) world_.network.SetOpen(index, Way::kToClient, false);
}

void Story::CheckAlways() {
  if (!world_.failed.empty()) return;
  for (const auto& agent : agents_) {
    const std::string wrong = agent->CheckInvariants();
    if (!wrong.empty()) {
      return world_.Fail("invariant", absl::StrCat("agent ", agent->index(), ": ", wrong));
    }
  }
  for (const auto& registry : registries_) {
    const absl::Status status = registry->CheckInvariants();
    if (!status.ok()) world_.Fail("invariant", absl::StrCat("registry: ", status.ToString()));
  }
}

void Story::CheckWork() {
  if (world_.now() - looked_at_ < 10000000000) return;
  looked_at_ = world_.now();
  for (const auto& agent : agents_) {
    const int64_t calls = agent->calls();
    const int64_t made = calls - std::exchange(calls_before_[agent->index()], calls);
    if (made > kMostCalls) {
      world_.Fail("work",
                  absl::StrCat("agent ", agent->index(), " made ", made, " calls in ten seconds"));
    }
  }
}

void Story::CheckMemory() {
  const int64_t most = kMostBytes + kMostBytesOfAgent * script_.agents;
  int64_t held = HeapBytes() - heap_before_;
  if (held <= most) return;
  // What is on disks is none of a program's memory. To count it takes longer than all else here.
  for (const auto& agent : agents_) held -= agent->DiskBytes();
  for (const auto& registry : registries_) held -= registry->DiskBytes();
  if (held <= most) return;
  world_.Fail("memory", absl::StrCat(held, " bytes are held"));
}

// Disks, and etcd's, are in memory too here: they may grow until what is on them is folded.
void Story::CheckNothingGrew(int64_t heap_bytes_then) {
  const bool journals =
      std::find(script_.journals.begin(), script_.journals.end(), true) != script_.journals.end();
  if (!world_.failed.empty() || script_.sqlite || script_.etcd || journals) return;
  const int64_t grown = HeapBytes() - heap_bytes_then;
  if (grown > kMostGrowth) {
    world_.Fail("memory", absl::StrCat("nothing happens, and in a minute ", grown,
                                       " bytes have come to be held"));
  }
}

Story::Unsettled Story::WhyUnsettled() {
  // What each key may be: not there, or of one of these ports.
  std::map<std::string_view, std::set<uint32_t>> wanted;
  std::set<std::string_view> any;
  for (const auto& [of, wish] : wishes_.all) {
    const auto& [agent, key] = of;
    const AgentHost& host = *agents_[static_cast<size_t>(agent)];
    wanted[key];
    if (IsCutOff(agent) && host.up()) {
      // While its requests arrive its leases are renewed, and what it wants comes through, or not.
      if (script_.permanent == 2 || IsShared(key)) any.insert(key);
      continue;
    }
    if (!host.up()) continue;
    if (wish.any || wish.open) any.insert(key);
    if (wish.present) wanted[key].insert(wish.port);
  }
  std::string extra;
  for (const auto& [key, ports] : wanted) {
    if (any.count(key) > 0) continue;
    const Shown* const there = truth_.Find(key);
    if (ports.empty() && there != nullptr) {
      extra = absl::StrCat(CanonicalKeyText(key), ":", there->port, " is still there");
    }
    if (!ports.empty() && (there == nullptr || ports.count(there->port) == 0)) {
      return {absl::StrCat(CanonicalKeyText(key), " is ",
                           there == nullptr ? "not there" : absl::StrCat("at port ", there->port),
                           ", and should be at ", absl::StrJoin(ports, " or ")),
              /*missing=*/true};
    }
  }
  if (!extra.empty()) return {extra, /*missing=*/false};
  const std::string followers = WhyFollowersDisagree();
  return {followers.empty() ? WhyGatewaysDisagree() : followers, /*missing=*/false};
}

std::string Story::WhyFollowersDisagree() {
  for (const auto& follower : followers_) {
    if (follower->left) continue;
    if (follower->agent >= 0 &&
        (!agents_[static_cast<size_t>(follower->agent)]->up() || IsCutOff(follower->agent))) {
      continue;
    }
    const Viewer& viewer = *follower->viewer;
    const Set there = viewer.Filter(truth_.Now(viewer.service()));
    if (viewer.known() && !viewer.ended() && !viewer.stale() && viewer.set() == there) continue;
    return absl::StrCat(viewer.name(), " of ", viewer.service(), " has ",
                        !viewer.known() ? "nothing" : TextOf(viewer.set()),
                        viewer.stale() ? " (stale)" : "", viewer.ended() ? " (ended)" : "",
                        ", and there is ", TextOf(there));
  }
  return "";
}

std::string Story::WhyGatewaysDisagree() {
  if (script_.gateways < 0 || IsCutOff(script_.gateways)) return "";
  Gateways* const gateways = agents_[static_cast<size_t>(script_.gateways)]->gateways();
  if (gateways == nullptr) return "";
  for (const Gateways::Way way : Gateways::kWays) {
    for (int i = 0; i < script_.services; ++i) {
      const std::string service = Truth::Service(i);
      const Gateways::Answer answer = gateways->Ask(way, service);
      const std::set<uint32_t> ports = Gateways::PortsOf(way, truth_.Now(service));
      if (answer.state != Gateways::Answer::State::kUnknown && answer.ports == ports) continue;
      return absl::StrCat(
          Gateways::NameOf(way), " at agent ", script_.gateways, " answers of ", service,
          answer.state == Gateways::Answer::State::kUnknown
              ? " that nothing is known"
              : absl::StrCat(" the ports {", absl::StrJoin(answer.ports, ", "), "}"),
          ", and they are {", absl::StrJoin(ports, ", "), "}");
    }
  }
  return "";
}

// What a gateway answers is what the registry has held, and lately, if agent and registry are well.
void Story::CheckGateways() {
  if (script_.gateways < 0) return;
  AgentHost& agent = *agents_[static_cast<size_t>(script_.gateways)];
  if (!agent.running() || agent.gateways() == nullptr || agent.registry()->draining()) return;
  const Gateways::Way way = Gateways::kWays[static_cast<size_t>(asked_) % 3];
  const std::string service = Truth::Service(asked_ / 3 % script_.services);
  ++asked_;
  const Gateways::Answer answer = agent.gateways()->Ask(way, service);
  const auto fail = [&](const std::string& what) {
    world_.Fail("gateway", absl::StrCat(Gateways::NameOf(way), " at agent ", script_.gateways,
                                        " answers of ", service, ": ", what));
  };
  if (!answer.error.empty()) return fail(answer.error);
  if (answer.state == Gateways::Answer::State::kUnknown) return;
  const bool well = IsWellThroughout(script_.gateways) &&
                    absl::Nanoseconds(world_.now() - registry_well_since_) >= kThroughout;
  const int64_t since = well ? world_.now() - absl::ToInt64Nanoseconds(kThroughout) : 0;
  const auto is = [&](const Set& set) { return Gateways::PortsOf(way, set) == answer.ports; };
  if (truth_.WasEver(service, since, is)) return;
  fail(absl::StrCat("{", absl::StrJoin(answer.ports, ", "), "}, which the registry has not held",
                    well ? " lately, and all were well" : ""));
}

bool Story::IsWellThroughout(int agent) const {
  const auto it = healthy_since_.find(agent);
  return it != healthy_since_.end() && absl::Nanoseconds(world_.now() - it->second) >= kThroughout;
}

// While agent and registry are well nothing that is wanted is missing for long, until a comparison
// finds it or not. Not where another incarnation's fence may stand for longer than stories last.
void Story::CheckPresent() {
  // Who tries again waits at most for about as long as it has waited in all.
  const absl::Duration outage = absl::Nanoseconds(registry_well_since_ - registry_ill_since_);
  const absl::Duration patience =
      script_.etcd ? kThroughout : std::min(kNotice + 2 * outage, kThroughout);
  // A store that has failed a write refuses all for a second, and asks each agent that meets this
  // several times in a row to wait longer each time: of thirty one may meet it for 20 s.
  const int64_t writes_since = std::max(registry_well_since_, refused_writes_);
  if (absl::Nanoseconds(world_.now() - writes_since) < patience ||
      UsedAny({Act::kAgentCrash, Act::kFleetCrash, Act::kAgentDrain, Act::kCancel})) {
    return;
  }
  for (const auto& [of, wish] : wishes_.all) {
    const auto& [agent, key] = of;
    const auto well_since = healthy_since_.find(agent);
    const bool always_well = well_since != healthy_since_.end() &&
                             absl::Nanoseconds(well_since->second) <= absl::Seconds(1);
    if (!wish.present || wish.any || wish.open || IsShared(key) ||
        !(always_well || IsWellThroughout(agent)) ||
        absl::Nanoseconds(world_.now() - wish.since) < patience) {
      continue;
    }
    if (truth_.Find(key) == nullptr) {
      world_.Fail("present", absl::StrCat(CanonicalKeyText(key), " is not there, was wanted for ",
                                          absl::FormatDuration(patience), ", and all were well"));
    }
  }
}

// The registry may have stopped and continued: that is not its clients' fault.
void Story::CheckRemoved(const std::string& key) {
  ExcuseWhatWasPutBack(key);
  if (IsShared(key)) return;
  for (const auto& [of, wish] : wishes_.all) {
    if (of.second != key || !wish.present || wish.any || wish.open) continue;
    // In a session that the registry has known since then, and that was renewed before the registry
    // stopped last.
    const auto well_since = healthy_since_.find(of.first);
    if (well_since == healthy_since_.end() || wish.acked_at < well_since->second ||
        wish.acked_at <= registry_since_) {
      continue;
    }
    const bool stopped = registry_ill_since_ >= well_since->second;
    const int64_t until = stopped && !script_.etcd ? registry_ill_since_ : world_.now();
    // etcd counts a lease's time whether its renewals can arrive or not.
    const int64_t since =
        script_.etcd ? std::max(well_since->second, registry_well_since_) : well_since->second;
    if (absl::Nanoseconds(until - since) < kRenewed) continue;
    world_.Fail("kept", absl::StrCat(CanonicalKeyText(key), " is removed, was acknowledged ",
                                     "and wanted all the time, and its agent was well"));
  }
}

// What was acknowledged in an earlier session went with that, and does not count in the next. A
// session that is younger than its TTL has not ended, unless the registry was put back: its agent
// believes that later than a late answer comes.
void Story::CheckAcknowledged(int agent, const IntentEvent& event) {
  const std::string key = CanonicalKey(event.key);
  const AgentHost& host = *agents_[static_cast<size_t>(agent)];
  if (script_.etcd || IsShared(key) || draining_.count(agent) > 0 ||
      host.session_age() >= absl::Seconds(kSessionTtl) ||
      absl::Nanoseconds(world_.now() - restored_at_) < absl::Seconds(kSessionTtl)) {
    return;
  }
  if (truth_.Find(key) == nullptr) {
    world_.Fail("acknowledged", absl::StrCat(CanonicalKeyText(key), " is acknowledged to agent ",
                                             agent, ", and is not there"));
  }
}

std::string Story::WhyNotEmpty(const Follower& follower, bool named) const {
  const auto throughout = [this](int64_t since) {
    return absl::Nanoseconds(world_.now() - since) >= kThroughout;
  };
  if (!IsWellThroughout(follower.agent)) return "";
  if (script_.etcd && !throughout(registry_well_since_)) return "";
  // A registry that has lost all fills up again: what it has first may go before the rest has come.
  // An agent keeps back an empty snapshot, and not a removal; and for some seconds, in which the
  // registry may be stopped.
  const bool stopped_since = registry_well_since_ > registry_since_;
  if (!script_.etcd && !throughout(registry_since_) && (named || stopped_since)) return "";
  for (const auto& [of, wish] : wishes_.all) {
    const auto& [agent, key] = of;
    if (SplitCanonicalKey(key).service != follower.viewer->service() || IsShared(key)) continue;
    if (!wish.present || wish.any || wish.open || !throughout(wish.since) ||
        !IsWellThroughout(agent))
      continue;
    return absl::StrCat("is shown an empty set, and ", CanonicalKeyText(key),
                        " was wanted all the time");
  }
  return "";
}

}  // namespace failback::simulate
