#include "agent/ctl/admin_output.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/ctl/output.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using admin::v1::AgentSummary;
using admin::v1::InstanceChange;
using admin::v1::InstanceCounts;
using admin::v1::InstanceDescription;
using admin::v1::Overview;
using admin::v1::RegistryOverview;
using admin::v1::SessionSummary;
using registry::v1::InstanceRecord;
using registry::v1::ServiceInstance;

std::string Row(const std::string& name, const std::string& value) {
  return absl::StrCat(name, std::string(name.size() < 14 ? 14 - name.size() : 1, ' '), value, "\n");
}

std::string FormatCounts(const InstanceCounts& counts) {
  std::vector<std::string> parts = {absl::StrCat(counts.total())};
  const auto add = [&parts](int32_t count, const char* what) {
    if (count > 0) parts.push_back(absl::StrCat(count, " ", what));
  };
  add(counts.unhealthy(), "unhealthy");
  add(counts.draining(), "draining");
  add(counts.offline(), "offline");
  add(counts.pending(), "pending");
  add(counts.superseded(), "superseded");
  add(counts.lapsed(), "lapsed");
  add(counts.held(), "held");
  add(counts.persistent(), "persistent");
  return absl::StrJoin(parts, ", ");
}

std::string FormatSession(const SessionSummary& session, absl::Time now) {
  return absl::StrCat(
      session.client_name().empty() ? session.incarnation() : session.client_name(), ", rank ",
      session.rank(), ", ttl ", FormatSpan(FromProto(session.ttl())), ", ",
      session.held_back()
          ? absl::StrCat("past its TTL and held, ends ",
                         FormatRelative(session.hold_end_time(), now), " at the latest")
          : absl::StrCat("ends ", FormatRelative(session.expire_time(), now)),
      ", ", session.instances(), " instances");
}

std::string FormatMark(const registry::v1::OfflineMark& mark, absl::Time now) {
  return absl::StrCat(
      mark.by().empty() ? "" : absl::StrCat(" by ", MadePrintable(mark.by(), ' ')), ", ",
      FormatWhen(mark.time(), now),
      mark.reason().empty() ? "" : absl::StrCat(": ", MadePrintable(mark.reason(), ' ')));
}

// The word of listings, and beyond it what its owner says: of what is not acknowledged nothing else
// is known.
std::string StatusOf(const InstanceRecord& record, absl::Time now, const Palette& palette) {
  const ServiceInstance& instance = record.instance();
  const std::string state = FormatState(record);
  const char* const means =
      state == "pending" || state == "parked" ? ": not acknowledged by the registry"
      : state == "superseded"                 ? ": another holds the key, or held it until lately"
      : state == "lapsed"                     ? ": the session has run out, it may be gone"
      : state == "held"                       ? ": the session is past its TTL"
                                              : "";
  const std::string health = FormatHealth(instance);
  // The mark comes after its word, so that being held comes last.
  const bool both = record.held() && state != health && HasState(record, health);
  return absl::StrCat(palette.State(both ? health : state), means,
                      HasState(record, health) ? "" : absl::StrCat("; its owner says ", health),
                      instance.has_offline() ? FormatMark(instance.offline(), now) : "",
                      both ? "; held: the session is past its TTL" : "");
}

std::string FormatInstance(const InstanceRecord& record, absl::Time now, const Palette& palette) {
  const ServiceInstance& instance = record.instance();
  const std::map<std::string, std::string> metadata(instance.metadata().begin(),
                                                    instance.metadata().end());
  const bool superseded = record.state() == registry::v1::INTENT_STATE_SUPERSEDED;
  std::string text =
      Row("endpoint", FormatEndpoint(instance)) + Row("status", StatusOf(record, now, palette)) +
      Row("weight", absl::StrCat(instance.has_weight() ? instance.weight() : 100)) +
      Row("zone", instance.zone().empty() ? "-" : instance.zone()) +
      Row("metadata",
          metadata.empty()
              ? "-"
              : MadePrintable(absl::StrJoin(metadata, ", ", absl::PairFormatter("=")), ' ')) +
      Row("owner",
          absl::StrCat(superseded && record.incarnation().empty()
                           ? (record.client_name().empty() ? "not known" : record.client_name())
                       : record.incarnation().empty() ? "none: detached"
                       : record.client_name().empty()
                           ? record.incarnation()
                           : absl::StrCat(record.client_name(), ", ", record.incarnation()),
                       instance.persistent() ? ", persistent" : "")) +
      Row("generation", absl::StrCat(record.generation()));
  if (record.has_create_time()) {
    text += Row("created", FormatWhen(record.create_time(), now)) +
            Row("changed", FormatWhen(record.modify_time(), now));
  }
  return text;
}

// The certificates of the server and of its clients.
std::string FormatCertificates(const Overview& overview, absl::Time now) {
  if (!overview.has_certificate_not_after()) return "";
  std::string text =
      Row("certificate", FormatCertificateEnd(overview.certificate_not_after(), now));
  if (!overview.has_client_certificates()) return text;
  const admin::v1::ClientCertificates& clients = overview.client_certificates();
  text += Row("clients'", absl::StrCat(clients.seen(), " certificates seen, ", clients.ending(),
                                       clients.ending() == 1 ? " ends soon" : " end soon"));
  for (const admin::v1::ClientCertificate& client : clients.soonest()) {
    text += Row("", absl::StrCat(client.name(), " at ", client.host(), " ends ",
                                 FormatWhen(client.not_after(), now)));
  }
  return text;
}

std::string FormatHistory(const google::protobuf::RepeatedPtrField<InstanceChange>& history,
                          absl::Time now) {
  std::vector<std::vector<std::string>> rows;
  for (const InstanceChange& change : history) {
    rows.push_back({FormatWhen(change.time(), now),
                    FormatEnum(admin::v1::ChangeKind_descriptor(), change.kind()), change.by(),
                    change.generation() == 0 ? "" : absl::StrCat(change.generation()),
                    change.revision() == 0 ? "" : absl::StrCat(change.revision()),
                    FormatMessage(change.detail())});
  }
  return FormatTable({"WHEN", "WHAT", "BY", "GENERATION", "REVISION", "DETAIL"}, rows);
}

// How an operation's last attempt ended, with nothing left out.
std::string FormatLastStatus(const agent::v1::PendingOperation& operation) {
  const absl::Status status = StatusFromProto(operation.last_status());
  if (status.ok()) return "";
  const std::string reason = ReasonText(status);
  std::string text =
      "\n" +
      Row("last status",
          MadePrintable(absl::StrCat(operation.id(), " at ", operation.upstream()), ' ')) +
      Row("  code", absl::StrCat(absl::StatusCodeToString(status.code()),
                                 reason.empty() ? "" : ", ", reason));
  if (!status.message().empty()) {
    text += Row("  message", MadePrintable(std::string(status.message()), ' '));
  }
  for (const auto& [key, value] : ReasonMetadata(status)) {
    text += Row(MadePrintable("  " + key, ' '), MadePrintable(value, ' '));
  }
  return text;
}

}  // namespace

std::string FormatDns(const Overview& overview) {
  if (!overview.has_dns()) return "";
  const admin::v1::DnsOverview& dns = overview.dns();
  return Row("dns", absl::StrCat(absl::StrJoin(dns.addresses(), " "), " for ", dns.domain(),
                                 dns.zone().empty() ? "" : ", zone " + dns.zone())) +
         Row("", absl::StrCat(dns.queries(),
                              dns.queries() == 1 ? " query: " : " queries: ", dns.answered(),
                              " answered with records, ", dns.no_data() + dns.nx_domain(),
                              " without, ", dns.refused(), " refused, ", dns.failures(),
                              " failed, ", dns.limited(), " limited"));
}

std::string FormatRegistryStatus(const Overview& overview, absl::Time now, const Palette& palette) {
  const RegistryOverview& registry = overview.registry();
  std::string text = Row("registry", absl::StrCat("version ", overview.version(), ", started ",
                                                  FormatRelative(overview.start_time(), now))) +
                     Row("state", overview.readiness().ready()
                                      ? palette.State("ready")
                                      : palette.Paint("not ready", Tone::kBad) + ": " +
                                            absl::StrJoin(overview.readiness().reasons(), "; "));
  if (registry.has_write_status()) {
    text += Row("writes", palette.Paint("refused", Tone::kBad) + ": " +
                              FormatStatus(registry.write_status()));
  }
  if (!registry.complete()) {
    // Over etcd: instances are not counted, subscribers are each server's own.
    text += Row("store", registry.store());
    if (registry.epoch() == 0) {
      return text + FormatDns(overview) + FormatCertificates(overview, now);
    }
    return text + Row("epoch", absl::StrCat(registry.epoch(), ", revision ", registry.revision())) +
           Row("sessions", absl::StrCat(registry.sessions())) +
           Row("agents", absl::StrCat(registry.agents(), " that renew here, ",
                                      registry.agents_in_trouble(), " in trouble")) +
           FormatDns(overview) + FormatCertificates(overview, now);
  }
  return text + Row("store", absl::StrCat(registry.store(), ", id ", registry.store_id())) +
         Row("epoch", absl::StrCat(registry.epoch(), ", revision ", registry.revision())) +
         Row("instances", FormatCounts(overview.instances())) +
         Row("services", absl::StrCat(overview.services())) +
         Row("sessions", absl::StrCat(registry.sessions(), ", ", registry.expired_sessions(),
                                      " expired since the start, ", registry.held_back_leases(),
                                      " held back")) +
         Row("agents",
             absl::StrCat(registry.agents(), ", ", registry.agents_in_trouble(), " in trouble")) +
         Row("subscribers", absl::StrCat(registry.subscribers())) +
         Row("guard",
             FormatEnum(admin::v1::EvictionGuardState_descriptor(), registry.eviction_guard())) +
         FormatDns(overview) + FormatCertificates(overview, now);
}

std::string FormatRegistryLine(const Overview& overview) {
  const RegistryOverview& registry = overview.registry();
  std::string ready = overview.readiness().ready() ? "ready" : "not ready";
  if (!registry.complete()) return ready;
  return absl::StrCat(ready, "  revision ", registry.revision(), ", ", overview.instances().total(),
                      " instances, ", registry.sessions(), " sessions, ",
                      registry.held_back_leases(), " held back",
                      registry.has_write_status() ? "  cannot write" : "");
}

std::string FormatSessions(const std::vector<SessionSummary>& sessions, absl::Time now,
                           const Palette& palette) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(sessions.size());
  for (const SessionSummary& session : sessions) {
    rows.push_back({session.incarnation(), session.client_name(), absl::StrCat(session.rank()),
                    absl::StrCat(session.instances()), FormatSpan(FromProto(session.ttl())),
                    session.held_back() ? "held" : "alive",
                    session.held_back() ? absl::StrCat(FormatRelative(session.hold_end_time(), now),
                                                       " at the latest")
                                        : FormatRelative(session.expire_time(), now)});
  }
  return FormatTable({"INCARNATION", "CLIENT", "RANK", "INSTANCES", "TTL", "STATE", "ENDS"}, rows,
                     palette);
}

std::string FormatAgents(const std::vector<AgentSummary>& agents, absl::Time now,
                         const Palette& palette) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(agents.size());
  for (const AgentSummary& agent : agents) {
    const registry::v1::AgentReport& report = agent.report();
    rows.push_back({report.name(), report.version(), absl::StrCat(report.intents()),
                    absl::StrCat(report.pending()), absl::StrCat(report.parked()),
                    absl::StrCat(report.superseded()), FormatWhen(report.oldest_pending(), now),
                    FormatWhen(agent.report_time(), now), absl::StrJoin(agent.troubles(), "; ")});
  }
  return FormatTable({"NAME", "VERSION", "INTENTS", "PENDING", "PARKED", "SUPERSEDED",
                      "OLDEST PENDING", "REPORTED", "TROUBLE"},
                     rows, palette);
}

std::string FormatDescription(const InstanceDescription& description,
                              const registry::v1::InstanceKey& key, absl::Time now,
                              const Palette& palette) {
  std::string text = Row("instance", FormatKey(key));
  text += description.has_instance() ? FormatInstance(description.instance().record(), now, palette)
                                     : Row("status", "not registered");
  if (description.has_session()) text += Row("session", FormatSession(description.session(), now));
  if (description.has_instance() && description.fence_rank() > 0) {
    const bool detached = description.instance().record().incarnation().empty();
    text +=
        Row("fence", absl::StrCat("an incarnation with a rank below ", description.fence_rank(),
                                  " is refused",
                                  detached ? " until `failbackctl unregister`, and for max(TTL, "
                                             "60 s) after it"
                                           : ""));
  }
  if (description.has_fence_end_time()) {
    text += Row("fence",
                absl::StrCat("an incarnation with a rank below ", description.fence_rank(),
                             " is refused until ", FormatWhen(description.fence_end_time(), now)));
  }
  if (description.stale()) {
    text += "\nthis is the last the agent knew of its registry: `failbackctl status` says why\n";
  }
  if (description.has_unread()) {
    text += absl::StrCat("\nthe registry does not list it (", FormatStatus(description.unread()),
                         "); this is what the agent carries\n");
  }
  if (description.pending_size() > 0) {
    text += "\n" + FormatPending({description.pending().begin(), description.pending().end()}, now,
                                 palette);
    for (const auto& operation : description.pending()) text += FormatLastStatus(operation);
  }
  text += description.history_size() > 0
              ? "\n" + FormatHistory(description.history(), now)
              : "\nno change of it is remembered; what a daemon remembers begins when it starts\n";
  return text;
}

std::string FormatCarriers(const std::vector<AgentSummary>& agents) {
  constexpr size_t kNames = 10;
  std::vector<std::string> names;
  for (const AgentSummary& agent : agents) {
    const registry::v1::AgentReport& report = agent.report();
    if (report.parked() + report.superseded() + report.pending() == 0) continue;
    names.push_back(MadePrintable(report.name(), ' '));
  }
  const size_t more = names.size() > kNames ? names.size() - kNames : 0;
  names.resize(names.size() - more);
  return absl::StrCat(
      "an agent may carry it and not have got it acknowledged: ask `failbackctl intents` and "
      "`failbackctl pending` there",
      names.empty() ? "" : "; agents with operations pending, parked or superseded: ",
      absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace failback
