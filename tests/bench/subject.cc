#include "tests/bench/subject.h"

#include <time.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/bench/load.h"

namespace failback {
namespace {

std::vector<std::string> Command(const std::string& name, const std::string& dir,
                                 const Subject::Options& options) {
  std::vector<std::string> args;
  if (name == kBareGrpc || name == kBareGrpcSynced) {
    args = {RunfilePath("tests/bench/bare_server"), "--listen", options.listen};
    if (!options.map) args.push_back("--no-map");
    if (name == kBareGrpcSynced) args.insert(args.end(), {"--sync", absl::StrCat(dir, "/synced")});
    return args;
  }
  args = {RunfilePath("registry/failback-registry"), "--listen", options.listen, "--store"};
  if (name == kFailbackMemory) {
    args.push_back("memory:");
  } else if (name == kFailbackNormal || name == kFailbackFull) {
    args.push_back(absl::StrCat("sqlite://", dir, "/registry.db"));
    args.insert(args.end(), {"--durability", name == kFailbackFull ? "full" : "normal"});
  } else {
    Die(absl::StrCat("no such subject: ", name));
  }
  if (!options.eviction_guard) args.insert(args.end(), {"--eviction-guard-enabled", "false"});
  args.insert(args.end(), options.more_args.begin(), options.more_args.end());
  return args;
}

}  // namespace

Subject::Subject(const std::string& name, const Options& options) {
  std::string dir = options.store_dir;
  if (dir.empty()) {
    own_dir_ = std::make_unique<TempDir>();
    dir = own_dir_->path();
  }
  process_ = Process::Start(Command(name, dir, options));
  const std::string marker = " listening on ";
  const std::optional<std::string> line = process_->WaitForLine(marker);
  if (!line) Die(process_->Describe());
  address_ = line->substr(line->find(marker) + marker.size());
  address_ = address_.substr(0, address_.find_first_of(", "));
}

double Subject::CpuSeconds() const { return CpuSecondsOf(process_->pid()); }
int64_t Subject::AnonymousBytes() const { return AnonymousBytesOf(process_->pid()); }

double CpuSecondsOf(pid_t pid) {
  clockid_t clock;
  timespec time;
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

int64_t AnonymousBytesOf(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, "RssAnon:")) return std::atoll(line.c_str() + 8) * 1024;
  }
  return 0;
}

}  // namespace failback
