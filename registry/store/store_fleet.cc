// What StoreRegistry shows of its sessions, and of the agents behind them.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/model/fleet_query.h"
#include "registry/model/instance_query.h"
#include "registry/store/store_operations.h"
#include "registry/store/store_registry.h"

namespace failback {
namespace {

using admin::v1::AgentSummary;
using admin::v1::ServiceSummary;
using admin::v1::SessionSummary;

// Sessions that are looked up in one go, while commits wait.
constexpr size_t kChunk = 256;

// Instances, or services, of a held session that are looked at in one go.
constexpr size_t kAtOnce = 1000;
constexpr absl::Duration kHeldLookPeriod = absl::Seconds(1);

}  // namespace

SessionSummary Summarize(const Session& session) {
  SessionSummary summary;
  summary.set_incarnation(session.incarnation->name);
  summary.set_client_name(session.incarnation->client_name);
  summary.set_rank(session.incarnation->rank);
  *summary.mutable_ttl() = ToProto(absl::Milliseconds(session.ttl_ms));
  summary.set_instances(static_cast<int32_t>(session.incarnation->owned));
  return summary;
}

void StoreRegistry::AddLease(const std::string& session_id, SessionSummary* session) const {
  const auto lease = leases_->Look(session_id);
  if (!lease.has_value()) return;
  session->set_held_back(lease->held);
  const absl::Time now = options_.timer->clock()->WallNow();
  if (lease->held) {
    *session->mutable_hold_end_time() = ToProto(now + lease->longest_hold);
  } else {
    *session->mutable_expire_time() = ToProto(now + lease->remaining);
  }
}

void StoreRegistry::LogContested(const std::string& session_id) const {
  const SessionSummary session = SummariesOf({session_id}).front();
  Log(LogLevel::kWarning,
      "two processes use one session: a copied state directory, or one incarnation configured "
      "twice",
      {{"incarnation", session.incarnation()}, {"client", session.client_name()}});
}

std::vector<SessionSummary> StoreRegistry::SummariesOf(
    const std::vector<std::string>& session_ids) const {
  std::vector<SessionSummary> summaries(session_ids.size());
  for (size_t begin = 0; begin < session_ids.size(); begin += kChunk) {
    const size_t end = std::min(begin + kChunk, session_ids.size());
    MutexLock lock(&mu_);
    for (size_t i = begin; i < end; ++i) {
      const Session* const session = state_->FindSession(session_ids[i]);
      if (session != nullptr) summaries[i] = Summarize(*session);
    }
  }
  for (size_t i = 0; i < session_ids.size(); ++i) {
    if (!summaries[i].incarnation().empty()) AddLease(session_ids[i], &summaries[i]);
  }
  return summaries;
}

absl::StatusOr<admin::v1::ListSessionsResponse> StoreRegistry::ListSessions(
    const admin::v1::ListSessionsRequest& request) const {
  std::vector<std::string> ids;
  {
    MutexLock lock(&mu_);
    ids.reserve(static_cast<size_t>(state_->sessions()));
    for (const Session* session : state_->Sessions()) ids.push_back(session->id);
  }
  std::vector<SessionSummary> sessions = SummariesOf(ids);
  // Those that have ended meanwhile.
  sessions.erase(
      std::remove_if(sessions.begin(), sessions.end(),
                     [](const SessionSummary& session) { return session.incarnation().empty(); }),
      sessions.end());
  return QuerySessions(request, std::move(sessions));
}

std::vector<AgentSummary> StoreRegistry::Agents() const {
  std::vector<AgentReports::Entry> reports = agent_reports_.All();
  std::vector<std::string> ids;
  ids.reserve(reports.size());
  for (const AgentReports::Entry& entry : reports) ids.push_back(entry.session_id);
  std::vector<SessionSummary> sessions = SummariesOf(ids);
  std::vector<AgentSummary> agents;
  agents.reserve(reports.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    if (sessions[i].incarnation().empty()) continue;
    AgentSummary& agent = agents.emplace_back();
    *agent.mutable_session() = std::move(sessions[i]);
    *agent.mutable_report() = std::move(reports[i].report);
    *agent.mutable_report_time() = ToProto(reports[i].time);
  }
  return agents;
}

absl::StatusOr<admin::v1::ListAgentsResponse> StoreRegistry::ListAgents(
    const admin::v1::ListAgentsRequest& request) const {
  return QueryAgents(request, Agents(), options_.timer->clock()->WallNow());
}

StoreRegistry::AgentCounts StoreRegistry::CountAgents() const {
  AgentCounts counts;
  const absl::Time now = options_.timer->clock()->WallNow();
  for (const AgentSummary& agent : Agents()) {
    ++counts.agents;
    if (!TroublesOf(agent.session(), agent.report(), now).empty()) ++counts.in_trouble;
  }
  return counts;
}

std::string StoreRegistry::hold_serial() const {
  const Leases::Statistics stats = leases_->Stats();
  return absl::StrCat(stats.holds, "-", stats.held);
}

void StoreRegistry::LookAtHeld() {
  SubscriptionHub::Topics services = HeldServices();
  const bool any = !services.empty();
  SubscriptionHub::Deliveries deliveries;
  hub_->SetHeld(std::move(services), &deliveries);
  SubscriptionHub::Deliver(deliveries);
  if (any || leases_->Stats().held > 0) held_look_.Arm(kHeldLookPeriod);
}

SubscriptionHub::Topics StoreRegistry::HeldServices() const {
  SubscriptionHub::Topics services;
  for (const std::string& session_id : leases_->Held()) {
    std::string incarnation;
    {
      MutexLock lock(&mu_);
      const Session* const session = state_->FindSession(session_id);
      if (session == nullptr) continue;
      incarnation = session->incarnation->name;
    }
    for (bool ready = false; !ready;) {
      MutexLock lock(&mu_);
      ready = state_->PrepareList(incarnation, kAtOnce);
    }
    std::vector<std::string> part;
    do {
      MutexLock lock(&mu_);
      part = state_->ServicesOwned(incarnation, part.empty() ? "" : part.back(), kAtOnce);
      services.insert(part.begin(), part.end());
    } while (part.size() == kAtOnce);
  }
  return services;
}

void StoreRegistry::CountHeld(std::vector<ServiceSummary>* services) const {
  for (const std::string& session_id : leases_->Held()) {
    std::vector<Blob> instances;
    {
      MutexLock lock(&mu_);
      const Session* const session = state_->FindSession(session_id);
      if (session == nullptr) continue;
      for (const Record* record = session->incarnation->first_owned; record != nullptr;
           record = record->next_owned) {
        instances.push_back(record->version.Shown());
      }
    }
    for (const Blob& bytes : instances) {
      ServiceInstance instance;
      if (!instance.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
      const auto key = [](const auto& service) {
        return std::pair<const std::string&, const std::string&>(service.namespace_(),
                                                                 service.name());
      };
      const std::pair<const std::string&, const std::string&> wanted(instance.key().namespace_(),
                                                                     instance.key().service());
      const auto it = std::lower_bound(
          services->begin(), services->end(), wanted,
          [&](const ServiceSummary& service, const auto& wanted) { return key(service) < wanted; });
      if (it == services->end() || key(*it) != wanted) continue;
      InstanceRecord record;
      *record.mutable_instance() = std::move(instance);
      const bool persistent = record.instance().persistent();
      Count(StateOf(record), persistent, -1, it->mutable_instances());
      record.set_held(true);
      Count(StateOf(record), persistent, +1, it->mutable_instances());
    }
  }
}

}  // namespace failback
