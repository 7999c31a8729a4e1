#include "agent/static_services.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "retry/simulated_clock.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using agent::v1::CheckState;
using agent::v1::HealthCheck;
using agent::v1::ReportHealthRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Answers what the test says, by the address of the check.
class ScriptedProbe final : public Probe {
 public:
  using Script = std::map<std::string, bool>;
  ScriptedProbe(const Script* script, std::string address)
      : script_(script), address_(std::move(address)) {}
  void Run(Done done) override {
    const auto found = script_->find(address_);
    if (found == script_->end()) return;  // silence
    std::move(done)(found->second ? absl::OkStatus() : absl::UnavailableError("down"));
  }
  void Cancel() override {}

 private:
  const Script* const script_;
  const std::string address_;
};

class StaticServicesTest : public ::testing::Test {
 protected:
  void SetUp() override { timer_ = NewTimer(&clock_, absl::Milliseconds(10)); }

  static StaticServiceSpec Spec(const std::string& id,
                                const std::vector<std::string>& checks = {}) {
    StaticServiceSpec spec;
    InstanceKey& key = *spec.instance.mutable_key();
    key.set_namespace_("default");
    key.set_service("orders");
    key.set_instance_id(id);
    spec.instance.set_address("h");
    spec.instance.set_port(1);
    for (const std::string& address : checks) {
      HealthCheck& check = spec.checks.emplace_back();
      check.set_name(address);
      if (address == "ttl") {
        check.mutable_ttl()->mutable_ttl()->set_seconds(30);
        continue;
      }
      check.mutable_tcp()->set_address(address);
      check.set_fall(2);
    }
    return spec;
  }

  void Start(std::vector<StaticServiceSpec> specs, bool claim = false) {
    StaticServiceSet::Options options;
    options.timer = timer_.get();
    options.registry = &registry_;
    options.claim_earlier = claim;
    options.new_probe = [this](const HealthCheck& check) {
      return std::make_unique<ScriptedProbe>(&script_, check.tcp().address());
    };
    services_ = StaticServiceSet::Start(options, std::move(specs));
    clock_.Advance(absl::Seconds(1));
  }

  // All that the registry was told, as "orders-1 healthy" and "orders-1 gone", and forgets it.
  std::vector<std::string> Told() {
    std::vector<std::string> told;
    for (const RegisterRequest& request : registry_.registers.requests()) {
      EXPECT_EQ(request.session_id(), session_);
      for (const auto& registration : request.registrations()) {
        const ServiceInstance& instance = registration.instance();
        told.push_back(instance.key().instance_id() +
                       (instance.status() == registry::v1::HEALTH_STATUS_HEALTHY     ? " healthy"
                        : instance.status() == registry::v1::HEALTH_STATUS_UNHEALTHY ? " unhealthy"
                                                                                     : " plain"));
      }
    }
    for (const UnregisterRequest& request : registry_.unregisters.requests()) {
      EXPECT_EQ(request.session_id(), session_);
      for (const auto& gone : request.deregistrations()) {
        told.push_back(gone.key().instance_id() + " gone");
      }
    }
    registry_.registers.ClearRequests();
    registry_.unregisters.ClearRequests();
    return told;
  }

  CheckState Report(const std::string& service, CheckState state) {
    ReportHealthRequest request;
    request.set_service(service);
    request.set_state(state);
    const auto result = services_->Report(request);
    return result.ok() ? *result : agent::v1::CHECK_STATE_UNSPECIFIED;
  }

  // As the fake answers OpenSession.
  std::string session_ = "session-of-static-services";
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRegistry registry_;
  ScriptedProbe::Script script_;
  std::unique_ptr<StaticServiceSet> services_;
};

TEST_F(StaticServicesTest, WithoutChecksItIsRegisteredAtOnce) {
  Start({Spec("a"), Spec("b")});
  EXPECT_THAT(Told(), ElementsAre("a plain", "b plain"));
  EXPECT_THAT(services_->Status(), IsEmpty());
  services_.reset();
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(StaticServicesTest, WhatChecksHaveCountedOutlivesThem) {
  script_ = {{"a:1", true}, {"a:2", false}, {"b:1", true}};
  Start({Spec("a", {"a:1", "a:2"}), Spec("b", {"b:1"})});
  clock_.Advance(absl::Seconds(20));
  const auto before = services_->Counters().at("tcp");
  EXPECT_GE(before.passes, 4);
  EXPECT_GE(before.failures, 2);
  // One check goes on, one is replaced, one goes with its service.
  script_["a:3"] = true;
  services_->Apply({Spec("a", {"a:1", "a:3"})});
  auto now = services_->Counters().at("tcp");
  EXPECT_EQ(now.passes, before.passes);
  EXPECT_EQ(now.failures, before.failures);
  clock_.Advance(absl::Seconds(20));
  now = services_->Counters().at("tcp");
  EXPECT_GT(now.passes, before.passes + 2);
  EXPECT_EQ(now.failures, before.failures);
}

TEST_F(StaticServicesTest, TheChecksAreTheStatus) {
  script_ = {{"a:1", true}, {"a:2", true}};
  Start({Spec("a", {"a:1", "a:2"})});
  EXPECT_THAT(Told(), ElementsAre("a healthy"));
  script_["a:2"] = false;
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(Told(), IsEmpty());  // one failure is none
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(Told(), ElementsAre("a unhealthy"));
  script_["a:1"] = false;
  clock_.Advance(absl::Seconds(60));
  EXPECT_THAT(Told(), IsEmpty());  // nothing new
  script_["a:2"] = true;
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(Told(), IsEmpty());  // the other one is still down
  script_["a:1"] = true;
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(Told(), ElementsAre("a healthy"));
}

TEST_F(StaticServicesTest, NothingIsSaidBeforeTheFirstVerdict) {
  Start({Spec("a", {"a:1"})});  // silence: each try runs into its timeout
  EXPECT_THAT(Told(), IsEmpty());
  ASSERT_EQ(services_->Status().size(), 1u);
  EXPECT_EQ(services_->Status()[0].state(), agent::v1::CHECK_STATE_UNKNOWN);
  EXPECT_FALSE(services_->Status()[0].registered());
  clock_.Advance(absl::Seconds(11));
  EXPECT_THAT(Told(), ElementsAre("a unhealthy"));
  const auto status = services_->Status()[0];
  EXPECT_EQ(status.state(), agent::v1::CHECK_STATE_CRITICAL);
  EXPECT_TRUE(status.registered());
  EXPECT_EQ(status.checks(0).last_error(), "no answer within 1s");
  EXPECT_EQ(status.checks(0).failures(), 2u);
  EXPECT_EQ(status.checks(0).kind(), "tcp");
}

TEST_F(StaticServicesTest, TheGateOpensWithTheFirstHealthAndStaysOpen) {
  StaticServiceSpec spec = Spec("a", {"a:1"});
  spec.register_when_healthy = true;
  script_ = {{"a:1", false}};
  Start({spec});
  clock_.Advance(absl::Seconds(60));
  EXPECT_THAT(Told(), IsEmpty());
  script_["a:1"] = true;
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(Told(), ElementsAre("a healthy"));
  script_["a:1"] = false;
  clock_.Advance(absl::Seconds(20));
  EXPECT_THAT(Told(), ElementsAre("a unhealthy"));
}

TEST_F(StaticServicesTest, CriticalForTooLongIsUnregisteredUntilItIsWell) {
  StaticServiceSpec spec = Spec("a", {"a:1"});
  spec.deregister_critical_after = absl::Minutes(5);
  script_ = {{"a:1", true}};
  Start({spec});
  script_["a:1"] = false;
  clock_.Advance(absl::Seconds(20));
  EXPECT_THAT(Told(), ElementsAre("a healthy", "a unhealthy"));
  clock_.Advance(absl::Minutes(4));
  script_["a:1"] = true;  // a short recovery begins a new count
  clock_.Advance(absl::Seconds(10));
  script_["a:1"] = false;
  clock_.Advance(absl::Seconds(20));
  EXPECT_THAT(Told(), ElementsAre("a healthy", "a unhealthy"));
  clock_.Advance(absl::Minutes(4));
  EXPECT_THAT(Told(), IsEmpty());
  clock_.Advance(absl::Minutes(2));
  EXPECT_THAT(Told(), ElementsAre("a gone"));
  EXPECT_FALSE(services_->Status()[0].registered());
  script_["a:1"] = true;
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(Told(), ElementsAre("a healthy"));
}

TEST_F(StaticServicesTest, TheProgramReportsItsTtl) {
  Start({Spec("a", {"ttl"})});
  EXPECT_EQ(Report("orders", agent::v1::CHECK_STATE_PASSING), agent::v1::CHECK_STATE_PASSING);
  EXPECT_THAT(Told(), ElementsAre("a healthy"));
  EXPECT_EQ(Report("orders", agent::v1::CHECK_STATE_CRITICAL), agent::v1::CHECK_STATE_CRITICAL);
  EXPECT_THAT(Told(), ElementsAre("a unhealthy"));
  EXPECT_EQ(Report("orders", agent::v1::CHECK_STATE_PASSING), agent::v1::CHECK_STATE_PASSING);
  Told();
  clock_.Advance(absl::Seconds(31));
  EXPECT_THAT(Told(), ElementsAre("a unhealthy"));
}

TEST_F(StaticServicesTest, ReportsNameWhatIsMeant) {
  Start({Spec("a", {"ttl"}), Spec("b", {"ttl"}), Spec("c", {"c:1"})});
  ReportHealthRequest request;
  const auto refusal = [&] { return services_->Report(request).status().ToString(); };
  EXPECT_THAT(refusal(), HasSubstr("INVALID_ARGUMENT: service: is required"));
  request.set_service("payments");
  EXPECT_THAT(refusal(), HasSubstr("state: CHECK_STATE_UNSPECIFIED is not PASSING or CRITICAL"));
  request.set_state(agent::v1::CHECK_STATE_PASSING);
  EXPECT_THAT(refusal(), HasSubstr("NOT_FOUND: service: no static service 'payments'"));
  request.set_service("orders");
  EXPECT_THAT(refusal(), HasSubstr("INVALID_ARGUMENT: instance_id: is required, as several are "
                                   "meant: default/orders/a ttl, default/orders/b ttl"));
  request.set_instance_id("c");
  EXPECT_THAT(refusal(), HasSubstr("NOT_FOUND: check: default/orders/c has no check of kind ttl"));
  EXPECT_EQ(ReasonOf(services_->Report(request).status()), registry::v1::ERROR_REASON_NOT_FOUND);
  request.set_instance_id("b");
  EXPECT_EQ(refusal(), "OK");
  request.set_note(std::string(1025, 'x'));
  EXPECT_THAT(refusal(), HasSubstr("note: 1025 bytes are more than 1024"));
}

TEST_F(StaticServicesTest, WhatTheCallerMayNotReportIsAsGoodAsAbsent) {
  Start({Spec("a", {"ttl"}), Spec("b", {"ttl"})});
  ReportHealthRequest request;
  request.set_service("orders");
  request.set_state(agent::v1::CHECK_STATE_PASSING);
  const auto none = [](const InstanceKey&) { return false; };
  const absl::Status hidden = services_->Report(request, none).status();
  EXPECT_EQ(hidden.message(), "service: no static service 'orders' is configured");
  EXPECT_EQ(ReasonOf(hidden), registry::v1::ERROR_REASON_NOT_FOUND);
  request.set_check("no such check");
  EXPECT_EQ(services_->Report(request, none).status(), hidden);
  request.clear_check();
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_EQ(services_->Status()[0].checks(0).passes(), 0u);
  // The other one is not named, and does not make the request ambiguous.
  EXPECT_TRUE(
      services_->Report(request, [](const InstanceKey& key) { return key.instance_id() == "b"; })
          .ok());
  EXPECT_EQ(services_->Status()[0].checks(0).passes(), 0u);
  EXPECT_EQ(services_->Status()[1].checks(0).passes(), 1u);
}

TEST_F(StaticServicesTest, AReloadTellsOnlyWhatHasChanged) {
  script_ = {{"a:1", true}, {"b:1", true}};
  Start({Spec("a", {"a:1"}), Spec("b", {"b:1"}), Spec("c"), Spec("d")});
  EXPECT_THAT(Told(), ElementsAre("c plain", "d plain", "a healthy", "b healthy"));
  const uint64_t passes = services_->Status()[1].checks(0).passes();
  StaticServiceSpec heavier = Spec("c");
  heavier.instance.set_weight(7);
  services_->Apply({Spec("b", {"b:1"}), heavier, Spec("e")});
  EXPECT_THAT(Told(), ElementsAre("c plain", "e plain", "a gone", "d gone"));
  // The check that is the same has gone on; the other's is gone.
  ASSERT_EQ(services_->Status().size(), 1u);
  EXPECT_EQ(services_->Status()[0].checks(0).passes(), passes);
  script_["a:1"] = script_["b:1"] = false;
  clock_.Advance(absl::Seconds(21));
  EXPECT_THAT(Told(), ElementsAre("b unhealthy"));
}

TEST_F(StaticServicesTest, ACheckThatIsAddedDoesNotTakeTheServiceDown) {
  Start({Spec("a")});
  EXPECT_THAT(Told(), ElementsAre("a plain"));
  services_->Apply({Spec("a", {"a:1"})});
  // Its verdict is still to come, and the service was well.
  EXPECT_THAT(Told(), ElementsAre("a healthy"));
  clock_.Advance(absl::Seconds(15));
  EXPECT_THAT(Told(), ElementsAre("a unhealthy"));
}

TEST_F(StaticServicesTest, WhatAnEarlierProcessLeftIsClaimedOrWithdrawn) {
  ListResponse list;
  *list.add_records()->mutable_instance() = Spec("old").instance;
  *list.add_records()->mutable_instance() = Spec("waits", {"a:1"}).instance;
  registry_.lists.Answer(list);
  StaticServiceSpec waits = Spec("waits", {"a:1"});
  waits.register_when_healthy = true;
  Start({Spec("a"), waits}, /*claim=*/true);
  EXPECT_EQ(registry_.lists.last_request().incarnation(), kStaticServicesIncarnation);
  EXPECT_EQ(registry_.opens.last_request().incarnation(), kStaticServicesIncarnation);
  // "waits" stays as it was until there is a verdict.
  EXPECT_THAT(Told(), ElementsAre("a plain", "old gone"));
  clock_.Advance(absl::Seconds(15));
  EXPECT_THAT(Told(), ElementsAre("waits gone"));
}

TEST_F(StaticServicesTest, ALostSessionIsOpenedAgainAndEverythingTold) {
  Start({Spec("a"), Spec("b")});
  Told();
  OpenSessionResponse second;
  second.set_session_id("session-2");
  second.mutable_ttl()->set_seconds(3600);
  registry_.opens.Answer(second);
  registry_.keep_alives.Answer(
      Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN, "not known here"));
  session_ = "session-2";
  clock_.Advance(absl::Hours(1));
  EXPECT_THAT(Told(), ElementsAre("a plain", "b plain"));
}

TEST_F(StaticServicesTest, ARefusalForNowIsToldAgainAndOneForGoodIsNot) {
  std::string log;
  SetLogSink(LogLevel::kWarning, [&](LogLevel, const std::string& event, const LogFields& fields) {
    log += FormatLogLine(event, fields) + "\n";
  });
  registry_.registers.Answer(WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY, "disk full"), absl::Seconds(3)));
  Start({Spec("a")});
  EXPECT_THAT(Told(), ElementsAre("a plain"));
  clock_.Advance(absl::Seconds(3));
  EXPECT_THAT(Told(), ElementsAre("a plain"));
  registry_.registers.Answer(Refusal(registry::v1::ERROR_REASON_DRAINING, "draining"));
  services_->Apply({Spec("a"), Spec("b")});
  EXPECT_THAT(Told(), ElementsAre("b plain"));
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(Told(), IsEmpty());
  SetLogSink(LogLevel::kWarning, nullptr);
  EXPECT_THAT(log, HasSubstr("key=default/orders/a code=UNAVAILABLE message=\"disk full\"\n"));
  EXPECT_EQ(log.find("type.googleapis.com"), std::string::npos) << log;
}

TEST_F(StaticServicesTest, ManyGoInBatches) {
  std::vector<StaticServiceSpec> specs;
  for (int i = 0; i < 1000; ++i) specs.push_back(Spec("i" + std::to_string(i)));
  Start(std::move(specs));
  EXPECT_EQ(registry_.registers.request_count(), 4u);
  EXPECT_EQ(Told().size(), 1000u);
}

}  // namespace
}  // namespace failback
