// Each bad input that a person or a program can give: the error that they get, and that nothing is
// lost.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sqlite3.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// The exit status for bad input, nothing on stdout, and one line that has all of `parts`.
void ExpectRefused(const RunResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.status, 2) << result.err;
  EXPECT_EQ(result.out, "");
  ASSERT_FALSE(result.err.empty());
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
}

// A daemon that is not to take the usual port of its admin endpoint, which another may have.
RunResult RunDaemon(std::vector<std::string> command) {
  command.insert(command.end(), {"--admin", ""});
  return RunProcess(command);
}

// Registers instance `a` of orders, and waits until the registry has it.
void RegisterA(const std::string& target) {
  const RunResult result = Ctl(target, {"register", "orders", "--id", "a", "--address", "h",
                                        "--port", "1", "--wait", "acknowledged"});
  ASSERT_EQ(result.status, 0) << result.err;
}

TEST(BadInputTest, UnknownFlags) {
  ExpectRefused(RunProcess({RegistryBinary(), "--lisen", "127.0.0.1:0"}),
                {"failback-registry: --lisen: unknown flag; see failback-registry --help"});
  ExpectRefused(RunProcess({AgentBinary(), "--registri", "x"}),
                {"failback-agent: --registri: unknown flag; see failback-agent --help"});
  ExpectRefused(RunProcess({CtlBinary(), "list", "--servce", "x"}),
                {"failbackctl: list: --servce: unknown flag; see failbackctl list --help"});
}

TEST(BadInputTest, UnknownYamlKeys) {
  const TempDir dir;
  const std::string agent =
      dir.Write("agent.yaml", "registry: grpc://a:1\nlisten: b\nregistri: x\n");
  ExpectRefused(
      RunProcess({AgentBinary(), "--config", agent}),
      {"failback-agent: " + agent + ":3: registri: unknown key; allowed: listen, registry, "});
  const std::string registry = dir.Write("registry.yaml", "session:\n  ttl: 10s\n");
  ExpectRefused(RunProcess({RegistryBinary(), "--config", registry}),
                {"failback-registry: " + registry +
                 ":2: session.ttl: unknown key; allowed: default_ttl, min_ttl, max_ttl"});
  ExpectRefused(RunProcess({AgentBinary(), "--config", dir.File("none.yaml")}),
                {dir.File("none.yaml") + ": cannot be read: No such file or directory"});
}

TEST(BadInputTest, BadEnvironment) {
  ExpectRefused(
      RunProcess({RegistryBinary(), "--store", "memory:"}, {{"FAILBACK_DURABILITY", "maybe"}}),
      {"failback-registry: FAILBACK_DURABILITY: 'maybe' is not one of full, normal, off"});
}

TEST(BadInputTest, ASocketIsGivenToWhoItIsForAndBadKeysAreNamed) {
  const TempDir dir;
  struct stat info;
  const std::string path = dir.File("r.sock");
  {
    Daemon registry =
        Daemon::Registry({"--store", "memory:", "--listen", "unix:" + path, "--socket-mode", "0600",
                          "--socket-group", std::to_string(getgid())});
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_EQ(info.st_gid, getgid());
  }
  if (getuid() == 0) {  // only root may give a file away
    Daemon agent = Daemon::Agent("127.0.0.1:1", {"--listen", "unix:" + path, "--socket-owner",
                                                 "nobody", "--socket-group", "nogroup"});
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0660u);
    EXPECT_NE(info.st_uid, 0u);
    EXPECT_NE(info.st_gid, 0u);
  }
  const auto refused = [&](const std::string& flag, const std::string& value,
                           const std::string& problem) {
    for (const std::string& binary : {RegistryBinary(), AgentBinary()}) {
      ExpectRefused(
          RunProcess({binary, "--listen", "unix:" + path, flag, value},
                     {{"FAILBACK_REGISTRY", "grpc://127.0.0.1:1"}, {"FAILBACK_STORE", "memory:"}}),
          {absl::StrCat(flag, ": '", value, "' is not a ", problem)});
    }
  };
  refused("--socket-mode", "0x1", "file mode from 0 to 0777, as 0660");
  refused("--socket-mode", "01777", "file mode from 0 to 0777, as 0660");
  refused("--socket-owner", "no-such-user", "user of this machine");
  refused("--socket-group", "no-such-group", "group of this machine");
}

TEST(BadInputTest, ValidateConfigStartsNothing) {
  const TempDir dir;
  const std::string good =
      dir.Write("agent.yaml", "registry: grpc://127.0.0.1:1\nlisten: unix:" + dir.File("a.sock") +
                                  "\nservices:\n- {name: a, address: b, port: 1}\n");
  const RunResult result = RunProcess({AgentBinary(), "--config", good, "--validate-config"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "the configuration is valid\n");
  EXPECT_NE(access(dir.File("a.sock").c_str(), F_OK), 0);
  const std::string bad =
      dir.Write("bad.yaml",
                "registry: grpc://127.0.0.1:1\nservices:\n- {name: a, address: b, port: 70000}\n");
  ExpectRefused(RunProcess({AgentBinary(), "--config", bad, "--validate-config"}),
                {bad + ":3: services[0].port: 70000 is not in 1..65535"});
}

TEST(BadInputTest, ArgumentsOfFailbackctl) {
  const auto refused = [](std::vector<std::string> args, const std::string& problem) {
    args.insert(args.begin(), {CtlBinary(), "--target", "127.0.0.1:1"});
    ExpectRefused(RunProcess(args), {"failbackctl: " + problem});
  };
  const auto registering = [](const std::string& flag, const std::string& value) {
    return std::vector<std::string>{"register", "a", "--address", "h", "--port", "1", flag, value};
  };
  refused({}, "a command is missing; see failbackctl --help");
  refused({"list", "--zone", "a", "orders", "b"}, "list: b: unexpected argument");
  refused({"list", "--namespace"}, "list: --namespace: its value is missing: NAMESPACE");
  refused({"list", "--namespace", "a", "--namespace", "b"}, "list: --namespace: given twice");
  refused({"register", "a", "--address", "h", "--port", "x"},
          "register: --port: 'x' is not in 1..65535");
  refused(registering("--weight", "-1"), "register: --weight: '-1' is not in 0..65535");
  refused(registering("--meta", "k"), "register: --meta: 'k' is not KEY=VALUE");
  std::vector<std::string> twice = registering("--meta", "k=1");
  twice.insert(twice.end(), {"--meta", "k=2"});
  refused(twice, "register: --meta: 'k' is given twice");
  refused({"subscribe", "--count", "-1"},
          "subscribe: --count: '-1' is not a whole number from 0 up");
}

TEST(BadInputTest, ArgumentsOfStoreCommands) {
  ExpectRefused(RunProcess({RegistryBinary(), "backup"}),
                {"failback-registry: backup needs --to FILE or --to-folder FOLDER"});
  ExpectRefused(RunProcess({RegistryBinary(), "check", "--store=", "x"}),
                {"failback-registry: check: x: unexpected argument"});
}

TEST(BadInputTest, AdminTokensThatAreNone) {
  const TempDir dir;
  const std::string empty = dir.Write("empty", " \n");
  const auto refused = [](const std::string& file, const std::string& problem) {
    ExpectRefused(RunProcess({RegistryBinary(), "--store", "memory:", "--listen", "127.0.0.1:0",
                              "--admin-token-file", file}),
                  {"failback-registry: --admin-token-file: '" + file + "' " + problem});
  };
  refused(empty, "holds no token");
  refused(dir.File("none"), "cannot be read");
}

TEST(BadInputTest, BadUris) {
  for (const std::string uri : {"http://a:1", "grpc://", "grpc://a", "grpc://a:70000",
                                "grpc://a:1,", "a:1", "=grpc://a:1"}) {
    ExpectRefused(RunProcess({AgentBinary(), "--registry", uri}),
                  {"failback-agent: --registry: ", uri});
  }
  for (const std::string uri :
       {"postgres://x", "sqlite://relative.db", "sqlite:", "sqlite:///", "etcd:/a:1", ""}) {
    const std::string allowed = uri[0] == 'e' ? "etcd://host:port" : "sqlite:///";
    ExpectRefused(RunDaemon({RegistryBinary(), "--store", uri, "--validate-config"}),
                  {"failback-registry: --store: '" + uri + "' is no store: ", allowed});
  }
  ExpectRefused(RunDaemon({RegistryBinary(), "--store", "memory:", "--listen", "nowhere"}),
                {"failback-registry: --listen: ", "nowhere"});
  for (const std::string target : {"nowhere", "", "http://a:1"}) {
    ExpectRefused(RunProcess({CtlBinary(), "--target", target, "list"}),
                  {"--target: '" + target + "' is no address"});
  }
}

TEST(BadInputTest, PortInUse) {
  Daemon first = Daemon::Registry({"--store", "memory:"});
  RegisterA(first.address());
  ExpectRefused(RunDaemon({RegistryBinary(), "--store", "memory:", "--listen", first.address()}),
                {"failback-registry: --listen: " + first.address() + " is in use"});
  ExpectRefused(
      RunDaemon({AgentBinary(), "--registry", "grpc://127.0.0.1:1", "--listen", first.address()}),
      {"failback-agent: --listen: " + first.address() + " is in use"});
  EXPECT_THAT(ListedIds(first.address(), "orders"), ElementsAre("a"));
}

TEST(BadInputTest, SecondAgentOnTheSameSocket) {
  const TempDir dir;
  const std::string socket = "unix:" + dir.File("agent.sock");
  Daemon registry = Daemon::Registry({"--store", "memory:"});
  Daemon agent = Daemon::Agent(registry.address(), {"--listen", socket});
  RegisterA(socket);
  ExpectRefused(
      RunDaemon({AgentBinary(), "--registry", "grpc://" + registry.address(), "--listen", socket}),
      {"failback-agent: --listen: " + socket + " is in use",
       std::to_string(agent.process().pid())});
  // The first one still serves, and nothing that it carries is gone.
  EXPECT_THAT(ListedIds(socket, "orders"), ElementsAre("a"));
  EXPECT_THAT(ListedIds(registry.address(), "orders"), ElementsAre("a"));
  // After a kill -9 the socket is free for the next one.
  agent.Kill();
  Daemon next = Daemon::Agent(registry.address(), {"--listen", socket});
  EXPECT_THAT(ListedIds(socket, "orders"), ElementsAre("a"));
}

TEST(BadInputTest, SecondAgentInTheSameStateDir) {
  const TempDir dir;
  Daemon registry = Daemon::Registry({"--store", "memory:"});
  Daemon agent = Daemon::Agent(registry.address(), {"--state-dir", dir.File("state")});
  RegisterA(agent.address());
  ExpectRefused(RunDaemon({AgentBinary(), "--registry", "grpc://" + registry.address(), "--listen",
                           "127.0.0.1:0", "--state-dir", dir.File("state")}),
                {"failback-agent: ", dir.File("state"), "is locked by process",
                 std::to_string(agent.process().pid())});
  EXPECT_THAT(ListedIds(registry.address(), "orders"), ElementsAre("a"));
  // A folder that cannot be used is named as well.
  ExpectRefused(RunDaemon({AgentBinary(), "--registry", "grpc://" + registry.address(), "--listen",
                           "127.0.0.1:0", "--state-dir", "/proc/failback"}),
                {"failback-agent: ", "/proc/failback"});
}

TEST(BadInputTest, SecondRegistryOnTheSameStore) {
  const TempDir dir;
  const std::string store = "sqlite://" + dir.File("r.db");
  Daemon first = Daemon::Registry({"--store", store});
  ExpectRefused(
      RunDaemon({RegistryBinary(), "--listen", "127.0.0.1:0", "--store", store}),
      {"failback-registry: ", dir.File("r.db"), "in use", std::to_string(first.process().pid())});
}

TEST(BadInputTest, DataFolderThatCannotBeUsed) {
  const TempDir dir;
  ExpectRefused(RunDaemon({RegistryBinary(), "--listen", "127.0.0.1:0", "--store",
                           "sqlite://" + dir.File("none/r.db")}),
                {"failback-registry: ", dir.File("none"), "No such file or directory"});
  ExpectRefused(RunDaemon({RegistryBinary(), "--listen", "127.0.0.1:0", "--store",
                           "sqlite://" + dir.Write("file", "") + "/r.db"}),
                {"failback-registry: ", dir.File("file"), "is not a folder"});
  // A folder that even root cannot write to.
  ExpectRefused(RunDaemon({RegistryBinary(), "--listen", "127.0.0.1:0", "--store",
                           "sqlite:///proc/failback.db"}),
                {"failback-registry: ", "/proc/failback.db"});
  ExpectRefused(
      RunDaemon({AgentBinary(), "--registry", "grpc://127.0.0.1:1", "--listen",
                 "unix:" + dir.File("none/a.sock")}),
      {"failback-agent: --listen: ", dir.File("none/a.sock"), "No such file or directory"});
}

TEST(BadInputTest, StoreOfANewerSchema) {
  const TempDir dir;
  const std::string file = dir.File("r.db");
  {
    Daemon registry = Daemon::Registry({"--store", "sqlite://" + file});
    RegisterA(registry.address());
    ASSERT_EQ(registry.Stop(), 0);
  }
  // Returns the one before.
  const auto set_version = [&file](int version) {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
    int before = 0;
    const auto read = [](void* value, int, char** columns, char**) {
      *static_cast<int*>(value) = std::atoi(columns[0]);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(db, "PRAGMA user_version", read, &before, nullptr), SQLITE_OK);
    const std::string sql = "PRAGMA user_version = " + std::to_string(version);
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
    return before;
  };
  const int version = set_version(99);
  ExpectRefused(
      RunDaemon({RegistryBinary(), "--listen", "127.0.0.1:0", "--store", "sqlite://" + file}),
      {"failback-registry: ", file, "99", "newer"});
  // It was not touched: the version that wrote it reads it.
  set_version(version);
  Daemon registry = Daemon::Registry({"--store", "sqlite://" + file});
  EXPECT_THAT(ListedIds(registry.address(), "orders"), ElementsAre("a"));
}

// What a call may not contain is refused alike by a registry and by an agent.
class BadRequestTest : public ::testing::Test {
 protected:
  static std::vector<std::string> Register(const std::string& service, const std::string& port,
                                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"register",  service, "--id",   "a",
                                     "--address", "h",     "--port", port};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  void ExpectInvalid(const std::vector<std::string>& args, const std::string& problem) {
    for (const std::string& target : {registry_.address(), agent_.address()}) {
      const RunResult result = Ctl(target, args);
      EXPECT_EQ(result.status, 1);
      EXPECT_EQ(result.out, "");
      EXPECT_THAT(result.err,
                  StartsWith("failbackctl: " + args[0] + ": INVALID_ARGUMENT: " + problem));
      EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    }
  }

  Daemon registry_ = Daemon::Registry({"--store", "memory:"});
  Daemon agent_ = Daemon::Agent(registry_.address(), {});
};

TEST_F(BadRequestTest, IsRefusedWithTheFieldAndWhatIsAllowed) {
  RegisterA(agent_.address());
  ExpectInvalid(Register("", "1"), "registrations[0].instance.key.service: is required");
  ExpectInvalid(Register("a b", "1"), "registrations[0].instance.key.service: ");
  ExpectInvalid(Register("orders", "0"), "registrations[0].instance.port: 0 is not in 1..65535");
  ExpectInvalid(Register("orders", "70000"),
                "registrations[0].instance.port: 70000 is not in 1..65535");
  ExpectInvalid(Register("orders", "1", {"--weight", "65536"}),
                "registrations[0].instance.weight: 65536 ");
  ExpectInvalid(Register("orders", "1", {"--meta", "k=" + std::string(1025, 'x')}),
                "registrations[0].instance.metadata[\"k\"]: the value is 1025 bytes long, at most "
                "1024 are allowed");
  std::vector<std::string> many;
  for (int i = 0; i < 65; ++i) many.insert(many.end(), {"--meta", "k" + std::to_string(i) + "=v"});
  ExpectInvalid(Register("orders", "1", many), "registrations[0].instance.metadata: ");
  ExpectInvalid({"unregister", "", "--id", "a"}, "deregistrations[0].key.service: is required");
  ExpectInvalid({"unregister", "orders", "--id", ""},
                "deregistrations[0].key.instance_id: is required");
  ExpectInvalid({"subscribe", "a b"}, "selector.service: \"a b\" may hold ");
  // Nothing was lost, nothing is queued.
  EXPECT_THAT(ListedIds(registry_.address(), "orders"), ElementsAre("a"));
  EXPECT_THAT(PendingAt(agent_.address()), IsEmpty());
}

}  // namespace
}  // namespace failback
