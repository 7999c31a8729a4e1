// Which thread commits: the caller's for a small call that is alone on a quick disk, else the
// store's own.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/registry_calls.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/util/fake_executor.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(30);
// As absl::Notification, which ThreadSanitizer does not see.
class Event {
 public:
  void Notify() { promise_.set_value(); }
  bool HasBeenNotified() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  bool Wait() const {
    return future_.wait_for(absl::ToChronoSeconds(kDeadline)) == std::future_status::ready;
  }

 private:
  std::promise<void> promise_;
  std::future<void> future_ = promise_.get_future();
};

// Calls after which an average of writes that are all alike has settled.
constexpr int kCalls = 150;

// A disk: its writes take time on the test's clock, or wait for the test.
class FakeDisk : public FakeStorage {
 public:
  struct Control {
    SimulatedClock* clock = nullptr;
    absl::Duration write_time;
    Event* begun = nullptr;  // the next write notifies it
    Event* go_on = nullptr;  // and waits for this
    std::vector<std::thread::id> writers;
    bool wants_checkpoint = false;
    Event* checkpoint = nullptr;  // runs when it is done
    Event* answered = nullptr;    // and waits for this
    std::thread::id kept_by;
  };

  FakeDisk(FakeRows* rows, Control* control) : FakeStorage(rows), control_(control) {}
  bool blocks() const override { return true; }
  absl::Status Write(const WriteSet& writes) override {
    control_->writers.push_back(std::this_thread::get_id());
    if (control_->write_time > absl::ZeroDuration()) control_->clock->Advance(control_->write_time);
    if (auto* const begun = std::exchange(control_->begun, nullptr)) {
      begun->Notify();
      EXPECT_TRUE(control_->go_on->Wait());
    }
    return FakeStorage::Write(writes);
  }
  bool wants_checkpoint() const override { return control_->wants_checkpoint; }
  void Checkpoint() override {
    control_->wants_checkpoint = false;
    control_->kept_by = std::this_thread::get_id();
    EXPECT_TRUE(control_->answered->Wait());
    control_->checkpoint->Notify();
  }

 private:
  Control* const control_;
};

class CommitThreadTest : public ::testing::Test {
 protected:
  void Open(absl::Duration write_time, absl::Duration quick_write = absl::Milliseconds(1),
            Executor* executor = nullptr) {
    control_.clock = &clock_;
    control_.write_time = write_time;
    timer_ = NewTimer(&clock_);
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.default_ttl = absl::Hours(1);
    options.quick_write = quick_write;
    options.executor = executor;
    registry_ =
        StoreRegistry::OpenOn(options, std::make_unique<FakeDisk>(&rows_, &control_)).value();
    if (executor != nullptr) return;
    OpenSessionRequest open;
    open.set_incarnation("a");
    session_ = CallAndWait(*registry_, &Registry::OpenSession, open)->session_id();
  }

  RegisterRequest Request(int instances = 1) {
    RegisterRequest request;
    request.set_session_id(session_);
    for (int i = 0; i < instances; ++i) {
      *request.add_registrations()->mutable_instance() =
          MakeInstance("orders", absl::StrCat(++instances_));
    }
    return request;
  }
  // Registers one after the other; true if the last was written on this thread.
  bool WritesHere(int calls, int instances = 1) {
    for (int i = 0; i < calls; ++i) {
      EXPECT_TRUE(CallAndWait(*registry_, &Registry::Register, Request(instances)).ok());
    }
    return control_.writers.back() == std::this_thread::get_id();
  }

  // The same, when the average has settled. The store's thread is done with a call a moment after
  // it has answered; a caller that comes earlier is queued.
  bool ComesToWriteHere() {
    const absl::Time until = absl::Now() + kDeadline;
    bool here = WritesHere(kCalls);
    while (!here && absl::Now() < until) {
      std::this_thread::yield();
      here = WritesHere(1);
    }
    return here;
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRows rows_;
  FakeDisk::Control control_;
  std::string session_;
  int instances_ = 0;
  std::unique_ptr<StoreRegistry> registry_;
};

TEST_F(CommitThreadTest, ASmallCallAloneOnAQuickDiskIsCommittedByItsCaller) {
  Open(absl::Microseconds(100));
  EXPECT_FALSE(WritesHere(1)) << "before the disk has shown that it is quick";
  EXPECT_TRUE(ComesToWriteHere());
  bool answered = false;
  registry_->Register(Request(), [&](const auto& response) { answered = response.ok(); });
  EXPECT_TRUE(answered) << "after Register has returned";
  EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
}

TEST_F(CommitThreadTest, ALargeCallIsNot) {
  Open(absl::Microseconds(100));
  ASSERT_TRUE(ComesToWriteHere());
  EXPECT_FALSE(WritesHere(1, 21));
}

TEST_F(CommitThreadTest, NobodyWaitsForASlowDisk) {
  Open(absl::Milliseconds(5));
  EXPECT_FALSE(WritesHere(kCalls));
}

TEST_F(CommitThreadTest, ADiskThatHasBecomeSlowIsNotWaitedFor) {
  Open(absl::Microseconds(100));
  ASSERT_TRUE(ComesToWriteHere());
  control_.write_time = absl::Milliseconds(20);
  EXPECT_FALSE(WritesHere(2));
  control_.write_time = absl::Microseconds(100);
  EXPECT_TRUE(ComesToWriteHere());
}

TEST_F(CommitThreadTest, ZeroIsNever) {
  Open(absl::Microseconds(0), absl::ZeroDuration());
  EXPECT_FALSE(WritesHere(kCalls));
}

TEST_F(CommitThreadTest, ACallbackThatThrowsHoldsUpNobody) {
  Open(absl::Microseconds(100));
  ASSERT_TRUE(ComesToWriteHere());
  EXPECT_THROW(
      registry_->Register(Request(), [](const auto&) { throw std::runtime_error("no memory"); }),
      std::runtime_error);
  EXPECT_TRUE(WritesHere(1));
}

// Who comes while a caller commits is not held up, and is committed after it by the store's thread.
TEST_F(CommitThreadTest, OthersQueueUpBehindACallerThatCommits) {
  Open(absl::Microseconds(100));
  ASSERT_TRUE(ComesToWriteHere());
  Event begun;
  Event go_on;
  control_.begun = &begun;
  control_.go_on = &go_on;
  uint64_t first_revision = 0;
  std::thread first([&] {
    registry_->Register(Request(), [&](const auto& response) {
      ASSERT_TRUE(response.ok());
      first_revision = response->revision();
    });
  });
  ASSERT_TRUE(begun.Wait());

  constexpr int kOthers = 3;
  std::vector<uint64_t> revisions(kOthers);
  std::vector<Event> answered(kOthers);
  for (int i = 0; i < kOthers; ++i) {
    registry_->Register(Request(), [&, i](const auto& response) {
      ASSERT_TRUE(response.ok());
      revisions[i] = response->revision();
      answered[i].Notify();
    });
    EXPECT_FALSE(answered[i].HasBeenNotified());
  }
  go_on.Notify();
  first.join();
  for (auto& one : answered) ASSERT_TRUE(one.Wait());
  EXPECT_THAT(revisions, ::testing::Each(first_revision + 1)) << "one commit for all that queued";
  EXPECT_NE(control_.writers.back(), std::this_thread::get_id());
  EXPECT_TRUE(ComesToWriteHere()) << "and then it is quiet again";
}

// What a write leaves for later is done when its caller has been answered, and not on its thread.
TEST_F(CommitThreadTest, ACheckpointComesAfterTheAnswer) {
  Open(absl::Microseconds(100));
  for (const bool here : {true, false}) {
    ASSERT_TRUE(ComesToWriteHere());
    Event checkpoint;
    Event answered;
    control_.checkpoint = &checkpoint;
    control_.answered = &answered;
    control_.wants_checkpoint = true;
    EXPECT_EQ(WritesHere(1, here ? 1 : 21), here);
    EXPECT_FALSE(checkpoint.HasBeenNotified());
    answered.Notify();
    ASSERT_TRUE(checkpoint.Wait());
    EXPECT_NE(control_.kept_by, std::this_thread::get_id());
  }
  EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
}

// A callback that calls again is not committed within itself.
TEST_F(CommitThreadTest, CallsFromCallbacksDoNotNest) {
  Open(absl::Microseconds(100));
  ASSERT_TRUE(ComesToWriteHere());
  static thread_local int depth = 0;
  std::atomic<int> deepest{0};
  std::atomic<int> left{1000};
  Event done;
  std::function<void()> next = [&] {
    registry_->Register(Request(), [&](const auto& response) {
      EXPECT_TRUE(response.ok());
      if (++depth > deepest) deepest = depth;
      if (--left > 0) {
        next();
      } else {
        done.Notify();
      }
      --depth;
    });
  };
  next();
  ASSERT_TRUE(done.Wait());
  registry_.reset();  // the callbacks have returned
  EXPECT_EQ(deepest, 1);
}

// On an executor of the caller's: nothing happens before it runs a task, and then on its thread.
TEST_F(CommitThreadTest, AnExecutorOfTheCallersCommits) {
  FakeExecutor executor;
  Open(absl::Microseconds(0), absl::ZeroDuration(), &executor);
  OpenSessionRequest open;
  open.set_incarnation("a");
  registry_->OpenSession(open,
                         [&](const auto& response) { session_ = response.value().session_id(); });
  EXPECT_EQ(session_, "");
  EXPECT_TRUE(executor.RunOne());
  ASSERT_NE(session_, "");

  std::vector<uint64_t> revisions;
  const auto note = [&](const auto& response) { revisions.push_back(response->revision()); };
  for (int i = 0; i < 3; ++i) registry_->Register(Request(), note);
  EXPECT_EQ(executor.waiting(), 1u) << "they share a turn";
  EXPECT_THAT(revisions, ::testing::IsEmpty());
  EXPECT_TRUE(executor.RunOne());
  EXPECT_THAT(revisions, ::testing::ElementsAre(1, 1, 1));
  EXPECT_THAT(control_.writers, ::testing::Each(std::this_thread::get_id()));

  control_.wants_checkpoint = true;
  Event checkpoint;
  Event answered;
  answered.Notify();
  control_.checkpoint = &checkpoint;
  control_.answered = &answered;
  registry_->Register(Request(), note);
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(revisions.size(), 4u);
  EXPECT_FALSE(checkpoint.HasBeenNotified());
  EXPECT_EQ(executor.RunAll(), 1);
  EXPECT_TRUE(checkpoint.HasBeenNotified());
}

TEST_F(CommitThreadTest, WhatItsExecutorHasNotBegunIsAnsweredAtTheEnd) {
  FakeExecutor executor;
  Open(absl::Microseconds(0), absl::ZeroDuration(), &executor);
  absl::Status status;
  OpenSessionRequest open;
  open.set_incarnation("a");
  registry_->OpenSession(open, [&](const auto& response) { status = response.status(); });
  registry_.reset();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(executor.RunAll(), 1);
  EXPECT_THAT(control_.writers, ::testing::IsEmpty());
}

}  // namespace
}  // namespace failback
