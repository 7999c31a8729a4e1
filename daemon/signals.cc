#include "daemon/signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace failback {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

sigset_t AllSet() {
  sigset_t set = StopSet();
  sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = AllSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Now, as there may be no descriptor left when it is needed.
  fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  std::signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() { close(fd_); }

int StopSignals::Wait(int fd) {
  pollfd polled[] = {{fd_, POLLIN, 0}, {fd, POLLIN, 0}};
  while (poll(polled, 2, -1) < 0) {
  }
  int signal = 0;
  if (polled[0].revents != 0) {
    signalfd_siginfo info = {};
    if (read(fd_, &info, sizeof(info)) == sizeof(info)) signal = static_cast<int>(info.ssi_signo);
  }
  if (signal == SIGTERM || signal == SIGINT) {
    const sigset_t stop = StopSet();
    // One thread that takes the signal is enough for the default action to end the process.
    pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  }
  return signal;
}

}  // namespace failback
