// What Consul clients register at an agent, on simulated time: what is put, renewed, removed, and
// what a client gets that comes back late.

#include "gateway/consul/agent_services.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "retry/simulated_clock.h"
#include "tests/gateway/door/fake_instance_writer.h"
#include "tests/util/timers.h"

namespace failback::consul {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeRunner final : public CheckRunner {
 public:
  absl::Status Validate(const CheckDefinition& check) const override {
    return check.target == "bad" ? InvalidField("HTTP", "is bad") : absl::OkStatus();
  }
  std::unique_ptr<RunningCheck> Run(const CheckDefinition& check, Report report) override {
    reports[check.target] = std::move(report);
    return std::make_unique<Running>(this, check.target);
  }
  std::map<std::string, Report> reports;  // of what runs, by target

 private:
  struct Running final : RunningCheck {
    Running(FakeRunner* runner, std::string target) : runner(runner), target(std::move(target)) {}
    ~Running() override { runner->reports.erase(target); }
    FakeRunner* const runner;
    const std::string target;
  };
};

class FakeFolder final : public ServiceFolder {
 public:
  void Keep(const std::string& id, std::string text) override { kept[id] = std::move(text); }
  void Forget(const std::string& id) override { kept.erase(id); }
  std::vector<std::string> TakeAll() override {
    std::vector<std::string> texts;
    for (const auto& [id, text] : kept) texts.push_back(text);
    return texts;
  }
  std::map<std::string, std::string> kept;
};

class AgentServicesTest : public ::testing::Test {
 protected:
  AgentServicesTest() { Start(); }
  // As an agent that starts again does: with what the folder has.
  void Start() {
    if (services_ != nullptr) services_->Stop();
    AgentServices::Options options;
    options.folder = &folder_;
    options.carries = [this](const InstanceKey& key) {
      return writer_.put.count(FakeInstanceWriter::NameOf(key)) > 0;
    };
    options.timer = timer_.get();
    options.writer = &writer_;
    options.runner = &runner_;
    options.max_services = max_services_;
    options.carried = [this](const std::string&) { return carried_; };
    options.may_change = [this](const Identity&, const InstanceKey&) { return may_; };
    services_ = AgentServices::Create(options);
  }
  ~AgentServicesTest() override { services_->Stop(); }

  absl::Status Register(const std::string& json, const Identity& caller = {}) {
    const auto service = ParseService(json);
    if (!service.ok()) return service.status();
    absl::Status answer = absl::UnknownError("no answer");
    services_->Register(caller, "default", *service,
                        [&](absl::Status status) { answer = std::move(status); });
    return answer;
  }
  absl::Status Report(CheckStatus status, const std::string& id = "service:o1") {
    absl::Status answer = absl::UnknownError("no answer");
    services_->ReportCheck(Identity(), id, status, "note",
                           [&](absl::Status said) { answer = std::move(said); });
    return answer;
  }
  absl::Status Deregister(const std::string& id = "o1") {
    absl::Status answer = absl::UnknownError("no answer");
    services_->Deregister(Identity(), id, [&](absl::Status said) { answer = std::move(said); });
    return answer;
  }
  const InstanceWriter::PutRequest* Put(const std::string& name = "default/orders/o1") {
    const auto it = writer_.put.find(name);
    return it == writer_.put.end() ? nullptr : &it->second;
  }
  bool healthy() {
    return Put() != nullptr && Put()->instance.status() == registry::v1::HEALTH_STATUS_HEALTHY;
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_);
  FakeInstanceWriter writer_;
  FakeRunner runner_;
  FakeFolder folder_;
  size_t max_services_ = 10000;
  std::vector<InstanceKey> carried_;
  absl::Status may_;
  std::shared_ptr<AgentServices> services_;
};

constexpr char kTtl[] =
    R"({"Name":"orders","ID":"o1","Address":"10.0.0.1","Port":80,"Check":{"TTL":"10s"}})";

TEST_F(AgentServicesTest, ATtlCheck_IsASession_AndBeginsCritical) {
  ASSERT_TRUE(Register(kTtl).ok());
  ASSERT_NE(Put(), nullptr);
  EXPECT_EQ(Put()->ttl, absl::Seconds(10));
  EXPECT_FALSE(healthy());
  ASSERT_TRUE(Report(CheckStatus::kPassing).ok());
  EXPECT_TRUE(healthy());
  EXPECT_EQ(writer_.renewals, 0) << "a change renews";
  ASSERT_TRUE(Report(CheckStatus::kPassing).ok());
  EXPECT_EQ(writer_.renewals, 1);
  ASSERT_TRUE(Report(CheckStatus::kCritical).ok());
  EXPECT_FALSE(healthy());
}

TEST_F(AgentServicesTest, WithoutATtlCheck_ItIsDetached) {
  ASSERT_TRUE(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80})").ok());
  EXPECT_EQ(Put()->ttl, absl::ZeroDuration());
  EXPECT_TRUE(healthy());
  EXPECT_TRUE(Deregister().ok());
  EXPECT_EQ(Put(), nullptr);
  EXPECT_TRUE(absl::IsNotFound(Deregister()));
}

TEST_F(AgentServicesTest, AClientThatComesBackLate_IsRegisteredAgain) {
  ASSERT_TRUE(Register(kTtl).ok());
  ASSERT_TRUE(Report(CheckStatus::kPassing).ok());
  writer_.put.clear();  // it has expired
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(services_->Look().at("o1").lapsed);
  ASSERT_TRUE(Report(CheckStatus::kPassing).ok());
  EXPECT_TRUE(healthy());
  EXPECT_FALSE(services_->Look().at("o1").lapsed);
}

TEST_F(AgentServicesTest, AClientThatComesBackMuchLater_HasToRegister) {
  ASSERT_TRUE(Register(kTtl).ok());
  clock_.Advance(absl::Minutes(59));
  EXPECT_FALSE(services_->Look().empty());
  clock_.Advance(absl::Minutes(2));
  EXPECT_THAT(services_->Look(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(Report(CheckStatus::kPassing)));
}

TEST_F(AgentServicesTest, TheRegistryRefuses_TheTableIsAsBefore) {
  ASSERT_TRUE(Register(kTtl).ok());
  writer_.answer = absl::PermissionDeniedError("no");
  EXPECT_TRUE(
      absl::IsPermissionDenied(Register(R"({"Name":"users","ID":"o1","Address":"a","Port":1})")));
  EXPECT_EQ(services_->Look().at("o1").instance.key().service(), "orders");
  EXPECT_TRUE(
      absl::IsPermissionDenied(Register(R"({"Name":"users","ID":"u1","Address":"a","Port":1})")));
  EXPECT_EQ(services_->Look().count("u1"), 0u);
}

TEST_F(AgentServicesTest, AnIdThatWasAnotherService_MovesToTheNewOne) {
  ASSERT_TRUE(Register(kTtl).ok());
  ASSERT_TRUE(Register(R"({"Name":"users","ID":"o1","Address":"a","Port":1})").ok());
  EXPECT_EQ(Put(), nullptr);
  EXPECT_NE(Put("default/users/o1"), nullptr);
}

TEST_F(AgentServicesTest, Probes_DecideByTheWorst) {
  ASSERT_TRUE(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80,"Checks":[
      {"HTTP":"h","Interval":"1s"},{"TCP":"t","Interval":"1s","Status":"passing"}]})")
                  .ok());
  EXPECT_FALSE(healthy());
  runner_.reports.at("h")(CheckStatus::kPassing, "");
  EXPECT_TRUE(healthy());
  runner_.reports.at("t")(CheckStatus::kCritical, "refused");
  EXPECT_FALSE(healthy());
  EXPECT_EQ(services_->Look().at("o1").checks[1].output, "refused");
  ASSERT_TRUE(Deregister().ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(runner_.reports, IsEmpty());
}

TEST_F(AgentServicesTest, ACheckThatCannotRun_IsRefused_BeforeAnythingIsRegistered) {
  EXPECT_EQ(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80,
      "Check":{"HTTP":"bad","Interval":"1s"}})")
                .message(),
            "HTTP: is bad");
  EXPECT_EQ(Put(), nullptr);
}

TEST_F(AgentServicesTest, CriticalForTooLong_IsUnregistered) {
  ASSERT_TRUE(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80,
      "Check":{"HTTP":"h","Interval":"1s","DeregisterCriticalServiceAfter":"1m"}})")
                  .ok());
  runner_.reports.at("h")(CheckStatus::kPassing, "");
  clock_.Advance(absl::Minutes(5));
  EXPECT_NE(Put(), nullptr);
  runner_.reports.at("h")(CheckStatus::kCritical, "");
  clock_.Advance(absl::Seconds(50));
  EXPECT_NE(Put(), nullptr);
  clock_.Advance(absl::Seconds(25));
  EXPECT_EQ(Put(), nullptr);
}

TEST_F(AgentServicesTest, ChecksComeAndGo) {
  ASSERT_TRUE(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80})").ok());
  absl::Status answer;
  const auto done = [&](absl::Status status) { answer = std::move(status); };
  services_->RegisterCheck(Identity(), *ParseCheck(R"({"Name":"c","TTL":"5s","ServiceID":"o1"})"),
                           done);
  ASSERT_TRUE(answer.ok()) << answer;
  EXPECT_EQ(Put()->ttl, absl::Seconds(5));
  EXPECT_FALSE(healthy());
  EXPECT_TRUE(Report(CheckStatus::kWarning, "c").ok());
  EXPECT_TRUE(healthy());
  services_->RegisterCheck(Identity(), *ParseCheck(R"({"Name":"d","TTL":"5s","ServiceID":"o1"})"),
                           done);
  EXPECT_THAT(answer.message(), HasSubstr("only one TTL check"));
  services_->RegisterCheck(Identity(), *ParseCheck(R"({"Name":"d","TTL":"5s","ServiceID":"x"})"),
                           done);
  EXPECT_TRUE(absl::IsNotFound(answer));
  services_->DeregisterCheck(Identity(), "c", done);
  ASSERT_TRUE(answer.ok()) << answer;
  EXPECT_EQ(Put()->ttl, absl::ZeroDuration());
}

TEST_F(AgentServicesTest, Maintenance_TakesItOut) {
  ASSERT_TRUE(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80})").ok());
  absl::Status answer;
  const auto done = [&](absl::Status status) { answer = std::move(status); };
  services_->SetMaintenance(Identity(), "o1", true, "disk", done);
  EXPECT_EQ(Put()->instance.status(), registry::v1::HEALTH_STATUS_DRAINING);
  EXPECT_EQ(Put()->instance.metadata().at("consul.maintenance"), "passing");
  EXPECT_EQ(services_->Look().at("o1").reason, "disk");
  services_->SetMaintenance(Identity(), "o1", false, "", done);
  EXPECT_TRUE(healthy());
  EXPECT_EQ(Put()->instance.metadata().count("consul.maintenance"), 0u);
  services_->SetMaintenance(Identity(), "x", true, "", done);
  EXPECT_TRUE(absl::IsNotFound(answer));
}

TEST_F(AgentServicesTest, OthersMayNotChangeIt) {
  ASSERT_TRUE(Register(kTtl).ok());
  may_ = absl::PermissionDeniedError("no");
  EXPECT_TRUE(absl::IsNotFound(Report(CheckStatus::kPassing)))
      << "whether it is here is not for them to learn";
  EXPECT_EQ(services_->Look().at("o1").checks[0].status, CheckStatus::kCritical);
}

TEST_F(AgentServicesTest, AnIdDoesNotTakeAwayWhatTheCallerMayNotChange) {
  ASSERT_TRUE(Register(kTtl).ok());
  may_ = absl::PermissionDeniedError("no");
  EXPECT_TRUE(
      absl::IsPermissionDenied(Register(R"({"Name":"users","ID":"o1","Address":"a","Port":1})")));
  EXPECT_NE(Put(), nullptr);
  EXPECT_EQ(Put("default/users/o1"), nullptr);
  EXPECT_EQ(services_->Look().at("o1").instance.key().service(), "orders");
}

TEST_F(AgentServicesTest, OneCallerHasHalfOfThePlaces) {
  max_services_ = 4;
  Start();
  const auto put = [&](const char* id, const Identity& caller) {
    return Register(absl::StrCat(R"({"Name":"s","Address":"a","Port":1,"ID":")", id, "\"}"),
                    caller);
  };
  const Identity one = {Identity::Kind::kToken, {"one"}, ""};
  EXPECT_TRUE(put("a", one).ok());
  EXPECT_TRUE(put("b", one).ok());
  EXPECT_EQ(ReasonOf(put("c", one)), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_TRUE(put("b", one).ok()) << "the same again";
  EXPECT_TRUE(put("c", {Identity::Kind::kToken, {"two"}, ""}).ok());
  EXPECT_TRUE(put("d", Identity()).ok()) << "callers without names share all";
  EXPECT_EQ(ReasonOf(put("e", Identity())), registry::v1::ERROR_REASON_LIMIT_REACHED);
}

TEST_F(AgentServicesTest, ATtlCheck_GoesOnAfterARestart) {
  ASSERT_TRUE(Register(kTtl).ok());
  ASSERT_TRUE(Report(CheckStatus::kPassing).ok());
  clock_.Advance(absl::Seconds(8));
  Start();
  EXPECT_EQ(services_->Look().at("o1").checks[0].status, CheckStatus::kPassing);
  clock_.Advance(absl::Seconds(8));
  EXPECT_FALSE(services_->Look().at("o1").lapsed) << "its TTL begins again";
  EXPECT_TRUE(Report(CheckStatus::kPassing).ok());
  clock_.Advance(absl::Seconds(11));
  EXPECT_TRUE(services_->Look().at("o1").lapsed);
}

TEST_F(AgentServicesTest, ATtlCheckThatWasNotReportedSinceTheRestart_IsForgottenAsAnyOther) {
  ASSERT_TRUE(Register(kTtl).ok());
  Start();
  clock_.Advance(absl::Minutes(62));
  EXPECT_THAT(services_->Look(), IsEmpty());
  EXPECT_THAT(folder_.kept, IsEmpty());
}

TEST_F(AgentServicesTest, ProbesAndMaintenance_GoOnAfterARestart) {
  ASSERT_TRUE(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80,"Tags":["x"],
      "Check":{"HTTP":"h","Interval":"1s","Header":{"A":["1","2"]}}})")
                  .ok());
  runner_.reports.at("h")(CheckStatus::kPassing, "");
  services_->SetMaintenance(Identity(), "o1", true, "disk", [](const absl::Status&) {});
  Start();
  ASSERT_EQ(runner_.reports.count("h"), 1u);
  const AgentServices::Shown shown = services_->Look().at("o1");
  EXPECT_TRUE(shown.maintenance);
  EXPECT_EQ(shown.reason, "disk");
  EXPECT_EQ(shown.checks[0].definition.headers.size(), 2u);
  services_->SetMaintenance(Identity(), "o1", false, "", [](const absl::Status&) {});
  runner_.reports.at("h")(CheckStatus::kCritical, "");
  EXPECT_FALSE(healthy());
  runner_.reports.at("h")(CheckStatus::kPassing, "");
  EXPECT_TRUE(healthy());
}

TEST_F(AgentServicesTest, WhatWasDeregistered_DoesNotComeBack) {
  ASSERT_TRUE(Register(R"({"Name":"orders","ID":"o1","Address":"a","Port":80})").ok());
  const std::map<std::string, std::string> before = folder_.kept;
  ASSERT_TRUE(Deregister().ok());
  EXPECT_THAT(folder_.kept, IsEmpty());
  // The agent has ended before that was on the disk.
  folder_.kept = before;
  Start();
  EXPECT_THAT(services_->Look(), IsEmpty());
  EXPECT_THAT(folder_.kept, IsEmpty());
}

TEST_F(AgentServicesTest, WhatCannotBeReadInTheFolder_IsLeftOut) {
  ASSERT_TRUE(Register(kTtl).ok());
  folder_.kept["torn"] = "{";
  folder_.kept["other"] = R"({"Registration":"{}"})";
  Start();
  EXPECT_EQ(services_->Look().size(), 1u);
}

TEST_F(AgentServicesTest, WhatWasThereBeforeTheAgentStarted_IsFoundByItsId) {
  carried_.resize(1);
  carried_[0].set_service("orders");
  EXPECT_TRUE(Deregister("old").ok());
  carried_.resize(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(Deregister("old")));
}

}  // namespace
}  // namespace failback::consul
