// The proxy itself: each fault, as a client sees it.

#include "tests/fault/fault_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/util/process.h"

namespace failback {
namespace {

// A server that answers each byte with itself, one connection at a time.
class Echo {
 public:
  explicit Echo(const std::string& path) {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    thread_ = std::thread([this] {
      while (true) {
        const int peer = accept(fd_, nullptr, nullptr);
        if (peer < 0) return;
        char buffer[1024];
        ssize_t size;
        while ((size = read(peer, buffer, sizeof(buffer))) > 0) {
          if (send(peer, buffer, size, MSG_NOSIGNAL) != size) break;
        }
        close(peer);
      }
    });
  }
  ~Echo() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }

 private:
  int fd_;
  std::thread thread_;
};

class Client {
 public:
  explicit Client(const std::string& address) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_port = htons(std::stoi(address.substr(address.rfind(':') + 1)));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    error_ = connect(fd_, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0 ? 0 : errno;
  }
  ~Client() { close(fd_); }

  int connect_error() const { return error_; }
  void Send(const std::string& text) {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // What comes until `size` bytes are there, the stream ends or fails, or the time is over.
  std::string Receive(size_t size, absl::Duration timeout = kProcessTimeout) {
    std::string text;
    const absl::Time deadline = absl::Now() + timeout;
    while (text.size() < size) {
      const absl::Duration left = deadline - absl::Now();
      pollfd entry = {fd_, POLLIN, 0};
      if (left <= absl::ZeroDuration() || poll(&entry, 1, absl::ToInt64Milliseconds(left)) <= 0)
        break;
      char buffer[1024];
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      error_ = got < 0 ? errno : 0;
      if (got <= 0) {
        ended_ = true;
        break;
      }
      text.append(buffer, got);
    }
    return text;
  }
  bool ended() const { return ended_; }
  // Of the last receive.
  int error() const { return error_; }

 private:
  int fd_;
  int error_ = 0;
  bool ended_ = false;
};

class FaultProxyTest : public ::testing::Test {
 protected:
  TempDir dir_;
  Echo echo_{dir_.File("echo")};
  std::unique_ptr<FaultProxy> proxy_ = FaultProxy::Start("unix:" + dir_.File("echo"));
};

TEST_F(FaultProxyTest, Forwards) {
  Client client(proxy_->address());
  client.Send("hello");
  EXPECT_EQ(client.Receive(5), "hello");
  EXPECT_EQ(proxy_->stats().open, 1);
  EXPECT_EQ(proxy_->stats().bytes[FaultProxy::kToServer], 5);
}

TEST_F(FaultProxyTest, DelaysInOrderUntilForward) {
  Client client(proxy_->address());
  proxy_->Delay(absl::ZeroDuration(), absl::Milliseconds(200));
  const absl::Time start = absl::Now();
  client.Send("a");
  EXPECT_EQ(client.Receive(1), "a");
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));
  proxy_->Delay(absl::ZeroDuration(), absl::Hours(1));
  client.Send("b");
  EXPECT_EQ(client.Receive(1, absl::Milliseconds(100)), "");
  proxy_->Forward();
  client.Send("c");
  EXPECT_EQ(client.Receive(2), "bc");
}

TEST_F(FaultProxyTest, BlackHoleAcceptsAndSwallows) {
  Client open(proxy_->address());
  open.Send("a");
  EXPECT_EQ(open.Receive(1), "a");
  proxy_->BlackHole();
  Client later(proxy_->address());
  EXPECT_EQ(later.connect_error(), 0);
  open.Send("b");
  later.Send("b");
  EXPECT_EQ(open.Receive(1, absl::Milliseconds(100)), "");
  EXPECT_EQ(later.Receive(1, absl::Milliseconds(100)), "");
  EXPECT_FALSE(open.ended());
  proxy_->Forward();
  EXPECT_EQ(open.Receive(1), "");
  EXPECT_TRUE(open.ended()) << "a connection that has lost bytes is of no use";
  Client fresh(proxy_->address());
  fresh.Send("c");
  EXPECT_EQ(fresh.Receive(1), "c");
}

TEST_F(FaultProxyTest, RefusesAndListensAgainAtTheSamePort) {
  Client open(proxy_->address());
  open.Send("a");
  EXPECT_EQ(open.Receive(1), "a");
  for (int round = 0; round < 3; ++round) {
    proxy_->Refuse();
    EXPECT_EQ(Client(proxy_->address()).connect_error(), ECONNREFUSED);
    proxy_->Forward();
    Client client(proxy_->address());
    client.Send("b");
    EXPECT_EQ(client.Receive(1), "b");
  }
  EXPECT_EQ(open.Receive(1), "");
  EXPECT_EQ(open.error(), ECONNRESET);
}

TEST_F(FaultProxyTest, ResetsWhatIsOpen) {
  Client client(proxy_->address());
  client.Send("a");
  EXPECT_EQ(client.Receive(1), "a");
  proxy_->ResetAll();
  EXPECT_EQ(client.Receive(1), "");
  EXPECT_EQ(client.error(), ECONNRESET);
  EXPECT_EQ(proxy_->stats().reset, 1);
  EXPECT_EQ(proxy_->stats().open, 0);
}

TEST_F(FaultProxyTest, CutsAfterSoManyBytes) {
  Client client(proxy_->address());
  client.Send("a");
  EXPECT_EQ(client.Receive(1), "a");
  proxy_->CutAfter(FaultProxy::kToClient, 3);
  client.Send("hello");
  EXPECT_EQ(client.Receive(5), "hel");
  EXPECT_EQ(client.error(), ECONNRESET);
  EXPECT_EQ(proxy_->stats().cuts, 1);
  Client next(proxy_->address());
  next.Send("whole");
  EXPECT_EQ(next.Receive(5), "whole");
}

TEST_F(FaultProxyTest, WithoutATargetConnectionsAreReset) {
  const auto proxy = FaultProxy::Start("unix:" + dir_.File("nobody"));
  Client client(proxy->address());
  EXPECT_EQ(client.connect_error(), 0);
  EXPECT_EQ(client.Receive(1), "");
  EXPECT_TRUE(client.ended());
}

}  // namespace
}  // namespace failback
