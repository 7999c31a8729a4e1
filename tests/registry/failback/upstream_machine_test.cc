// The upstream's session step by step, without a lock, a timer or an upstream.
// upstream_behaviour_test has the behaviour of the whole, on simulated time.

#include "registry/failback/upstream_machine.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using Effects = UpstreamMachine::Effects;
using Kind = UpstreamMachine::Call::Kind;
using Phase = UpstreamMachine::Phase;

constexpr absl::Duration kTtl = absl::Seconds(9);

class UpstreamMachineTest : public testing::Test {
 protected:
  UpstreamMachineTest()
      : machine_(
            {"inc", "client", kTtl,
             BackoffOptions{absl::Milliseconds(100), 2.0, absl::Milliseconds(1100), 0.2},
             /*process=*/7, [] { return 0.5; }, [this] { return absl::StrCat("inc", ++renamed_); }},
            Now()) {}

  UpstreamMachine::Now Now() const {
    return {nanos_, absl::UnixEpoch() + absl::Nanoseconds(nanos_)};
  }
  void Pass(absl::Duration time) { nanos_ += absl::ToInt64Nanoseconds(time); }
  // Until the next moment that the machine names.
  Effects TickWhenDue() {
    EXPECT_NE(machine_.due_nanos(), UpstreamMachine::kNever);
    nanos_ = std::max(nanos_, machine_.due_nanos());
    return machine_.Tick(Now());
  }
  absl::Duration UntilDue() const { return absl::Nanoseconds(machine_.due_nanos() - nanos_); }
  Phase phase() const { return machine_.state().phase; }

  static OpenSessionResponse Session(const std::string& id) {
    OpenSessionResponse response;
    response.set_session_id(id);
    response.set_epoch(1);
    response.set_store_id("A");
    return response;
  }
  static KeepAliveResponse Renewal(uint64_t process = 0) {
    KeepAliveResponse response;
    response.set_process(process);
    return response;
  }
  static absl::Status Away() { return absl::UnavailableError("away"); }
  void Open() {
    ASSERT_EQ(machine_.Start(Now()).call.kind, Kind::kOpen);
    ASSERT_TRUE(machine_.Opened(Now(), Session("s1")).changed);
    ASSERT_EQ(phase(), Phase::kUp);
  }

  int64_t nanos_ = 1000;
  int renamed_ = 0;
  UpstreamMachine machine_;
};

TEST_F(UpstreamMachineTest, NothingIsDueBeforeStartAndWhileACallIsInFlight) {
  EXPECT_EQ(machine_.due_nanos(), UpstreamMachine::kNever);
  const Effects effects = machine_.Start(Now());
  EXPECT_EQ(effects.call.kind, Kind::kOpen);
  EXPECT_EQ(machine_.OpenRequest().incarnation(), "inc");
  EXPECT_EQ(machine_.OpenRequest().process(), 7u);
  EXPECT_FALSE(effects.changed);
  EXPECT_EQ(machine_.due_nanos(), UpstreamMachine::kNever);
  EXPECT_EQ(machine_.Tick(Now()).call.kind, Kind::kNone);
}

TEST_F(UpstreamMachineTest, ATickBeforeItsTimeDoesNothing) {
  Open();
  EXPECT_EQ(UntilDue(), kTtl / 3);
  Pass(kTtl / 3 - absl::Nanoseconds(1));
  EXPECT_EQ(machine_.Tick(Now()).call.kind, Kind::kNone);
  Pass(absl::Nanoseconds(1));
  const Effects effects = machine_.Tick(Now());
  EXPECT_EQ(effects.call.kind, Kind::kRenew);
  EXPECT_EQ(effects.call.session_id, "s1");
}

TEST_F(UpstreamMachineTest, TheLeaseRunsOutWhileTheRenewalIsInFlight) {
  Open();
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kRenew);
  EXPECT_EQ(UntilDue(), kTtl * 2 / 3);
  Pass(UntilDue() - absl::Nanoseconds(1));
  EXPECT_FALSE(machine_.lapse(Now()).since.has_value());
  Pass(absl::Nanoseconds(1));
  const Effects effects = machine_.Tick(Now());
  EXPECT_TRUE(effects.changed);
  EXPECT_EQ(effects.call.kind, Kind::kNone);
  EXPECT_TRUE(machine_.lapse(Now()).overdue);
  EXPECT_EQ(machine_.due_nanos(), UpstreamMachine::kNever) << "reported once";
  machine_.Renewed(Now(), "s1", Renewal());
  // The lease counts from when the renewal was sent, which is longer ago than the TTL's two thirds.
  EXPECT_FALSE(machine_.lapse(Now()).overdue);
  EXPECT_EQ(machine_.state().session_serial, 1u);
}

TEST_F(UpstreamMachineTest, AFailedCallOfTheOwnersIsProbedOnceAndAFailedProbeIsALoss) {
  Open();
  Pass(absl::Seconds(1));
  EXPECT_TRUE(machine_.ReportFailure(Now(), Away()).changed);
  EXPECT_EQ(phase(), Phase::kSuspect);
  EXPECT_FALSE(machine_.ReportFailure(Now(), Away()).changed);
  EXPECT_EQ(UntilDue(), absl::ZeroDuration());
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kRenew);
  machine_.Renewed(Now(), "s1", Away());
  EXPECT_EQ(phase(), Phase::kDown);
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kOpen) << "resumes or replaces in one round trip";
  machine_.Opened(Now(), Session("s1"));
  const UpstreamMachine::State state = machine_.state();
  EXPECT_EQ(state.phase, Phase::kUp);
  EXPECT_EQ(state.session_serial, 1u) << "the same session";
  EXPECT_EQ(state.connection_serial, 2u);
}

TEST_F(UpstreamMachineTest, AFailureThatIsReportedRightAfterAProbeWaitsForTheNext) {
  Open();
  machine_.ReportFailure(Now(), Away());
  EXPECT_EQ(UntilDue(), absl::Milliseconds(100));
}

TEST_F(UpstreamMachineTest, OnlyTheCurrentSessionIsLost) {
  Open();
  EXPECT_FALSE(machine_.ReportLost(Now(), "s0").changed);
  EXPECT_FALSE(machine_.ReportLost(Now(), "").changed);
  EXPECT_EQ(phase(), Phase::kUp);
  Pass(absl::Seconds(2));
  EXPECT_TRUE(machine_.ReportLost(Now(), "s1").changed);
  EXPECT_EQ(phase(), Phase::kConnecting);
  EXPECT_TRUE(machine_.lapse(Now()).since.has_value());
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kOpen);
  machine_.Opened(Now(), Session("s2"));
  EXPECT_EQ(machine_.state().session_serial, 2u);
}

TEST_F(UpstreamMachineTest, TheSecondTimeThatAnotherProcessIsSeenThisOneTakesAnotherName) {
  Open();
  TickWhenDue();
  machine_.Renewed(Now(), "s1", Renewal(/*process=*/8));
  EXPECT_TRUE(machine_.state().contested);
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kOpen);
  machine_.Opened(Now(), Session("s1"));
  EXPECT_EQ(machine_.state().session_serial, 1u);
  TickWhenDue();
  machine_.Renewed(Now(), "s1", Renewal(/*process=*/8));
  EXPECT_EQ(machine_.state().incarnation, "inc1");
  EXPECT_EQ(machine_.state().twins, 1);
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kOpen);
  EXPECT_EQ(machine_.OpenRequest().incarnation(), "inc1");
}

TEST_F(UpstreamMachineTest, AReportIsTakenOnceUntilACallFails) {
  Open();
  registry::v1::AgentReport report;
  report.set_intents(1);
  EXPECT_TRUE(machine_.TakesReport(report));
  EXPECT_FALSE(machine_.TakesReport(report));
  TickWhenDue();
  machine_.Renewed(Now(), "s1", Away());
  EXPECT_TRUE(machine_.TakesReport(report)) << "another process may answer now";
}

TEST_F(UpstreamMachineTest, CloseFollowsTheCallInFlightAndIsTriedUntilItSucceeds) {
  Open();
  TickWhenDue();
  EXPECT_EQ(machine_.Close(Now()).call.kind, Kind::kNone) << "a renewal is in flight";
  EXPECT_EQ(phase(), Phase::kClosing);
  machine_.Renewed(Now(), "s1", Renewal());
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kClose);
  machine_.Closed(Now(), Away());
  EXPECT_EQ(phase(), Phase::kClosing);
  EXPECT_EQ(TickWhenDue().call.kind, Kind::kClose);
  EXPECT_TRUE(machine_.Closed(Now(), absl::OkStatus()).changed);
  EXPECT_EQ(phase(), Phase::kClosed);
  EXPECT_FALSE(machine_.ReportFailure(Now(), Away()).changed);
  EXPECT_EQ(machine_.Close(Now()).call.kind, Kind::kNone);
}

TEST_F(UpstreamMachineTest, CloseWithoutASessionMakesNoCall) {
  machine_.Start(Now());
  machine_.Opened(Now(), Away());
  const Effects effects = machine_.Close(Now());
  EXPECT_EQ(effects.call.kind, Kind::kNone);
  EXPECT_TRUE(effects.changed);
  EXPECT_EQ(phase(), Phase::kClosed);
}

}  // namespace
}  // namespace failback
