#include "agent/ctl/change_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to programs

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::SubscribeResponse;

// The kernel takes 128 KiB for one variable.
constexpr size_t kMaxNames = 64 << 10;

std::string KindOf(const SubscribeResponse& change) {
  if (change.has_snapshot()) return "snapshot";
  if (change.has_delta()) return "delta";
  return change.stale() ? "stale" : "fresh";
}

void AppendName(const InstanceKey& key, std::string* names) {
  absl::StrAppend(names, names->empty() ? "" : " ",
                  key.instance_id().empty() ? key.service() : key.instance_id());
}

absl::Status SystemError(const char* what, int error) {
  return absl::InternalError(absl::StrCat(what, ": ", std::generic_category().message(error)));
}

// A file in memory that holds `text`, at its beginning.
absl::StatusOr<int> MemoryFile(const std::string& text) {
  const int fd = memfd_create("change", MFD_CLOEXEC);
  if (fd < 0) return SystemError("memfd_create", errno);
  for (size_t written = 0; written < text.size();) {
    const ssize_t size = write(fd, text.data() + written, text.size() - written);
    if (size < 0) {
      const int error = errno;
      close(fd);
      return SystemError("write", error);
    }
    written += static_cast<size_t>(size);
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

// This process's environment with `variables` on top, as NAME=VALUE.
std::vector<std::string> FullEnvironment(const Environment& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (variables.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(absl::StrCat(name, "=", value));
  return all;
}

}  // namespace

Environment ChangeEnvironment(const std::string& target, const registry::v1::Selector& selector,
                              const SubscribeResponse& change, const FollowedSet& set) {
  std::string upserts;
  std::string removals;
  for (const auto& instance : change.snapshot().instances()) AppendName(instance.key(), &upserts);
  for (const auto& instance : change.delta().upserts()) AppendName(instance.key(), &upserts);
  for (const InstanceKey& key : change.delta().removals()) AppendName(key, &removals);
  // Half a list would be taken for a whole one.
  if (upserts.size() > kMaxNames) upserts.clear();
  if (removals.size() > kMaxNames) removals.clear();
  return {{"FAILBACK_TARGET", target},
          {"FAILBACK_EVENT", KindOf(change)},
          {"FAILBACK_EVENT_NAMESPACE",
           selector.namespace_().empty() ? "default" : selector.namespace_()},
          {"FAILBACK_EVENT_SERVICE", selector.service()},
          {"FAILBACK_EVENT_EPOCH", absl::StrCat(set.epoch())},
          {"FAILBACK_EVENT_REVISION", absl::StrCat(set.revision())},
          {"FAILBACK_EVENT_STALE", set.stale() ? "true" : "false"},
          {"FAILBACK_EVENT_COUNT", absl::StrCat(set.instances().size())},
          {"FAILBACK_EVENT_UPSERTS", upserts},
          {"FAILBACK_EVENT_REMOVALS", removals}};
}

absl::Status RunShellCommand(const std::string& command, const std::string& input,
                             const Environment& variables) {
  const absl::StatusOr<int> file = MemoryFile(input);
  if (!file.ok()) return file.status();
  const auto closer = absl::MakeCleanup([&file] { close(*file); });
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const auto destroyer =
      absl::MakeCleanup([&actions] { posix_spawn_file_actions_destroy(&actions); });
  posix_spawn_file_actions_adddup2(&actions, *file, STDIN_FILENO);
  std::vector<std::string> all = FullEnvironment(variables);
  std::vector<char*> env;
  env.reserve(all.size() + 1);
  for (std::string& entry : all) env.push_back(entry.data());
  env.push_back(nullptr);
  std::string shell = "sh";
  std::string flag = "-c";
  std::string text = command;
  char* const argv[] = {shell.data(), flag.data(), text.data(), nullptr};
  pid_t pid = 0;
  if (const int error = posix_spawn(&pid, "/bin/sh", &actions, nullptr, argv, env.data());
      error != 0) {
    return SystemError("/bin/sh", error);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return SystemError("waitpid", errno);
  }
  if (WIFSIGNALED(status)) {
    return absl::AbortedError(absl::StrCat("was ended by signal ", WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    return absl::AbortedError(absl::StrCat("ended with exit status ", WEXITSTATUS(status)));
  }
  return absl::OkStatus();
}

}  // namespace failback
