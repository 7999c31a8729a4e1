// Runs real binaries in a test: starts one, reads what it writes, signals it, and never leaves it
// behind.
//
// Both output streams are read all the time, so a child never blocks on a full pipe, and every
// wait has a deadline. The destructor kills and reaps the child by its pid.
//
// Example:
//
//   auto registry = Process::Start({RunfilePath("registry/failback-registry"),
//                                   "--listen", "127.0.0.1:0", "--store", "memory:"});
//   std::optional<std::string> ready = registry->WaitForLine("listening on");
//   ASSERT_TRUE(ready) << registry->Describe();
//   registry->Signal(SIGTERM);
//   EXPECT_EQ(registry->WaitForExit(), 0);
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_TESTS_UTIL_PROCESS_H_
#define FAILBACK_TESTS_UTIL_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "retry/mutex.h"

namespace failback {

// Generous: reached only when something is broken, also under sanitizers on a busy machine.
inline constexpr absl::Duration kProcessTimeout = absl::Seconds(30);

class Process {
 public:
  // Starts `args[0]` with `args`, in this process's environment with `env` on top. Never null; a
  // binary that cannot be started aborts the test with a message.
  static std::unique_ptr<Process> Start(const std::vector<std::string>& args,
                                        const std::map<std::string, std::string>& env = {});

  // SIGKILL to every process that was started and still runs: for a program that is asked to stop
  // itself. From then on Fatal() waits for that end.
  static void KillAll();

  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // Sends a signal, unless the process has ended.
  void Signal(int signal);

  // SIGKILL, and waits for the end.
  void Kill();

  // The exit status, 128 + n when signal n ended it, or nullopt when it still runs after `timeout`.
  // Everything that it wrote has been read when this returns a status.
  std::optional<int> WaitForExit(absl::Duration timeout = kProcessTimeout);

  // The first complete line that contains `text`, on either stream, or nullopt after `timeout` or
  // when the process has ended without it. The line comes without its newline.
  std::optional<std::string> WaitForLine(const std::string& text,
                                         absl::Duration timeout = kProcessTimeout);

  // Waits until `condition` holds for what was written to stdout so far.
  bool WaitForOutput(const std::function<bool(const std::string& out)>& condition,
                     absl::Duration timeout = kProcessTimeout);

  // Everything that was written so far.
  std::string out() const;
  std::string err() const;

  // Command line, state and output, for failure messages.
  std::string Describe() const;

 private:
  Process(std::vector<std::string> args, pid_t pid, int out_fd, int err_fd);

  void ReadLoop(int out_fd, int err_fd);
  void ReapLoop();
  // Waits until `condition`, under mu_, or the deadline, or all is over; returns the condition.
  bool WaitUntil(const std::function<bool()>& condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<std::string> args_;
  const pid_t pid_;

  mutable Mutex mu_;
  CondVar changed_;
  std::string out_ ABSL_GUARDED_BY(mu_);
  std::string err_ ABSL_GUARDED_BY(mu_);
  bool output_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<int> exit_status_ ABSL_GUARDED_BY(mu_);

  std::thread reader_;
  std::thread reaper_;
};

struct RunResult {
  // As Process::WaitForExit; -1 when it did not end in time.
  int status = -1;
  std::string out;
  std::string err;
};

// Starts, waits for the end, and returns what came out.
RunResult RunProcess(const std::vector<std::string>& args,
                     const std::map<std::string, std::string>& env = {},
                     absl::Duration timeout = kProcessTimeout);

// Ends the program with a message: what was started does not do what a test cannot go on without.
[[noreturn]] void Fatal(const std::string& message);

// The path of a file that the test names in `data`, as "registry/failback-registry".
std::string RunfilePath(const std::string& path);

// A new empty folder, removed with all its content at the end. Its path is short enough for a Unix
// socket inside (108 bytes).
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // A file inside.
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file inside, and returns its path.
  std::string Write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_PROCESS_H_
