// `failback-registry restore` under an operator's hands: what is in its way, who has the store
// open, what the backup is worth, and a kill at every moment.

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/process/registry_client.h"
#include "tests/registry/process/store_command.h"
#include "tests/registry/store/files.h"
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

bool IsThere(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Whether a system call changes what is on the disk, or makes it last.
bool ChangesFiles(uint64_t call) {
  static const auto* const kCalls = new std::set<uint64_t>{
      SYS_write,  SYS_pwrite64, SYS_ftruncate, SYS_fsync,    SYS_fdatasync,
      SYS_linkat, SYS_unlinkat, SYS_fchmodat,  SYS_fchownat,
#ifdef SYS_rename
      SYS_link,   SYS_unlink,   SYS_rename,    SYS_chmod,    SYS_lchown,
#else
      SYS_renameat,
#endif
  };
  return kCalls->count(call) > 0;
}

// Runs a program silently to its end, or kills it when it is about to make the `last`-th system
// call that changes files: nullopt. `count` becomes the number of these calls.
std::optional<int> RunUpTo(int last, const std::vector<std::string>& args, int* count) {
  *count = 0;
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
    Fatal("cannot be traced: " + args[0]);
  }
  ptrace(PTRACE_SETOPTIONS, pid, nullptr,
         intptr_t{PTRACE_O_TRACESYSGOOD} | intptr_t{PTRACE_O_EXITKILL});
  for (intptr_t signal = 0;;) {
    ptrace(PTRACE_SYSCALL, pid, nullptr, signal);
    if (waitpid(pid, &status, 0) != pid) Fatal("cannot be waited for: " + args[0]);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
    signal = WSTOPSIG(status);
    if (signal != (SIGTRAP | 0x80)) continue;
    signal = 0;
    __ptrace_syscall_info info = {};
    ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !ChangesFiles(info.entry.nr)) continue;
    if (++*count < last) continue;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return std::nullopt;
  }
}

class RestoreTest : public ::testing::Test {
 protected:
  // Leaves a store that was killed, whose newest instance is in its log only, and a backup from
  // before that.
  void SetUp() override {
    Daemon daemon = Start(store_);
    RegistryClient client(daemon.address());
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "saved")}).ok());
    const RunResult backup = RegistryCommand({"backup", "--store", store_, "--to", backup_});
    ASSERT_EQ(backup.status, 0) << backup.err;
    epoch_ = Field(backup.out, "epoch");
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "newest")}).ok());
    daemon.Kill();
  }

  static Daemon Start(const std::string& path) {
    return Daemon::Registry({"--store", "sqlite://" + path});
  }
  RunResult Restore() { return RegistryCommand({"restore", "--store", store_, "--from", backup_}); }
  // What a registry lists that is started on the store, and in which epoch.
  std::vector<std::string> IdsAt(const std::string& path, std::string* epoch = nullptr) {
    Daemon daemon = Start(path);
    RegistryClient client(daemon.address());
    std::vector<std::string> ids = client.Ids();
    if (epoch != nullptr) *epoch = absl::StrCat(client.epoch());
    EXPECT_EQ(daemon.Stop(), 0);
    return ids;
  }

  const TempDir dir_;
  const std::string store_ = dir_.File("registry.db");
  const std::string backup_ = dir_.File("backup.db");
  std::string epoch_;  // of both
};

// SQLite would read it as the log of the restored file, and undo the restore.
TEST_F(RestoreTest, ALogWhoseStoreHasGoneIsKeptAside) {
  ASSERT_EQ(rename(store_.c_str(), dir_.File("moved").c_str()), 0);
  ASSERT_TRUE(IsThere(store_ + "-wal"));
  const RunResult restore = Restore();
  ASSERT_EQ(restore.status, 0) << restore.err;
  const std::vector<std::string> kept = FilesLike(dir_.path(), "replaced");
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_THAT(kept[0], ::testing::EndsWith("-wal"));
  EXPECT_THAT(restore.out, HasSubstr(dir_.File(kept[0])));
  EXPECT_THAT(Content(dir_.File(kept[0])), HasSubstr("newest"));
  EXPECT_NE(Field(restore.out, "epoch"), epoch_);
  std::string epoch;
  EXPECT_THAT(IdsAt(store_, &epoch), ElementsAre("saved"));
  EXPECT_EQ(epoch, Field(restore.out, "epoch"));
}

// As a file that was cut to nothing: SQLite removes the log of an empty file.
TEST_F(RestoreTest, TheLogOfAnEmptyStoreIsKept) {
  ASSERT_EQ(truncate(store_.c_str(), 0), 0);
  ASSERT_EQ(Restore().status, 0);
  std::string kept;
  for (const std::string& name : FilesLike(dir_.path(), "replaced")) {
    kept += Content(dir_.File(name));
  }
  EXPECT_THAT(kept, HasSubstr("newest"));
  EXPECT_THAT(IdsAt(store_), ElementsAre("saved"));
}

TEST_F(RestoreTest, ABackupIsNotMadeBesideALogOfItsName) {
  const std::string to = dir_.File("b.db");
  for (const char* end : {"-wal", "-journal"}) {
    const std::string log = dir_.Write(absl::StrCat("b.db", end), "");
    const RunResult backup = RegistryCommand({"backup", "--store", store_, "--to", to});
    EXPECT_EQ(backup.status, 2);
    EXPECT_THAT(backup.err, HasSubstr(log + ": is there already, and would be read as part of"));
    EXPECT_FALSE(IsThere(to));
    ASSERT_EQ(unlink(log.c_str()), 0);
  }
  EXPECT_EQ(RegistryCommand({"backup", "--store", store_, "--to", to}).status, 0);
}

TEST_F(RestoreTest, AStoreIsOneByEachOfItsNames) {
  const std::string link = dir_.File("link.db");
  ASSERT_EQ(symlink(store_.c_str(), link.c_str()), 0);
  const auto restore = [&](const std::string& to) {
    return RegistryCommand({"restore", "--store", to, "--from", backup_});
  };
  for (const auto& [served, restored] : {std::pair(link, store_), std::pair(store_, link)}) {
    Daemon daemon = Start(served);
    const RunResult refused = restore(restored);
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("is in use"),
                                   HasSubstr(absl::StrCat("process ", daemon.process().pid()))));
    // Nor do two registries serve one file.
    EXPECT_EQ(RunProcess({RegistryBinary(), "--store", "sqlite://" + restored, "--listen",
                          "127.0.0.1:0", "--admin", ""})
                  .status,
              2);
    EXPECT_THAT(RegistryClient(daemon.address()).Ids(), ElementsAre("newest", "saved"));
    EXPECT_EQ(daemon.Stop(), 0);
  }
  // The link stays, and leads to what was restored.
  const RunResult done = restore(link);
  ASSERT_EQ(done.status, 0) << done.err;
  struct stat info;
  ASSERT_EQ(lstat(link.c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  std::string epoch;
  EXPECT_THAT(IdsAt(link, &epoch), ElementsAre("saved"));
  EXPECT_EQ(epoch, Field(done.out, "epoch")) << "a start by that name goes on in it";
}

// As when the disk with the store is not mounted.
TEST_F(RestoreTest, ALinkThatLeadsNowhereIsNotReplaced) {
  const std::string link = dir_.File("link.db");
  ASSERT_EQ(symlink(dir_.File("missing/registry.db").c_str(), link.c_str()), 0);
  const RunResult restore = RegistryCommand({"restore", "--store", link, "--from", backup_});
  EXPECT_EQ(restore.status, 2);
  EXPECT_THAT(restore.err, HasSubstr(link + ": is a symbolic link to a file that is not there"));
  EXPECT_TRUE(IsThere(link));
}

// It would write to, or remove, what comes to that name.
TEST_F(RestoreTest, AStoreThatAnotherProgramHasOpenIsNotReplaced) {
  sqlite3* shell = nullptr;
  ASSERT_EQ(sqlite3_open(store_.c_str(), &shell), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(shell, "SELECT * FROM store", nullptr, nullptr, nullptr), SQLITE_OK);
  const RunResult refused = Restore();
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr(store_ + ": is in use: another program has it open"));
  EXPECT_THAT(FilesLike(dir_.path(), "replaced"), IsEmpty());
  EXPECT_THAT(FilesLike(dir_.path(), "restoring"), IsEmpty());
  sqlite3_close(shell);
  EXPECT_THAT(IdsAt(store_), ElementsAre("newest", "saved"));
  EXPECT_EQ(Restore().status, 0);
  EXPECT_THAT(IdsAt(store_), ElementsAre("saved"));
}

// Its name, and not that of the copy which has gone.
TEST_F(RestoreTest, ADamagedBackupIsNamed) {
  const std::string good = Content(backup_);
  std::string changed = good;
  const size_t at = changed.find("saved");
  ASSERT_NE(at, std::string::npos);
  changed[at] ^= 1;
  const std::pair<std::string, std::string> cases[] = {
      {"changed.db", changed},
      {"short.db", good.substr(0, good.size() - 4096)},
      {"torn.db", good.substr(0, good.size() - 100)},
      {"head.db", good.substr(0, 50)},
      {"text.db", std::string(10000, 'x')},
  };
  for (const auto& [name, content] : cases) {
    SCOPED_TRACE(name);
    const std::string from = dir_.Write(name, content);
    for (const RunResult& result :
         {RegistryCommand({"restore", "--store", store_, "--from", from}),
          RegistryCommand({"backup", "--store", from, "--to", dir_.File("no.db")})}) {
      EXPECT_EQ(result.status, 1) << result.err;
      EXPECT_THAT(result.err, AllOf(StartsWith("failback-registry: "), HasSubstr(from),
                                    Not(HasSubstr("restoring")), Not(HasSubstr("partial"))));
    }
  }
  EXPECT_THAT(FilesLike(dir_.path(), "replaced"), IsEmpty());
  EXPECT_THAT(FilesLike(dir_.path(), "no.db"), IsEmpty());
  EXPECT_THAT(IdsAt(store_), ElementsAre("newest", "saved"));
}

// As a registry leaves it that is killed when it first opens a backup.
TEST_F(RestoreTest, AFileWhoseWriteWasInterruptedIsForARegistryToOpen) {
  const pid_t pid = fork();
  if (pid == 0) {
    sqlite3* db = nullptr;
    sqlite3_open(backup_.c_str(), &db);
    // More than is kept in memory: a part of it is written, and the journal is synced before.
    for (const char* sql : {"PRAGMA cache_size=1", "PRAGMA cache_spill=1", "BEGIN IMMEDIATE",
                            "CREATE TABLE t(x)", "INSERT INTO t VALUES (zeroblob(100000))"}) {
      if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) != SQLITE_OK) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(IsThere(backup_ + "-journal"));
  for (const RunResult& result : {Restore(), RegistryCommand({"check", "--store", backup_})}) {
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(backup_ + ": a write was interrupted; start the registry"));
  }
  EXPECT_THAT(IdsAt(backup_), ElementsAre("saved"));
  EXPECT_EQ(RegistryCommand({"check", "--store", backup_}).status, 0);
}

TEST_F(RestoreTest, AMarkThatCannotBeWrittenIsSaid) {
  const std::string to = dir_.File("to.db");
  ASSERT_EQ(mkdir((to + ".mark").c_str(), 0755), 0);
  const RunResult restore = RegistryCommand({"restore", "--store", to, "--from", backup_});
  EXPECT_EQ(restore.status, 1);
  EXPECT_THAT(restore.err, AllOf(HasSubstr(to + ".mark"), HasSubstr("the backup is in its place")));
  ASSERT_EQ(rmdir((to + ".mark").c_str()), 0);
  std::string epoch;
  EXPECT_THAT(IdsAt(to, &epoch), ElementsAre("saved"));
  EXPECT_NE(epoch, epoch_);
}

TEST_F(RestoreTest, NamesMayHaveColonsAndAreNotEmpty) {
  const std::string dated = dir_.File("registry-2026-11-23T05:44.db");
  EXPECT_EQ(RegistryCommand({"backup", "--store", store_, "--to", dated}).status, 0);
  EXPECT_EQ(RegistryCommand({"check", "--store", dated}).status, 0);
  for (const char* none : {"sqlite://", "memory:", "etcd://h/p"}) {
    const RunResult check = RegistryCommand({"check", "--store", none});
    EXPECT_EQ(check.status, 2);
    EXPECT_THAT(check.err, HasSubstr(absl::StrCat("--store: \"", none, "\" is neither")));
  }
}

TEST_F(RestoreTest, ASubscriberThatComesBackHasASnapshotOfTheNewEpoch) {
  auto daemon = std::make_unique<Daemon>(Start(store_));
  const std::string address = daemon->address();
  auto subscriber = Process::Start(
      {CtlBinary(), "--target", address, "subscribe", "orders", "--watch", "-o", "json"});
  const auto last_epoch = [](const std::string& out) {
    const auto events = ParseEvents(out);
    return events.empty() || !events.back().has_snapshot() ? ""
                                                           : absl::StrCat(events.back().epoch());
  };
  ASSERT_TRUE(subscriber->WaitForOutput([&](const std::string& out) {
    return last_epoch(out) == epoch_;
  })) << subscriber->Describe();
  daemon->Kill();
  const RunResult restore = Restore();
  ASSERT_EQ(restore.status, 0) << restore.err;
  daemon = std::make_unique<Daemon>(
      Daemon::Registry({"--store", "sqlite://" + store_, "--listen", address}));
  EXPECT_TRUE(subscriber->WaitForOutput([&](const std::string& out) {
    return last_epoch(out) == Field(restore.out, "epoch");
  })) << subscriber->Describe();
  const auto events = ParseEvents(subscriber->out());
  ASSERT_THAT(events.back().snapshot().instances(), SizeIs(1));
  EXPECT_EQ(events.back().snapshot().instances(0).key().instance_id(), "saved");
}

// Before each system call that changes files: the store is the old one with its newest, or the
// restored one; never a mixture. The next restore is not in the way of what is left.
TEST_F(RestoreTest, KilledAtEveryMomentItLeavesTheOldOrTheNew) {
  // There is no looking for leaks in a traced process.
  const char* const asan = getenv("ASAN_OPTIONS");
  setenv("ASAN_OPTIONS", absl::StrCat(asan == nullptr ? "" : asan, ":detect_leaks=0").c_str(), 1);
  int old = 0;
  int restored = 0;
  // Up to the `last`-th call; how many there were.
  const auto round = [&](int last) {
    SCOPED_TRACE(last);
    const TempDir place;
    const std::string store = place.File("registry.db");
    for (const char* end : {"", "-wal", ".mark"}) CopyFile(store_ + end, store + end);
    const std::vector<std::string> command = {RegistryBinary(), "restore", "--store", store,
                                              "--from",         backup_};
    int count = 0;
    const std::optional<int> ended = RunUpTo(last, command, &count);
    const RunResult check = RegistryCommand({"check", "--store", store});
    EXPECT_EQ(check.status, 0) << check.err;
    const bool is_old = Field(check.out, "epoch") == epoch_;
    EXPECT_EQ(Field(check.out, "instances"), is_old ? "2" : "1");
    ++(is_old ? old : restored);
    if (ended.has_value()) {
      EXPECT_EQ(*ended, 0);
      EXPECT_FALSE(is_old);
      return count;
    }
    const RunResult again = RunProcess(command);
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_EQ(Field(again.out, "instances"), "1");
    EXPECT_THAT(FilesLike(place.path(), "restoring"), IsEmpty());
    return count;
  };
  const int calls = round(INT_MAX);
  // The last ones put the copy in its place; it is made by those before.
  for (int last = 1; last <= calls; last += last < calls - 60 ? 5 : 1) round(last);
  std::cout << "of " << calls << ", the old one " << old << " times, the new one " << restored
            << std::endl;
  EXPECT_GT(old, 10);
  EXPECT_GT(restored, 2);
}

}  // namespace
}  // namespace failback
