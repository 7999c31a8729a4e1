#include "registry/base/listen.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "registry/base/small_file.h"

namespace failback {
namespace {

// How often a port is looked for that is free at each address of a name.
constexpr int kPortAttempts = 100;

absl::Status CannotListen(const std::string& text, int error) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", text, ": ", std::generic_category().message(error)));
}

constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

// A socket bound to `info`, at `port` if that is not 0. It accepts no connection yet.
absl::StatusOr<BoundSocket> Bind(const addrinfo& info, int port, const std::string& text) {
  BoundSocket place(socket(info.ai_family, kSocketFlags, 0));
  if (place.fd() < 0) return absl::UnimplementedError(std::generic_category().message(errno));
  const int on = 1;
  setsockopt(place.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_storage bound = {};
  std::memcpy(&bound, info.ai_addr, info.ai_addrlen);
  if (port != 0 && bound.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&bound)->sin_port = htons(static_cast<uint16_t>(port));
  } else if (port != 0 && bound.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port = htons(static_cast<uint16_t>(port));
  }
  if (bind(place.fd(), reinterpret_cast<sockaddr*>(&bound), info.ai_addrlen) == 0) return place;
  const int error = errno;
  if (error == EADDRINUSE) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, " is in use: another process listens there"));
  }
  return CannotListen(text, error);
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

// Sockets bound to all that the address stands for. A port that is left to the system is one that
// is free at each of them: where it is not, the process that has it would be taken for the server.
absl::StatusOr<std::vector<BoundSocket>> BindTcp(Address* address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address->host.c_str(), std::to_string(address->port).c_str(), &hints, &found);
  const std::string text = address->ToString();
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", text, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  // A name may stand for several addresses. One that works will do, but none may be taken.
  for (int attempt = 1;; ++attempt) {
    absl::Status first_error;
    std::vector<BoundSocket> places;
    int port = address->port;
    for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
      absl::StatusOr<BoundSocket> place = Bind(*info, port, text);
      first_error.Update(place.status());
      if (absl::IsFailedPrecondition(place.status())) break;
      if (!place.ok()) continue;
      if (port == 0) port = PortOf(place->fd());
      places.push_back(*std::move(place));
    }
    const bool taken = absl::IsFailedPrecondition(first_error);
    if (taken && address->port == 0 && attempt < kPortAttempts) continue;
    if (taken || places.empty()) return first_error;
    address->port = port;
    return places;
  }
}

// Makes room for a socket at `path`, of which the lock is ours.
absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on unix:", path, ": a file that is no socket is there"));
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::InternalError(std::generic_category().message(errno));
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unix:", path, " is in use: another process listens there"));
  }
  if (unlink(path.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot replace unix:", path, ": ", std::generic_category().message(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

BoundSocket::BoundSocket(BoundSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(other.path_) {}

BoundSocket::~BoundSocket() {
  if (fd_ < 0) return;
  close(fd_);
  if (!path_.empty()) unlink(path_.c_str());
}

absl::StatusOr<ListenAddress> ListenAddress::Prepare(const std::string& text,
                                                     const ListenOptions& options) {
  absl::StatusOr<Address> address = ParseAddress(text, /*min_port=*/0);
  if (!address.ok()) return address.status();
  ListenAddress listen;
  listen.address_ = *std::move(address);
  listen.options_ = options;
  if (!listen.address_.is_local() && !options.allow_remote_plaintext) {
    return absl::InvalidArgumentError(
        absl::StrCat(text,
                     " can be reached from other machines, and calls there would be in plain text: "
                     "listen on a loopback address or on unix:/path, use TLS, or allow "
                     "remote plain text"));
  }
  if (!listen.address_.is_unix()) {
    absl::StatusOr<std::vector<BoundSocket>> sockets = BindTcp(&listen.address_);
    if (!sockets.ok()) return sockets.status();
    listen.sockets_ = *std::move(sockets);
    return listen;
  }
  absl::StatusOr<FileLock> lock = FileLock::Acquire(listen.address_.path + ".lock");
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, " is in use: ", std::string(lock.status().message())));
  }
  if (!lock.ok()) {
    const std::string& path = listen.address_.path;
    const std::string folder = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
    const bool missing = path.rfind('/') != std::string::npos && access(folder.c_str(), F_OK) != 0;
    return absl::Status(
        lock.status().code(),
        absl::StrCat("cannot listen on ", text, ": ", std::string(lock.status().message()),
                     missing ? "; make its folder: " + HowToMakeFolder(folder) : ""));
  }
  listen.lock_ = *std::move(lock);
  if (absl::Status status = RemoveStaleSocket(listen.address_.path); !status.ok()) return status;
  return listen;
}

absl::StatusOr<std::vector<int>> ListenAddress::Listen() {
  if (address_.is_unix()) {
    if (auto status = BindUnix(); !status.ok()) return status;
    if (auto status = GiveSocket(); !status.ok()) return status;
  }
  std::vector<int> listening;
  for (const BoundSocket& socket : sockets_) {
    if (listen(socket.fd(), SOMAXCONN) != 0) return CannotListen(text(), errno);
    listening.push_back(socket.fd());
  }
  return listening;
}

absl::Status ListenAddress::BindUnix() {
  const int fd = socket(AF_UNIX, kSocketFlags, 0);
  if (fd < 0) return CannotListen(text(), errno);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  address_.path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    const int error = errno;
    close(fd);
    return CannotListen(text(), error);
  }
  sockets_.emplace_back(fd, address_.path);
  return absl::OkStatus();
}

absl::Status ListenAddress::GiveSocket() const {
  const auto error = [this](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("cannot set the ", what, " of ", text(), ": ",
                                                   std::generic_category().message(errno)));
  };
  const bool given = options_.socket_owner.has_value() || options_.socket_group.has_value();
  constexpr auto kSame = static_cast<uid_t>(-1);
  // No link is followed that another user put in the socket's place.
  if (given && lchown(address_.path.c_str(), options_.socket_owner.value_or(kSame),
                      options_.socket_group.value_or(kSame)) != 0) {
    return error("owner");
  }
  if (fchmodat(AT_FDCWD, address_.path.c_str(), options_.socket_mode, AT_SYMLINK_NOFOLLOW) != 0) {
    return error("mode");
  }
  return absl::OkStatus();
}

}  // namespace failback
