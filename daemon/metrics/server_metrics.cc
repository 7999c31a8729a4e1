#include "daemon/metrics/server_metrics.h"

#include "absl/status/status.h"

namespace failback {
namespace {

// gRPC's name of a status code.
std::string CodeName(size_t code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

}  // namespace

void CollectWheel(const HashedWheelTimer::Statistics& stats, MetricFamilies* out) {
  out->Gauge("failback_wheel_timeouts_pending", "Timeouts on the timing wheel.", stats.pending);
  out->Counter("failback_wheel_timeouts_scheduled_total", "Timeouts put on the wheel.",
               stats.scheduled);
  out->Counter("failback_wheel_timeouts_fired_total", "Timeouts whose tasks were started.",
               stats.fired);
  out->Counter("failback_wheel_timeouts_cancelled_total", "Timeouts cancelled before they ran.",
               stats.cancelled);
  out->Counter("failback_wheel_tasks_failed_total", "Tasks that threw an exception.", stats.failed);
  out->Histogram("failback_wheel_lateness_seconds",
                 "How late the last task of each tick was started.", stats.lateness,
                 MetricFamilies::kNanosPerSecond);
}

void CollectServer(const RegistryServer::Statistics& stats, MetricFamilies* out) {
  for (const auto& method : stats.calls.methods) {
    const std::string name = CallStats::MethodName(method.method);
    for (size_t code = 0; code < method.ended.size(); ++code) {
      // A method's OK is there from the start, so that its rate is known from the first call on.
      if (method.ended[code] == 0 && code != 0) continue;
      out->Counter("failback_server_calls_total", "Calls that have ended, streams included.",
                   method.ended[code], {{"method", name}, {"code", CodeName(code)}});
    }
  }
  for (const auto& method : stats.calls.methods) {
    if (method.method == CallStats::Method::kKeepAlive ||
        method.method == CallStats::Method::kSubscribe ||
        method.method == CallStats::Method::kRegisterStream ||
        method.method == CallStats::Method::kWatch) {
      continue;  // streams
    }
    out->Histogram("failback_server_call_duration_seconds",
                   "How long unary calls and messages of RegisterStreams took.",
                   method.duration_nanos, MetricFamilies::kNanosPerSecond,
                   {{"method", CallStats::MethodName(method.method)}});
  }
  out->Gauge("failback_server_calls_in_flight",
             "Unary calls and messages of RegisterStreams under way.", stats.calls_in_flight);
  out->Gauge("failback_server_bulk_bytes", "Large requests that wait for their turn.",
             stats.bulk_bytes);
  out->Gauge("failback_server_subscriptions",
             "Open subscriptions: Subscribe streams, and those of Watch streams.",
             stats.subscriptions);
  out->Gauge("failback_server_watch_streams", "Open Watch streams.", stats.watch_streams);
  out->Gauge("failback_server_renewal_streams", "Open KeepAlive streams.", stats.renewal_streams);
  out->Gauge("failback_server_register_streams", "Open RegisterStreams.", stats.register_streams);
  for (size_t i = 0; i < stats.calls.refused.size(); ++i) {
    out->Counter("failback_server_refused_total",
                 "Calls refused with OVERLOADED, by the limit that was reached.",
                 stats.calls.refused[i],
                 {{"limit", CallStats::LimitName(static_cast<CallStats::Limit>(i))}});
  }
  const char* const sent_help = "Messages sent to subscribers; a large snapshot has several parts.";
  out->Counter("failback_server_messages_sent_total", sent_help, stats.calls.snapshots_sent,
               {{"type", "snapshot"}});
  out->Counter("failback_server_messages_sent_total", sent_help, stats.calls.deltas_sent,
               {{"type", "delta"}});
  out->Counter("failback_server_messages_conflated_total",
               "Messages merged because their subscriber had not read the ones before.",
               stats.calls.conflated);
}

void CollectAccess(const AccessControl::Counters& counters, MetricFamilies* out) {
  const auto denied = [out](const char* what, int64_t count) {
    out->Counter(
        "failback_server_denied_total",
        "Calls refused for what the caller lacked: credentials, a permission, the session.", count,
        {{"missing", what}});
  };
  denied("credentials", counters.unauthenticated);
  denied("register", counters.denied_register);
  denied("read", counters.denied_read);
  denied("administer", counters.denied_administer);
  denied("any", counters.denied_other);
  denied("session", counters.denied_session);
  out->Counter("failback_server_revoked_streams_total", "Subscriptions ended by a new policy.",
               counters.revoked_streams);
}

void CollectCertificate(absl::Time not_after, MetricFamilies* out) {
  if (not_after == absl::InfiniteFuture()) return;
  out->Gauge("failback_server_certificate_not_after_timestamp_seconds",
             "When the certificate that the server shows ends, as Unix time.",
             absl::ToDoubleSeconds(not_after - absl::UnixEpoch()));
}

void CollectClientCertificates(const CertificateWatch::Summary& seen, MetricFamilies* out) {
  out->Gauge("failback_server_client_certificates",
             "Names and hosts of clients that have shown a certificate within two hours.",
             seen.seen);
  out->Gauge("failback_server_client_certificates_ending",
             "Those of them whose certificate ends within 14 days, with less than a third of its "
             "time left.",
             seen.ending);
  if (seen.first == absl::InfiniteFuture()) return;
  out->Gauge("failback_server_client_certificate_not_after_timestamp_seconds",
             "When the one that ends first ends, as Unix time.",
             absl::ToDoubleSeconds(seen.first - absl::UnixEpoch()));
}

void CollectReloads(const std::string& source, int64_t taken, int64_t refused,
                    MetricFamilies* out) {
  out->Counter("failback_config_reloads_total", "Changed files that were put in force.", taken,
               {{"source", source}});
  out->Counter("failback_config_refused_total",
               "Changed files that were refused, so that the former ones stay in force.", refused,
               {{"source", source}});
}

}  // namespace failback
