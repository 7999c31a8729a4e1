// Sessions of clients on the agent's machine: what they have stated is gone when they are.

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

class FailbackLocalSessionsTest : public FailbackTest {};

// Waits until the thread `tid` is asleep, as one that waits for a lock is.
void AwaitAsleep(const std::atomic<pid_t>& tid) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  char state = 'R';
  while (state != 'S' && absl::Now() < deadline) {
    std::this_thread::yield();
    if (tid == 0) continue;
    std::ifstream stat(absl::StrCat("/proc/self/task/", tid.load(), "/stat"));
    const std::string text{std::istreambuf_iterator<char>(stat), std::istreambuf_iterator<char>()};
    const size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos) state = text[name_end + 2];
  }
  EXPECT_EQ(state, 'S');
}

// The renewals that came meanwhile are still to be read.
TEST_F(FailbackLocalSessionsTest, APauseOfTheAgentGivesEverySessionItsFullTime) {
  Start();
  const std::string session = OpenLocal("app", 1);
  OpenLocal("other", 30);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(session);
  Register(request);
  for (const absl::Duration pause : {absl::Seconds(3), absl::Milliseconds(900)}) {
    clock_.Advance(absl::Milliseconds(200));
    clock_.Jump(pause);
    clock_.Advance(absl::Milliseconds(200));
    EXPECT_EQ(registry_->local_sessions(), 2) << pause;
    KeepAliveRequest renewal;
    renewal.set_session_id(session);
    Answer<KeepAliveResponse> renewed;
    registry_->KeepAlive(renewal, renewed.Catch());
    EXPECT_TRUE(renewed.get().ok()) << renewed.get().status();
  }
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  // A full lease from the pause on, no more and no less.
  clock_.Jump(absl::Seconds(100));
  clock_.Advance(absl::Milliseconds(990));
  EXPECT_EQ(registry_->local_sessions(), 2);
  clock_.Advance(absl::Milliseconds(20));
  EXPECT_EQ(registry_->local_sessions(), 1);
  clock_.Advance(absl::Milliseconds(28'900));
  EXPECT_EQ(registry_->local_sessions(), 1);
  clock_.Advance(absl::Milliseconds(200));
  EXPECT_EQ(registry_->local_sessions(), 0);
}

TEST_F(FailbackLocalSessionsTest, ALocalSessionThatIsNotRenewedTakesItsInstancesAlong) {
  Start();
  const std::string session = OpenLocal("app", 10);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(session);
  Register(request);
  Register("detached");
  ServiceInstance persistent = MakeInstance("persistent");
  persistent.set_persistent(true);
  RegisterRequest stays = MakeRegister({persistent});
  stays.set_session_id(session);
  Register(stays);
  Advance(absl::Seconds(9));
  KeepAliveRequest renewal;
  renewal.set_session_id(session);
  Answer<KeepAliveResponse> renewed;
  registry_->KeepAlive(renewal, renewed.Catch());
  EXPECT_TRUE(renewed.get().ok());
  Advance(absl::Seconds(9));
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  EXPECT_EQ(registry_->local_sessions(), 1);
  Advance(absl::Seconds(1));
  EXPECT_EQ(registry_->local_sessions(), 0);
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations(0).key().instance_id(), "a");
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 2);
  Answer<KeepAliveResponse> lost;
  registry_->KeepAlive(renewal, lost.Catch());
  EXPECT_EQ(ReasonOf(lost.get().status()), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_EQ(ReasonOf(Register(request).get().status()), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(FailbackLocalSessionsTest, ALocalSessionEndsDuringAnOutageAndItsUnregisterIsOwed) {
  Start();
  const std::string session = OpenLocal("app", 10);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(session);
  Register(request);
  GoAway();
  Advance(absl::Seconds(20));
  EXPECT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].id(), "unregister default/orders/a");
  Back("session-of-inc");
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
}

TEST_F(FailbackLocalSessionsTest, AnInstanceTakenOverByAnotherSessionStaysWithIt) {
  Start();
  const std::string old_session = OpenLocal("old", 10), new_session = OpenLocal("new", 100);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(old_session);
  Register(request);
  request.set_session_id(new_session);
  Register(request);
  Advance(absl::Seconds(20));
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 1);
}

TEST_F(FailbackLocalSessionsTest, AReopenedLocalSessionIsTheSame) {
  Start();
  const std::string first = OpenLocal("app", 10);
  Advance(absl::Seconds(5));
  EXPECT_EQ(OpenLocal("app", 10), first);
  Advance(absl::Seconds(7));
  EXPECT_EQ(registry_->local_sessions(), 1) << "opening again renews";
}

TEST_F(FailbackLocalSessionsTest, NobodyElseResumesASession) {
  Start();
  OpenSessionRequest open;
  open.set_incarnation("app");
  open.set_owner("one");
  Answer<OpenSessionResponse> first;
  registry_->OpenSession(open, first.Catch());
  ASSERT_TRUE(first.get().ok()) << first.get().status();
  open.set_owner("two");
  Answer<OpenSessionResponse> refused;
  registry_->OpenSession(open, refused.Catch());
  EXPECT_EQ(ReasonOf(refused.get().status()), registry::v1::ERROR_REASON_SESSION_NOT_OWNED)
      << refused.get().status();
  open.set_owner("one");
  Answer<OpenSessionResponse> again;
  registry_->OpenSession(open, again.Catch());
  ASSERT_TRUE(again.get().ok()) << again.get().status();
  EXPECT_EQ(again.get()->session_id(), first.get()->session_id());
}

// The lease runs out at the moment at which another thread renews it.
TEST_F(FailbackLocalSessionsTest, ARenewalThatWasAnsweredIsKept) {
  std::function<void()> in_lock;
  options_.random = [&] {
    if (in_lock != nullptr) std::exchange(in_lock, nullptr)();
    return 0.5;
  };
  Start();
  KeepAliveRequest renewal;
  renewal.set_session_id(OpenLocal("client", 10));
  Advance(absl::Milliseconds(9999));
  std::thread client, wheel;
  std::atomic<pid_t> client_tid{0}, wheel_tid{0};
  bool renewed = false;
  // The core draws the wait of a retry under its lock. Meanwhile the client comes for the lock, and
  // then the wheel, which has begun with the end of the lease.
  in_lock = [&] {
    client = std::thread([&] {
      client_tid = gettid();
      registry_->KeepAlive(renewal, [&](const absl::StatusOr<KeepAliveResponse>& response) {
        renewed = response.ok();
      });
    });
    AwaitAsleep(client_tid);
    wheel = std::thread([&] {
      wheel_tid = gettid();
      Advance(absl::Milliseconds(1));
    });
    AwaitAsleep(wheel_tid);
  };
  fake_->registers.Answer(absl::InternalError("no"));
  Register("a");
  ASSERT_EQ(in_lock, nullptr);
  client.join();
  wheel.join();
  EXPECT_EQ(registry_->local_sessions(), renewed ? 1 : 0);
  Advance(absl::Seconds(11));
  EXPECT_EQ(registry_->local_sessions(), 0) << "not renewed again";
}

}  // namespace
}  // namespace failback
