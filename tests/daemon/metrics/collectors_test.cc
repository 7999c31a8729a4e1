// Snapshots of the modules become families of Prometheus's text format.

#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/agent_metrics.h"
#include "agent/failback_metrics.h"
#include "daemon/metrics/dns_metrics.h"
#include "daemon/metrics/http_metrics.h"
#include "daemon/metrics/metrics_page.h"
#include "daemon/metrics/process_metrics.h"
#include "daemon/metrics/server_metrics.h"
#include "daemon/metrics/xds_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/version.h"
#include "registry/etcd_metrics.h"
#include "registry/store_metrics.h"
#include "retry/simulated_clock.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Render(MetricsPage::Collector collect) {
  MetricsPage page;
  page.Add(std::move(collect));
  return page.Render();
}

TEST(MetricFamiliesTest, SeriesOfOneFamilyStandTogetherUnderOneHead) {
  EXPECT_EQ(Render([](MetricFamilies* out) {
              out->Gauge("a", "What a is.", 1, {{"x", "1"}});
              out->Counter("b_total", "What b is.", 2);
              out->Gauge("a", "What a is.", 3, {{"x", "q\"\\\n"}});
            }),
            "# HELP a What a is.\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"q\\\"\\\\\\n\"} 3\n"
            "# HELP b_total What b is.\n# TYPE b_total counter\nb_total 2\n");
}

TEST(MetricFamiliesTest, BucketsAreCumulativeAndInTheFamilysUnit) {
  Histogram histogram(kLatencyBoundsNanos);
  for (const int64_t nanos : {40'000, 50'000, 90'000, 2'000'000'000}) histogram.Observe(nanos);
  histogram.Observe(60'000'000'000);
  const std::string page = Render([&](MetricFamilies* out) {
    out->Histogram("wait_seconds", "How long.", histogram, MetricFamilies::kNanosPerSecond);
  });
  EXPECT_THAT(page,
              AllOf(HasSubstr("wait_seconds_bucket{le=\"5e-05\"} 2\n"),
                    HasSubstr("wait_seconds_bucket{le=\"0.0001\"} 3\n"),
                    HasSubstr("wait_seconds_bucket{le=\"2.5\"} 4\n"),
                    HasSubstr("wait_seconds_bucket{le=\"10\"} 4\n"),
                    HasSubstr("wait_seconds_bucket{le=\"+Inf\"} 5\n"),
                    HasSubstr("wait_seconds_count 5\n"), HasSubstr("wait_seconds_sum 62.00018\n")));
}

TEST(ProcessMetricsTest, TellsOfThisProcess) {
  const std::string page = Render([](MetricFamilies* out) {
    CollectBuildInfo("failback-agent", out);
    CollectProcess(out);
  });
  EXPECT_THAT(page, HasSubstr(absl::StrCat("failback_build_info{program=\"failback-agent\","
                                           "version=\"",
                                           kVersion, "\"} 1\n")));
  for (const char* name :
       {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
        "process_max_fds", "process_start_time_seconds", "process_threads"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", name, " "))) << page;
  }
  MetricFamilies families;
  CollectProcess(&families);
  for (const auto& family : std::move(families).Take()) {
    const auto& metric = family.metric.front();
    if (family.name == "process_start_time_seconds") {
      EXPECT_NEAR(metric.gauge.value, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), 600);
    }
    if (family.name == "process_resident_memory_bytes") {
      EXPECT_GT(metric.gauge.value, 1 << 20);
      EXPECT_LT(metric.gauge.value, int64_t{1} << 40);
    }
  }
}

TEST(ServerMetricsTest, CallsByMethodAndCode) {
  CallStats calls;
  calls.Ended(CallStats::Method::kRegister, absl::StatusCode::kOk, 1'000'000);
  calls.Ended(CallStats::Method::kRegister, absl::StatusCode::kUnavailable, 2'000'000);
  calls.Ended(CallStats::Method::kSubscribe, absl::StatusCode::kAborted);
  calls.Refused(CallStats::Limit::kBulkBytes);
  calls.Sent(/*snapshot=*/true);
  calls.Conflated();
  RegistryServer::Statistics stats;
  stats.calls = calls.Take();
  stats.calls_in_flight = 3;
  const std::string page = Render([&](MetricFamilies* out) { CollectServer(stats, out); });
  EXPECT_THAT(
      page, AllOf(HasSubstr("calls_total{method=\"Register\",code=\"OK\"} 1\n"),
                  HasSubstr("calls_total{method=\"Register\",code=\"UNAVAILABLE\"} 1\n"),
                  HasSubstr("calls_total{method=\"Subscribe\",code=\"ABORTED\"} 1\n"),
                  HasSubstr("calls_total{method=\"List\",code=\"OK\"} 0\n"),
                  HasSubstr("failback_server_call_duration_seconds_count{method=\"Register\"} 2\n"),
                  HasSubstr("failback_server_calls_in_flight 3\n"),
                  HasSubstr("failback_server_refused_total{limit=\"bulk_bytes\"} 1\n"),
                  HasSubstr("failback_server_refused_total{limit=\"calls\"} 0\n"),
                  HasSubstr("failback_server_messages_sent_total{type=\"snapshot\"} 1\n"),
                  HasSubstr("failback_server_messages_conflated_total 1\n")));
  // Streams are as long as their clients want.
  EXPECT_THAT(page, Not(HasSubstr("duration_seconds_count{method=\"Subscribe\"}")));
}

TEST(ServerMetricsTest, WithoutACertificateThereIsNoEndOfOne) {
  EXPECT_EQ(Render([](MetricFamilies* out) { CollectCertificate(absl::InfiniteFuture(), out); }),
            "");
  EXPECT_THAT(Render([](MetricFamilies* out) {
                CollectCertificate(absl::FromUnixSeconds(1800000000), out);
              }),
              HasSubstr("failback_server_certificate_not_after_timestamp_seconds 1800000000\n"));
}

TEST(ServerMetricsTest, CertificatesOfClients) {
  CertificateWatch::Summary seen;
  const auto collect = [&](MetricFamilies* out) { CollectClientCertificates(seen, out); };
  EXPECT_THAT(Render(collect), AllOf(HasSubstr("failback_server_client_certificates 0\n"),
                                     HasSubstr("failback_server_client_certificates_ending 0\n"),
                                     Not(HasSubstr("not_after"))));
  seen.seen = 3;
  seen.ending = 2;
  seen.first = absl::FromUnixSeconds(1800000000);
  EXPECT_THAT(
      Render(collect),
      AllOf(HasSubstr("failback_server_client_certificates 3\n"),
            HasSubstr("failback_server_client_certificates_ending 2\n"),
            HasSubstr(
                "failback_server_client_certificate_not_after_timestamp_seconds 1800000000\n")));
}

TEST(StoreMetricsTest, TellOfARealStore) {
  SimulatedClock clock;
  const auto timer = NewTimer(&clock);
  StoreRegistry::Options options;
  options.uri = absl::StrCat("sqlite://", testing::TempDir(), "/metrics.db");
  options.timer = timer.get();
  options.commit_inline = true;
  const auto registry = StoreRegistry::Open(options).value();
  RegisterRequest request;
  for (const char* service : {"orders", "payments"}) {
    *request.add_registrations()->mutable_instance() = MakeInstance(service, "1");
  }
  registry->Register(request, [](const absl::StatusOr<RegisterResponse>& response) {
    ASSERT_TRUE(response.ok()) << response.status();
  });
  const StoreRegistry::Statistics stats = registry->Stats();
  EXPECT_GT(stats.files.at(0).bytes + stats.files.at(1).bytes, 4096);
  const std::string page = Render([&](MetricFamilies* out) { CollectStore(stats, out); });
  EXPECT_THAT(page, AllOf(HasSubstr("failback_registry_revision 1\n"),
                          HasSubstr("failback_registry_instances 2\n"),
                          HasSubstr("failback_registry_services 2\n"),
                          HasSubstr("failback_store_writable 1\n"),
                          HasSubstr("failback_store_group_intents_sum 2\n"),
                          HasSubstr("failback_store_write_duration_seconds_count 1\n"),
                          HasSubstr("failback_store_size_bytes{file=\"log\"}"),
                          HasSubstr("failback_registry_eviction_guard_enabled 1\n"),
                          HasSubstr("failback_registry_eviction_guard_active 0\n")));
}

TEST(StoreMetricsTest, AStoreThatCannotBeWrittenAndLeasesThatAreHeld) {
  StoreRegistry::Statistics stats;
  stats.write_status = absl::UnavailableError("disk full");
  stats.leases.held = 7;
  EXPECT_THAT(Render([&](MetricFamilies* out) { CollectStore(stats, out); }),
              AllOf(HasSubstr("failback_store_writable 0\n"),
                    HasSubstr("failback_registry_sessions_held 7\n"),
                    HasSubstr("failback_registry_eviction_guard_active 1\n")));
  EXPECT_THAT(Render([&](MetricFamilies* out) {
                CollectAgents({12, 3}, out);
              }),
              AllOf(HasSubstr("failback_registry_agents 12\n"),
                    HasSubstr("failback_registry_agents_in_trouble 3\n")));
}

TEST(EtcdMetricsTest, CallsByCodeAndNoEpochBeforeTheFirstAnswer) {
  EtcdRegistry::Statistics stats;
  stats.calls.ended[0] = 5;
  stats.calls.ended[14] = 2;
  stats.calls.tokens = 3;
  stats.calls.duration_nanos.Observe(3'000'000);
  EXPECT_THAT(Render([&](MetricFamilies* out) { CollectEtcd(stats, out); }),
              AllOf(HasSubstr("failback_etcd_calls_total{code=\"OK\"} 5\n"),
                    HasSubstr("failback_etcd_calls_total{code=\"UNAVAILABLE\"} 2\n"),
                    HasSubstr("failback_etcd_call_duration_seconds_sum 0.003\n"),
                    HasSubstr("failback_etcd_tokens_total 3\n"),
                    Not(HasSubstr("failback_registry_epoch"))));
}

TEST(FailbackMetricsTest, EachUpstreamHasItsSeries) {
  FailbackStatistics old_one, new_one;
  old_one.upstream = "old";
  old_one.up = true;
  old_one.state = agent::v1::UPSTREAM_STATE_READY;
  old_one.desired = old_one.acknowledged = 5;
  old_one.journal.emplace();
  old_one.journal->damaged = "journal.db.corrupt-1";
  new_one.upstream = "new";
  new_one.state = agent::v1::UPSTREAM_STATE_CONNECTING;
  new_one.desired = 5;
  new_one.pending = {3, 1, 0, 0};
  new_one.parked = {1, 0, 0, 0};
  new_one.superseded = 1;
  new_one.lapsed_since = absl::UnixEpoch();
  new_one.refused = true;
  new_one.oldest_pending = absl::Seconds(90);
  new_one.counters.attempts[0][14] = 8;
  const std::string page = Render([&](MetricFamilies* out) {
    CollectFailback(old_one, out);
    CollectFailback(new_one, out);
  });
  EXPECT_THAT(page,
              AllOf(HasSubstr("failback_agent_upstream_up{upstream=\"old\"} 1\n"
                              "failback_agent_upstream_up{upstream=\"new\"} 0\n"),
                    HasSubstr("failback_agent_upstream_refused{upstream=\"old\"} 0\n"
                              "failback_agent_upstream_refused{upstream=\"new\"} 1\n"),
                    HasSubstr("upstream_state{upstream=\"old\",state=\"ready\"} 1\n"),
                    HasSubstr("upstream_state{upstream=\"new\",state=\"ready\"} 0\n"),
                    HasSubstr("upstream_state{upstream=\"new\",state=\"connecting\"} 1\n"),
                    HasSubstr("operations_pending{upstream=\"new\",operation=\"register\"} 3\n"),
                    HasSubstr("operations_pending{upstream=\"new\",operation=\"unregister\"} 1\n"),
                    HasSubstr("operations_parked{upstream=\"new\",operation=\"register\"} 1\n"),
                    HasSubstr("failback_agent_superseded{upstream=\"new\"} 1\n"),
                    HasSubstr("failback_agent_session_lapsed{upstream=\"old\"} 0\n"),
                    HasSubstr("failback_agent_session_lapsed{upstream=\"new\"} 1\n"),
                    HasSubstr("failback_agent_oldest_pending_seconds{upstream=\"new\"} 90\n"),
                    HasSubstr("attempts_total{upstream=\"new\",operation=\"register\","
                              "code=\"UNAVAILABLE\"} 8\n"),
                    HasSubstr("failback_agent_journal_writable{upstream=\"old\"} 1\n"),
                    HasSubstr("failback_agent_journal_damaged{upstream=\"old\"} 1\n"),
                    Not(HasSubstr("failback_agent_journal_writable{upstream=\"new\"}"))));
}

TEST(AgentMetricsTest, CheckedServicesByState) {
  AgentSnapshot agent;
  agent.services.emplace_back().set_state(agent::v1::CHECK_STATE_CRITICAL);
  auto& passing = agent.services.emplace_back();
  passing.set_state(agent::v1::CHECK_STATE_PASSING);
  passing.set_registered(true);
  agent.checks = {{"tcp", {7, 2}}};
  agent.config.set_error("services[0]: is wrong");
  const std::string page = Render([&](MetricFamilies* out) { CollectAgent(agent, out); });
  EXPECT_THAT(page, AllOf(HasSubstr("failback_agent_checked_services{state=\"critical\"} 1\n"),
                          HasSubstr("failback_agent_checked_services{state=\"unknown\"} 0\n"),
                          HasSubstr("failback_agent_checked_services_unregistered 1\n"),
                          HasSubstr("failback_config_file_refused 1\n"),
                          HasSubstr("health_checks_total{kind=\"tcp\",result=\"pass\"} 7\n"),
                          HasSubstr("health_checks_total{kind=\"tcp\",result=\"fail\"} 2\n")));
}

TEST(MetricsTest, FrontDoorsAreToldApartByTheirListener) {
  http::FrontDoorStatistics doors;
  doors.listeners.resize(2);
  doors.listeners[0].name = "http";
  doors.listeners[1].name = "consul";
  doors.listeners[1].live_instances = 3;
  doors.listeners[1].server.responses = {0, 9, 0, 4, 0};
  doors.listeners[1].server.parked = 5;
  doors.listeners[1].server.made_room = 6;
  doors.listeners[1].server.duration_nanos.Observe(1'000'000);
  doors.services = 2;
  const std::string page = Render([&](MetricFamilies* out) { http::CollectHttp(doors, out); });
  EXPECT_THAT(
      page,
      AllOf(HasSubstr("failback_http_responses_total{listener=\"consul\",code=\"2xx\"} 9\n"),
            HasSubstr("failback_http_responses_total{listener=\"consul\",code=\"4xx\"} 4\n"),
            HasSubstr("failback_http_responses_total{listener=\"http\",code=\"2xx\"} 0\n"),
            HasSubstr("failback_http_parked{listener=\"consul\"} 5\n"),
            HasSubstr("failback_http_made_room_total{listener=\"consul\"} 6\n"),
            HasSubstr("failback_http_live_instances{listener=\"consul\"} 3\n"),
            HasSubstr("failback_http_request_duration_seconds_count{listener=\"consul\"} 1\n"),
            HasSubstr("failback_http_services 2\n")));
}

// What every page has, with everything that is served.
TEST(MetricsTest, NamesKeepToTheConventions) {
  MetricsPage page;
  page.Add([](MetricFamilies* out) {
    CollectBuildInfo("failback-registry", out);
    CollectProcess(out);
    CollectWheel({}, out);
    CallStats calls;
    RegistryServer::Statistics server;
    server.calls = calls.Take();
    CollectServer(server, out);
    CollectAccess({}, out);
    CollectCertificate(absl::UnixEpoch(), out);
    CollectReloads("security", 0, 0, out);
    CollectStore({}, out);
    FailbackStatistics failback;
    failback.journal.emplace();
    CollectFailback(failback, out);
    CollectAgent({}, out);
    xds::CollectXds({}, out);
    dns::CollectDns({}, out);
    http::FrontDoorStatistics doors;
    doors.listeners = {{"http", {}, 0}, {"consul", {}, 0}};
    http::CollectHttp(doors, out);
  });
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family : page.Collect()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " comes twice";
    EXPECT_TRUE(absl::StartsWith(family.name, "failback_") ||
                absl::StartsWith(family.name, "process_"))
        << family.name;
    EXPECT_EQ(family.type == prometheus::MetricType::Counter, absl::EndsWith(family.name, "_total"))
        << family.name;
    EXPECT_TRUE(absl::EndsWith(family.help, ".")) << family.name << ": " << family.help;
    std::set<std::string> series;
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string labels;
      for (const auto& label : metric.label) {
        EXPECT_NE(label.name, "le");
        absl::StrAppend(&labels, label.name, "=", label.value, ",");
      }
      EXPECT_TRUE(series.insert(labels).second) << family.name << "{" << labels << "} comes twice";
    }
  }
  EXPECT_GT(names.size(), 50u);
}

}  // namespace
}  // namespace failback
