#include "registry/failback/intent_journal.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "registry/model/validation.h"
#include "registry/store/sqlite/store_mark.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/util/process.h"

namespace failback {
namespace {

// A read of SQLite's, from a disk that gives the first page only.
ssize_t FailBehindTheFirstPage(int file, void* bytes, size_t size, off64_t at) {
  if (at < 4096) return pread64(file, bytes, size, at);
  errno = EIO;
  return -1;
}

// Null: as the system reads.
void SetReads(ssize_t (*read)(int, void*, size_t, off64_t)) {
  sqlite3_vfs* const files = sqlite3_vfs_find(nullptr);
  for (const char* const name : {"pread64", "pread"}) {
    files->xSetSystemCall(files, name, reinterpret_cast<sqlite3_syscall_ptr>(read));
  }
}

class IntentJournalTest : public testing::Test {
 protected:
  IntentJournalTest() {
    options_.dir = dir_.File("state");
    SetLogSink(LogLevel::kWarning, [this](LogLevel, const std::string& event, const LogFields& f) {
      if (on_log_) on_log_(event);
      MutexLock lock(&mu_);
      log_ += FormatLogLine(event, f) + "\n";
    });
  }
  ~IntentJournalTest() override { SetLogSink(LogLevel::kWarning, nullptr); }

  std::string log() {
    MutexLock lock(&mu_);
    return log_;
  }

  static IntentJournal::Intent MakeIntent(const std::string& id, uint64_t generation,
                                          bool present = true) {
    IntentJournal::Intent intent;
    intent.key = CanonicalKey(MakeInstance(id).key());
    intent.present = present;
    if (present) intent.payload = CanonicalInstance(MakeInstance(id));
    intent.generation = generation;
    return intent;
  }

  void Put(IntentJournal* journal, IntentJournal::Intent intent) {
    intent.row = journal->NewRow();
    journal->Put(std::move(intent));
  }

  // Opens, lets `work` queue, writes, and closes.
  std::string Live(const std::function<void(IntentJournal*)>& work) {
    auto journal = IntentJournal::Open(options_);
    EXPECT_TRUE(journal.ok()) << journal.status();
    (*journal)->Start([](uint64_t, const absl::Status&) {});
    work(journal->get());
    EXPECT_TRUE((*journal)->Stop().ok());
    return (*journal)->incarnation();
  }

  // Between these two the journal cannot be written.
  void LockFile() {
    ASSERT_EQ(sqlite3_open((options_.dir + "/journal.db").c_str(), &other_), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(other_, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);
  }
  void UnlockFile() {
    ASSERT_EQ(sqlite3_exec(other_, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(other_);
  }

  // Until UnlockFile() it cannot even be read.
  void LockReadersOut() {
    ASSERT_EQ(sqlite3_open(File().c_str(), &other_), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(other_,
                           "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE;"
                           "DELETE FROM intents WHERE row = -1",
                           nullptr, nullptr, nullptr),
              SQLITE_OK);
  }
  std::string File() const { return options_.dir + "/journal.db"; }
  // Of the file's schema.
  int Version() {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(File().c_str(), &db), SQLITE_OK);
    int version = 0;
    const auto take = [](void* to, int, char** values, char**) {
      *static_cast<int*>(to) = std::atoi(values[0]);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(db, "PRAGMA user_version", take, &version, nullptr), SQLITE_OK);
    sqlite3_close(db);
    return version;
  }
  void Sql(const char* sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(File().c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sql;
    sqlite3_close(db);
  }
  bool MovedAside() const { return access((File() + ".corrupt-1").c_str(), F_OK) == 0; }

  // A timer on simulated time, for the journal to wait on.
  HashedWheelTimer* UseTimer() {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    timer_ = HashedWheelTimer::Create(options).value();
    return options_.timer = timer_.get();
  }
  // The next attempt is on the wheel once the writer has got there.
  static int64_t WaitUntilPending(const HashedWheelTimer& timer) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (timer.pending() == 0 && absl::Now() < deadline) std::this_thread::yield();
    return timer.pending();
  }

  TempDir dir_;
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  sqlite3* other_ = nullptr;
  IntentJournal::Options options_;
  std::function<void(const std::string& event)> on_log_;
  Mutex mu_;
  std::string log_;
};

TEST_F(IntentJournalTest, RemembersIntentsIncarnationAndGeneration) {
  IntentJournal::Intent owned = MakeIntent("a", 7);
  owned.owner = "client-1";
  owned.owner_ttl = absl::Milliseconds(1500);
  owned.owner_generation = 3;
  owned.persistent = true;
  const std::string incarnation = Live([&](IntentJournal* journal) {
    EXPECT_TRUE(journal->TakeIntents().empty());
    Put(journal, owned);
    Put(journal, MakeIntent("b", 9, false));
    Put(journal, MakeIntent("c", 42));
    journal->Remove(3);
  });
  EXPECT_EQ(incarnation.size(), 32);
  EXPECT_EQ(Live([&](IntentJournal* journal) {
              EXPECT_EQ(journal->last_generation(), 42) << "also of what is gone";
              const auto intents = journal->TakeIntents();
              ASSERT_EQ(intents.size(), 2);
              EXPECT_EQ(intents[0].key, owned.key);
              EXPECT_EQ(intents[0].payload, owned.payload);
              EXPECT_EQ(intents[0].owner, "client-1");
              EXPECT_EQ(intents[0].owner_ttl, absl::Milliseconds(1500));
              EXPECT_EQ(intents[0].owner_generation, 3);
              EXPECT_TRUE(intents[0].persistent);
              EXPECT_FALSE(intents[1].present);
              EXPECT_EQ(intents[1].generation, 9);
              EXPECT_EQ(journal->NewRow(), 3) << "rows go on after the last";
            }),
            incarnation);
}

TEST_F(IntentJournalTest, AGivenIncarnationReplacesTheOneThatIsThere) {
  Live([](IntentJournal*) {});
  options_.incarnation = "pod-uid";
  EXPECT_EQ(Live([](IntentJournal*) {}), "pod-uid");
  options_.incarnation.clear();
  EXPECT_EQ(Live([](IntentJournal*) {}), "pod-uid");
}

TEST_F(IntentJournalTest, TellsWhatIsDurableInOrder) {
  auto journal = IntentJournal::Open(options_).value();
  Mutex mu;
  CondVar changed;
  uint64_t durable = 0;
  int commits = 0;
  journal->Start([&](uint64_t sequence, const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    MutexLock lock(&mu);
    EXPECT_GT(sequence, durable);
    durable = sequence;
    ++commits;
    changed.SignalAll();
  });
  uint64_t last = 0;
  for (int i = 0; i < 2000; ++i) {
    IntentJournal::Intent intent = MakeIntent(absl::StrCat(i), i + 1);
    intent.row = journal->NewRow();
    last = journal->Put(std::move(intent));
  }
  MutexLock lock(&mu);
  while (durable < last) ASSERT_TRUE(changed.WaitFor(&mu, absl::Seconds(30)) || durable >= last);
  EXPECT_LT(commits, 2000) << "commits in groups";
}

TEST_F(IntentJournalTest, ASecondProcessIsRefusedByName) {
  auto journal = IntentJournal::Open(options_).value();
  const absl::Status second = IntentJournal::Open(options_).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find(options_.dir), std::string::npos) << second;
  EXPECT_NE(second.message().find(absl::StrCat("process ", getpid())), std::string::npos) << second;
  journal.reset();
  EXPECT_TRUE(IntentJournal::Open(options_).ok());
}

TEST_F(IntentJournalTest, AFolderThatCannotBeUsedIsNamed) {
  options_.dir = dir_.File("no/such/folder");
  EXPECT_EQ(IntentJournal::Open(options_).status().message(),
            absl::StrCat("state directory ", options_.dir,
                         ": cannot be created: No such file or directory"));
  options_.dir = dir_.Write("file", "x");
  EXPECT_EQ(IntentJournal::Open(options_).status().message(),
            absl::StrCat("state directory ", options_.dir, ": is not a directory"));
}

TEST_F(IntentJournalTest, ADamagedFileIsMovedAsideAndKept) {
  const std::string old = Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  for (int n = 1; n <= 2; ++n) {
    std::ofstream(options_.dir + "/journal.db", std::ios::trunc) << "this is not a database at all";
    unlink((options_.dir + "/journal.db-wal").c_str());
    const std::string next = Live([&](IntentJournal* journal) {
      EXPECT_TRUE(journal->TakeIntents().empty());
      EXPECT_EQ(journal->last_generation(), 0);
    });
    EXPECT_NE(next, old) << "the numbers that the old one has used are not known";
    const std::string aside = absl::StrCat(options_.dir, "/journal.db.corrupt-", n);
    EXPECT_EQ(access(aside.c_str(), R_OK), 0);
    EXPECT_NE(log().find(aside), std::string::npos) << log();
    // It stays in sight, over clean starts too, until it is removed.
    Live([&](IntentJournal* journal) { EXPECT_EQ(journal->Stats().damaged, aside); });
  }
  Live([&](IntentJournal* journal) {
    ASSERT_EQ(unlink((File() + ".corrupt-2").c_str()), 0);
    EXPECT_EQ(journal->Stats().damaged, File() + ".corrupt-1");
    ASSERT_EQ(unlink((File() + ".corrupt-1").c_str()), 0);
    EXPECT_EQ(journal->Stats().damaged, "");
  });
}

TEST_F(IntentJournalTest, ADamagedRowIsNoticed) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.dir + "/journal.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "UPDATE intents SET generation = 2", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  Live([&](IntentJournal* journal) { EXPECT_TRUE(journal->TakeIntents().empty()); });
  EXPECT_NE(log().find("row 1 is damaged"), std::string::npos) << log();
}

TEST_F(IntentJournalTest, WhatItSaysOfItselfIsNoticedWhenItHasChanged) {
  for (const char* const sql : {
           "UPDATE meta SET value = 'another' WHERE name = 'sum_incarnation'",
           "UPDATE meta SET value = value - 1 WHERE name = 'generation'",
           "UPDATE meta SET value = value - 1 WHERE name = 'writes'",
           "UPDATE meta SET value = value + 1 WHERE name = 'sum'",
           "UPDATE meta SET value = value + 1 WHERE name = 'sum_writes'",
           "UPDATE meta SET name = 'refused_incarnation' WHERE name = 'incarnation'",
           "DELETE FROM meta WHERE name = 'generation'",
           "DELETE FROM meta WHERE name = 'sum'",
           "DELETE FROM meta WHERE name = 'sum_writes'",
           "DELETE FROM meta WHERE name = 'sum_incarnation'",
           "DELETE FROM intents WHERE row = 2",
       }) {
    SCOPED_TRACE(sql);
    TempDir dir;
    options_.dir = dir.File("state");
    Live([&](IntentJournal* journal) {
      Put(journal, MakeIntent("a", 1));
      Put(journal, MakeIntent("b", 2));
    });
    Live([&](IntentJournal* journal) {
      EXPECT_EQ(journal->TakeIntents().size(), 2u);
      Put(journal, MakeIntent("c", 3));
      journal->Remove(1);
    });
    EXPECT_FALSE(MovedAside());
    Sql(sql);
    Live([&](IntentJournal* journal) { EXPECT_TRUE(journal->TakeIntents().empty()); });
    EXPECT_TRUE(MovedAside());
  }
}

// As one of version 0.1.0 does, which writes no sum.
TEST_F(IntentJournalTest, AnEarlierProgramMayHaveWrittenToIt) {
  Live([&](IntentJournal* journal) {
    Put(journal, MakeIntent("a", 1));
    Put(journal, MakeIntent("b", 2));
  });
  Sql("DELETE FROM intents WHERE row = 2;"
      "UPDATE meta SET value = value + 1 WHERE name = 'writes'");
  Live([&](IntentJournal* journal) {
    EXPECT_EQ(journal->TakeIntents().size(), 1u);
    Put(journal, MakeIntent("c", 3));
  });
  EXPECT_FALSE(MovedAside());
  Sql("DELETE FROM intents WHERE row = 1");
  Live([&](IntentJournal* journal) { EXPECT_TRUE(journal->TakeIntents().empty()); });
  EXPECT_TRUE(MovedAside()) << "from its next write on it has a sum again";
}

// Version 0.1.0 writes the incarnation that it is given, counts no write, and marks it.
TEST_F(IntentJournalTest, AnEarlierProgramMayHaveStartedAsAnotherIncarnation) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  Sql("UPDATE meta SET value = 'pod-2' WHERE name = 'incarnation'");
  ASSERT_EQ(StoreMark::Open(File())->PutDurably({Digest64(std::string("pod-2")), 1}),
            absl::OkStatus());
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(Live([&](IntentJournal* journal) {
                EXPECT_FALSE(journal->was_put_back());
                EXPECT_EQ(journal->TakeIntents().size(), 1u);
              }),
              "pod-2");
  }
  EXPECT_EQ(log(), "");
  Sql("DELETE FROM intents WHERE row = 1");
  Live([&](IntentJournal* journal) { EXPECT_TRUE(journal->TakeIntents().empty()); });
  EXPECT_TRUE(MovedAside()) << "the sum is of that incarnation, too";
}

// Nor is anything lost if 0.1.0 was killed before it had marked the new one.
TEST_F(IntentJournalTest, AnIncarnationThatWasNotMarkedIsNotTaken) {
  for (const char* const given : {"", "pod-2"}) {
    SCOPED_TRACE(given);
    TempDir dir;
    options_.dir = dir.File("state");
    options_.incarnation.clear();
    const std::string before = Live([&](IntentJournal* journal) {
      EXPECT_FALSE(journal->was_put_back());
      Put(journal, MakeIntent("a", 1));
    });
    Sql("UPDATE meta SET value = 'pod-2' WHERE name = 'incarnation'");
    options_.incarnation = given;
    const std::string holds = options_.incarnation.empty() ? before : options_.incarnation;
    for (const bool changed : {true, false}) {
      {
        MutexLock lock(&mu_);
        log_.clear();
      }
      EXPECT_EQ(Live([&](IntentJournal* journal) {
                  EXPECT_FALSE(journal->was_put_back());
                  EXPECT_EQ(journal->TakeIntents().size(), 1u);
                }),
                holds);
      EXPECT_EQ(log().find("incarnation has changed without a write") != std::string::npos, changed)
          << log();
    }
    EXPECT_FALSE(MovedAside());
  }
}

// Whole rows, as another program, or a version with other rules, has put them there. A registry
// that is an engine would take them.
TEST_F(IntentJournalTest, WhatNoClientCanHaveSubmittedIsLeftOutAlone) {
  IntentJournal::Intent noise = MakeIntent("noise", 1);
  noise.payload = "no instance at all";
  IntentJournal::Intent other = MakeIntent("other", 2);
  other.payload = CanonicalInstance(MakeInstance("another"));
  IntentJournal::Intent invalid = MakeIntent("invalid", 3);
  registry::v1::ServiceInstance instance = MakeInstance("invalid");
  instance.set_port(70000);
  invalid.payload = CanonicalInstance(instance);
  IntentJournal::Intent large = MakeIntent("large", 4);
  instance = MakeInstance("large");
  (*instance.mutable_metadata())["m"] = std::string(100000, 'm');
  large.payload = CanonicalInstance(instance);
  IntentJournal::Intent number = MakeIntent("number", kMaxGeneration + 1);
  Live([&](IntentJournal* journal) {
    for (const auto& intent : {noise, other, invalid, large, number}) Put(journal, intent);
    Put(journal, MakeIntent("good", 6));
    Put(journal, MakeIntent("gone", 7, /*present=*/false));
  });
  Live([&](IntentJournal* journal) {
    const std::vector<IntentJournal::Intent> intents = journal->TakeIntents();
    ASSERT_EQ(intents.size(), 2u);
    EXPECT_EQ(intents[0].generation, 6u);
    EXPECT_EQ(intents[1].generation, 7u);
    EXPECT_EQ(journal->NewRow(), 8) << "and no row is used twice";
  });
  EXPECT_FALSE(MovedAside());
  for (const char* id : {"noise", "other", "invalid", "large", "number"}) {
    EXPECT_NE(log().find(absl::StrCat("/", id)), std::string::npos) << log();
  }
  {
    MutexLock lock(&mu_);
    log_.clear();
  }
  Live([&](IntentJournal* journal) {
    EXPECT_EQ(journal->TakeIntents().size(), 2u);
    EXPECT_EQ(journal->last_generation(), 7u) << "and numbers go on after the last that is valid";
  });
  EXPECT_EQ(log(), "") << "they are gone";
}

// As an earlier program has counted, which knew no bound.
TEST_F(IntentJournalTest, NumbersDoNotGoOnAfterOneThatNoIntentCanHave) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  const std::string far = absl::StrCat("UPDATE meta SET value = ", kMaxGeneration + 5,
                                       " WHERE name = 'generation';"
                                       "UPDATE meta SET value = value + 1 WHERE name = 'writes'");
  Sql(far.c_str());
  for (uint64_t life = 1; life <= 2; ++life) {
    Live([&](IntentJournal* journal) {
      EXPECT_EQ(journal->TakeIntents().size(), life);
      EXPECT_EQ(journal->last_generation(), life);
      Put(journal, MakeIntent(absl::StrCat("b", life), journal->last_generation() + 1));
    });
  }
  Live([&](IntentJournal* journal) { journal->Remove(3); });
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->last_generation(), 3u); });
}

TEST_F(IntentJournalTest, SomethingElseInItsPlaceIsMovedAside) {
  ASSERT_EQ(mkdir(options_.dir.c_str(), 0700), 0);
  ASSERT_EQ(mkdir((options_.dir + "/journal.db").c_str(), 0700), 0);
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->TakeIntents().size(), 1); });
}

// Another process reads or copies the file, or has it open in a shell: nothing of it is wrong.
TEST_F(IntentJournalTest, AFileThatAnotherProcessWritesIsOpenedAndWrittenLater) {
  const std::string incarnation =
      Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  LockFile();
  options_.manual = true;
  auto journal = IntentJournal::Open(options_).value();
  std::vector<absl::Status> told;
  journal->Start([&](uint64_t, const absl::Status& status) { told.push_back(status); });
  EXPECT_EQ(journal->incarnation(), incarnation);
  EXPECT_EQ(journal->TakeIntents().size(), 1);
  EXPECT_FALSE(journal->Stats().error.ok()) << "seen before anything is lost";
  EXPECT_NE(log().find("the intent journal cannot be written"), std::string::npos) << log();
  Put(journal.get(), MakeIntent("b", 2));
  journal->Flush();
  UnlockFile();
  Put(journal.get(), MakeIntent("c", 3));
  journal->Flush();
  ASSERT_EQ(told.size(), 2);
  EXPECT_EQ(told[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(told[1], absl::OkStatus());
  EXPECT_EQ(journal->Stats().error, absl::OkStatus());
  journal.reset();
  EXPECT_FALSE(MovedAside());
  Live([&](IntentJournal* again) { EXPECT_EQ(again->TakeIntents().size(), 3); });
}

TEST_F(IntentJournalTest, AnIdleJournalTellsThatItCanBeWrittenAgain) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  const HashedWheelTimer* const timer = UseTimer();
  LockFile();
  auto journal = IntentJournal::Open(options_).value();
  Mutex mu;
  CondVar changed;
  int told = 0;
  journal->Start([&](uint64_t, const absl::Status& status) {
    EXPECT_EQ(status, absl::OkStatus());
    MutexLock lock(&mu);
    ++told;
    changed.SignalAll();
  });
  EXPECT_FALSE(journal->Stats().error.ok());
  ASSERT_EQ(WaitUntilPending(*timer), 1);
  UnlockFile();
  clock_.Advance(absl::Milliseconds(1100));
  {
    MutexLock lock(&mu);
    while (told == 0) ASSERT_TRUE(changed.WaitFor(&mu, absl::Seconds(30)) || told > 0);
  }
  EXPECT_EQ(journal->Stats().error, absl::OkStatus());
}

TEST_F(IntentJournalTest, AFileThatCannotBeReadNowIsWaitedFor) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  LockReadersOut();
  on_log_ = [this](const std::string& event) {
    if (event == "the intent journal cannot be read yet, waiting") UnlockFile();
  };
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->TakeIntents().size(), 1); });
  EXPECT_NE(log().find("database is locked"), std::string::npos) << log();
  EXPECT_FALSE(MovedAside());
}

TEST_F(IntentJournalTest, AFileThatCannotBeReadForLongIsLeftAsItIs) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  LockReadersOut();
  options_.patience = absl::Milliseconds(1);
  const absl::Status refused = IntentJournal::Open(options_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_NE(refused.message().find(options_.dir), std::string::npos) << refused;
  EXPECT_NE(refused.message().find("database is locked"), std::string::npos) << refused;
  UnlockFile();
  EXPECT_FALSE(MovedAside());
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->TakeIntents().size(), 1); });
}

TEST_F(IntentJournalTest, ADiskThatCannotReadAPageIsNoDamage) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  options_.patience = absl::ZeroDuration();
  SetReads(&FailBehindTheFirstPage);
  const absl::Status refused = IntentJournal::Open(options_).status();
  SetReads(nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_FALSE(MovedAside());
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->TakeIntents().size(), 1); });
}

TEST_F(IntentJournalTest, WithoutDescriptorsTheFileIsLeftAsItIs) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  options_.patience = absl::ZeroDuration();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(next, 0);
  close(next);
  // The lock takes the first; the file, its log and its index need one each.
  for (const rlim_t more : {1, 2, 3}) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next) + more;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const absl::Status refused = IntentJournal::Open(options_).status();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << more << ": " << refused;
    EXPECT_FALSE(MovedAside());
  }
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->TakeIntents().size(), 1); });
}

TEST_F(IntentJournalTest, AFileThatMayOnlyBeReadIsCarriedOn) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  options_.manual = true;
  ASSERT_EQ(chmod(File().c_str(), 0400), 0);
  constexpr uid_t kNobody = 65534;  // root may write all the same
  const bool root = geteuid() == 0;
  if (root) {
    for (const std::string& path :
         {dir_.path(), options_.dir, options_.dir + "/lock", File(), File() + ".mark"}) {
      ASSERT_EQ(chown(path.c_str(), kNobody, kNobody), 0);
    }
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  absl::Status put;
  size_t found = 0;
  auto journal = IntentJournal::Open(options_);
  if (journal.ok()) {
    found = (*journal)->TakeIntents().size();
    (*journal)->Start([&](uint64_t, const absl::Status& status) { put = status; });
    Put(journal->get(), MakeIntent("b", 2));
    (*journal)->Flush();
  }
  const absl::Status opened = journal.status();
  journal = absl::UnknownError("closed");
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_EQ(opened, absl::OkStatus());
  EXPECT_EQ(found, 1);
  EXPECT_EQ(put.code(), absl::StatusCode::kUnavailable) << put;
  EXPECT_NE(put.message().find("readonly"), std::string::npos) << put;
  EXPECT_FALSE(MovedAside());
}

TEST_F(IntentJournalTest, AFileThatWentBackIsNoticedUntilNothingIsInDoubt) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  const std::string copy = dir_.File("copy.db");
  std::filesystem::copy_file(File(), copy);
  Live([&](IntentJournal* journal) {
    EXPECT_FALSE(journal->was_put_back());
    Put(journal, MakeIntent("b", 2));
  });
  {
    std::ifstream from(copy, std::ios::binary);
    std::ofstream(File(), std::ios::binary | std::ios::trunc) << from.rdbuf();  // the same file
  }
  // Which of the intents are in doubt, by id.
  const auto doubts = [](IntentJournal* journal) {
    std::map<std::string, bool> doubts;
    for (const auto& intent : journal->TakeIntents()) {
      doubts[intent.key.substr(intent.key.rfind('\0') + 1)] = intent.doubt != Doubt::kNone;
    }
    return doubts;
  };
  using Doubts = std::map<std::string, bool>;
  Live([&](IntentJournal* journal) {
    EXPECT_TRUE(journal->was_put_back());
    EXPECT_EQ(doubts(journal), (Doubts{{"a", true}}));
    EXPECT_GT(journal->last_generation(), 1000) << "clear of the numbers of the life that is gone";
    Put(journal, MakeIntent("c", journal->last_generation() + 1));
  });
  EXPECT_NE(log().find("it has gone back"), std::string::npos) << log();
  EXPECT_EQ(Version(), 3);
  uint64_t last = 0;
  Live([&](IntentJournal* journal) {
    EXPECT_TRUE(journal->was_put_back());
    EXPECT_EQ(doubts(journal), (Doubts{{"a", true}, {"c", false}})) << "c was put since";
    last = journal->last_generation();
  });
  EXPECT_LT(last, 2000000) << "it was noticed once";

  // Once more, while something is in doubt.
  {
    std::ifstream from(copy, std::ios::binary);
    std::ofstream(File(), std::ios::binary | std::ios::trunc) << from.rdbuf();
  }
  Live([&](IntentJournal* journal) {
    EXPECT_TRUE(journal->was_put_back());
    EXPECT_EQ(doubts(journal), (Doubts{{"a", true}}));
    Put(journal, MakeIntent("a", journal->last_generation() + 1));
    journal->Settle();
  });
  EXPECT_EQ(Version(), 2);
  Live([&](IntentJournal* journal) {
    EXPECT_FALSE(journal->was_put_back());
    EXPECT_EQ(doubts(journal), (Doubts{{"a", false}}));
  });
}

TEST_F(IntentJournalTest, ACopyInItsPlaceIsNoticed) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  std::filesystem::copy_file(File(), dir_.File("copy.db"));
  std::filesystem::rename(dir_.File("copy.db"), File());
  Live([&](IntentJournal* journal) { EXPECT_TRUE(journal->was_put_back()); });
  EXPECT_NE(log().find("it is a copy"), std::string::npos) << log();
}

TEST_F(IntentJournalTest, AJournalOfAnEarlierVersionIsNoCopy) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  ASSERT_EQ(unlink((File() + ".mark").c_str()), 0);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(File().c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "DELETE FROM meta WHERE name LIKE 'sum%' OR name = 'writes'", nullptr,
                         nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  Live([&](IntentJournal* journal) {
    EXPECT_FALSE(journal->was_put_back());
    Put(journal, MakeIntent("b", 2));
  });
  ASSERT_EQ(unlink((File() + ".mark").c_str()), 0);
  Live([&](IntentJournal* journal) { EXPECT_TRUE(journal->was_put_back()); });
}

// They would carry out what was cancelled.
TEST_F(IntentJournalTest, EarlierProgramsReadItUntilAnIntentIsCancelled) {
  IntentJournal::Intent intent = MakeIntent("a", 1);
  Live([&](IntentJournal* journal) { Put(journal, intent); });
  EXPECT_EQ(Version(), 1);
  intent.given_up = true;
  Live([&](IntentJournal* journal) { Put(journal, intent); });
  EXPECT_EQ(Version(), 2);
}

TEST_F(IntentJournalTest, ANewerVersionIsRefusedAndNotTouched) {
  Live([&](IntentJournal* journal) { Put(journal, MakeIntent("a", 1)); });
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((options_.dir + "/journal.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version = 4", nullptr, nullptr, nullptr), SQLITE_OK);
  const absl::Status refused = IntentJournal::Open(options_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("newer version: schema 4 found"), std::string::npos) << refused;
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version = 1", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->TakeIntents().size(), 1); });
}

TEST_F(IntentJournalTest, WhatCannotBeWrittenIsToldAndTriedAgain) {
  options_.manual = true;
  auto journal = IntentJournal::Open(options_).value();
  std::vector<std::pair<uint64_t, absl::Status>> told;
  journal->Start(
      [&](uint64_t sequence, const absl::Status& status) { told.emplace_back(sequence, status); });
  LockFile();
  Put(journal.get(), MakeIntent("a", 1));
  journal->Flush();
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].second.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(log().find("cannot be written"), std::string::npos);
  UnlockFile();
  Put(journal.get(), MakeIntent("b", 2));
  journal->Flush();
  ASSERT_EQ(told.size(), 2);
  EXPECT_EQ(told[1].first, 2);
  EXPECT_TRUE(told[1].second.ok());
  journal.reset();
  Live([&](IntentJournal* again) { EXPECT_EQ(again->TakeIntents().size(), 2); });
}

TEST_F(IntentJournalTest, WhatCannotBeWrittenIsTriedAgainByTheWheel) {
  const HashedWheelTimer* const timer = UseTimer();
  auto journal = IntentJournal::Open(options_).value();
  Mutex mu;
  CondVar changed;
  std::vector<absl::Status> told;
  journal->Start([&](uint64_t, const absl::Status& status) {
    MutexLock lock(&mu);
    told.push_back(status);
    changed.SignalAll();
  });
  const auto wait_for = [&](size_t attempts) {
    MutexLock lock(&mu);
    while (told.size() < attempts && changed.WaitFor(&mu, absl::Seconds(30))) {
    }
    return told.size() == attempts ? told.back() : absl::InternalError("no such attempt");
  };
  LockFile();
  Put(journal.get(), MakeIntent("a", 1));
  EXPECT_EQ(wait_for(1).code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(WaitUntilPending(*timer), 1);
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_EQ(timer->Stats().fired, 0);
  clock_.Advance(absl::Milliseconds(101));
  EXPECT_EQ(wait_for(2).code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(WaitUntilPending(*timer), 1);
  UnlockFile();
  // The next change does not wait for the wheel.
  Put(journal.get(), MakeIntent("b", 2));
  EXPECT_EQ(wait_for(3), absl::OkStatus());
  EXPECT_EQ(timer->pending(), 0);
  EXPECT_TRUE(journal->Stop().ok());
  journal.reset();
  Live([&](IntentJournal* again) { EXPECT_EQ(again->TakeIntents().size(), 2); });
}

TEST_F(IntentJournalTest, StopWritesWhatWaitsOnTheWheelAndLeavesNothingThere) {
  const HashedWheelTimer* const timer = UseTimer();
  auto journal = IntentJournal::Open(options_).value();
  journal->Start([](uint64_t, const absl::Status&) {});
  LockFile();
  Put(journal.get(), MakeIntent("a", 1));
  ASSERT_EQ(WaitUntilPending(*timer), 1);
  UnlockFile();
  EXPECT_TRUE(journal->Stop().ok());
  EXPECT_EQ(timer->pending(), 0);
  journal.reset();
  Live([&](IntentJournal* again) { EXPECT_EQ(again->TakeIntents().size(), 1); });
}

TEST_F(IntentJournalTest, SnapshotsAreKept) {
  Live([](IntentJournal* journal) {
    journal->PutSnapshot({"selector", "old"});
    journal->PutSnapshot({"selector", "new"});
    journal->PutSnapshot({"other", "x"});
  });
  Live([](IntentJournal* journal) {
    const auto snapshots = journal->TakeSnapshots();
    ASSERT_EQ(snapshots.size(), 2);
    EXPECT_EQ(snapshots[1].event, "new");
  });
}

// 0.1.0 has a checksum of the event only, and no column for another.
TEST_F(IntentJournalTest, EarlierProgramsReadItsSnapshotsAndItReadsTheirs) {
  const std::string event = "the event";
  const uint64_t checksum = Digest64(event);
  Live([&](IntentJournal* journal) { journal->PutSnapshot({"own", event}); });
  Sql("CREATE TABLE old (selector BLOB PRIMARY KEY, event BLOB NOT NULL,"
      " written INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;"
      "INSERT INTO old SELECT selector, event, written, checksum FROM snapshots;"
      "DROP TABLE snapshots; ALTER TABLE old RENAME TO snapshots");
  const std::string theirs = absl::StrCat(
      "INSERT OR REPLACE INTO snapshots (selector, event, written, checksum)"
      " SELECT CAST('theirs' AS BLOB), event, written, checksum FROM snapshots"
      " WHERE selector = CAST('own' AS BLOB) AND checksum = ",
      static_cast<int64_t>(checksum));
  for (const char* const table : {"of theirs", "of ours"}) {
    SCOPED_TRACE(table);
    Sql(theirs.c_str());
    Live([&](IntentJournal* journal) {
      const std::vector<IntentJournal::Snapshot> snapshots = journal->TakeSnapshots();
      EXPECT_EQ(snapshots.size(), 2u);
      for (const auto& snapshot : snapshots) EXPECT_EQ(snapshot.event, event);
      journal->PutSnapshot({"theirs", event});
    });
  }
}

TEST_F(IntentJournalTest, MayBeStoppedAndDestroyedFromItsOwnCallback) {
  auto journal = IntentJournal::Open(options_).value();
  Mutex mu;
  CondVar changed;
  bool stopped = false;
  IntentJournal* const raw = journal.get();
  raw->Start([&](uint64_t, const absl::Status&) {
    std::shared_ptr<IntentJournal> last;
    MutexLock lock(&mu);
    last = std::move(journal);
    last->Stop().IgnoreError();
    stopped = true;
    changed.SignalAll();
  });
  {
    MutexLock lock(&mu);
    raw->Put(MakeIntent("a", 1));
    while (!stopped) ASSERT_TRUE(changed.WaitFor(&mu, absl::Seconds(30)) || stopped);
  }
  // The lock of the folder goes with the journal, which goes when its thread has left it.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!IntentJournal::Open(options_).ok() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(IntentJournal::Open(options_).ok());
}

TEST_F(IntentJournalTest, AHundredThousandIntentsAreFewTransactions) {
  const absl::Time start = absl::Now();
  Live([&](IntentJournal* journal) {
    for (int i = 0; i < 100000; ++i) Put(journal, MakeIntent(absl::StrCat("instance-", i), i + 1));
  });
  const absl::Duration wrote = absl::Now() - start;
  Live([&](IntentJournal* journal) { EXPECT_EQ(journal->TakeIntents().size(), 100000); });
  std::cerr << "100000 intents written in " << wrote << "\n";
  EXPECT_LT(wrote, absl::Seconds(30));
}

}  // namespace
}  // namespace failback
