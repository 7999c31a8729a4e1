// SIGTERM, SIGINT and SIGHUP as something to wait for, instead of handlers that may do nothing.
//
// Example:
//
//   StopSignals signals;              // first thing in main(), before any thread
//   …start…
//   while (signals.Wait() == SIGHUP) LookAtFiles();
//   …stop gracefully; a second signal ends the process at once…
//
// Thread safety: one instance in a process, made before other threads, which inherit its mask.

#ifndef FAILBACK_DAEMON_SIGNALS_H_
#define FAILBACK_DAEMON_SIGNALS_H_

namespace failback {

class StopSignals {
 public:
  // Blocks the three, and ignores SIGPIPE.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for a signal and returns it, or 0 when `fd` can be read; -1 is never. After SIGTERM and
  // SIGINT their default action is back: who asks twice is not made to wait.
  int Wait(int fd = -1);

 private:
  int fd_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_SIGNALS_H_
