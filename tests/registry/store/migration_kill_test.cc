// A store of an older schema whose registry is killed while it migrates: it is the older store or
// the newer one, with all that it held, and the next start finds it good.
//
// FAILBACK_TEST_SEED=n replays a run as far as timing allows.

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/sqlite_schema.h"
#include "registry/store/store_maintenance.h"
#include "tests/registry/process/registry_client.h"
#include "tests/registry/store/harness.h"
#include "tests/registry/store/sqlite/sqlite_files.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

constexpr int kSessions = 3000;
constexpr int kRounds = 6;

// A store with so many sessions of an instance each, as this version writes it.
void Fill(const std::string& path) {
  StoreHarness store(On(path, Durability::kOff));
  for (int i = 0; i < kSessions; ++i) {
    const std::string session = store.Session(absl::StrCat("agent-", i), absl::Hours(1));
    ASSERT_TRUE(store.Register(session, MakeInstance("orders", absl::StrCat(i)), 1).ok());
  }
}

// Takes from it what schemas after `version` have added.
void Age(const std::string& path, int version) {
  {
    auto db = SqliteDatabase::Open(path, SqliteDatabase::Mode::kReadWrite);
    ASSERT_TRUE(db.ok()) << db.status();
    auto head = ReadStoreHead(**db);
    ASSERT_TRUE(head.ok()) << head.status();
    if (version < 5) head->row_sum.reset();
    if (version == 6) head->row_sum = kSessions;
    ASSERT_EQ(WriteStoreHead(**db, *head), absl::OkStatus());
  }
  Sql(path, "ALTER TABLE store RENAME COLUMN row_sum TO sessions");
  if (version < 6) Sql(path, "ALTER TABLE incarnations DROP COLUMN owner");
  if (version < 5) Sql(path, "ALTER TABLE store DROP COLUMN sessions");
  if (version < 4) {
    for (const char* table : {"store", "incarnations", "sessions"}) {
      Sql(path, absl::StrCat("ALTER TABLE ", table, " DROP COLUMN checksum"));
    }
  }
  if (version < 3) Sql(path, "ALTER TABLE records DROP COLUMN offline");
  if (version < 2) Sql(path, "ALTER TABLE store DROP COLUMN writes");
  Sql(path, absl::StrCat("PRAGMA user_version=", version));
}

class MigrationKillTest : public ::testing::TestWithParam<int> {
 protected:
  // A registry that opens the store.
  std::unique_ptr<Process> Start() {
    return Process::Start({RegistryBinary(), "--store", "sqlite://" + path_, "--listen",
                           "127.0.0.1:0", "--admin", ""});
  }
  void PutBack() {
    for (const char* suffix : {"", "-wal", "-shm", ".mark"}) unlink((path_ + suffix).c_str());
    CopyFile(older_, path_);
  }

  TempDir folder_;
  const std::string older_ = folder_.File("older.db");
  const std::string path_ = folder_.File("registry.db");
};

INSTANTIATE_TEST_SUITE_P(Schemas, MigrationKillTest, ::testing::Values(1, 2, 3, 4, 6));

TEST_P(MigrationKillTest, TheOlderStoreOrTheNewerOneIsThere) {
  Fill(older_);
  Age(older_, GetParam());
  PutBack();
  const absl::Time begin = absl::Now();
  {
    const auto process = Start();
    ASSERT_TRUE(process->WaitForLine("listening on").has_value()) << process->Describe();
    process->Kill();
  }
  const int64_t usual = absl::ToInt64Microseconds(absl::Now() - begin);

  SeededRandom random;
  int older = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    PutBack();
    // Some twice: what the first left is opened again.
    for (int kill = 0; kill <= round % 2; ++kill) {
      const auto process = Start();
      std::this_thread::sleep_for(std::chrono::microseconds(random.Pick(usual * 5 / 4)));
      process->Kill();
    }
    const auto found = CheckStore(path_);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(found->schema == GetParam() || found->schema == kStoreSchemaVersion)
        << found->schema;
    EXPECT_EQ(found->instances, kSessions);
    EXPECT_EQ(found->sessions, kSessions);
    if (found->schema == GetParam()) ++older;
  }
  std::cout << older << " of " << kRounds << " were killed before the end" << std::endl;

  Daemon daemon = Daemon::Registry({"--store", "sqlite://" + path_});
  RegistryClient client(daemon.address());
  EXPECT_EQ(client.Ids("orders").size(), size_t{kSessions});
  const auto session = client.Open("agent-7");
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE(session->resumed());
  EXPECT_EQ(daemon.Stop(), 0);
  const auto migrated = CheckStore(path_);
  ASSERT_TRUE(migrated.ok()) << migrated.status();
  EXPECT_EQ(migrated->schema, kStoreSchemaVersion);
  EXPECT_EQ(migrated->sessions, kSessions);
}

}  // namespace
}  // namespace failback
