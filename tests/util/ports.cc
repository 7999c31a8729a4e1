#include "tests/util/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "tests/util/process.h"

namespace failback {

int ReservedPort() {
  // Held by this process from here on, and by none that it starts.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  sockaddr* const any = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, any, size) != 0 || getsockname(fd, any, &size) != 0) {
    Fatal("no port of 127.0.0.1 can be reserved");
  }
  return ntohs(address.sin_port);
}

std::string ReservedAddress() { return absl::StrCat("127.0.0.1:", ReservedPort()); }

}  // namespace failback
