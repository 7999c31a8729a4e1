// SIGTERM and SIGINT (and SIGHUP, where asked for) as something to wait for, instead of handlers
// that may do nothing.
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
  // Blocks SIGTERM and SIGINT, and ignores SIGPIPE. With `reload`, blocks SIGHUP too.
  explicit StopSignals(bool reload = false);
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for the first SIGTERM or SIGINT and returns it. From then on the default action is back:
  // who asks twice is not made to wait.
  int Wait();

  // As Wait(), or returns SIGHUP, or 0 when `fd` can be read; -1 is never. May be called again
  // after those.
  int WaitWith(int fd);

 private:
  const bool reload_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_SIGNALS_H_
