// SIGTERM and SIGINT as something to wait for, instead of handlers that may do nothing.
//
// Example:
//
//   StopSignals signals;              // first thing in main(), before any thread
//   …start…
//   signals.Wait();                   // returns SIGTERM or SIGINT
//   …stop gracefully; a second signal ends the process at once…
//
// Thread safety: one instance in a process, made before other threads, which inherit its mask.

#ifndef FAILBACK_DAEMON_SIGNALS_H_
#define FAILBACK_DAEMON_SIGNALS_H_

namespace failback {

class StopSignals {
 public:
  // Blocks SIGTERM and SIGINT, and ignores SIGPIPE.
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for the first SIGTERM or SIGINT and returns it. From then on the default action is back:
  // who asks twice is not made to wait.
  int Wait();
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_SIGNALS_H_
