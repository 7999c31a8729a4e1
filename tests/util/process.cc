#include "tests/util/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

extern char** environ;

namespace failback {
namespace {

[[noreturn]] void Die(const std::string& what, int error) {
  Fatal(absl::StrCat(what, ": ", std::generic_category().message(error)));
}

// Our environment with `env` on top, as strings "NAME=value".
std::vector<std::string> Environment(const std::map<std::string, std::string>& env) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (env.count(text.substr(0, text.find('='))) == 0) result.push_back(text);
  }
  for (const auto& [name, value] : env) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> result;
  for (std::string& text : *strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Appends what can be read to `*to`; false at the end of the stream.
bool ReadSome(int fd, std::string* to) {
  char buffer[4096];
  ssize_t size;
  do {
    size = read(fd, buffer, sizeof(buffer));
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return false;
  to->append(buffer, size);
  return true;
}

std::optional<std::string> FindLine(const std::string& output, const std::string& text) {
  size_t begin = 0;
  for (size_t end; (end = output.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string line = output.substr(begin, end - begin);
    if (line.find(text) != std::string::npos) return line;
  }
  return std::nullopt;
}

// All instances, for KillAll.
struct Live {
  Mutex mu;
  std::set<Process*> processes ABSL_GUARDED_BY(mu);
  bool killed ABSL_GUARDED_BY(mu) = false;
};

Live& GetLive() {
  static Live* const live = new Live;
  return *live;
}

}  // namespace

void Process::KillAll() {
  Live& live = GetLive();
  MutexLock lock(&live.mu);
  live.killed = true;
  for (Process* process : live.processes) process->Signal(SIGKILL);
}

void Fatal(const std::string& message) {
  bool killed;
  {
    Live& live = GetLive();
    MutexLock lock(&live.mu);
    killed = live.killed;
  }
  // Until the process ends. NOLINTNEXTLINE(bugprone-infinite-loop)
  while (killed) pause();
  std::fprintf(stderr, "%s\n", message.c_str());
  std::abort();
}

std::unique_ptr<Process> Process::Start(const std::vector<std::string>& args,
                                        const std::map<std::string, std::string>& env) {
  // Close-on-exec, so that no other child that starts meanwhile holds the pipes open.
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) Die("pipe2", errno);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);

  // The child starts with no signal blocked, whatever this program has blocked for itself.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);

  std::vector<std::string> argv = args;
  std::vector<std::string> envp = Environment(env);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0].c_str(), &actions, &attributes,
                                Pointers(&argv).data(), Pointers(&envp).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(out[1]);
  close(err[1]);
  if (error != 0) Die(absl::StrCat("cannot start ", args[0]), error);
  return std::unique_ptr<Process>(new Process(args, pid, out[0], err[0]));
}

Process::Process(std::vector<std::string> args, pid_t pid, int out_fd, int err_fd)
    : args_(std::move(args)), pid_(pid) {
  {
    Live& live = GetLive();
    MutexLock lock(&live.mu);
    live.processes.insert(this);
  }
  reader_ = std::thread([this, out_fd, err_fd] { ReadLoop(out_fd, err_fd); });
  reaper_ = std::thread([this] { ReapLoop(); });
}

Process::~Process() {
  {
    Live& live = GetLive();
    MutexLock lock(&live.mu);
    live.processes.erase(this);
  }
  Signal(SIGKILL);
  reaper_.join();
  reader_.join();
}

void Process::ReadLoop(int out_fd, int err_fd) {
  // A grandchild may hold a pipe open after the child's end; one more look then, and no wait.
  pollfd fds[2] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    bool exited;
    {
      MutexLock lock(&mu_);
      exited = exit_status_.has_value();
    }
    const int ready = poll(fds, 2, exited ? 0 : 100);
    if (ready == 0 && exited) break;
    if (ready <= 0) continue;
    for (pollfd& entry : fds) {
      if (entry.fd < 0 || entry.revents == 0) continue;
      std::string chunk;
      const bool more = ReadSome(entry.fd, &chunk);
      MutexLock lock(&mu_);
      (entry.fd == out_fd ? out_ : err_) += chunk;
      if (!more) entry.fd = -1;
      changed_.SignalAll();
    }
  }
  close(out_fd);
  close(err_fd);
  MutexLock lock(&mu_);
  output_ended_ = true;
  changed_.SignalAll();
}

void Process::ReapLoop() {
  // Waits without reaping, then reaps under the lock: Signal() never meets a pid that is not ours.
  siginfo_t info;
  while (waitid(P_PID, pid_, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  MutexLock lock(&mu_);
  int status = 0;
  waitpid(pid_, &status, 0);
  exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  changed_.SignalAll();
}

void Process::Signal(int signal) {
  MutexLock lock(&mu_);
  if (!exit_status_.has_value()) kill(pid_, signal);
}

void Process::Kill() {
  Signal(SIGKILL);
  WaitForExit();
}

bool Process::WaitUntil(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration() || (exit_status_.has_value() && output_ended_)) return false;
    changed_.WaitFor(&mu_, std::min(left, absl::Hours(1)));  // an endless wait would overflow
  }
  return true;
}

std::optional<int> Process::WaitForExit(absl::Duration timeout) {
  MutexLock lock(&mu_);
  WaitUntil(
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return exit_status_.has_value() && output_ended_; },
      timeout);
  return output_ended_ ? exit_status_ : std::nullopt;
}

std::optional<std::string> Process::WaitForLine(const std::string& text, absl::Duration timeout) {
  MutexLock lock(&mu_);
  std::optional<std::string> line;
  WaitUntil(
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        line = FindLine(out_, text);
        if (!line) line = FindLine(err_, text);
        return line.has_value();
      },
      timeout);
  return line;
}

bool Process::WaitForOutput(const std::function<bool(const std::string& out)>& condition,
                            absl::Duration timeout) {
  MutexLock lock(&mu_);
  return WaitUntil([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return condition(out_); }, timeout);
}

std::string Process::out() const {
  MutexLock lock(&mu_);
  return out_;
}

std::string Process::err() const {
  MutexLock lock(&mu_);
  return err_;
}

std::string Process::Describe() const {
  MutexLock lock(&mu_);
  return absl::StrCat("$ ", absl::StrJoin(args_, " "), "\n",
                      exit_status_ ? absl::StrCat("exit status ", *exit_status_)
                                   : absl::StrCat("running as ", pid_),
                      "\n--- stdout\n", out_, "--- stderr\n", err_, "---");
}

RunResult RunProcess(const std::vector<std::string>& args,
                     const std::map<std::string, std::string>& env, absl::Duration timeout) {
  const std::unique_ptr<Process> process = Process::Start(args, env);
  RunResult result;
  result.status = process->WaitForExit(timeout).value_or(-1);
  result.out = process->out();
  result.err = process->err();
  return result;
}

std::string RunfilePath(const std::string& path) {
  const char* const source_dir = std::getenv("TEST_SRCDIR");
  const char* const workspace = std::getenv("TEST_WORKSPACE");
  if (source_dir == nullptr || workspace == nullptr) return path;
  return absl::StrCat(source_dir, "/", workspace, "/", path);
}

TempDir::TempDir() {
  const char* const base = std::getenv("TEST_TMPDIR");
  constexpr size_t kRoomForSocket = 64;
  const bool usable = base != nullptr && std::strlen(base) < kRoomForSocket;
  path_ = absl::StrCat(usable ? base : "/tmp", "/failback-XXXXXX");
  if (mkdtemp(path_.data()) == nullptr) Die(absl::StrCat("mkdtemp ", path_), errno);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::Write(const std::string& name, const std::string& content) const {
  std::ofstream(File(name)) << content;
  return File(name);
}

}  // namespace failback
