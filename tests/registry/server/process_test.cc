// Servers that are processes: killed in the middle of a call, left-over sockets, a second one.

#include "tests/util/process.h"

#include <signal.h>
#include <sys/stat.h>

#include "gmock/gmock.h"
#include "registry/model/errors.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

class ProcessTest : public testing::Test {
 protected:
  // Where the process listens, or "" when it does not.
  static std::string AddressOf(Process& process) {
    const auto line = process.WaitForLine("listening on ");
    EXPECT_TRUE(line.has_value()) << process.Describe();
    return line.has_value() ? line->substr(std::string("listening on ").size()) : "";
  }

  static std::unique_ptr<Process> StartServer(const std::string& address, const std::string& kind) {
    return Process::Start({RunfilePath("tests/registry/server/wire_server"), address, kind});
  }

  TempDir folder_;
  const std::string socket_ = folder_.File("s");
};

TEST_F(ProcessTest, KilledInTheMiddleOfACall) {
  auto process = StartServer(ReservedAddress(), "silent");
  const std::string address = AddressOf(*process);
  GrpcRegistry client({address}, Patient());
  auto listener = std::make_shared<RecordingListener>();
  const auto stream = client.Subscribe({}, listener);
  ASSERT_TRUE(CallAndWait(client, &Registry::List, ListRequest()).ok());
  KeepAliveRequest renewal;
  renewal.set_session_id("s");
  ASSERT_TRUE(CallAndWait(client, &Registry::KeepAlive, renewal).ok());
  const auto call = CallAsync(client, &Registry::Register, RegisterRequest());
  process->Kill();
  EXPECT_EQ(call.Get().status().code(), absl::StatusCode::kUnavailable) << call.Get().status();
  ASSERT_TRUE(listener->WaitForEnd());
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CallAndWait(client, &Registry::KeepAlive, renewal).status().code(),
            absl::StatusCode::kUnavailable);

  process = StartServer(address, "memory");
  ASSERT_EQ(AddressOf(*process), address);
  EXPECT_TRUE(CallAndWait(client, &Registry::List, ListRequest()).ok()) << "the first call";
}

TEST_F(ProcessTest, ASocketBelongsToOneProcess) {
  const std::string address = "unix:" + socket_;
  auto first = StartServer(address, "memory");
  ASSERT_EQ(AddressOf(*first), address);
  struct stat info;
  ASSERT_EQ(stat(socket_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);

  const auto second = StartServer(address, "memory");
  EXPECT_EQ(second->WaitForExit(), 2);
  EXPECT_EQ(second->err(), absl::StrCat("wire_server: ", address, " is in use: ", socket_,
                                        ".lock is locked by process ", first->pid(), "\n"));
  GrpcRegistry client({address}, Patient());
  EXPECT_TRUE(CallAndWait(client, &Registry::List, ListRequest()).ok())
      << "the first has kept its socket";

  // What a killed process leaves is no obstacle.
  first->Kill();
  ASSERT_EQ(stat(socket_.c_str(), &info), 0);
  first = StartServer(address, "memory");
  ASSERT_EQ(AddressOf(*first), address);
  EXPECT_TRUE(CallAndWait(client, &Registry::List, ListRequest()).ok());
}

TEST_F(ProcessTest, APortBelongsToOneProcess) {
  auto first = StartServer("127.0.0.1:0", "memory");
  const std::string address = AddressOf(*first);
  const auto second = StartServer(address, "memory");
  EXPECT_EQ(second->WaitForExit(), 2);
  EXPECT_EQ(second->err(),
            absl::StrCat("wire_server: ", address, " is in use: another process listens there\n"));
}

TEST_F(ProcessTest, AClientThatIsKilledLosesItsBoundSession) {
  // The client is this process: its stream breaks as a killed one's does, by its connection.
  auto process = StartServer("unix:" + socket_, "memory");
  const std::string address = AddressOf(*process);
  auto bound = std::make_unique<GrpcRegistry>(std::vector<std::string>{address}, Patient());
  OpenSessionRequest open;
  open.set_incarnation("bound");
  open.set_ends_with_stream(true);
  open.mutable_ttl()->set_seconds(3600);
  const auto session = CallAndWait(*bound, &Registry::OpenSession, open);
  ASSERT_TRUE(session.ok()) << session.status();
  KeepAliveRequest renewal;
  renewal.set_session_id(session->session_id());
  ASSERT_TRUE(CallAndWait(*bound, &Registry::KeepAlive, renewal).ok());
  RegisterRequest request;
  request.set_session_id(session->session_id());
  *request.add_registrations()->mutable_instance() = MakeInstance("orders", "a");
  ASSERT_TRUE(CallAndWait(*bound, &Registry::Register, request).ok());

  GrpcRegistry watching({address}, Patient());
  auto listener = std::make_shared<RecordingListener>();
  SubscribeRequest subscribe;
  subscribe.mutable_selector()->set_service("orders");
  const auto stream = watching.Subscribe(subscribe, listener);
  ASSERT_TRUE(listener->WaitForEvents(1));
  EXPECT_EQ(listener->events()[0]->snapshot().instances_size(), 1);
  bound.reset();
  ASSERT_TRUE(listener->WaitForEvents(2)) << "long before the hour of its TTL";
  EXPECT_EQ(listener->events()[1]->delta().removals_size(), 1);
}

}  // namespace
}  // namespace failback
