#include <cstdlib>
#include <string>
#include <vector>

#include "agent/ctl/admin_output.h"
#include "agent/ctl/output.h"
#include "agent/ctl/watch_output.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"
#include "yaml-cpp/yaml.h"

namespace failback {
namespace {

using agent::v1::PendingOperation;
using registry::v1::InstanceRecord;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);

registry::v1::TargetResult Target(const std::string& upstream, registry::v1::IntentState state) {
  registry::v1::TargetResult target;
  target.set_upstream(upstream);
  target.set_state(state);
  return target;
}

TEST(CtlOutputTest, TablesAreAlignedAndOneLineARow) {
  EXPECT_EQ(FormatTable({"A", "LONG", "C"}, {{"x", "", "1"}, {"ähnlich", "two\nlines", "22"}}),
            "A        LONG       C\n"
            "x        -          1\n"
            "ähnlich  two lines  22\n");
}

TEST(CtlOutputTest, ATerminalGetsNothingOfWhatOthersRegister) {
  EXPECT_EQ(FormatTable({"A", "B"}, {{"\x1b[2J",
                                      "\xc2\x9b"
                                      "2J"}}),
            "A     B\n"
            " [2J   2J\n");
  admin::v1::InstanceDescription description;
  auto* const record = description.mutable_instance()->mutable_record();
  (*record->mutable_instance()->mutable_metadata())["\x1b]0;title\x07"] = "a\nb\xc2\x9b";
  record->mutable_instance()->mutable_offline()->set_reason("broken\x1b[1A");
  record->mutable_instance()->mutable_offline()->set_by("me\r");
  const std::string text =
      FormatDescription(description, record->instance().key(), kNow, Palette());
  EXPECT_THAT(text, HasSubstr("metadata       ]0;title =a b \n"));
  EXPECT_THAT(text, HasSubstr(": broken [1A\n"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos) << text;
  rpc::v1::Status status;
  status.set_code(14);
  status.set_message("no\x1b[2J\n");
  EXPECT_EQ(FormatStatus(status), "UNAVAILABLE: no [2J ");
}

TEST(CtlOutputTest, WhatLapsedIsSaidBesideWhatIsPending) {
  agent::v1::GetStatusResponse status;
  agent::v1::UpstreamStatus& upstream = *status.add_upstreams();
  upstream.set_uri("grpc://r:1");
  upstream.set_desired(3);
  EXPECT_EQ(FormatLapses(status, kNow), "");
  *upstream.mutable_lapsed_since() = ToProto(kNow - absl::Seconds(12));
  upstream.mutable_last_error()->set_code(16);
  upstream.mutable_last_error()->set_message("no such token");
  EXPECT_EQ(FormatLapses(status, kNow),
            "the session at grpc://r:1 ran out 12s ago: none of 3 registrations is acknowledged, "
            "each is sent when a session opens (UNAUTHENTICATED: no such token); `failbackctl "
            "intents --state lapsed` lists them\n");
  EXPECT_THAT(FormatTop(status, {}, kNow, Palette()),
              HasSubstr("nothing pending\nthe session at grpc://r:1 ran out 12s ago"));
}

TEST(CtlOutputTest, ARegistryThatRefusesTheAgentIsNotOnlyConnecting) {
  agent::v1::GetStatusResponse status;
  agent::v1::UpstreamStatus& upstream = *status.add_upstreams();
  upstream.set_name("main");
  upstream.set_state(agent::v1::UPSTREAM_STATE_CONNECTING);
  *upstream.mutable_since() = ToProto(kNow - absl::Seconds(12));
  EXPECT_THAT(FormatAgentStatus(status, kNow, Palette()),
              HasSubstr("state         connecting since 12s ago\n"));
  upstream.set_refused(true);
  EXPECT_THAT(FormatAgentStatus(status, kNow, Palette()),
              HasSubstr("state         connecting since 12s ago: the registry refuses this agent's "
                        "token or certificate\n"));
  EXPECT_THAT(FormatTop(status, {}, kNow, Palette()),
              HasSubstr("main      connecting, refused  12s"));
  EXPECT_THAT(FormatUpstreamLines(status), ElementsAre(HasSubstr("main  connecting, refused  0 ")));
}

TEST(CtlOutputTest, AStatusHasItsReasonAndADescriptionLeavesNothingOut) {
  admin::v1::InstanceDescription description;
  agent::v1::PendingOperation& operation = *description.add_pending();
  operation.set_id("register default/orders/a");
  operation.set_upstream("main");
  *operation.mutable_last_status() = StatusToProto(
      Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY,
              "failed to connect to all addresses: the store cannot be written: disk full",
              {{"path", "/var/lib\x1b/a.db"}}));
  EXPECT_EQ(FormatStatus(operation.last_status()), "UNAVAILABLE: disk full [STORE_READ_ONLY]");
  const std::string text = FormatDescription(description, {}, kNow, Palette());
  EXPECT_THAT(text, HasSubstr("UNAVAILABLE: disk full [STORE_READ_ONLY]  main\n"));
  EXPECT_THAT(text,
              HasSubstr("\nlast status   register default/orders/a at main\n"
                        "  code        UNAVAILABLE, STORE_READ_ONLY\n"
                        "  message     failed to connect to all addresses: the store cannot be "
                        "written: disk full\n"
                        "  path        /var/lib /a.db\n"));
}

TEST(CtlOutputTest, HeldIsToldBesideOffline) {
  InstanceRecord record;
  record.set_held(true);
  EXPECT_EQ(FormatState(record), "held");
  EXPECT_FALSE(HasState(record, "healthy"));
  record.mutable_instance()->mutable_offline()->set_by("me");
  EXPECT_EQ(FormatState(record), "offline, held");
  EXPECT_TRUE(HasState(record, "offline"));
  EXPECT_TRUE(HasState(record, "held"));
  admin::v1::InstanceDescription description;
  *description.mutable_instance()->mutable_record() = record;
  const std::string text = FormatDescription(description, {}, kNow, Palette());
  EXPECT_THAT(text, HasSubstr("offline by me, -; held: the session is past its TTL\n"));
  EXPECT_THAT(text, HasSubstr("\nno change of it is remembered"));
}

TEST(CtlOutputTest, AgentsThatMayCarryWhatIsAbsentAreNamed) {
  std::vector<admin::v1::AgentSummary> agents(3);
  EXPECT_EQ(FormatCarriers(agents),
            "an agent may carry it and not have got it acknowledged: ask `failbackctl intents` and "
            "`failbackctl pending` there");
  agents[0].mutable_report()->set_name("host-a");
  agents[1].mutable_report()->set_name("host-b");
  agents[1].mutable_report()->set_parked(1);
  agents[2].mutable_report()->set_name("host-c");
  agents[2].mutable_report()->set_superseded(1);
  EXPECT_THAT(FormatCarriers(agents),
              HasSubstr("; agents with operations pending, parked or superseded: host-b, host-c"));
  for (int i = 0; i < 20; ++i) agents.push_back(agents[1]);
  EXPECT_THAT(FormatCarriers(agents), HasSubstr(" and 12 more"));
}

TEST(CtlOutputTest, StatusHasWhatIsAskedByDns) {
  admin::v1::Overview overview;
  EXPECT_EQ(FormatDns(overview), "");
  overview.mutable_readiness()->set_ready(true);
  admin::v1::DnsOverview& dns = *overview.mutable_dns();
  dns.add_addresses("127.0.0.1:7073");
  dns.add_addresses("[::1]:7073");
  dns.set_domain("failback.");
  dns.set_zone("eu-1");
  dns.set_queries(12);
  dns.set_answered(5);
  dns.set_no_data(1);
  dns.set_nx_domain(2);
  dns.set_refused(3);
  dns.set_failures(1);
  dns.set_limited(4);
  const std::string lines =
      "dns           127.0.0.1:7073 [::1]:7073 for failback., zone eu-1\n"
      "              12 queries: 5 answered with records, 3 without, 3 refused, 1 failed, 4 "
      "limited\n";
  EXPECT_EQ(FormatDns(overview), lines);
  EXPECT_THAT(FormatRegistryStatus(overview, kNow, Palette()), HasSubstr(lines));
}

TEST(CtlOutputTest, ARegistryTellsWhatItKnows) {
  admin::v1::Overview overview;
  overview.mutable_readiness()->set_ready(true);
  overview.mutable_registry()->set_store("etcd://a:1/p");
  EXPECT_EQ(FormatRegistryStatus(overview, kNow, Palette()),
            "registry      version , started -\n"
            "state         ready\n"
            "store         etcd://a:1/p\n")
      << "zeros would be mistaken for counts";
  EXPECT_EQ(FormatRegistryLine(overview), "ready");
  overview.mutable_registry()->set_complete(true);
  overview.mutable_registry()->mutable_write_status()->set_code(14);
  overview.mutable_registry()->mutable_write_status()->set_message("disk is full");
  EXPECT_THAT(FormatRegistryStatus(overview, kNow, Palette()),
              HasSubstr("state         ready\nwrites        refused: UNAVAILABLE: disk is full\n"
                        "store         etcd://a:1/p, id "));
  EXPECT_EQ(FormatRegistryLine(overview),
            "ready  revision 0, 0 instances, 0 sessions, 0 held back  cannot write");
}

TEST(CtlOutputTest, Spans) {
  EXPECT_EQ(FormatSpan(absl::ZeroDuration()), "0s");
  EXPECT_EQ(FormatSpan(absl::Microseconds(900)), "0s");
  EXPECT_EQ(FormatSpan(absl::Milliseconds(850)), "850ms");
  EXPECT_EQ(FormatSpan(absl::Milliseconds(1234)), "1.2s");
  EXPECT_EQ(FormatSpan(absl::Seconds(42)), "42s");
  EXPECT_EQ(FormatSpan(absl::Seconds(190)), "3m10s");
  EXPECT_EQ(FormatSpan(absl::Minutes(3)), "3m");
  EXPECT_EQ(FormatSpan(absl::Minutes(125)), "2h5m");
  EXPECT_EQ(FormatSpan(absl::Hours(99)), "4d3h");
  EXPECT_EQ(FormatRelative(ToProto(kNow + absl::Milliseconds(1200)), kNow), "in 1.2s");
  EXPECT_EQ(FormatRelative(ToProto(kNow - absl::Seconds(30)), kNow), "30s ago");
  EXPECT_EQ(FormatRelative(google::protobuf::Timestamp(), kNow), "-");
}

PendingOperation WaitingOperation() {
  PendingOperation operation;
  operation.set_id("register default/orders/orders-1");
  operation.set_kind(agent::v1::OPERATION_KIND_REGISTER);
  operation.set_generation(7);
  operation.set_state(agent::v1::PENDING_STATE_WAITING);
  operation.set_times(3);
  operation.set_retry_times(-1);
  *operation.mutable_next_attempt() = ToProto(kNow + absl::Milliseconds(1200));
  *operation.mutable_since() = ToProto(kNow - absl::Seconds(12));
  operation.mutable_last_status()->set_code(14);
  operation.mutable_last_status()->set_message(
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7070: Failed to "
      "connect to remote host: Connection refused");
  operation.set_upstream("grpc://127.0.0.1:7070");
  return operation;
}

TEST(CtlOutputTest, When_HasTheDateOfAnotherDay) {
  setenv("TZ", "UTC", 1);
  EXPECT_EQ(FormatWhen(google::protobuf::Timestamp(), kNow), "-");
  EXPECT_EQ(FormatWhen(ToProto(kNow - absl::Seconds(12)), kNow), "22:13:08 (12s ago)");
  EXPECT_EQ(FormatWhen(ToProto(kNow - absl::Hours(99)), kNow), "2023-11-10 19:13:20 (4d3h ago)");
}

TEST(CtlOutputTest, PendingTable) {
  setenv("TZ", "UTC", 1);
  PendingOperation parked = WaitingOperation();
  parked.set_id("unregister default/orders/o");
  parked.set_state(agent::v1::PENDING_STATE_PARKED);
  parked.set_times(4);
  parked.set_retry_times(3);
  parked.mutable_last_status()->set_code(3);
  parked.mutable_last_status()->set_message("bad: x");
  EXPECT_EQ(FormatPending({WaitingOperation(), parked}, kNow),
            "ID                                GENERATION  STATE    TIMES  NEXT ATTEMPT  SINCE     "
            "          LAST "
            "STATUS                      UPSTREAM\n"
            "register default/orders/orders-1  7           waiting  3      in 1.2s       22:13:08 "
            "(12s ago)  "
            "UNAVAILABLE: Connection refused  grpc://127.0.0.1:7070\n"
            "unregister default/orders/o       7           parked   4/4    -             22:13:08 "
            "(12s ago)  "
            "INVALID_ARGUMENT: bad: x         grpc://127.0.0.1:7070\n");
}

TEST(CtlOutputTest, ADrainSaysWhyWhatRemainsIsNotGone) {
  agent::v1::DrainResponse response;
  response.set_unregistered(2);
  EXPECT_EQ(FormatDrained(response), "unregistered 2, remaining 0\n");
  response.set_remaining(3);
  response.set_persistent(1);
  for (const char* id : {"1", "2"}) {
    agent::v1::DrainRemainder* const left = response.add_left();
    left->mutable_key()->set_service("orders");
    left->mutable_key()->set_instance_id(id);
    left->set_upstream("main");
  }
  *response.mutable_left(0)->mutable_last_status() = StatusToProto(absl::UnavailableError("gone"));
  EXPECT_EQ(FormatDrained(response),
            "unregistered 2, remaining 3, persistent 1\n"
            "INSTANCE          LAST STATUS        UPSTREAM\n"
            "default/orders/1  UNAVAILABLE: gone  main\n"
            "default/orders/2  not answered yet   main\n"
            "and 1 more\n");
}

TEST(CtlOutputTest, ADamagedJournalAndACertificateThatHasEndedAreSaid) {
  agent::v1::GetStatusResponse status;
  agent::v1::UpstreamStatus* const upstream = status.add_upstreams();
  EXPECT_THAT(FormatAgentStatus(status, kNow), ::testing::Not(HasSubstr("journal")));
  EXPECT_THAT(FormatAgentStatus(status, kNow), ::testing::Not(HasSubstr("certificate")));
  upstream->set_journal_damaged("/var/lib/failback/journal.db.corrupt-1");
  *status.mutable_registry_certificate_not_after() = ToProto(kNow - absl::Minutes(2));
  *status.mutable_certificate_not_after() = ToProto(kNow + absl::Hours(2));
  const std::string text = FormatAgentStatus(status, kNow);
  EXPECT_THAT(text, HasSubstr("journal       was damaged, kept as "
                              "/var/lib/failback/journal.db.corrupt-1: "));
  EXPECT_THAT(text, HasSubstr("certificate   shown to registries, ended "));
  EXPECT_THAT(text, HasSubstr("(2m ago): no new connection is accepted\n"));
  EXPECT_THAT(text, HasSubstr("certificate   shown to clients, ends "));
}

TEST(CtlOutputTest, RecordsTable) {
  setenv("TZ", "UTC", 1);
  InstanceRecord record;
  ServiceInstance& instance = *record.mutable_instance();
  instance.mutable_key()->set_service("orders");
  instance.mutable_key()->set_instance_id("o1");
  instance.set_address("::1");
  instance.set_port(8080);
  instance.set_weight(0);
  instance.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  record.set_client_name("agent@host");
  record.set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  *record.mutable_modify_time() = ToProto(kNow - absl::Seconds(3));
  EXPECT_EQ(FormatRecords({record}, kNow),
            "SERVICE  ID  ENDPOINT    STATUS    WEIGHT  ZONE  STATE         OWNER       CHANGED\n"
            "orders   o1  [::1]:8080  draining  0       -     acknowledged  agent@host  22:13:17 "
            "(3.0s ago)\n");
}

TEST(CtlOutputTest, EventsAreOneLineEach) {
  SubscribeResponse event;
  event.set_revision(7);
  event.mutable_snapshot();
  EXPECT_THAT(FormatEvent(event, kNow), HasSubstr("  snapshot       revision 7: nothing there\n"));
  ServiceInstance instance;
  instance.mutable_key()->set_instance_id("o1");
  instance.set_address("10.0.0.1");
  instance.set_port(80);
  *event.mutable_snapshot()->add_instances() = instance;
  event.set_stale(true);
  EXPECT_THAT(FormatEvent(event, kNow),
              HasSubstr("  snapshot       revision 7, stale: o1 10.0.0.1:80\n"));
  *event.mutable_delta()->add_upserts() = instance;
  event.mutable_delta()->add_removals()->set_instance_id("o2");
  event.set_stale(false);
  EXPECT_THAT(FormatEvent(event, kNow),
              HasSubstr("  delta          revision 7: +o1 10.0.0.1:80, -o2\n"));
  event.clear_event();
  event.set_stale(true);
  EXPECT_THAT(FormatEvent(event, kNow), HasSubstr("  registry away  revision 7, stale\n"));
  event.set_stale(false);
  EXPECT_THAT(FormatEvent(event, kNow), HasSubstr("  registry back  revision 7\n"));
  EXPECT_THAT(FormatEvent(event, kNow, Palette(), /*was_held=*/true),
              HasSubstr("  none held      revision 7\n"));
  event.set_held(true);
  EXPECT_THAT(FormatEvent(event, kNow), HasSubstr("  sessions held  revision 7, held\n"));
}

TEST(CtlOutputTest, JsonListsAreArrays) {
  EXPECT_EQ(FormatList(OutputFormat::kJson, {}).value(), "[]\n");
  const std::vector<PendingOperation> operations = {WaitingOperation(), WaitingOperation()};
  google::protobuf::ListValue list;
  const std::string json = FormatList(OutputFormat::kJson, MessagePointers(operations)).value();
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &list).ok()) << json;
  ASSERT_EQ(list.values_size(), 2);
  EXPECT_EQ(list.values(1).struct_value().fields().at("generation").string_value(), "7");
  // A default value is there, for programs that look for it.
  EXPECT_EQ(list.values(1).struct_value().fields().at("subscriptionId").string_value(), "");
}

TEST(CtlOutputTest, MessageWithoutJsonForm_IsAnError) {
  PendingOperation operation;
  operation.mutable_since()->set_seconds(int64_t{1} << 60);  // no year that JSON can write
  for (const OutputFormat format : {OutputFormat::kJson, OutputFormat::kYaml}) {
    const absl::StatusOr<std::string> text = FormatList(format, {&operation});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInternal);
    EXPECT_FALSE(FormatOne(format, operation).ok());
    EXPECT_FALSE(PrintResult(format, "table", operation).ok());
  }
}

TEST(CtlOutputTest, ARefusalNamesWhoHasTakenItAllTheSame) {
  registry::v1::IntentResult result;
  EXPECT_EQ(RefusalOf(result, "undo it"), absl::OkStatus());
  *result.add_targets() = Target("old", registry::v1::INTENT_STATE_ACKNOWLEDGED);
  *result.add_targets() = Target("new", registry::v1::INTENT_STATE_UNSPECIFIED);
  EXPECT_EQ(RefusalOf(result, "undo it"), absl::OkStatus());
  const absl::Status away = absl::UnavailableError("new: no session");
  *result.mutable_status() = StatusToProto(away);
  *result.mutable_targets(1)->mutable_status() = result.status();
  EXPECT_EQ(RefusalOf(result, "undo it"),
            absl::UnavailableError("new: no session; taken by old (acknowledged): undo it"));
  EXPECT_EQ(RefusalOf(result, ""),
            absl::UnavailableError("new: no session; taken by old (acknowledged)"));
  result.mutable_status()->set_message(
      "new: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1: Refused");
  EXPECT_EQ(FormatMessage(std::string(RefusalOf(result, "undo it").message())),
            "new: Refused; taken by old (acknowledged): undo it");
  *result.mutable_status() = StatusToProto(away);
  *result.mutable_targets(0)->mutable_status() = result.status();
  EXPECT_EQ(RefusalOf(result, "undo it"), away);
  result.clear_targets();
  EXPECT_EQ(RefusalOf(result, "undo it"), away);
}

// Strings that a YAML reader could take for something else keep their quotes.
TEST(CtlOutputTest, YamlKeepsStringsStrings) {
  ServiceInstance instance;
  for (const std::string value : {"1.10", "true", "No", "", "a: b", "~", "0x1", "2026-01-31", "-",
                                  "plain", "a b", "üml", "null", "# no", "1e3"}) {
    (*instance.mutable_metadata())["k" + value] = value;
  }
  instance.set_port(80);
  const YAML::Node read = YAML::Load(FormatYaml(instance).value());
  ASSERT_EQ(read["metadata"].size(), static_cast<size_t>(instance.metadata_size()));
  for (const auto& [key, value] : instance.metadata()) {
    EXPECT_EQ(read["metadata"][key].Scalar(), value);
    const bool plain = value == "plain";
    EXPECT_EQ(read["metadata"][key].Tag(), plain ? "?" : "!") << value;
  }
  EXPECT_EQ(read["port"].Tag(), "?");
  EXPECT_EQ(read["port"].as<int>(), 80);
}

// A terminal acts on them, and a reader of the file finds what was meant.
TEST(CtlOutputTest, NoControlOfOthersReachesTheTerminal) {
  const std::string text = "a\xc2\x9b\xe2\x80\xae\xe2\x80\xa8\xe2\x81\xa6z";
  ServiceInstance instance;
  (*instance.mutable_metadata())[text] = text;
  const std::string yaml = FormatYaml(instance).value();
  const std::string json = FormatOne(OutputFormat::kJson, instance).value();
  for (const std::string& shown : {yaml, json}) {
    for (const char* control : {"\xc2\x9b", "\xe2\x80\xae", "\xe2\x80\xa8", "\xe2\x81\xa6"}) {
      EXPECT_EQ(shown.find(control), std::string::npos) << shown;
    }
    EXPECT_EQ(YAML::Load(shown)["metadata"][text].Scalar(), text);
  }
}

}  // namespace
}  // namespace failback
