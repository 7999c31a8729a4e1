// Somebody sets the clock on the wall back by an hour while calls to etcd are under way.

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "registry/etcd/grpc_client.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "tests/util/timers.h"

namespace {

std::atomic<int> wall_shift_seconds{0};

}  // namespace

// In the place of the C library's, for everything in this program.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME) now->tv_sec += wall_shift_seconds;
  return result;
}

namespace failback {
namespace {

TEST(ClockStepTest, ACallEndsWhenItsTimeIsOver) {
  const absl::Time before = absl::Now();
  wall_shift_seconds = -3600;
  ASSERT_LT(absl::Now(), before - absl::Minutes(59)) << "the clock is the one above";
  wall_shift_seconds = 0;

  const auto timer = NewTimer();
  etcd::GrpcClient::Options options;
  options.endpoints = {"127.0.0.1:1"};  // no server is there
  options.timer = timer.get();
  options.call_timeout = absl::Milliseconds(500);
  etcd::GrpcClient client(options);
  Mutex mu;
  CondVar changed;
  std::optional<absl::Status> ended;
  client.Range({}, [&](const absl::StatusOr<etcdserverpb::RangeResponse>& response) {
    MutexLock lock(&mu);
    ended = response.status();
    changed.SignalAll();
  });
  wall_shift_seconds = -3600;
  {
    MutexLock lock(&mu);
    while (!ended.has_value() && changed.WaitFor(&mu, absl::Seconds(30))) {
    }
    ASSERT_TRUE(ended.has_value()) << "it is tried on for the hour";
    EXPECT_EQ(ended->code(), absl::StatusCode::kUnavailable) << *ended;
  }
  client.Close();
  wall_shift_seconds = 0;
}

}  // namespace
}  // namespace failback
