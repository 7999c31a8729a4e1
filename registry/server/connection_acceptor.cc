#include "registry/server/connection_acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/steady_time.h"

namespace failback {
namespace {

// Between attempts while none can succeed.
constexpr absl::Duration kPause = absl::Milliseconds(100);
// Between two lines of the log about what continues.
constexpr absl::Duration kLogPause = absl::Seconds(10);

// Of the process's descriptors, so many are not for connections.
constexpr rlim_t kLeastKept = 16;
constexpr rlim_t kMostKept = 256;
constexpr rlim_t kKeptShare = 16;

// A connection with this descriptor is one too many. Asked each time: the limit may be changed from
// outside.
rlim_t FirstKept() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
  const rlim_t kept = std::clamp(limit.rlim_cur / kKeptShare, kLeastKept, kMostKept);
  return limit.rlim_cur - std::min(kept, limit.rlim_cur);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Start(Options options) {
  const int stop_fd = eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot wait for connections: ", std::generic_category().message(errno)));
  }
  return std::unique_ptr<ConnectionAcceptor>(new ConnectionAcceptor(std::move(options), stop_fd));
}

ConnectionAcceptor::ConnectionAcceptor(Options options, int stop_fd)
    : options_(std::move(options)), stop_fd_(stop_fd), thread_([this] { Run(); }) {}

ConnectionAcceptor::~ConnectionAcceptor() {
  eventfd_write(stop_fd_, 1);
  thread_.join();
  close(stop_fd_);
}

void ConnectionAcceptor::Run() {
  std::vector<pollfd> wait = {{stop_fd_, POLLIN, 0}};
  for (const Listener& listener : options_.listeners) wait.push_back({listener.fd, POLLIN, 0});
  for (;;) {
    if (poll(wait.data(), wait.size(), -1) < 0) continue;
    if (wait[0].revents != 0) return;
    bool able = true;
    for (size_t i = 1; i < wait.size(); ++i) {
      if (wait[i].revents != 0) able &= AcceptAll(options_.listeners[i - 1]);
    }
    if (!able && Stopped(kPause)) return;
  }
}

bool ConnectionAcceptor::Stopped(absl::Duration time) const {
  pollfd wait{stop_fd_, POLLIN, 0};
  return poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(time))) > 0;
}

bool ConnectionAcceptor::AcceptAll(const Listener& listener) {
  while (!Stopped(absl::ZeroDuration())) {
    const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EAGAIN) return true;
      // The client has disconnected again.
      if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
      return false;
    }
    if (static_cast<rlim_t>(fd) >= FirstKept()) {
      Refuse(fd);
      continue;
    }
    const int on = 1;
    const auto timeout_ms =
        static_cast<unsigned>(absl::ToInt64Milliseconds(options_.unacknowledged_timeout));
    // A Unix socket has neither.
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
    listener.take(listener.fd, fd);
  }
  return true;
}

void ConnectionAcceptor::Refuse(int fd) {
  close(fd);
  options_.on_refused();
  if (const SteadyTime now = SteadyNow(); now - logged_ >= kLogPause) {
    logged_ = now;
    Log(LogLevel::kWarning,
        "connections are refused: too few file descriptors are left; raise the limit on open files",
        {{"descriptor", absl::StrCat(fd)}});
  }
}

}  // namespace failback
