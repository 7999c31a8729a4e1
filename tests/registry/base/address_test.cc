// Addresses, upstream URIs and what is checked before listening.

#include "registry/base/address.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/listen.h"
#include "registry/client/grpc_registry.h"
#include "registry/client/upstream.h"
#include "registry/server/registry_server.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(AddressTest, Forms) {
  struct Case {
    std::string text;
    std::string host;
    int port;
    std::string path;
    std::string written;
    bool local;
  };
  for (const Case& c : std::vector<Case>{
           {"127.0.0.1:7070", "127.0.0.1", 7070, "", "127.0.0.1:7070", true},
           {"localhost:0", "localhost", 0, "", "localhost:0", true},
           {"[::1]:65535", "::1", 65535, "", "[::1]:65535", true},
           {"0.0.0.0:7070", "0.0.0.0", 7070, "", "0.0.0.0:7070", false},
           {"registry.example:7070", "registry.example", 7070, "", "registry.example:7070", false},
           {"unix:/run/x.sock", "", 0, "/run/x.sock", "unix:/run/x.sock", true},
           {"unix:///run/x.sock", "", 0, "/run/x.sock", "unix:/run/x.sock", true},
           {"unix:////run/x.sock", "", 0, "/run/x.sock", "unix:/run/x.sock", true},
           {"unix:////", "", 0, "/", "unix:/", true},
           {"unix:x.sock", "", 0, "x.sock", "unix:x.sock", true},
       }) {
    const absl::StatusOr<Address> address = ParseAddress(c.text, 0);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->host, c.host);
    EXPECT_EQ(address->port, c.port);
    EXPECT_EQ(address->path, c.path);
    EXPECT_EQ(address->ToString(), c.written);
    EXPECT_EQ(address->is_local(), c.local) << c.text;
  }
}

TEST(AddressTest, ErrorsNameTheAddressAndWhatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "it is empty"},
      {"http://a:1", "it begins with 'http://'"},
      {"localhost", "the port is missing"},
      {"localhost:70000", "port '70000' is not in 1..65535"},
      {"localhost:0", "port '0' is not in 1..65535"},
      {"localhost:-1", "port '-1' is not in 1..65535"},
      {"localhost:http", "port 'http' is not in 1..65535"},
      {"localhost:7070/x", "port '7070/x' is not in 1..65535"},
      {"localhost:", "port '' is not in 1..65535"},
      {":7070", "the host is missing"},
      {"::1:7070", "an IPv6 address goes in brackets"},
      {"a b:7070", "'a b' is no host"},
      {"unix:", "the path is missing"},
      {"unix://run/x.sock", "absolute path"},
      {"unix:/" + std::string(107, 'x'), "at most 107 bytes, this has 108"},
  };
  for (const auto& [text, what] : cases) {
    const absl::Status status = ParseAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("'" + text + "'"), HasSubstr(what)));
  }
}

TEST(UpstreamTest, GoodUris) {
  for (const char* uri : {"grpc://127.0.0.1:7070", "grpc://a.example:1,b.example:2,[::1]:3",
                          "unix:/run/x.sock", "unix:///run/x.sock"}) {
    const auto upstream = NewUpstream(uri, UpstreamOptions());
    EXPECT_TRUE(upstream.ok() && *upstream != nullptr) << uri << ": " << upstream.status();
  }
}

TEST(UpstreamTest, ErrorsNameTheUriWhatIsWrongAndWhatIsAllowed) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "the scheme is not known"},
      {"127.0.0.1:7070", "the scheme is not known"},
      {"http://127.0.0.1:7070", "the scheme is not known"},
      {"grpc:127.0.0.1:7070", "'//' is missing"},
      {"grpc://", "it is empty"},
      {"grpc://localhost", "the port is missing"},
      {"grpc://localhost:70000", "port '70000'"},
      {"grpc://localhost:1,localhost:1", "there twice"},
      {"grpc://localhost:1,", "it is empty"},
      {"unix:", "the path is missing"},
  };
  for (const auto& [uri, what] : cases) {
    const absl::Status status = NewUpstream(uri, UpstreamOptions()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("'" + uri + "'"), HasSubstr(what),
                                       HasSubstr("grpc://host:port"), HasSubstr("unix:/path")));
    EXPECT_FALSE(absl::StrContains(Message(status), "\n"));
  }
}

TEST(UpstreamTest, FurtherSchemesAreAdded) {
  UpstreamOptions options;
  options.schemes.push_back({"memory", "memory:", [](const std::string& uri) {
                               return NewUpstream("unix:/from-" + uri, UpstreamOptions());
                             }});
  EXPECT_TRUE(NewUpstream("memory:", options).ok());
  EXPECT_THAT(Message(NewUpstream("etcd://x:1", options).status()), HasSubstr("memory:"));
}

class ListenTest : public testing::Test {
 protected:
  // A socket that listens, and is closed with the test.
  static int Listening(const sockaddr* address, socklen_t size) {
    const int fd = socket(address->sa_family, SOCK_STREAM, 0);
    EXPECT_EQ(bind(fd, address, size), 0);
    EXPECT_EQ(listen(fd, 1), 0);
    return fd;
  }

  int ListeningOnSocket() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    (folder_ + "/s").copy(address.sun_path, sizeof(address.sun_path) - 1);
    return Listening(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }

  TempDir temp_;
  const std::string folder_ = temp_.path();
};

TEST_F(ListenTest, APortInUse) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = Listening(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string text = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const absl::Status status = ListenAddress::Prepare(text, ListenOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(status), text + " is in use: another process listens there");
  close(fd);
  EXPECT_TRUE(ListenAddress::Prepare(text, ListenOptions()).ok());
}

// A name may stand for two addresses; a port that is free at one of them will not do.
TEST_F(ListenTest, AChosenPortIsFreeAtAllAddressesOfAName) {
  std::set<int> taken;
  std::vector<int> fds;
  for (int i = 0; i < 500; ++i) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fds.push_back(Listening(reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
    socklen_t size = sizeof(address);
    ASSERT_EQ(getsockname(fds.back(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    taken.insert(ntohs(address.sin_port));
  }
  for (int i = 0; i < 300; ++i) {
    const auto listen = ListenAddress::Prepare("localhost:0", ListenOptions());
    ASSERT_TRUE(listen.ok()) << listen.status();
    EXPECT_GT(listen->address().port, 0);
    EXPECT_EQ(taken.count(listen->address().port), 0u);
  }
  for (const int fd : fds) close(fd);
}

TEST_F(ListenTest, AServerListensBesideWhatKeepsItsPort) {
  FakeRegistry registry;
  RegistryServer::Options options;
  options.listen = {"localhost:0"};
  const auto server = RegistryServer::Start(&registry, options);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string port = (*server)->addresses()[0].substr(std::string("localhost").size());
  GrpcRegistry client({"127.0.0.1" + port}, Patient());
  EXPECT_TRUE(CallAndWait(client, &Registry::List, ListRequest()).ok());
}

TEST_F(ListenTest, AddressesThatCannotBeListenedOn) {
  std::ofstream(folder_ + "/file") << "no socket";
  const std::pair<std::string, std::string> cases[] = {
      {"127.0.0.1:70000", "port '70000' is not in 0..65535"},
      {"0.0.0.0:7070", "can be reached from other machines"},
      {"127.0.0.1", "the port is missing"},
      {"unix:" + folder_ + "/missing/s", "No such file or directory"},
      {"unix:" + folder_ + "/file/s", "Not a directory"},
      {"unix:" + folder_ + "/file", "a file that is no socket is there"},
  };
  for (const auto& [text, what] : cases) {
    const absl::Status status = ListenAddress::Prepare(text, ListenOptions()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(text), HasSubstr(what)));
  }
  ListenOptions remote;
  remote.allow_remote_plaintext = true;
  EXPECT_TRUE(ListenAddress::Prepare("0.0.0.0:0", remote).ok());
  EXPECT_EQ(ListenAddress::Prepare("192.0.2.1:0", remote).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "an address of another machine";
}

TEST_F(ListenTest, ASocketHasOneOwner) {
  const std::string text = "unix:" + folder_ + "/s";
  {
    const auto first = ListenAddress::Prepare(text, ListenOptions());
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::Status second = ListenAddress::Prepare(text, ListenOptions()).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Message(second), absl::StrCat(text, " is in use: ", folder_,
                                            "/s.lock is locked by process ", getpid()));
  }
  EXPECT_TRUE(ListenAddress::Prepare(text, ListenOptions()).ok());
}

TEST_F(ListenTest, ASocketIsThereWithItsModeWhileItListens) {
  ListenOptions options;
  options.socket_mode = 0600;
  auto listen = ListenAddress::Prepare("unix:" + folder_ + "/s", options);
  ASSERT_TRUE(listen.ok()) << listen.status();
  struct stat info;
  EXPECT_NE(stat((folder_ + "/s").c_str(), &info), 0);
  const auto sockets = listen->Listen();
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_EQ(sockets->size(), 1u);
  ASSERT_EQ(stat((folder_ + "/s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, mode_t{0600});
  listen->Close();
  EXPECT_NE(stat((folder_ + "/s").c_str(), &info), 0);
}

TEST_F(ListenTest, AStaleSocketIsRemovedAndALiveOneIsNot) {
  const std::string text = "unix:" + folder_ + "/s";
  const int fd = ListeningOnSocket();
  EXPECT_EQ(ListenAddress::Prepare(text, ListenOptions()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  struct stat info;
  EXPECT_EQ(stat((folder_ + "/s").c_str(), &info), 0);
  close(fd);
  EXPECT_TRUE(ListenAddress::Prepare(text, ListenOptions()).ok());
  EXPECT_NE(stat((folder_ + "/s").c_str(), &info), 0);
}

}  // namespace
}  // namespace failback
