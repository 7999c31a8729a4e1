#include "daemon/ready.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/base/log.h"

namespace failback {
namespace {

// One datagram to the socket that the service manager names: a path, or with a leading @ a name in
// Linux's abstract namespace. See sd_notify(3), "Notes".
bool SendTo(const std::string& name, const std::string& state) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.size() < 2 || name.size() >= sizeof address.sun_path) {
    errno = EINVAL;
    return false;
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const ssize_t sent = sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), size);
  const int error = errno;
  close(fd);
  errno = error;
  return sent == static_cast<ssize_t>(state.size());
}

void Notify(const std::string& state) {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || *name == '\0') return;
  if (SendTo(name, state)) return;
  Log(LogLevel::kWarning, "the service manager cannot be notified",
      {{"NOTIFY_SOCKET", name}, {"error", std::strerror(errno)}});
}

}  // namespace

void AnnounceReady(const std::string& program, const std::vector<std::string>& addresses,
                   const std::string& admin, const std::string& detail) {
  const std::string line =
      absl::StrCat(program, " listening on ", absl::StrJoin(addresses, " and "),
                   admin.empty() ? "" : absl::StrCat(", admin http://", admin), ", ", detail);
  std::fputs(absl::StrCat(line, "\n").c_str(), stdout);
  std::fflush(stdout);
  Notify(absl::StrCat("READY=1\nSTATUS=", line));
}

void AnnounceStopping() { Notify("STOPPING=1\nSTATUS=stopping"); }

}  // namespace failback
