// StoreRegistry on SQLite: what survives, and what happens when it cannot be written.

#include "registry/store/sqlite/sqlite_storage.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"
#include "tests/registry/store/sqlite/sqlite_files.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(SqliteStorage, EverythingSurvivesAReopen) {
  TempDir folder;
  StoreHarness store(On(folder.File("registry.db")));
  const auto opened = store.OpenSession("a", absl::Seconds(30));
  ServiceInstance instance = MakeInstance("orders", "1");
  (*instance.mutable_metadata())["k"] = std::string("v");
  instance.set_weight(0);
  ASSERT_TRUE(store.Register(opened.session_id(), instance, 5).ok());
  ASSERT_TRUE(store.Register(opened.session_id(), MakeInstance("orders", "2"), 1).ok());
  ASSERT_TRUE(store.Unregister(opened.session_id(), MakeInstance("orders", "2").key(), 2).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("detached", "1")).ok());
  const auto before = store.List();
  const uint64_t epoch = store->epoch();

  store.Reopen();
  EXPECT_EQ(store->epoch(), epoch);
  EXPECT_EQ(store->store_id(), opened.store_id());
  EXPECT_EQ(store->revision(), 4u);
  const auto after = store.List();
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].SerializeAsString(), before[i].SerializeAsString());
  }
  EXPECT_TRUE(store.KeepAlive(opened.session_id()).ok());
  EXPECT_EQ(store->Stats().tombstones, 1);
  EXPECT_EQ(ReasonOf(store.Register(opened.session_id(), MakeInstance("orders", "2"), 1).status),
            registry::v1::ERROR_REASON_SUPERSEDED);
  const auto resumed = store.OpenSession("a", absl::Seconds(30));
  EXPECT_TRUE(resumed.resumed());
  EXPECT_EQ(resumed.session_id(), opened.session_id());
  EXPECT_EQ(resumed.rank(), 1u);
  EXPECT_EQ(store.OpenSession("b").rank(), 2u);
}

TEST(SqliteStorage, LeasesAreFullAgainAfterAReopenAndThenEnd) {
  TempDir folder;
  StoreHarness store(On(folder.File("registry.db")));
  const std::string session = store.Session("a", absl::Seconds(30));
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1")).ok());
  store.clock().Advance(absl::Seconds(29));
  store.Close();
  store.clock().Advance(absl::Hours(1));
  store.Open();
  store.clock().Advance(absl::Seconds(29));
  EXPECT_THAT(store.Ids(), SizeIs(1));
  store.clock().Advance(absl::Seconds(2));
  EXPECT_THAT(store.Ids(), IsEmpty());
  store.Reopen();
  EXPECT_THAT(store.Ids(), IsEmpty());
  EXPECT_EQ(store->Stats().tombstones, 1) << "the fence of what went with its session";
}

TEST(SqliteStorage, APersistentInstanceOutlivesItsSessionAndAReopenUntilItIsUnregistered) {
  TempDir folder;
  StoreHarness store(On(folder.File("registry.db")));
  const auto persistent = [](const std::string& id) {
    ServiceInstance instance = MakeInstance("orders", id);
    instance.set_persistent(true);
    return instance;
  };
  const std::string expires = store.Session("a", absl::Seconds(10));
  ASSERT_TRUE(store.Register(expires, persistent("of-expired"), 1).ok());
  ASSERT_TRUE(store.Register(expires, MakeInstance("orders", "goes"), 1).ok());
  const std::string closes = store.Session("b", absl::Seconds(10));
  ASSERT_TRUE(store.Register(closes, persistent("of-closed"), 1).ok());
  ASSERT_TRUE(store.CloseSession(closes).ok());
  store.clock().Advance(absl::Seconds(11));
  EXPECT_THAT(store.Ids(), ElementsAre("of-closed", "of-expired"));
  store.Reopen();
  EXPECT_THAT(store.Ids(), ElementsAre("of-closed", "of-expired"));
  store.clock().Advance(absl::Hours(48));
  EXPECT_THAT(store.Ids(), ElementsAre("of-closed", "of-expired"));

  // By its owner, who comes back, or by hand.
  const auto again = store.OpenSession("a");
  EXPECT_EQ(again.rank(), 1u) << "what it owns keeps its rank in memory";
  EXPECT_TRUE(store.Unregister(again.session_id(), persistent("of-expired").key(), 2).ok());
  EXPECT_TRUE(store.Unregister("", persistent("of-closed").key()).ok());
  EXPECT_THAT(store.Ids(), IsEmpty());
  store.Reopen();
  EXPECT_THAT(store.Ids(), IsEmpty());
}

TEST(SqliteStorage, RemovedRowsAreRemoved) {
  TempDir folder;
  StoreHarness store(On(folder.File("registry.db")));
  for (int i = 0; i < 10; ++i) {
    const std::string session = store.Session("incarnation-" + std::to_string(i));
    ASSERT_TRUE(store.Register(session, MakeInstance("orders", std::to_string(i)), 1).ok());
    ASSERT_TRUE(store.CloseSession(session).ok());
  }
  store.clock().Advance(absl::Hours(26));
  store.Reopen();
  EXPECT_EQ(store->Stats().incarnations, 0);
  EXPECT_EQ(store->Stats().sessions, 0);
  EXPECT_EQ(store->Stats().instances, 0);
  EXPECT_EQ(store.OpenSession("new").rank(), 11u) << "no rank is given twice";
}

TEST(SqliteStorage, KeysMayHoldAnythingThatIsValid) {
  TempDir folder;
  StoreHarness store(On(folder.File("registry.db")));
  ServiceInstance instance = MakeInstance("com.acme/orders_v-1.0", "10.0.0.1:80!\"'%;--");
  instance.set_zone("z\xc3\xbcrich");
  ASSERT_TRUE(store.Register("", instance).ok());
  store.Reopen();
  const auto records = store.List();
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(CanonicalInstance(records[0].instance()), CanonicalInstance(instance));
}

TEST(SqliteStorage, SubscribersGoOnAcrossAReopen) {
  TempDir folder;
  StoreHarness store(On(folder.File("registry.db")));
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  auto stream = store.Subscribe(subscriber, "orders");
  store.Reopen();
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  ASSERT_THAT(subscriber->events(), SizeIs(1));
  EXPECT_TRUE(subscriber->events()[0]->has_delta()) << "nothing was lost, so nothing is told";
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1", "2"));
}

// ---- Writes that fail while it runs.

TEST(SqliteStorage, ALockedFileRefusesWritesAndRecovers) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  StoreHarness store((On(path)));
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const absl::Status refused = store.Register("", MakeInstance("orders", "2")).status;
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_STORE_READ_ONLY) << refused;
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_THAT(store.Ids(), ElementsAre("1"));
  sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr);
  sqlite3_close(other);
  store.clock().Advance(absl::Seconds(1));
  EXPECT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  store.Reopen();
  EXPECT_THAT(store.Ids(), ElementsAre("1", "2"));
}

// Files may not grow while this lives: what a full disk is to SQLite.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST(SqliteStorage, AFullDiskRefusesWritesAndRecovers) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  StoreHarness store((On(path)));
  ServiceInstance large = MakeInstance("orders", "large");
  for (int i = 0; i < 10; ++i) {
    (*large.mutable_metadata())[std::to_string(i)] = std::string(1000, 'v');
  }
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  absl::Status refused;
  {
    FullDisk full(8192);
    refused = store.Register("", large).status;
  }
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_STORE_READ_ONLY) << refused;
  EXPECT_THAT(store.Ids(), ElementsAre("1"));
  EXPECT_FALSE(store->Stats().write_status.ok());
  store.clock().Advance(absl::Seconds(1));
  EXPECT_TRUE(store.Register("", large).ok());
  EXPECT_TRUE(store->Stats().write_status.ok());
  store.Reopen();
  EXPECT_THAT(store.Ids(), ElementsAre("1", "large"));
}

TEST(SqliteStorage, AFullDiskAtTheStartLeavesTheReads) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  StoreHarness store((On(path)));
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  store.Close();
  {
    FullDisk full(0);
    store.Open();
    EXPECT_THAT(store.Ids(), ElementsAre("1"));
    EXPECT_EQ(ReasonOf(store.Register("", MakeInstance("orders", "2")).status),
              registry::v1::ERROR_REASON_STORE_READ_ONLY);
  }
  store.clock().Advance(absl::Seconds(1));
  EXPECT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
}

TEST(SqliteStorage, AFullDiskForANewStoreIsAnError) {
  TempDir folder;
  FullDisk full(0);
  EXPECT_EQ(OpenError(folder.File("registry.db")).code(), absl::StatusCode::kUnavailable);
}

// What is written to a file that no program finds again is not stored.
class TakenAwayTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, TakenAwayTest, ::testing::Values("", "-wal"));

TEST_P(TakenAwayTest, WritesAreRefusedUntilTheFileIsBack) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  const std::string file = path + GetParam();
  const std::string aside = folder.File("aside");
  StoreHarness store((On(path)));
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  const auto expect_refused = [&] {
    store.clock().Advance(absl::Seconds(1));
    const absl::Status refused = store.Register("", MakeInstance("orders", "2")).status;
    EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_STORE_READ_ONLY) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(file + " has been moved, removed"));
    EXPECT_THAT(store.Ids(), ElementsAre("1"));
  };
  ASSERT_EQ(rename(file.c_str(), aside.c_str()), 0);
  expect_refused();
  CopyFile(aside, file);
  expect_refused();  // another file, if the same bytes
  ASSERT_EQ(rename(aside.c_str(), file.c_str()), 0);
  store.clock().Advance(absl::Seconds(1));
  EXPECT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  store.Reopen();
  EXPECT_THAT(store.Ids(), ElementsAre("1", "2"));
}

// ---- The committer's thread.

TEST(SqliteStorage, CallsInFlightShareCommits) {
  TempDir folder;
  auto timer = NewTimer();
  StoreRegistry::Options options = On(folder.File("registry.db"), Durability::kNormal);
  options.timer = timer.get();
  auto registry = StoreRegistry::Open(options).value();
  constexpr int kCalls = 2000;
  Mutex mu;
  CondVar done;
  int answered = 0;
  uint64_t highest = 0;
  for (int i = 0; i < kCalls; ++i) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(i));
    registry->Register(request, [&](absl::StatusOr<RegisterResponse> response) {
      MutexLock lock(&mu);
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_GE(response->revision(), highest) << "revisions only grow";
      highest = response->revision();
      if (++answered == kCalls) done.SignalAll();
    });
  }
  {
    MutexLock lock(&mu);
    while (answered < kCalls) ASSERT_TRUE(done.WaitFor(&mu, absl::Seconds(60)));
  }
  EXPECT_LT(registry->Stats().groups, kCalls);
  EXPECT_EQ(registry->Stats().instances, kCalls);
  EXPECT_EQ(registry->revision(), static_cast<uint64_t>(registry->Stats().groups));
}

TEST(SqliteStorage, ASmallCallDoesNotWaitForAllOfABulk) {
  TempDir folder;
  auto timer = NewTimer();
  StoreRegistry::Options options = On(folder.File("registry.db"), Durability::kNormal);
  options.timer = timer.get();
  auto registry = StoreRegistry::Open(options).value();
  constexpr int kLargeCalls = 200;
  constexpr int kInstances = 100;
  std::vector<RegisterRequest> requests(kLargeCalls);
  for (int i = 0; i < kLargeCalls * kInstances; ++i) {
    *requests[i / kInstances].add_registrations()->mutable_instance() =
        MakeInstance("bulk", std::to_string(i));
  }
  // All of it is queued before any of it is committed: the thread that commits waits in a callback.
  absl::Notification waits;
  absl::Notification all_queued;
  RegisterRequest first;
  *first.add_registrations()->mutable_instance() = MakeInstance("orders", "0");
  registry->Register(first, [&](const absl::StatusOr<RegisterResponse>&) {
    waits.Notify();
    all_queued.WaitForNotification();
  });
  waits.WaitForNotification();
  std::atomic<int> large_answered{0};
  absl::Notification all_answered;
  for (const RegisterRequest& request : requests) {
    registry->Register(request, [&](absl::StatusOr<RegisterResponse> response) {
      EXPECT_TRUE(response.ok()) << response.status();
      if (++large_answered == kLargeCalls) all_answered.Notify();
    });
  }
  RegisterRequest small;
  *small.add_registrations()->mutable_instance() = MakeInstance("orders", "1");
  absl::Notification small_answered;
  registry->Register(small, [&](absl::StatusOr<RegisterResponse> response) {
    EXPECT_TRUE(response.ok()) << response.status();
    EXPECT_LT(large_answered, kLargeCalls);
    small_answered.Notify();
  });
  all_queued.Notify();
  small_answered.WaitForNotification();
  all_answered.WaitForNotification();
  EXPECT_EQ(registry->Stats().instances, kLargeCalls * kInstances + 2);
  EXPECT_EQ(registry->CheckInvariants(), absl::OkStatus());
}

TEST(SqliteStorage, DestructionAnswersWhatIsQueued) {
  TempDir folder;
  auto timer = NewTimer();
  StoreRegistry::Options options = On(folder.File("registry.db"));
  options.timer = timer.get();
  auto registry = StoreRegistry::Open(options).value();
  std::atomic<int> answered{0};
  std::atomic<int> cancelled{0};
  constexpr int kCalls = 500;
  for (int i = 0; i < kCalls; ++i) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(i));
    registry->Register(request, [&](absl::StatusOr<RegisterResponse> response) {
      ++answered;
      if (response.status().code() == absl::StatusCode::kCancelled) ++cancelled;
    });
  }
  registry.reset();
  EXPECT_EQ(answered, kCalls);
  StoreHarness store(On(folder.File("registry.db")));
  EXPECT_EQ(store->Stats().instances, kCalls - cancelled) << "acknowledged means durable";
}

TEST(SqliteStorage, OverloadIsRefusedEarly) {
  TempDir folder;
  auto timer = NewTimer();
  StoreRegistry::Options options = On(folder.File("registry.db"));
  options.timer = timer.get();
  options.max_queued_intents = 10;
  auto registry = StoreRegistry::Open(options).value();
  std::atomic<int> answered{0};
  std::atomic<int> overloaded{0};
  constexpr int kCalls = 3000;
  for (int i = 0; i < kCalls; ++i) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(i));
    registry->Register(request, [&](absl::StatusOr<RegisterResponse> response) {
      ++answered;
      if (ReasonOf(response.status()) == registry::v1::ERROR_REASON_OVERLOADED) {
        EXPECT_TRUE(RetryDelayOf(response.status()).has_value());
        ++overloaded;
      }
    });
  }
  registry.reset();
  EXPECT_EQ(answered, kCalls);
  EXPECT_GT(overloaded, 0);
}

TEST(SqliteStorage, TheOwnerOfAnIncarnationSurvivesAReopen) {
  TempDir folder;
  StoreHarness store(On(folder.File("registry.db")));
  OpenSessionRequest open;
  const auto open_and_close = [&](const std::string& incarnation, const std::string& owner) {
    open.set_incarnation(incarnation);
    open.set_owner(owner);
    const auto opened = CallAndWait(*store, &Registry::OpenSession, open);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(store.CloseSession(opened->session_id()).ok());
  };
  open_and_close("owned", "alice");
  open_and_close("owned-later", "");
  open_and_close("owned-later", "alice");
  store.Reopen();
  for (const char* const incarnation : {"owned", "owned-later"}) {
    open.set_incarnation(incarnation);
    open.set_owner("mallory");
    EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::OpenSession, open).status()),
              registry::v1::ERROR_REASON_SESSION_NOT_OWNED)
        << incarnation;
    open_and_close(incarnation, "alice");
  }
}

}  // namespace
}  // namespace failback
