// What clients do wrong, or on purpose, must not disturb the others: they keep being served, and
// the registry's memory stays bounded.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/fault_proxy.h"
#include "tests/registry/process/bystander.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"
#include "tests/util/sanitized_build.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using registry::v1::RegistryService;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// HTTP/2: the client's preface and an empty SETTINGS frame.
const std::string& Preface() {
  static const auto* const preface = new std::string(
      std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9));
  return *preface;
}

// A frame with a right header and `payload` inside.
std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string bytes = {static_cast<char>(payload.size() >> 16),
                       static_cast<char>(payload.size() >> 8),
                       static_cast<char>(payload.size()),
                       static_cast<char>(type),
                       static_cast<char>(flags),
                       static_cast<char>(stream >> 24),
                       static_cast<char>(stream >> 16),
                       static_cast<char>(stream >> 8),
                       static_cast<char>(stream)};
  return bytes + payload;
}

// The client keeps to the server's SETTINGS from now on.
std::string SettingsTaken() { return Frame(4, 1, 0, ""); }

// The beginning of a call of RegistryService, which ends with nothing.
std::string CallHeaders(uint32_t stream, const std::string& method) {
  constexpr uint8_t kHeaders = 1;
  constexpr uint8_t kEndHeaders = 4;
  // HPACK: a name and a value as they are.
  const auto literal = [](const std::string& name, const std::string& value) {
    return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name,
                        std::string(1, static_cast<char>(value.size())), value);
  };
  const std::string post_over_http = "\x83\x86";
  return Frame(kHeaders, kEndHeaders, stream,
               absl::StrCat(post_over_http,
                            literal(":path", "/failback.registry.v1.RegistryService/" + method),
                            literal(":authority", "x"), literal("te", "trailers"),
                            literal("content-type", "application/grpc")));
}

// A TCP connection that sends what the test says.
class RawConnection {
 public:
  explicit RawConnection(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int port = 0;
    if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) std::abort();
    to.sin_port = htons(static_cast<uint16_t>(port));
    ok_ = fd_ >= 0 && connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }
  RawConnection(const RawConnection&) = delete;

  bool ok() const { return ok_; }
  void Send(const std::string& bytes) {
    // The server may have hung up by now: all the same here.
    static_cast<void>(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  // Reads until the other side says that it will take no more streams (GOAWAY), or closes; false
  // after the deadline.
  bool WaitForGoodbye() { return ReadUntil(7); }
  // Until the other side has told how many streams it takes, and more.
  bool WaitForSettings() { return ReadUntil(4); }

 private:
  // Reads up to a frame of this type, or the end; false after the deadline.
  bool ReadUntil(char type) {
    constexpr size_t kHeader = 9;
    const absl::Time deadline = absl::Now() + kProcessTimeout;
    char buffer[4096];
    while (absl::Now() < deadline) {
      while (frames_.size() >= kHeader) {
        const auto byte = [&](size_t at) { return static_cast<unsigned char>(frames_[at]); };
        const size_t length = kHeader + (byte(0) << 16 | byte(1) << 8 | byte(2));
        if (frames_.size() < length) break;
        const bool found = frames_[3] == type;
        frames_.erase(0, length);
        if (found) return true;
      }
      pollfd wait{fd_, POLLIN, 0};
      if (poll(&wait, 1, 100) <= 0) continue;
      const ssize_t size = read(fd_, buffer, sizeof(buffer));
      if (size <= 0) return true;
      frames_.append(buffer, static_cast<size_t>(size));
    }
    return false;
  }

  const int fd_;
  bool ok_ = false;
  std::string frames_;  // read, and not looked at
};

int64_t ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class AbuseTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> args = {}) {
    if (std::find(args.begin(), args.end(), "--store") == args.end()) {
      args.insert(args.end(), {"--store", "memory:"});
    }
    daemon_ = std::make_unique<Daemon>(Daemon::Registry(args));
    bystander_ = std::make_unique<Bystander>(daemon_->address());
    ASSERT_TRUE(bystander_->Prospers()) << bystander_->failure();
  }
  int64_t memory() { return ResidentBytes(daemon_->process().pid()); }

  // A stream on a connection of its own.
  struct Follower {
    explicit Follower(const std::string& address) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetMaxReceiveMessageSize(-1);
      channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      stub = RegistryService::NewStub(channel);
      context.set_deadline(absl::ToChronoTime(absl::Now() + 3 * kProcessTimeout));
      SubscribeRequest request;
      request.mutable_selector()->set_service("large");
      stream = stub->Subscribe(&context, request);
    }
    ~Follower() { context.TryCancel(); }
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<RegistryService::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<SubscribeResponse>> stream;
  };

  // Changes all `size` instances of the service `large`.
  void Churn(RegistryClient& client, int size, uint32_t port) {
    for (int at = 0; at < size; at += 500) {
      std::vector<ServiceInstance> batch;
      for (int i = at; i < std::min(size, at + 500); ++i) {
        batch.push_back(MakeInstance("large", absl::StrCat(i), port));
        (*batch.back().mutable_metadata())["text"] = std::string(200, 'x');
      }
      ASSERT_TRUE(client.Register("", batch).ok());
    }
  }

  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<Bystander> bystander_;
};

TEST_F(AbuseTest, Garbage) {
  Start();
  SeededRandom random;
  const auto noise = [&](size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Pick(256));
    return bytes;
  };
  const int64_t before = memory();
  for (int round = 0; round < 40; ++round) {
    std::vector<std::unique_ptr<RawConnection>> open;
    const auto say = [&](const std::string& bytes) {
      open.push_back(std::make_unique<RawConnection>(daemon_->address()));
      ASSERT_TRUE(open.back()->ok());
      open.back()->Send(bytes);
    };
    say(noise(1 + random.Pick(100000)));
    say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    say("\x16\x03\x01\x02" + noise(500));                         // as TLS
    say(Preface() + noise(random.Pick(5000)));                    // broken frames
    say(Preface() + Frame(1, 4, 1, noise(200)));                  // HEADERS, no valid HPACK
    say(Preface() + Frame(0, 0, 1, noise(3000)));                 // DATA of no stream
    say(Preface() + std::string("\xff\xff\xff\0\0\0\0\0\1", 9));  // a frame of 16 MiB
    for (int i = 0; i < 20; ++i) {
      open.back()->Send(Frame(random.Pick(16), static_cast<uint8_t>(random.Pick(256)),
                              static_cast<uint32_t>(random.Pick(5)), noise(random.Pick(100))));
    }
    say(Preface().substr(0, random.Pick(Preface().size())));  // and then nothing
  }
  // Right gRPC, and no protobuf inside.
  grpc::GenericStub stub(
      grpc::CreateChannel(daemon_->address(), grpc::InsecureChannelCredentials()));
  for (const char* method : {"OpenSession", "CloseSession", "Register", "Unregister", "Unsubscribe",
                             "List", "Subscribe", "Watch", "NoSuchMethod"}) {
    for (int round = 0; round < 20; ++round) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
      grpc::CompletionQueue queue;
      // A first byte of 7 has wire type 7, which there is not.
      grpc::Slice slice("\x07" + noise(random.Pick(1000)));
      grpc::ByteBuffer request(&slice, 1);
      grpc::ByteBuffer response;
      grpc::Status status;
      auto call = stub.PrepareUnaryCall(
          &context, absl::StrCat("/failback.registry.v1.RegistryService/", method), request,
          &queue);
      call->StartCall();
      call->Finish(&response, &status, this);
      void* tag = nullptr;
      bool ok = false;
      ASSERT_TRUE(queue.Next(&tag, &ok));
      EXPECT_FALSE(status.ok()) << method;
      EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method;
      // The code says what it is: sending it again does not help.
      if (absl::string_view(method) != "NoSuchMethod") {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      }
    }
  }
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
  if (kMemoryIsMeasurable) {
    EXPECT_LT(memory() - before, 64 << 20);
  }
  EXPECT_EQ(daemon_->Stop(), 0);
}

TEST_F(AbuseTest, TenThousandConnections) {
  rlimit files;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const int count = static_cast<int>(std::min<rlim_t>(10000, files.rlim_max - 200));
  Start();
  const int64_t before = memory();
  {
    std::vector<std::unique_ptr<RawConnection>> connections;
    for (int i = 0; i < count; ++i) {
      connections.push_back(std::make_unique<RawConnection>(daemon_->address()));
      ASSERT_TRUE(connections.back()->ok()) << i;
      connections.back()->Send(Preface());
      if (i % 1000 == 0) {
        EXPECT_TRUE(bystander_->Prospers(1)) << bystander_->failure();
      }
    }
    EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
    RegistryClient late(daemon_->address());
    // It tries again, as clients do: behind so many handshakes its connection may be given up once.
    EXPECT_TRUE(Eventually([&] { return late.List("bystander").ok(); }));
    const int64_t each = (memory() - before) / count;
    std::cout << count << " connections, " << each << " bytes each" << std::endl;
    if (kMemoryIsMeasurable) {
      EXPECT_LT(each, 64 << 10);
    }
  }
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
  EXPECT_EQ(daemon_->Stop(), 0);
}

// Calls that are begun and never made, as many as one connection may have.
TEST_F(AbuseTest, HalfOpenStreams) {
  constexpr uint32_t kEach = 1000;
  Start({"--limits-max-streams-per-connection", absl::StrCat(4 * kEach),
         "--connections-ping-interval", "1h"});  // it is not for its silence that it is cut off
  const int64_t before = memory();
  RawConnection half_open(daemon_->address());
  half_open.Send(Preface());
  ASSERT_TRUE(half_open.WaitForSettings());
  half_open.Send(SettingsTaken());
  uint32_t stream = 1;
  for (const char* method : {"Register", "Subscribe", "List", "Unregister"}) {
    for (uint32_t i = 0; i < kEach; ++i, stream += 2) {
      half_open.Send(CallHeaders(stream, method));
    }
  }
  // Of those that wait for more than one message few may say nothing (streams_test).
  RawConnection silent(daemon_->address());
  silent.Send(Preface());
  ASSERT_TRUE(silent.WaitForSettings());
  silent.Send(SettingsTaken());
  for (uint32_t i = 0; i < kEach; ++i) {
    silent.Send(CallHeaders(2 * i + 1, i % 2 == 0 ? "KeepAlive" : "RegisterStream"));
  }
  EXPECT_TRUE(bystander_->Prospers(10)) << bystander_->failure();
  EXPECT_THAT(Ctl(daemon_->address(), {"status"}).out, HasSubstr("subscribers   0\n"));
  if (kMemoryIsMeasurable) {
    EXPECT_LT(memory() - before, 128 << 20);
  }
  // One more is too many.
  half_open.Send(CallHeaders(stream, "Register"));
  EXPECT_TRUE(half_open.WaitForGoodbye());
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
  EXPECT_EQ(daemon_->Stop(), 0);
}

// The registry may have this many files, and is filled up with connections.
TEST_F(AbuseTest, OutOfDescriptorsItRefusesAndRecovers) {
  constexpr rlim_t kFiles = 100;
  TempDir dir;
  Start({"--admin", "127.0.0.1:0", "--store", "sqlite://" + dir.File("registry.db")});
  const auto limit_files = [&](rlim_t files) {
    const rlimit limit{files, kFiles};
    ASSERT_EQ(prlimit(daemon_->process().pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  };
  limit_files(kFiles);
  std::vector<std::unique_ptr<RawConnection>> connections;
  const auto fill = [&] {
    for (rlim_t i = 0; i < 2 * kFiles; ++i) {
      connections.push_back(std::make_unique<RawConnection>(daemon_->address()));
      connections.back()->Send(Preface());
    }
  };
  const auto refused = [&] { return Http(daemon_->admin(), "GET", "/metrics").body; };
  const std::string kNone = "failback_server_refused_total{limit=\"connections\"} 0\n";
  EXPECT_THAT(refused(), HasSubstr(kNone));
  fill();
  // Others are served, the store and the admin endpoint have descriptors.
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
  EXPECT_TRUE(daemon_->process().WaitForLine("connections are refused").has_value());
  EXPECT_THAT(refused(), AllOf(HasSubstr("limit=\"connections\"}"), Not(HasSubstr(kNone))));
  // A new caller is answered at once.
  EXPECT_EQ(RegistryClient(daemon_->address()).List("x").status().code(),
            absl::StatusCode::kUnavailable);
  connections.clear();
  EXPECT_TRUE(Eventually([&] { return RegistryClient(daemon_->address()).List("x").ok(); }));

  // Not even what is kept for others is there.
  limit_files(3);
  RawConnection waits(daemon_->address());
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
  limit_files(kFiles);
  EXPECT_TRUE(Eventually([&] { return RegistryClient(daemon_->address()).List("x").ok(); }));
  EXPECT_EQ(daemon_->Stop(), 0);
}

TEST_F(AbuseTest, SubscribersThatStopReadingTakeAtMostAMegabyteEach) {
  constexpr int kFollowers = 40;
  constexpr int kInstances = 1500;
  Start({"--connections-stalled-timeout", "1h"});
  RegistryClient client(daemon_->address());
  Churn(client, kInstances, 1);
  std::vector<std::unique_ptr<Follower>> stopped;
  for (int i = 0; i < kFollowers; ++i) {
    stopped.push_back(std::make_unique<Follower>(daemon_->address()));
    SubscribeResponse first;
    ASSERT_TRUE(stopped.back()->stream->Read(&first));
  }
  auto reader = std::make_shared<FakeSubscriber>();
  const auto stream = client.Subscribe(reader, "large");
  const int64_t before = memory();
  // What all of this would take if it were kept: 8 MB each.
  uint32_t port = 1;
  while (port < 15) Churn(client, kInstances, ++port);
  const int64_t each = (memory() - before) / kFollowers;
  std::cout << each << " bytes for each stopped subscriber" << std::endl;
  if (kMemoryIsMeasurable) {
    EXPECT_LT(each, 3 << 19) << "1 MB, and the heap's overhead";
  }
  // Who reads has the newest.
  EXPECT_TRUE(Eventually([&] {
    const auto instances = reader->instances();
    ServiceInstance last;
    return instances.size() == kInstances && last.ParseFromString(instances.rbegin()->second) &&
           last.port() == port;
  }));
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
}

// The snapshot under way is what they hold, each another one: the service changes between them.
TEST_F(AbuseTest, SubscribersThatStopWithinALargeSnapshotTakeAtMostAMegabyteEach) {
  constexpr int kFollowers = 40;
  constexpr int kInstances = 20000;
  Start({"--connections-stalled-timeout", "1h"});
  RegistryClient client(daemon_->address());
  Churn(client, kInstances, 1);
  std::vector<std::unique_ptr<Follower>> stopped;
  const auto join = [&] {
    Churn(client, 1, static_cast<uint32_t>(stopped.size()) + 2);
    stopped.push_back(std::make_unique<Follower>(daemon_->address()));
    SubscribeResponse first;
    ASSERT_TRUE(stopped.back()->stream->Read(&first));
    EXPECT_TRUE(first.snapshot().more());
  };
  join();  // what is there once for all of them is not counted
  const int64_t before = memory();
  while (stopped.size() <= kFollowers) join();
  const auto each = [&] { return (memory() - before) / kFollowers; };
  std::cout << each() << " bytes for each stopped subscriber" << std::endl;
  if (kMemoryIsMeasurable) {
    EXPECT_LT(each(), 1 << 20);
  }
  // Half of it changes under them.
  Churn(client, kInstances / 2, 100);
  std::cout << each() << " bytes after changes" << std::endl;
  if (kMemoryIsMeasurable) {
    EXPECT_LT(each(), 1 << 20);
  }
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
}

TEST_F(AbuseTest, ASubscriberThatStopsReadingIsCutOff) {
  Start({"--connections-stalled-timeout", "200ms"});
  RegistryClient client(daemon_->address());
  Churn(client, 1500, 1);
  Follower stopped(daemon_->address());
  SubscribeResponse message;
  ASSERT_TRUE(stopped.stream->Read(&message));
  const auto status = [&] { return Ctl(daemon_->address(), {"status"}).out; };
  EXPECT_THAT(status(), HasSubstr("subscribers   1\n"));
  // More than flow control lets pass, for as long as the registry puts up with it.
  uint32_t port = 1;
  EXPECT_TRUE(Eventually([&] {
    Churn(client, 1500, ++port);
    return absl::StrContains(status(), "subscribers   0\n");
  })) << status();
  while (stopped.stream->Read(&message)) {
  }
  EXPECT_EQ(stopped.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
}

TEST_F(AbuseTest, IdleConnectionsAreClosed) {
  Start({"--connections-idle-timeout", "1s"});
  RawConnection idle(daemon_->address());
  idle.Send(Preface());
  EXPECT_TRUE(idle.WaitForGoodbye());
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
}

TEST_F(AbuseTest, AHalfOpenConnectionIsFoundAndItsSessionEnds) {
  Start({"--connections-ping-interval", "3s"});  // within which all others answer pings
  const auto proxy = FaultProxy::Start(daemon_->address());
  RegistryClient gone(proxy->address());
  OpenSessionRequest open;
  open.set_incarnation("gone");
  open.mutable_ttl()->set_seconds(3600);
  open.set_ends_with_stream(true);
  const auto session = CallAndWait(*gone, &Registry::OpenSession, open);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(gone.KeepAlive(session->session_id()).ok());
  ASSERT_TRUE(gone.Register(session->session_id(), {MakeInstance("gone", "1")}).ok());
  auto listener = std::make_shared<FakeSubscriber>();
  const auto stream = gone.Subscribe(listener, "gone");

  proxy->BlackHole();  // nothing is said, nothing is closed
  RegistryClient other(daemon_->address());
  EXPECT_TRUE(Eventually([&] { return other.Ids("gone").empty(); }));
  EXPECT_TRUE(bystander_->Prospers()) << bystander_->failure();
}

}  // namespace
}  // namespace failback
