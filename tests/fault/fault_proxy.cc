#include "tests/fault/fault_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace failback {
namespace {

constexpr char kUnix[] = "unix:";
// What one direction holds before its source has to wait.
constexpr size_t kMaxHeld = 64 << 20;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "fault proxy: %s: %s\n", what.c_str(), std::strerror(errno));
  std::abort();
}

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  bool tcp = false;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress Parse(const std::string& address) {
  SocketAddress result;
  if (absl::StartsWith(address, kUnix)) {
    auto* name = reinterpret_cast<sockaddr_un*>(&result.storage);
    name->sun_family = AF_UNIX;
    const std::string path = address.substr(std::strlen(kUnix));
    if (path.size() >= sizeof(name->sun_path)) Die(absl::StrCat(path, " is too long"));
    std::strncpy(name->sun_path, path.c_str(), sizeof(name->sun_path) - 1);
    result.size = sizeof(sockaddr_un);
    return result;
  }
  result.tcp = true;
  const size_t colon = address.rfind(':');
  auto* name = reinterpret_cast<sockaddr_in*>(&result.storage);
  name->sin_family = AF_INET;
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &name->sin_addr) != 1) {
    Die(absl::StrCat("not an address: ", address));
  }
  name->sin_port = htons(static_cast<uint16_t>(port));
  result.size = sizeof(sockaddr_in);
  return result;
}

int NewSocket(bool tcp) {
  const int fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) Die("socket");
  return fd;
}

// A socket bound to 127.0.0.1 and a free port. The port is bound by number, which keeps it bound
// while the socket does not listen.
int BindFreePort(int* port) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    SocketAddress any = Parse("127.0.0.1:0");
    const int probe = NewSocket(true);
    if (bind(probe, any.get(), any.size) != 0) Die("bind");
    if (getsockname(probe, any.get(), &any.size) != 0) Die("getsockname");
    *port = ntohs(reinterpret_cast<sockaddr_in*>(&any.storage)->sin_port);
    close(probe);
    const int fd = NewSocket(true);
    if (bind(fd, any.get(), any.size) == 0) return fd;
    close(fd);
  }
  Die("no free port");
}

}  // namespace

std::unique_ptr<FaultProxy> FaultProxy::Start(const std::string& target,
                                              const std::string& listen_at) {
  SocketAddress address = Parse(listen_at);
  std::string bound = listen_at;
  int fd;
  if (address.tcp && absl::EndsWith(listen_at, ":0")) {
    int port = 0;
    fd = BindFreePort(&port);
    bound = absl::StrCat("127.0.0.1:", port);
  } else {
    fd = NewSocket(address.tcp);
    if (bind(fd, address.get(), address.size) != 0) Die(absl::StrCat("bind ", listen_at));
  }
  if (listen(fd, SOMAXCONN) != 0) Die("listen");
  return std::unique_ptr<FaultProxy>(new FaultProxy(fd, address.tcp, bound, target));
}

FaultProxy::FaultProxy(int listen_fd, bool tcp, std::string address, std::string target)
    : listen_fd_(listen_fd), tcp_(tcp), address_(std::move(address)), target_(std::move(target)) {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) Die("eventfd");
  thread_ = std::thread([this] { Loop(); });
}

FaultProxy::~FaultProxy() {
  Do([this] { stopping_ = true; });
  thread_.join();
  close(listen_fd_);
  close(wake_fd_);
  if (!tcp_) unlink(address_.substr(std::strlen(kUnix)).c_str());
}

void FaultProxy::Do(std::function<void()> command) {
  MutexLock lock(&mu_);
  commands_.push_back(std::move(command));
  const int64_t number = ++commands_posted_;
  const uint64_t one = 1;
  if (write(wake_fd_, &one, sizeof(one)) != sizeof(one)) Die("wake");
  while (commands_done_ < number) done_.Wait(&mu_);
}

void FaultProxy::StopLosing() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->lossy) {
      Reset(&*it);
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void FaultProxy::Forward() {
  Do([this] {
    if (mode_ == Mode::kRefuse && listen(listen_fd_, SOMAXCONN) != 0) Die("listen again");
    mode_ = Mode::kForward;
    for (int direction : {kToServer, kToClient}) {
      delays_[direction] = absl::ZeroDuration();
      cut_after_[direction].reset();
    }
    StopLosing();
    for (Connection& connection : connections_) {
      for (Pipe& pipe : connection.pipes) {
        for (Chunk& chunk : pipe.chunks) chunk.due = absl::InfinitePast();
      }
    }
  });
}

void FaultProxy::Delay(absl::Duration to_server, absl::Duration to_client) {
  Do([this, to_server, to_client] {
    delays_[kToServer] = to_server;
    delays_[kToClient] = to_client;
  });
}

void FaultProxy::BlackHole() {
  Do([this] {
    if (mode_ == Mode::kRefuse && listen(listen_fd_, SOMAXCONN) != 0) Die("listen again");
    mode_ = Mode::kBlackHole;
    for (Connection& connection : connections_) {
      connection.lossy = true;
      for (Pipe& pipe : connection.pipes) {
        pipe.chunks.clear();
        pipe.size = 0;
      }
    }
  });
}

void FaultProxy::Refuse() {
  Do([this] {
    if (mode_ == Mode::kRefuse) return;
    mode_ = Mode::kRefuse;
    // A Unix socket cannot listen again after this; what comes is accepted and closed instead.
    if (tcp_) shutdown(listen_fd_, SHUT_RDWR);
    ResetEverything();
  });
}

void FaultProxy::ResetAll() {
  Do([this] { ResetEverything(); });
}

void FaultProxy::CutAfter(Direction direction, int64_t bytes) {
  Do([this, direction, bytes] { cut_after_[direction] = bytes; });
}

FaultProxy::Stats FaultProxy::stats() {
  Stats stats;
  Do([this, &stats] {
    stats = stats_;
    stats.open = static_cast<int64_t>(connections_.size());
  });
  return stats;
}

void FaultProxy::Reset(Connection* connection) {
  const linger now = {1, 0};
  for (int& fd : connection->fds) {
    if (fd < 0) continue;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
    fd = -1;
  }
  const bool in_order = connection->pipes[0].finished && connection->pipes[1].finished;
  if (!in_order) ++stats_.reset;
}

void FaultProxy::ResetEverything() {
  for (Connection& connection : connections_) Reset(&connection);
  connections_.clear();
}

void FaultProxy::Accept() {
  while (true) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    ++stats_.accepted;
    const int one = 1;
    if (tcp_) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    Connection connection;
    connection.fds[kToServer] = fd;
    if (mode_ == Mode::kRefuse) {
      Reset(&connection);
      continue;
    }
    if (mode_ == Mode::kBlackHole) {
      connection.lossy = true;
      connections_.push_back(std::move(connection));
      continue;
    }
    SocketAddress target = Parse(target_);
    const int server = NewSocket(target.tcp);
    connection.fds[kToClient] = server;
    if (target.tcp) setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(server, target.get(), target.size) != 0) {
      if (errno != EINPROGRESS) {
        Reset(&connection);
        continue;
      }
      connection.connecting = true;
    }
    connections_.push_back(std::move(connection));
  }
}

bool FaultProxy::ReadFrom(Connection* connection, int direction) {
  Pipe& pipe = connection->pipes[direction];
  char buffer[64 << 10];
  while (pipe.size < kMaxHeld) {
    const ssize_t size = read(connection->fds[direction], buffer, sizeof(buffer));
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    if (size == 0) {
      pipe.source_ended = true;
      return true;
    }
    if (connection->lossy) continue;
    absl::Time due = absl::InfinitePast();
    if (delays_[direction] > absl::ZeroDuration()) due = absl::Now() + delays_[direction];
    if (!pipe.chunks.empty()) due = std::max(due, pipe.chunks.back().due);
    pipe.chunks.push_back({due, std::string(buffer, size)});
    pipe.size += size;
  }
  return true;
}

bool FaultProxy::WriteTo(Connection* connection, int direction) {
  Pipe& pipe = connection->pipes[direction];
  const int fd = connection->fds[1 - direction];
  const absl::Time now = absl::Now();
  while (!pipe.chunks.empty() && pipe.chunks.front().due <= now) {
    std::string& bytes = pipe.chunks.front().bytes;
    size_t allowed = bytes.size();
    std::optional<int64_t>& cut = cut_after_[direction];
    if (cut.has_value()) allowed = std::min<size_t>(allowed, static_cast<size_t>(*cut));
    const ssize_t size = allowed == 0 ? 0 : send(fd, bytes.data(), allowed, MSG_NOSIGNAL);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    stats_.bytes[direction] += size;
    pipe.size -= size;
    bytes.erase(0, size);
    if (bytes.empty()) pipe.chunks.pop_front();
    if (cut.has_value()) {
      *cut -= size;
      if (*cut == 0) return true;  // the loop strikes
    }
  }
  if (pipe.chunks.empty() && pipe.source_ended && !pipe.finished) {
    pipe.finished = true;
    if (fd >= 0) shutdown(fd, SHUT_WR);
  }
  return true;
}

bool FaultProxy::Serve(Connection* connection, const short events[2]) {
  if (connection->connecting) {
    if (events[kToClient] == 0) return true;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(connection->fds[kToClient], SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return false;
    connection->connecting = false;
  }
  for (int direction : {kToServer, kToClient}) {
    const bool readable = (events[direction] & (POLLIN | POLLHUP | POLLERR)) != 0;
    if (readable && connection->fds[direction] >= 0 && !connection->pipes[direction].source_ended &&
        !ReadFrom(connection, direction)) {
      return false;
    }
  }
  for (int direction : {kToServer, kToClient}) {
    if (!WriteTo(connection, direction)) return false;
  }
  if (connection->lossy) {
    // Nothing is passed on, an end included; a side that closes is closed.
    return !connection->pipes[kToServer].source_ended;
  }
  return !connection->pipes[kToServer].finished || !connection->pipes[kToClient].finished;
}

void FaultProxy::Loop() {
  while (!stopping_) {
    std::vector<pollfd> fds;
    fds.push_back({wake_fd_, POLLIN, 0});
    // A socket that has stopped listening is always "hung up".
    fds.push_back({mode_ == Mode::kRefuse && tcp_ ? -1 : listen_fd_, POLLIN, 0});
    absl::Time wake = absl::InfiniteFuture();
    const absl::Time now = absl::Now();
    for (Connection& connection : connections_) {
      for (int side : {kToServer, kToClient}) {
        const Pipe& in = connection.pipes[side];
        const Pipe& out = connection.pipes[1 - side];
        short events = 0;
        if (!in.source_ended && in.size < kMaxHeld) events |= POLLIN;
        if (connection.connecting) events = side == kToClient ? POLLOUT : 0;
        if (!connection.connecting && !out.chunks.empty()) {
          const absl::Time due = out.chunks.front().due;
          if (due <= now) {
            events |= POLLOUT;
          } else {
            wake = std::min(wake, due);
          }
        }
        // With nothing wanted of it a hung-up socket would wake the loop for ever.
        fds.push_back({events == 0 ? -1 : connection.fds[side], events, 0});
      }
    }
    int timeout = -1;
    if (wake != absl::InfiniteFuture()) {
      timeout = static_cast<int>(absl::ToInt64Milliseconds(wake - now)) + 1;
    }
    if (poll(fds.data(), fds.size(), timeout) < 0 && errno != EINTR) Die("poll");

    size_t next = 2;
    for (auto it = connections_.begin(); it != connections_.end();) {
      const short events[2] = {fds[next].revents, fds[next + 1].revents};
      next += 2;
      if (Serve(&*it, events)) {
        ++it;
      } else {
        Reset(&*it);
        it = connections_.erase(it);
      }
    }
    for (int direction : {kToServer, kToClient}) {
      if (cut_after_[direction] != 0) continue;
      cut_after_[direction].reset();
      ++stats_.cuts;
      ResetEverything();
    }
    if (fds[1].revents != 0) Accept();
    if (fds[0].revents != 0) {
      uint64_t ignored;
      if (read(wake_fd_, &ignored, sizeof(ignored)) < 0 && errno != EAGAIN) Die("eventfd");
      MutexLock lock(&mu_);
      while (!commands_.empty()) {
        commands_.front()();
        commands_.pop_front();
        ++commands_done_;
      }
      done_.SignalAll();
    }
  }
  ResetEverything();
}

}  // namespace failback
