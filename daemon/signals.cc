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

}  // namespace

StopSignals::StopSignals(bool reload) : reload_(reload) {
  sigset_t set = StopSet();
  if (reload) sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignals::Wait() {
  const sigset_t set = StopSet();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {
  }
  // One thread that takes the signal is enough for the default action to end the process.
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return signal;
}

int StopSignals::WaitWith(int fd) {
  sigset_t set = StopSet();
  if (reload_) sigaddset(&set, SIGHUP);
  const int signals = signalfd(-1, &set, SFD_CLOEXEC);
  pollfd polled[] = {{signals, POLLIN, 0}, {fd, POLLIN, 0}};
  while (poll(polled, 2, -1) < 0) {
  }
  int signal = 0;
  if (polled[0].revents != 0) {
    signalfd_siginfo info = {};
    if (read(signals, &info, sizeof(info)) == sizeof(info))
      signal = static_cast<int>(info.ssi_signo);
  }
  close(signals);
  if (signal == SIGTERM || signal == SIGINT) {
    const sigset_t stop = StopSet();
    pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  }
  return signal;
}

}  // namespace failback
