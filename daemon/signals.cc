#include "daemon/signals.h"

#include <pthread.h>

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

StopSignals::StopSignals() {
  const sigset_t set = StopSet();
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

}  // namespace failback
