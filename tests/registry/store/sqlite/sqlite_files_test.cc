// Store files that are damaged, older, newer, or no stores at all.

#include "tests/registry/store/sqlite/sqlite_files.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/sqlite_schema.h"
#include "registry/store/sqlite/sqlite_storage.h"
#include "registry/store/store_maintenance.h"
#include "tests/registry/store/harness.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SqliteFiles, SecondOpenIsRefused) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  StoreHarness store((On(path)));
  const absl::Status status = OpenError(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("is in use: " + path + ".lock is locked by process " + std::to_string(getpid())));
}

TEST(SqliteFiles, NewerSchemaIsRefused) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  StoreHarness(On(path)).Close();
  Sql(path, "PRAGMA user_version=99");
  const absl::Status status = OpenError(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("was written by a newer version: schema 99 found, up to 7 supported"));
  Sql(path, "PRAGMA user_version=7");
  StoreHarness again((On(path)));
}

TEST(SqliteFiles, OtherFilesAreRefused) {
  TempDir folder;
  const std::string other = folder.File("other.db");
  Sql(other, "CREATE TABLE t(x); PRAGMA user_version=1");
  EXPECT_THAT(std::string(OpenError(other).message()), HasSubstr("of another program"));
  const absl::Status text = OpenError(folder.Write("text.db", std::string(5000, 'x')));
  EXPECT_EQ(text.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(text.message()), HasSubstr("not a database"));
  ASSERT_EQ(mkdir(folder.File("folder").c_str(), 0755), 0);
  EXPECT_THAT(std::string(OpenError(folder.File("folder")).message()), HasSubstr("is not a file"));
}

TEST(SqliteFiles, FoldersThatCannotBeUsedAreNamed) {
  TempDir folder;
  const absl::Status missing = OpenError(folder.File("none/registry.db"));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("No such file or directory"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("; make it: sudo install -d -o "));
  folder.Write("file", "");
  EXPECT_THAT(std::string(OpenError(folder.File("file/registry.db")).message()),
              HasSubstr("is not a folder"));
  // Not writable for anyone, root included.
  const absl::Status unwritable = OpenError("/proc/registry.db");
  EXPECT_EQ(unwritable.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(unwritable.message()), HasSubstr("cannot write to its folder"));
}

TEST(SqliteFiles, DamageIsNoticed) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  {
    StoreHarness store((On(path)));
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(
          store.Register("", MakeInstance("orders", "id-of-instance-" + std::to_string(i))).ok());
    }
  }
  std::string good;
  {
    std::ifstream in(path, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto open_with = [&](const std::string& bytes) {
    const std::string damaged = folder.Write("damaged.db", bytes);
    auto timer = NewTimer();
    StoreRegistry::Options options = On(damaged);
    options.timer = timer.get();
    return StoreRegistry::Open(options).status();
  };
  ASSERT_TRUE(open_with(good).ok());

  std::string flipped = good;
  const size_t at = flipped.find("id-of-instance-77");
  ASSERT_NE(at, std::string::npos);
  flipped[at] ^= 1;
  const absl::Status status = open_with(flipped);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has a wrong checksum"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("damaged.db"));
  EXPECT_EQ(open_with(good.substr(0, good.size() / 2)).code(), absl::StatusCode::kDataLoss);

  // Any flipped byte is noticed, or harmless: never a crash, never another content.
  std::mt19937 random(17);
  for (int i = 0; i < 60; ++i) {
    std::string bytes = good;
    bytes[100 + random() % (bytes.size() - 100)] ^= static_cast<char>(1 << random() % 8);
    open_with(bytes).IgnoreError();
  }
}

TEST(SqliteFiles, RowsThatContradictEachOtherAreNoticed) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  {
    StoreHarness store((On(path)));
    const std::string session = store.Session("a");
    ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1"), 1).ok());
  }
  CopyFile(path, folder.File("sessionless.db"));
  Sql(folder.File("sessionless.db"), "DELETE FROM sessions");
  EXPECT_THAT(std::string(OpenError(folder.File("sessionless.db")).message()),
              HasSubstr("is damaged: its rows are not those of its last commit"));
  CopyFile(path, folder.File("rankless.db"));
  Sql(folder.File("rankless.db"), "DELETE FROM incarnations");
  EXPECT_THAT(std::string(OpenError(folder.File("rankless.db")).message()),
              HasSubstr("is of rank 1, which is not there"));
  CopyFile(path, folder.File("nobody.db"));
  Sql(folder.File("nobody.db"), "DELETE FROM store");
  EXPECT_THAT(std::string(OpenError(folder.File("nobody.db")).message()),
              HasSubstr("has no identity"));
}

// Sessions leave the file in runs of their rows, and take their instances along.
TEST(SqliteFiles, WhatIsLeftWhenSomeOfManySessionsHaveEnded) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  StoreHarness store((On(path)));
  std::vector<std::string> sessions;
  for (int i = 0; i < 8; ++i) {
    const std::string id = std::to_string(i);
    // 2 and 5 live longer than the others, 3 is closed.
    sessions.push_back(store.Session(id, absl::Seconds(i == 2 || i == 5 ? 100 : 10)));
    ASSERT_TRUE(store.Register(sessions.back(), MakeInstance("orders", id), 7).ok());
  }
  ASSERT_EQ(store.CloseSession(sessions[3]), absl::OkStatus());
  store.clock().Advance(absl::Seconds(11));
  EXPECT_THAT(store.Ids(), ElementsAre("2", "5"));
  store.Reopen();
  EXPECT_THAT(store.Ids(), ElementsAre("2", "5"));
  EXPECT_TRUE(store.KeepAlive(sessions[2]).ok());
  EXPECT_EQ(store->Stats().tombstones, 5);
  EXPECT_EQ(ReasonOf(store.Register(store.Session("0"), MakeInstance("orders", "0"), 6).status),
            registry::v1::ERROR_REASON_SUPERSEDED)
      << "a fence is left";
  EXPECT_TRUE(store.Register(store.Session("6"), MakeInstance("orders", "6"), 8).ok());
  store.Close();
  const auto summary = CheckStore(path);
  ASSERT_EQ(summary.status(), absl::OkStatus());
  EXPECT_EQ(summary->instances, 3);
  EXPECT_EQ(summary->sessions, 4);
  EXPECT_EQ(summary->tombstones, 4);
}

// ---- Damage, row by row.

struct Change {
  const char* sql;
  const char* noticed;  // in the error
};

class ChangedRowTest : public ::testing::TestWithParam<Change> {
 protected:
  // The file of a store with a session, a second incarnation and an instance.
  static const std::string& GoodStore() {
    static const auto* const bytes = [] {
      TempDir folder;
      const std::string path = folder.File("registry.db");
      {
        StoreHarness store(On(path, Durability::kNormal));
        const std::string session = store.Session("a");
        EXPECT_TRUE(store.Register(session, MakeInstance("orders", "1"), 1).ok());
        EXPECT_TRUE(store.CloseSession(store.Session("b")).ok());
      }
      std::ifstream file(path, std::ios::binary);
      return new std::string(std::istreambuf_iterator<char>(file), {});
    }();
    return *bytes;
  }
};

// Values that are possible, so that nothing but the checksum tells.
INSTANTIATE_TEST_SUITE_P(
    EachColumn, ChangedRowTest,
    ::testing::Values(
        Change{"UPDATE sessions SET id = 7", "session 7 has a wrong checksum"},
        Change{"UPDATE sessions SET session_id = 'another'", "session 1 has a wrong checksum"},
        Change{"UPDATE sessions SET rank = 2", "session 1 has a wrong checksum"},
        Change{"UPDATE sessions SET ttl_ms = ttl_ms + 1", "session 1 has a wrong checksum"},
        Change{"UPDATE sessions SET ends_with_stream = 1", "session 1 has a wrong checksum"},
        Change{"UPDATE sessions SET checksum = checksum + 1", "session 1 has a wrong checksum"},
        Change{"UPDATE incarnations SET rank = 9 WHERE rank = 2", "incarnation 9 has a wrong"},
        Change{"UPDATE incarnations SET name = 'c' WHERE rank = 2", "incarnation 2 has a wrong"},
        Change{"UPDATE incarnations SET client_name = 'c' WHERE rank = 1", "incarnation 1 has a"},
        Change{"UPDATE incarnations SET last_seen_ms = last_seen_ms + 1", "incarnation 1 has a"},
        Change{"UPDATE records SET fence_generation = 2", "record 1 has a wrong checksum"},
        Change{"UPDATE records SET owner_rank = 0", "record 1 has a wrong checksum"},
        Change{"UPDATE records SET persistent = 1", "record 1 has a wrong checksum"},
        Change{"UPDATE records SET retention_ms = 1", "record 1 has a wrong checksum"},
        Change{"UPDATE store SET store_id = 'another'", "its identity has a wrong checksum"},
        Change{"UPDATE store SET epoch = epoch + 1", "its identity has a wrong checksum"},
        Change{"UPDATE store SET revision = revision - 1", "its identity has a wrong checksum"},
        Change{"UPDATE store SET next_rank = next_rank - 1", "its identity has a wrong checksum"},
        Change{"UPDATE store SET boot_id = 'another'", "its identity has a wrong checksum"},
        Change{"UPDATE store SET clean = 1 - clean", "its identity has a wrong checksum"},
        Change{"UPDATE store SET durability = 0", "its identity has a wrong checksum"},
        Change{"UPDATE store SET writes = writes + 1", "its identity has a wrong checksum"},
        Change{"UPDATE store SET row_sum = 0", "its identity has a wrong checksum"},
        Change{"UPDATE store SET row_sum = NULL", "its identity has a wrong checksum"},
        Change{"UPDATE records SET create_revision = 0", "not those of its last commit"},
        Change{"UPDATE records SET modify_revision = 7", "not those of its last commit"},
        Change{"DELETE FROM records", "not those of its last commit"},
        Change{"DELETE FROM sessions", "not those of its last commit"},
        Change{"DELETE FROM incarnations WHERE rank = 2", "not those of its last commit"},
        Change{"INSERT INTO incarnations SELECT 9, 'c', client_name, last_seen_ms, checksum, owner "
               "FROM incarnations LIMIT 1",
               "incarnation 9 has a wrong checksum"}));

TEST_P(ChangedRowTest, IsNoticedByStartCheckBackupAndRestore) {
  TempDir folder;
  const std::string path = folder.Write("registry.db", GoodStore());
  ASSERT_EQ(CheckStore(path).status(), absl::OkStatus());
  Sql(path, GetParam().sql);
  const absl::Status opened = OpenError(path);
  EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss) << opened;
  EXPECT_THAT(std::string(opened.message()), HasSubstr(GetParam().noticed));
  EXPECT_EQ(CheckStore(path).status(), opened);
  EXPECT_EQ(BackUpStore(path, folder.File("backup.db"), nullptr).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(RestoreStore(path, folder.File("restored.db"), nullptr).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_NE(access(folder.File("backup.db").c_str(), F_OK), 0);
  EXPECT_NE(access(folder.File("restored.db").c_str(), F_OK), 0);
}

// Where nothing is synced a power cut may leave rows of several commits, and a start takes them.
TEST(SqliteFiles, WhatAPowerCutHasTornWithoutSyncsIsForAStartToMend) {
  const struct {
    std::string boot_id;
    Durability durability;
    const char* torn;
    absl::StatusCode code;
  } cases[] = {
      {"an earlier one", Durability::kOff, "DELETE FROM incarnations WHERE rank = 2",
       absl::StatusCode::kFailedPrecondition},
      {"an earlier one", Durability::kOff, "UPDATE incarnations SET name = 'x' WHERE rank = 2",
       absl::StatusCode::kDataLoss},
      {"an earlier one", Durability::kNormal, "DELETE FROM incarnations WHERE rank = 2",
       absl::StatusCode::kDataLoss},
      {KernelBootId(), Durability::kOff, "DELETE FROM incarnations WHERE rank = 2",
       absl::StatusCode::kDataLoss},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(absl::StrCat(test.boot_id, " ", test.torn));
    TempDir folder;
    const std::string path = folder.File("torn.db");
    SqliteStorage::Options options;
    options.path = folder.File("registry.db");
    options.boot_id = test.boot_id;
    options.durability = test.durability;
    {
      auto storage = SqliteStorage::Open(options).value();
      WriteSet writes;
      writes.revision = 1;
      writes.next_rank = 3;
      writes.incarnations = {{1, "a", "", 0, ""}, {2, "b", "", 0, ""}};
      ASSERT_EQ(storage->Write(writes), absl::OkStatus());
      CopyFile(options.path, path);
      CopyFile(options.path + "-wal", path + "-wal");
    }
    Sql(path, test.torn);
    const absl::Status checked = CheckStore(path).status();
    EXPECT_EQ(checked.code(), test.code) << checked;
    EXPECT_THAT(std::string(checked.message()), HasSubstr(path));
    EXPECT_EQ(BackUpStore(path, folder.File("backup.db"), nullptr).status().code(), test.code);
    EXPECT_EQ(RestoreStore(path, folder.File("restored.db"), nullptr).status().code(), test.code);
    if (test.code != absl::StatusCode::kFailedPrecondition) continue;
    EXPECT_THAT(std::string(checked.message()), HasSubstr("start the registry on it once"));
    EXPECT_EQ(BackUpStore(path, folder.File("backup.db"), nullptr).status(), checked);
    EXPECT_EQ(RestoreStore(path, folder.File("restored.db"), nullptr).status(), checked);
    StoreHarness(On(path, Durability::kOff)).Close();
    EXPECT_EQ(CheckStore(path).status(), absl::OkStatus()) << "as it says";
  }
}

// A file that is damaged under a running store: what is in memory is served.
TEST(SqliteFiles, DamageThatIsFoundByAWriteRefusesWritesAndReadsGoOn) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  StoreHarness store(On(path, Durability::kNormal));
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(store.Register("", MakeInstance("orders", std::to_string(i))).ok());
  }
  store.Reopen();
  // Another connection's commit makes this one read its pages again.
  Sql(path, "PRAGMA user_version=1; PRAGMA user_version=7; PRAGMA wal_checkpoint(TRUNCATE)");
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(0, std::ios::end);
    const auto size = file.tellg();
    file.seekp(4096);
    file << std::string(static_cast<size_t>(size) - 4096, '\xee');
  }
  const absl::Status refused = store.Register("", MakeInstance("orders", "new")).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_STORE_READ_ONLY);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(store->Stats().write_status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store.Ids().size(), 300u);
  store.clock().Advance(absl::Seconds(2));
  EXPECT_FALSE(store.Register("", MakeInstance("orders", "new")).ok());
  EXPECT_EQ(store.Ids().size(), 300u);
  store.Close();
  EXPECT_EQ(OpenError(path).code(), absl::StatusCode::kDataLoss);
}

// As `sudo failback-registry restore` makes it, for a registry that runs as another user.
TEST(SqliteFiles, WhatRootRestoresIsTheFoldersOwners) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  TempDir folder;
  const std::string backup = folder.File("backup.db");
  { StoreHarness store((On(backup))); }
  constexpr uid_t kNobody = 65534;
  const std::string place = folder.File("place");
  ASSERT_EQ(mkdir(place.c_str(), 0750), 0);
  ASSERT_EQ(chown(place.c_str(), kNobody, kNobody), 0);
  const std::string path = place + "/registry.db";
  ASSERT_EQ(RestoreStore(backup, path, nullptr).status(), absl::OkStatus());
  for (const char* suffix : {"", ".mark", ".lock"}) {
    struct stat info;
    ASSERT_EQ(stat((path + suffix).c_str(), &info), 0) << suffix;
    EXPECT_EQ(info.st_uid, kNobody) << suffix;
  }
}

// Otherwise the registry could not read what an operator has restored under another name.
TEST(SqliteFiles, WhatCannotBeGivenToTheStoresOwnerIsNotPutInItsPlace) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  TempDir folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  const std::string path = folder.File("registry.db");
  const std::string backup = folder.File("backup.db");
  { StoreHarness store((On(path))); }
  ASSERT_EQ(BackUpStore(path, backup, nullptr).status(), absl::OkStatus());
  ASSERT_EQ(chmod(backup.c_str(), 0644), 0);
  ASSERT_EQ(unlink((path + ".lock").c_str()), 0);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(seteuid(kNobody), 0);
  const absl::Status refused = RestoreStore(backup, path, nullptr).status();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("run this as that user"));
  StoreHarness store((On(path)));
  EXPECT_THAT(store.Ids(), ElementsAre());
}

TEST(SqliteFiles, ARestoredStoreBeginsANewEpoch) {
  TempDir folder;
  const std::string path = folder.File("registry.db");
  const std::string backup = folder.File("backup.db");
  uint64_t epoch;
  {
    StoreHarness store((On(path)));
    for (const char* id : {"1", "2", "3"}) {
      ASSERT_TRUE(store.Register("", MakeInstance("orders", id)).ok());
    }
    epoch = store->epoch();
  }
  ASSERT_EQ(BackUpStore(path, backup, nullptr).status(), absl::OkStatus());
  const auto restored = RestoreStore(backup, path, nullptr);
  ASSERT_EQ(restored.status(), absl::OkStatus());
  EXPECT_NE(restored->store.identity.epoch, epoch);
  EXPECT_EQ(CheckStore(backup)->identity.epoch, epoch) << "the backup is left as it was";
  StoreHarness store((On(path)));
  EXPECT_EQ(store->epoch(), restored->store.identity.epoch) << "and not another one at the start";
  EXPECT_EQ(store->revision(), 1u);
  for (const auto& record : store.List()) {
    EXPECT_EQ(record.create_revision(), 1u);
    EXPECT_EQ(record.modify_revision(), 1u);
  }
  EXPECT_EQ(store.List().size(), 3u);
}

// ---- Older schemas.

// A store as version 3 wrote it: a session with an instance, a tombstone, an instance without an
// owner.
constexpr char kSchema3[] = R"sql(
BEGIN TRANSACTION;
CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        store_id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        next_rank INTEGER NOT NULL,
        boot_id TEXT NOT NULL,      -- of the machine's start in which it was last opened
        clean INTEGER NOT NULL,     -- 1: closed in good order
        durability INTEGER NOT NULL -- of the last life; 2 full, 1 normal, 0 off
      , writes INTEGER NOT NULL DEFAULT 0);
INSERT INTO store VALUES(1,'2b9622c7dccf9d0e0fe6cc6d45f45e42',7152249332013548,4,2,
  '475ad3f7-6be8-446a-9fec-c206e52bfee9',1,2,5);
CREATE TABLE incarnations (
        rank INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        client_name TEXT NOT NULL,
        last_seen_ms INTEGER NOT NULL
      );
INSERT INTO incarnations VALUES(1,'e812290f393603a662fd8d713536804e','failback-agent@vm',
  1795302921063);
CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        rank INTEGER NOT NULL,
        ttl_ms INTEGER NOT NULL,
        ends_with_stream INTEGER NOT NULL
      );
INSERT INTO sessions VALUES(1,'9c9a056c0f4720f892b59fc25bbf3183',1,10000,0);
CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        key BLOB NOT NULL,          -- namespace NUL service NUL instance_id
        instance BLOB,  -- a serialized ServiceInstance; NULL: only the fence is left
        fence_rank INTEGER NOT NULL,
        fence_generation INTEGER NOT NULL,
        fence_digest INTEGER NOT NULL,
        fence_registers INTEGER NOT NULL,
        owner_rank INTEGER NOT NULL,
        session INTEGER NOT NULL,
        persistent INTEGER NOT NULL,
        retention_ms INTEGER NOT NULL,
        create_revision INTEGER NOT NULL,
        modify_revision INTEGER NOT NULL,
        create_ms INTEGER NOT NULL,
        modify_ms INTEGER NOT NULL,
        checksum INTEGER NOT NULL
      , offline BLOB);
INSERT INTO records VALUES(1,X'64656661756c74006f7264657273006f72646572732d31',
  X'0a1b0a0764656661756c7412066f72646572731a086f72646572732d31120831302e302e302e3118c13e',1,1,
  3973323850677621672,1,1,1,0,60000,1,1,1795302922157,1795302922157,-2887288954739108892,NULL);
INSERT INTO records VALUES(2,X'64656661756c74006f7264657273006f72646572732d32',NULL,1,3,0,0,0,0,
  0,60000,0,0,0,0,-2998646727200946861,NULL);
INSERT INTO records VALUES(3,X'64656661756c74006f72646572730062792d68616e64',
  X'0a1a0a0764656661756c7412066f72646572731a0762792d68616e64120831302e302e302e3118c33e',0,0,0,0,
  0,0,0,0,4,4,1795302922327,1795302922327,2999612515285645953,NULL);
COMMIT;
PRAGMA application_id=1178751571;
)sql";

// What version 4 made of it.
constexpr char kToSchema4[] = R"sql(
ALTER TABLE store ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incarnations ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
UPDATE store SET epoch = 3666737326891897, revision = 1, next_rank = 1000002,
  checksum = 2900390858363606879;
UPDATE incarnations SET checksum = 106763794713031848;
UPDATE sessions SET checksum = 7161205236518776762;
)sql";

class OlderSchemaTest : public ::testing::TestWithParam<int> {
 protected:
  OlderSchemaTest() {
    Sql(path_, kSchema3);
    if (GetParam() < 3) Sql(path_, "ALTER TABLE records DROP COLUMN offline");
    if (GetParam() < 2) Sql(path_, "ALTER TABLE store DROP COLUMN writes");
    if (GetParam() >= 4) Sql(path_, kToSchema4);
    if (GetParam() >= 5) Sql(path_, "ALTER TABLE store ADD COLUMN sessions INTEGER");
    if (GetParam() >= 6) CountSessions();
    Sql(path_, "PRAGMA user_version=" + std::to_string(GetParam()));
  }

  // As schema 6 had it in the place of the rows' sum, with the checksum that the head has then.
  void CountSessions() {
    Sql(path_, "ALTER TABLE incarnations ADD COLUMN owner TEXT NOT NULL DEFAULT ''");
    Sql(path_, "ALTER TABLE store RENAME COLUMN sessions TO row_sum");
    {
      auto db = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kReadWrite).value();
      StoreHead head = ReadStoreHead(*db).value();
      head.row_sum = 1;
      ASSERT_EQ(WriteStoreHead(*db, head), absl::OkStatus());
    }
    Sql(path_, "ALTER TABLE store RENAME COLUMN row_sum TO sessions");
  }

  TempDir folder_;
  const std::string path_ = folder_.File("registry.db");
};

INSTANTIATE_TEST_SUITE_P(Schemas, OlderSchemaTest, ::testing::Values(1, 2, 3, 4, 5, 6));

TEST_P(OlderSchemaTest, IsMigratedWithAllThatItHolds) {
  const auto before = CheckStore(path_);
  ASSERT_EQ(before.status(), absl::OkStatus()) << "as it will be";
  EXPECT_EQ(before->schema, GetParam()) << "and it is left as it is";
  uint64_t epoch;
  {
    StoreHarness store((On(path_)));
    epoch = store->epoch();
    EXPECT_EQ(store->store_id(), "2b9622c7dccf9d0e0fe6cc6d45f45e42");
    EXPECT_THAT(store.Ids(), ElementsAre("by-hand", "orders-1"));
    const std::string session = "9c9a056c0f4720f892b59fc25bbf3183";
    EXPECT_TRUE(store.KeepAlive(session).ok());
    EXPECT_EQ(store.OpenSession("e812290f393603a662fd8d713536804e").session_id(), session);
    EXPECT_EQ(ReasonOf(store.Register(session, MakeInstance("orders", "orders-2"), 2).status),
              registry::v1::ERROR_REASON_SUPERSEDED);
  }
  const auto after = CheckStore(path_);
  ASSERT_EQ(after.status(), absl::OkStatus());
  EXPECT_EQ(after->schema, kStoreSchemaVersion);
  EXPECT_EQ(after->instances, before->instances);
  EXPECT_EQ(after->tombstones, 1);
  EXPECT_EQ(after->sessions, 1);
  EXPECT_EQ(after->incarnations, 1);
  StoreHarness again((On(path_)));
  EXPECT_EQ(again->epoch(), epoch);
}

// What rows are written to by their places.
std::vector<std::string> ColumnsOf(const std::string& path) {
  auto db = SqliteDatabase::Open(path, SqliteDatabase::Mode::kReadWrite).value();
  auto select = db->Prepare(
                      "SELECT t.name, c.cid, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk"
                      " FROM sqlite_master t, pragma_table_info(t.name) c ORDER BY 1, 2")
                    .value();
  std::vector<std::string> columns;
  while (select->Step() == SQLITE_ROW) {
    std::string& column = columns.emplace_back();
    for (int i = 0; i < 7; ++i) column.append(select->Bytes(i)).append(" ");
  }
  return columns;
}

TEST_P(OlderSchemaTest, HasTheColumnsOfANewFile) {
  StoreHarness(On(path_)).Close();
  const std::string made = folder_.File("new.db");
  StoreHarness(On(made)).Close();
  EXPECT_EQ(ColumnsOf(path_), ColumnsOf(made));
  EXPECT_EQ(ColumnsOf(made).size(), 40u);
}

TEST_P(OlderSchemaTest, MigratedRowsAreSealed) {
  StoreHarness(On(path_)).Close();
  for (const char* table : {"sessions", "incarnations", "store"}) {
    SCOPED_TRACE(table);
    const std::string copy = folder_.File(std::string(table) + ".db");
    CopyFile(path_, copy);
    Sql(copy, std::string("UPDATE ") + table + " SET checksum = 0");
    EXPECT_EQ(CheckStore(copy).status().code(), absl::StatusCode::kDataLoss);
  }
}

// Whatever was lost before there was a sum would be in it from here on.
TEST_P(OlderSchemaTest, IsNotMigratedWithoutASessionThatItsHeadCounts) {
  if (GetParam() != 6) GTEST_SKIP() << "counted none";
  Sql(path_, "DELETE FROM sessions");
  const absl::Status status = OpenError(path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of 1 sessions 0 are there"));
}

TEST_P(OlderSchemaTest, IsRestored) {
  const std::string restored = folder_.File("restored.db");
  ASSERT_EQ(RestoreStore(path_, restored, nullptr).status(), absl::OkStatus());
  StoreHarness store((On(restored)));
  EXPECT_THAT(store.Ids(), ElementsAre("by-hand", "orders-1"));
}

}  // namespace
}  // namespace failback
