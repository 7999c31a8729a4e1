#include "registry/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace {

// OK when `info` can be bound now.
absl::Status TryBind(const addrinfo& info, const std::string& text) {
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnimplementedError(std::generic_category().message(errno));
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, info.ai_addr, info.ai_addrlen) == 0) return absl::OkStatus();
  const int error = errno;
  if (error == EADDRINUSE) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, " is in use: another process listens there"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", text, ": ", std::generic_category().message(error)));
}

absl::Status CheckTcp(const Address& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", address.ToString(), ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  // A name may stand for several addresses. One that works will do, but none may be taken.
  absl::Status first_error;
  bool bound = false;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    absl::Status status = TryBind(*info, address.ToString());
    if (absl::IsFailedPrecondition(status)) return status;
    bound |= status.ok();
    first_error.Update(status);
  }
  return bound ? absl::OkStatus() : first_error;
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

absl::StatusOr<ListenAddress> ListenAddress::Prepare(const std::string& text,
                                                     const ListenOptions& options) {
  absl::StatusOr<Address> address = ParseAddress(text, /*min_port=*/0);
  if (!address.ok()) return address.status();
  ListenAddress listen;
  listen.address_ = *std::move(address);
  listen.socket_mode_ = options.socket_mode;
  if (!listen.address_.is_local() && !options.allow_remote_plaintext) {
    return absl::InvalidArgumentError(
        absl::StrCat(text,
                     " can be reached from other machines, and calls there would be in plain text: "
                     "listen on a loopback address or on unix:/path, use TLS, or allow "
                     "remote plain text"));
  }
  if (!listen.address_.is_unix()) {
    if (absl::Status status = CheckTcp(listen.address_); !status.ok()) return status;
    return listen;
  }
  absl::StatusOr<FileLock> lock = FileLock::Acquire(listen.address_.path + ".lock");
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, " is in use: ", std::string(lock.status().message())));
  }
  if (!lock.ok()) {
    return absl::Status(lock.status().code(), absl::StrCat("cannot listen on ", text, ": ",
                                                           std::string(lock.status().message())));
  }
  listen.lock_ = *std::move(lock);
  if (absl::Status status = RemoveStaleSocket(listen.address_.path); !status.ok()) return status;
  return listen;
}

absl::Status ListenAddress::Started(int port) {
  if (port == 0) return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", text()));
  if (!address_.is_unix()) {
    address_.port = port;
  } else if (chmod(address_.path.c_str(), socket_mode_) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot set the mode of ", text(), ": ",
                                                   std::generic_category().message(errno)));
  }
  return absl::OkStatus();
}

}  // namespace failback
