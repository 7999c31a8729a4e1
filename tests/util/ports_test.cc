#include "tests/util/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace failback {
namespace {

sockaddr_in At(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int NewSocket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  return fd;
}

int Bind(int fd, int port) {
  const sockaddr_in address = At(port);
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

int PortOf(int fd) {
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

// 0, or the error of connecting.
int ConnectTo(int port) {
  const int fd = NewSocket();
  const sockaddr_in address = At(port);
  const int failed = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = failed != 0 ? errno : 0;
  close(fd);
  return error;
}

TEST(ReservedPortTest, AServerListensThereAgainAndAgainAndNobodyDoesMeanwhile) {
  const int port = ReservedPort();
  EXPECT_EQ(ConnectTo(port), ECONNREFUSED);
  for (int life = 0; life < 3; ++life) {
    const int server = NewSocket();
    ASSERT_EQ(Bind(server, port), 0);
    ASSERT_EQ(listen(server, 1), 0);
    EXPECT_EQ(ConnectTo(port), 0);
    close(server);
    EXPECT_EQ(ConnectTo(port), ECONNREFUSED);
  }
}

TEST(ReservedPortTest, NobodyIsGivenIt) {
  std::set<int> reserved;
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(reserved.insert(ReservedPort()).second);
  // Were they free, some would be among so many: 300 of 28,000 ports, drawn 300 times.
  std::vector<int> others;
  for (int i = 0; i < 300; ++i) {
    others.push_back(NewSocket());
    ASSERT_EQ(Bind(others.back(), 0), 0);
    EXPECT_EQ(reserved.count(PortOf(others.back())), 0u);
  }
  for (const int fd : others) close(fd);
}

}  // namespace
}  // namespace failback
