// `failback-registry backup`, `restore` and `check` on real processes.

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/process/registry_client.h"
#include "tests/registry/process/store_command.h"
#include "tests/registry/store/sqlite/sqlite_files.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string AbsolutePath(const std::string& path) {
  return std::filesystem::absolute(path).string();
}

class BackupTest : public ::testing::Test {
 protected:
  std::string Store() const { return "sqlite://" + dir_.File("registry.db"); }

  Daemon Start(const std::string& file = "registry.db") {
    return Daemon::Registry({"--store", "sqlite://" + dir_.File(file)});
  }

  const TempDir dir_;
};

TEST_F(BackupTest, ABackupOfABusyStoreIsOneMomentOfIt) {
  Daemon daemon = Start();
  RegistryClient client(daemon.address());
  const std::string session = client.Open("filler", absl::Hours(1))->session_id();
  // Some size, so that the copy takes more than a step.
  std::vector<ServiceInstance> many;
  for (int i = 0; i < 1000; ++i) {
    many.push_back(MakeInstance("filler", absl::StrCat(i)));
    (*many.back().mutable_metadata())["text"] = std::string(1000, 'x');
  }
  for (uint64_t generation = 1; generation <= 4; ++generation) {
    for (auto& instance : many) {
      instance.mutable_key()->set_service(absl::StrCat("filler-", generation));
    }
    ASSERT_TRUE(client.Register(session, many, generation).ok());
  }

  // Meanwhile four instances are always changed together.
  std::atomic<bool> stop = false;
  std::atomic<uint32_t> acknowledged = 0;
  std::thread writer([&] {
    RegistryClient busy(daemon.address());
    const std::string own = busy.Open("writer", absl::Hours(1))->session_id();
    for (uint32_t port = 1; !stop; ++port) {
      std::vector<ServiceInstance> four;
      four.reserve(4);
      for (int i = 0; i < 4; ++i) four.push_back(MakeInstance("four", absl::StrCat(i), port));
      ASSERT_TRUE(busy.Register(own, four, port).ok());
      acknowledged = port;
    }
  });
  uint32_t last = 0;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(Eventually([&] { return acknowledged > last; }));
    const uint32_t before = acknowledged;
    const std::string name = absl::StrCat("backup-", round, ".db");
    const RunResult backup =
        RegistryCommand({"backup", "--store", Store(), "--to", dir_.File(name), "--progress"});
    last = acknowledged;
    ASSERT_EQ(backup.status, 0) << backup.err;
    EXPECT_THAT(backup.err, HasSubstr("backup: 100 %"));
    EXPECT_EQ(Field(backup.out, "instances"), "4004");

    Daemon copy = Start(name);
    RegistryClient reader(copy.address());
    std::set<uint32_t> ports;
    const auto four = reader.List("four");
    ASSERT_TRUE(four.ok()) << four.status();
    ASSERT_THAT(*four, SizeIs(4));
    for (const auto& record : *four) ports.insert(record.instance().port());
    EXPECT_THAT(ports, SizeIs(1)) << "a commit was torn";
    EXPECT_GE(*ports.begin(), before) << "something acknowledged before is missing";
    EXPECT_LE(*ports.begin(), acknowledged + 1);
    EXPECT_EQ(copy.Stop(), 0);
  }
  stop = true;
  writer.join();
  EXPECT_THAT(FilesLike(dir_.path(), "partial"), IsEmpty());
}

TEST_F(BackupTest, FilesAreForTheirUserAndGroup) {
  const mode_t before = umask(0);
  {
    const Daemon daemon = Start();
    ASSERT_EQ(
        RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("backup.db")}).status, 0);
    const std::vector<std::string> files = FilesLike(dir_.path(), ".db");
    EXPECT_THAT(files, ::testing::Contains("registry.db-wal"));
    EXPECT_THAT(files, ::testing::Contains("registry.db.mark"));
  }
  ASSERT_EQ(
      RegistryCommand({"restore", "--store", dir_.File("new.db"), "--from", dir_.File("backup.db")})
          .status,
      0);
  umask(before);
  for (const std::string& name : FilesLike(dir_.path(), ".db")) {
    struct stat info;
    ASSERT_EQ(stat(dir_.File(name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0027, 0u) << name;
  }
}

TEST_F(BackupTest, ARestoredStoreBeginsANewEpochAndKeepsWhatWasThere) {
  std::string first_epoch;
  {
    Daemon daemon = Start();
    RegistryClient client(daemon.address());
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "1")}).ok());
    const RunResult backup =
        RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("b.db")});
    ASSERT_EQ(backup.status, 0) << backup.err;
    first_epoch = Field(backup.out, "epoch");
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "2")}).ok());
    daemon.Kill();  // what was committed last is in the -wal file only
  }
  const RunResult restore =
      RegistryCommand({"restore", "--store", Store(), "--from", dir_.File("b.db")});
  ASSERT_EQ(restore.status, 0) << restore.err;
  EXPECT_NE(Field(restore.out, "epoch"), first_epoch);
  EXPECT_EQ(Field(restore.out, "revision"), "1");
  {
    Daemon daemon = Start();
    RegistryClient client(daemon.address());
    EXPECT_THAT(client.Ids(), ElementsAre("1"));
    EXPECT_EQ(absl::StrCat(client.epoch()), Field(restore.out, "epoch"));
    EXPECT_EQ(daemon.Stop(), 0);
  }
  // What was there can be put back in turn.
  const std::vector<std::string> replaced = FilesLike(dir_.path(), "registry.db.replaced-");
  ASSERT_THAT(replaced, SizeIs(1));
  EXPECT_THAT(restore.out, HasSubstr(replaced[0]));
  ASSERT_EQ(
      RegistryCommand({"restore", "--store", Store(), "--from", dir_.File(replaced[0])}).status, 0);
  Daemon daemon = Start();
  RegistryClient client(daemon.address());
  EXPECT_THAT(client.Ids(), ElementsAre("1", "2"));
  EXPECT_NE(absl::StrCat(client.epoch()), Field(restore.out, "epoch"));
}

TEST_F(BackupTest, ABackupThatIsCopiedByHandBeginsANewEpochToo) {
  uint64_t epoch = 0;
  {
    Daemon daemon = Start();
    RegistryClient client(daemon.address());
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "1")}).ok());
    EXPECT_THAT(client.Ids(), ElementsAre("1"));
    epoch = client.epoch();
    ASSERT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("b.db")}).status, 0);
  }
  Daemon daemon = Start("b.db");
  RegistryClient client(daemon.address());
  EXPECT_THAT(client.Ids(), ElementsAre("1"));
  EXPECT_NE(client.epoch(), epoch);
}

TEST_F(BackupTest, AgentsSendEverythingAgainAfterARestore) {
  std::string address;
  std::unique_ptr<Daemon> agent;
  {
    Daemon daemon = Start();
    address = daemon.address();
    agent = std::make_unique<Daemon>(
        Daemon::Agent(address, {"--listen", "unix:" + dir_.File("agent.sock")}));
    const auto reg = [&](const std::string& id) {
      const RunResult result =
          Ctl(agent->address(), {"register", "orders", "--id", id, "--address", "h", "--port", "1",
                                 "--wait", "acknowledged"});
      ASSERT_EQ(result.status, 0) << result.err;
    };
    reg("1");
    ASSERT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("b.db")}).status, 0);
    reg("2");
    daemon.Kill();
  }
  ASSERT_EQ(RegistryCommand({"restore", "--store", Store(), "--from", dir_.File("b.db")}).status,
            0);
  Daemon daemon = Daemon::Registry({"--store", Store(), "--listen", address});
  RegistryClient client(address);
  EXPECT_TRUE(Eventually([&] { return client.Ids() == std::vector<std::string>({"1", "2"}); }));
}

TEST_F(BackupTest, AStoreInUseIsNotReplaced) {
  Daemon daemon = Start();
  RegistryClient client(daemon.address());
  ASSERT_TRUE(client.Register("", {MakeInstance("orders", "1")}).ok());
  ASSERT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("b.db")}).status, 0);
  const RunResult restore =
      RegistryCommand({"restore", "--store", Store(), "--from", dir_.File("b.db")});
  EXPECT_EQ(restore.status, 2);
  EXPECT_THAT(restore.err, AllOf(StartsWith("failback-registry: restore: "), HasSubstr("is in use"),
                                 HasSubstr(absl::StrCat("process ", daemon.process().pid()))));
  EXPECT_THAT(client.Ids(), ElementsAre("1"));
  EXPECT_THAT(FilesLike(dir_.path(), "replaced"), IsEmpty());
  EXPECT_THAT(FilesLike(dir_.path(), "restoring"), IsEmpty());
}

TEST_F(BackupTest, CheckReadsAStoreInUseAndNoticesDamage) {
  {
    Daemon daemon = Start();
    RegistryClient client(daemon.address());
    const std::string session = client.Open("a")->session_id();
    ASSERT_TRUE(client.Register(session, {MakeInstance("orders", "id-of-one")}, 1).ok());
    ASSERT_TRUE(client.Register(session, {MakeInstance("users", "two")}, 1).ok());
    ASSERT_TRUE(client.Unregister(session, MakeInstance("users", "two").key(), 2).ok());
    const RunResult check = RegistryCommand({"check", "--store", Store()});
    ASSERT_EQ(check.status, 0) << check.err;
    EXPECT_THAT(check.out, StartsWith(dir_.File("registry.db") + ": good\n"));
    EXPECT_EQ(Field(check.out, "instances"), "1");
    EXPECT_EQ(Field(check.out, "services"), "1");
    EXPECT_EQ(Field(check.out, "tombstones"), "1");
    EXPECT_EQ(Field(check.out, "sessions"), "1");
    EXPECT_EQ(Field(check.out, "revision"), "3");
    EXPECT_EQ(daemon.Stop(), 0);
  }
  std::string bytes;
  {
    std::ifstream in(dir_.File("registry.db"), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const size_t at = bytes.find("id-of-one");
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  const std::string damaged = dir_.Write("damaged.db", bytes);
  const RunResult check = RegistryCommand({"check", "--store", damaged});
  EXPECT_EQ(check.status, 1);
  EXPECT_THAT(check.err, AllOf(HasSubstr(damaged), HasSubstr("is damaged")));
  // A damaged store is neither backed up nor restored.
  EXPECT_EQ(RegistryCommand({"backup", "--store", damaged, "--to", dir_.File("b.db")}).status, 1);
  EXPECT_THAT(FilesLike(dir_.path(), "b.db"), IsEmpty());
  EXPECT_EQ(RegistryCommand({"restore", "--store", Store(), "--from", damaged}).status, 1);
  EXPECT_THAT(FilesLike(dir_.path(), "replaced"), IsEmpty());
  EXPECT_EQ(RegistryCommand({"check", "--store", Store()}).status, 0);
}

TEST_F(BackupTest, BadInputIsNamed) {
  const auto expect = [](const RunResult& result, const std::string& text) {
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  const std::string text = dir_.Write("text", "not a store");
  const std::string missing = dir_.File("missing.db");
  expect(RegistryCommand({"check", "--store", missing}), missing + ": cannot open: No such file");
  expect(RegistryCommand({"check", "--store", "etcd://h"}), "--store: \"etcd://h\" is neither");
  expect(RegistryCommand({"check", "--stor", "x"}), "--stor: unknown flag");
  expect(RegistryCommand({"backup", "--store", missing}),
         "backup needs --to FILE or --to-folder FOLDER");
  expect(RegistryCommand({"backup", "--store", missing, "--to", "a", "--to-folder", "b"}), "--to");
  expect(RegistryCommand({"backup", "--store", missing, "--to", "a", "--keep", "1"}),
         "--to-folder");
  expect(RegistryCommand({"backup", "--store", missing, "--to-folder", "a", "--keep", "0"}),
         "--keep");
  expect(RegistryCommand({"restore", "--store", missing}),
         "restore needs --from FILE or --from-folder FOLDER");
  expect(RegistryCommand({"restore", "--store", Store(), "--from-folder", dir_.path()}),
         dir_.path() + ": has no backup");
  expect(RegistryCommand({"restore", "--store", Store(), "--from-folder", missing}),
         missing + ": cannot be read: No such file");
  expect(RegistryCommand({"check", "--store", dir_.Write("empty", "")}), "holds no store");
  expect(RegistryCommand({"restore", "--store", dir_.File("no/r.db"), "--from", text}), "folder");
  { EXPECT_EQ(Start().Stop(), 0); }
  expect(RegistryCommand({"backup", "--store", Store(), "--to", text}),
         text + ": is there already");
  expect(RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("no/b.db")}),
         "no/b.db: cannot be made: No such file or directory");
  EXPECT_EQ(RegistryCommand({"check", "--store", text}).status,
            1);  // damaged, as far as one can tell
  const RunResult help = RegistryCommand({"backup", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit status: 0 done, 1 failed"));
  // The store may be named in the configuration file.
  const std::string config = dir_.Write("registry.yaml", "store: " + Store() + "\n");
  EXPECT_EQ(RegistryCommand({"check", "--config", config}).status, 0);
}

// What is no store of this program's, wherever it is named.
TEST_F(BackupTest, OtherFilesAreNeitherCheckedNorCopiedNorPutInPlace) {
  { EXPECT_EQ(Start().Stop(), 0); }
  const std::string good = dir_.File("good.db");
  ASSERT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", good}).status, 0);
  const std::string folder = dir_.File("folder");
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  const std::string newer = dir_.File("newer.db");
  CopyFile(good, newer);
  Sql(newer, "PRAGMA user_version = 1000");
  const std::string other = dir_.File("other.db");
  Sql(other, "CREATE TABLE t(x)");
  const std::pair<std::string, std::string> cases[] = {
      {dir_.File("missing.db"), "No such file"},
      {folder, "is not a file"},
      {newer, "schema 1000 found, up to"},
      {other, "another program"},
  };
  const std::string to = dir_.File("to.db");
  for (const auto& [file, text] : cases) {
    SCOPED_TRACE(file);
    for (const RunResult& result :
         {RegistryCommand({"check", "--store", file}),
          RegistryCommand({"backup", "--store", file, "--to", to}),
          RegistryCommand({"restore", "--store", Store(), "--from", file}),
          RegistryCommand({"restore", "--store", to, "--from", file})}) {
      EXPECT_EQ(result.status, 2);
      EXPECT_THAT(result.err, AllOf(HasSubstr(file), HasSubstr(text)));
    }
    EXPECT_NE(access(to.c_str(), F_OK), 0);
  }
  // A folder is not written over either, nor is a backup onto the store itself.
  EXPECT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", folder}).status, 2);
  EXPECT_EQ(RegistryCommand({"restore", "--store", folder, "--from", good}).status, 2);
  EXPECT_EQ(
      RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("registry.db")}).status, 2);
  EXPECT_EQ(RegistryCommand({"check", "--store", Store()}).status, 0);
  EXPECT_THAT(FilesLike(dir_.path(), "replaced"), IsEmpty());
}

// As a timer or a CronJob makes one a day, without a shell to name or to remove files.
TEST_F(BackupTest, AFolderKeepsTheNewestBackups) {
  Daemon daemon = Start();
  const std::string folder = dir_.File("backups");
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  const auto put = [&](const std::string& name) { dir_.Write("backups/" + name, ""); };
  const auto back_up = [&] {
    const RunResult made =
        RegistryCommand({"backup", "--store", Store(), "--to-folder", folder, "--keep", "2"});
    EXPECT_EQ(made.status, 0) << made.err;
    return made.out;
  };
  const auto write_long_ago = [&](const std::string& name, int hours) {
    put(name);
    const std::filesystem::path path(folder + "/" + name);
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) - std::chrono::hours(hours));
  };
  // Killed, and still being made, of whatever moment.
  write_long_ago("registry-20200101T000000Z.db.partial-1", 25);
  write_long_ago("registry-20990103T000000Z.db.partial-1", 25);
  write_long_ago("registry-20990103T000000Z.db.partial-1-journal", 25);
  write_long_ago("registry-20200101T000000Z.db.partial-2", 23);
  put("registry-20200103T000000Z.db");
  EXPECT_THAT(back_up(), Not(HasSubstr("removed")));
  EXPECT_THAT(FilesLike(folder, "partial"), ElementsAre("registry-20200101T000000Z.db.partial-2"))
      << "also where no backup is one too many";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename() != "registry-20200103T000000Z.db") {
      std::filesystem::remove(entry.path());
    }
  }
  put("registry-20200101T000000Z.db");
  put("registry-20200101T000000Z.db-wal");
  put("registry-20200103T000000Z.db.gpg");
  put("registry-1.db");
  const std::string said = back_up();
  EXPECT_THAT(said, HasSubstr("1 older removed\n"));
  const auto names = FilesLike(folder, "registry-");
  EXPECT_THAT(names, ElementsAre("registry-1.db", "registry-20200103T000000Z.db",
                                 "registry-20200103T000000Z.db.gpg",
                                 ::testing::MatchesRegex("registry-2.......T......Z.db")));
  const std::string newest = folder + "/" + names.back();
  EXPECT_THAT(said, HasSubstr("backed up to " + newest));

  // The newest is the one that is restored.
  daemon.Stop();
  const RunResult restored =
      RegistryCommand({"restore", "--store", Store(), "--from-folder", folder});
  EXPECT_EQ(restored.status, 0) << restored.err;
  EXPECT_THAT(restored.out, HasSubstr("restored from " + newest));
}

// Made while a clock was ahead: by name it is the newest for long, and the new ones are the oldest.
TEST_F(BackupTest, ABackupIsNotRemovedForOneOfALaterMoment) {
  { EXPECT_EQ(Start().Stop(), 0); }
  const std::string folder = dir_.File("backups");
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  dir_.Write("backups/registry-20990101T000000Z.db", "");
  const RunResult made =
      RegistryCommand({"backup", "--store", Store(), "--to-folder", folder, "--keep", "1"});
  EXPECT_EQ(made.status, 2);
  EXPECT_THAT(made.err, HasSubstr("registry-20990101T000000Z.db: a clock was ahead"));
  EXPECT_THAT(FilesLike(folder, "registry-"), SizeIs(2)) << "nothing is removed";
}

TEST_F(BackupTest, PathsMayBeRelative) {
  { EXPECT_EQ(Start().Stop(), 0); }
  const auto here = [&](const std::string& command) {
    return RunProcess({"/bin/sh", "-c",
                       absl::StrCat("cd ", dir_.path(), " && exec ", AbsolutePath(RegistryBinary()),
                                    " ", command)});
  };
  EXPECT_EQ(here("backup --store registry.db --to b.db").status, 0);
  const RunResult restore = here("restore --store registry.db --from b.db");
  EXPECT_EQ(restore.status, 0) << restore.err;
  EXPECT_EQ(here("check --store registry.db").status, 0);
  // A store may be restored from itself: a new epoch begins.
  const RunResult again = here("restore --store registry.db --from registry.db");
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_NE(Field(again.out, "epoch"), Field(restore.out, "epoch"));
  EXPECT_THAT(FilesLike(dir_.path(), "replaced"), SizeIs(2));
}

// What is newest in it is in its log only, which is folded in or kept too.
TEST_F(BackupTest, AReplacedStoreThatIsDamagedIsKeptWithItsNewest) {
  {
    Daemon daemon = Start();
    RegistryClient client(daemon.address());
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "1")}).ok());
    ASSERT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("b.db")}).status, 0);
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "newest-one")}).ok());
    daemon.Kill();
  }
  std::fstream(dir_.File("registry.db"), std::ios::in | std::ios::out | std::ios::binary)
      << std::string(100, 'x');
  ASSERT_EQ(RegistryCommand({"restore", "--store", Store(), "--from", dir_.File("b.db")}).status,
            0);
  std::string kept;
  for (const std::string& name : FilesLike(dir_.path(), "registry.db.replaced-")) {
    std::ifstream file(dir_.File(name), std::ios::binary);
    kept.append(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_THAT(kept, HasSubstr("newest-one"));
  // It is not taken for the log of what is there now.
  Daemon daemon = Start();
  EXPECT_THAT(RegistryClient(daemon.address()).Ids(), ElementsAre("1"));
}

TEST_F(BackupTest, WithoutRoomThereIsNoBackupAndNothingIsReplaced) {
  auto daemon = std::make_unique<Daemon>(Start());
  ASSERT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("b.db")}).status, 0);
  const auto limited = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"/usr/bin/prlimit", "--fsize=8192", RegistryBinary()});
    return RunProcess(args);
  };
  const RunResult backup = limited({"backup", "--store", Store(), "--to", dir_.File("no.db")});
  EXPECT_EQ(backup.status, 1);
  EXPECT_THAT(backup.err, HasSubstr(dir_.File("no.db")));
  EXPECT_EQ(daemon->Stop(), 0);
  const RunResult restore = limited({"restore", "--store", Store(), "--from", dir_.File("b.db")});
  EXPECT_EQ(restore.status, 1);
  for (const char* left : {"no.db", "replaced", "restoring"}) {
    EXPECT_THAT(FilesLike(dir_.path(), left), IsEmpty());
  }
  EXPECT_EQ(RegistryCommand({"check", "--store", Store()}).status, 0);
}

// A backup that is killed leaves no file with its name, or a good one.
TEST_F(BackupTest, AKilledBackupIsNone) {
  {
    Daemon daemon = Start();
    RegistryClient client(daemon.address());
    std::vector<ServiceInstance> many;
    for (int i = 0; i < 1000; ++i) {
      many.push_back(MakeInstance("filler", absl::StrCat(i)));
      (*many.back().mutable_metadata())["text"] = std::string(1000, 'x');
    }
    for (int batch = 0; batch < 3; ++batch) {
      for (auto& instance : many) instance.mutable_key()->set_service(absl::StrCat("s", batch));
      ASSERT_TRUE(client.Register("", many).ok());
    }
    EXPECT_EQ(daemon.Stop(), 0);
  }
  const absl::Time start = absl::Now();
  ASSERT_EQ(RegistryCommand({"backup", "--store", Store(), "--to", dir_.File("whole.db")}).status,
            0);
  const int64_t usual = absl::ToInt64Microseconds(absl::Now() - start);
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937_64 random(seed);
  int finished = 0;
  for (int round = 0; round < 8; ++round) {
    const std::string to = dir_.File(absl::StrCat("b", round, ".db"));
    auto backup = Process::Start({RegistryBinary(), "backup", "--store", Store(), "--to", to});
    absl::SleepFor(absl::Microseconds(random() % (usual * 2)));
    backup->Kill();
    if (access(to.c_str(), F_OK) != 0) continue;
    ++finished;
    const RunResult check = RegistryCommand({"check", "--store", to});
    EXPECT_EQ(check.status, 0) << check.err;
    EXPECT_EQ(Field(check.out, "instances"), "3000");
  }
  std::cout << finished << " of 8 were finished" << std::endl;
  EXPECT_EQ(RegistryCommand({"check", "--store", Store()}).status, 0);
}

}  // namespace
}  // namespace failback
