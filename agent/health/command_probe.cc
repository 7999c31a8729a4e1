#include "agent/health/command_probe.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "agent/health/attempt.h"
#include "agent/health/io_thread.h"
#include "boost/asio/posix/stream_descriptor.hpp"

extern char** environ;

namespace failback {
namespace {

std::string ErrorText(int error) { return std::generic_category().message(error); }

// posix_spawnp with what a health check needs: the daemon blocks and ignores signals for itself.
int Spawn(const std::vector<std::string>& argv, pid_t* pid) {
  std::vector<char*> pointers;
  pointers.reserve(argv.size() + 1);
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const auto free_actions =
      absl::MakeCleanup([&actions] { posix_spawn_file_actions_destroy(&actions); });
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const auto free_attributes =
      absl::MakeCleanup([&attributes] { posix_spawnattr_destroy(&attributes); });
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  return posix_spawnp(pid, pointers[0], &actions, &attributes, pointers.data(), environ);
}

absl::Status Judge(const std::string& program, const siginfo_t& info) {
  if (info.si_code != CLD_EXITED) {
    return absl::UnavailableError(absl::StrCat(program, ": ended by signal ", info.si_status));
  }
  if (info.si_status != 0) {
    return absl::UnavailableError(absl::StrCat(program, ": exit status ", info.si_status));
  }
  return absl::OkStatus();
}

// One run of the program, watched through its pidfd.
class CommandRun final : public Attempt {
 public:
  CommandRun(boost::asio::io_context& context, const std::vector<std::string>& argv,
             Probe::Done done)
      : Attempt(context, std::move(done)), argv_(argv), pidfd_(context) {}

  // Something is left only when the end could not be waited for on the I/O thread.
  ~CommandRun() override {
    Kill();
    Reap();
  }

 private:
  std::shared_ptr<CommandRun> shared() {
    return std::static_pointer_cast<CommandRun>(shared_from_this());
  }

  void Start() override {
    if (const int error = Spawn(argv_, &pid_); error != 0) {
      pid_ = 0;
      return Finish(absl::UnavailableError(absl::StrCat(argv_[0], ": ", ErrorText(error))));
    }
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    if (fd < 0) {
      return Finish(absl::UnavailableError(
          absl::StrCat(argv_[0], ": cannot be watched: ", ErrorText(errno))));
    }
    pidfd_.assign(fd);
    pidfd_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                      [self = shared()](const boost::system::error_code&) {
                        if (!self->finished()) self->Ended();
                        self->Reap();
                      });
  }

  void Ended() {
    siginfo_t info = {};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
    Finish(Judge(argv_[0], info));
  }

  // The end is still waited for, so that the program is reaped.
  void Close() override { Kill(); }

  // Ends the group, what the program has started included. While it is not reaped its number cannot
  // belong to another process.
  void Kill() {
    if (pid_ != 0) kill(-pid_, SIGKILL);
  }

  void Reap() {
    if (pid_ == 0) return;
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
  }

  const std::vector<std::string> argv_;
  boost::asio::posix::stream_descriptor pidfd_;
  pid_t pid_ = 0;
};

}  // namespace

std::unique_ptr<Probe> NewCommandProbe(IoThread* io, const std::vector<std::string>& argv) {
  return std::make_unique<AttemptProbe>(
      io, [argv](boost::asio::io_context& context, Probe::Done done) {
        return std::make_shared<CommandRun>(context, argv, std::move(done));
      });
}

}  // namespace failback
