#include "daemon/ready.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "tests/util/process.h"

namespace failback {
namespace {

// A service manager: a datagram socket that NOTIFY_SOCKET names.
class ServiceManager {
 public:
  explicit ServiceManager(const std::string& name) : fd_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0)
        << std::strerror(errno);
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~ServiceManager() {
    unsetenv("NOTIFY_SOCKET");
    close(fd_);
  }

  // The datagram that has come; empty: none.
  std::string Received() {
    char buffer[512];
    const ssize_t size = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    return size < 0 ? "" : std::string(buffer, static_cast<size_t>(size));
  }

 private:
  const int fd_;
};

constexpr char kReady[] =
    "READY=1\nSTATUS=failback-agent listening on unix:/a and 127.0.0.1:1, admin http://127.0.0.1:2,"
    " registry r";

void Announce() {
  AnnounceReady("failback-agent", {"unix:/a", "127.0.0.1:1"}, "127.0.0.1:2", "registry r");
}

TEST(ReadyTest, ServiceManagerIsNotifiedAtItsPath) {
  TempDir dir;
  ServiceManager manager(dir.File("notify"));
  Announce();
  EXPECT_EQ(manager.Received(), kReady);
  AnnounceStopping();
  EXPECT_EQ(manager.Received(), "STOPPING=1\nSTATUS=stopping");
}

TEST(ReadyTest, ServiceManagerIsNotifiedAtItsAbstractName) {
  ServiceManager manager("@failback-ready-test-" + std::to_string(getpid()));
  Announce();
  EXPECT_EQ(manager.Received(), kReady);
}

TEST(ReadyTest, WithoutOneTheLineIsAll) {
  testing::internal::CaptureStdout();
  Announce();
  AnnounceStopping();
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "failback-agent listening on unix:/a and 127.0.0.1:1, admin http://127.0.0.1:2, "
            "registry r\n");
}

TEST(ReadyTest, OneThatCannotBeReachedIsLogged) {
  std::string logged;
  SetLogSink(LogLevel::kWarning,
             [&logged](LogLevel, const std::string& event, const LogFields& fields) {
               logged += event;
               for (const auto& [name, value] : fields) logged += " " + name + "=" + value;
             });
  for (const std::string& name : {std::string("/nowhere/notify"), "@" + std::string(200, 'x')}) {
    logged.clear();
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
    Announce();
    EXPECT_EQ(logged.find("the service manager cannot be notified NOTIFY_SOCKET=" + name), 0)
        << logged;
  }
  unsetenv("NOTIFY_SOCKET");
  SetLogSink(LogLevel::kWarning, nullptr);
}

}  // namespace
}  // namespace failback
