#include "daemon/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "registry/base/version.h"

namespace failback {
namespace {

// The fields of /proc/self/stat from the third on, which follow the program's name in brackets.
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  return absl::StrSplit(line.substr(name_end + 1), ' ', absl::SkipEmpty());
}

// The n-th field as proc(5) counts them.
double Field(const std::vector<std::string>& fields, size_t n) {
  double value = 0;
  if (n - 3 < fields.size() && absl::SimpleAtod(fields[n - 3], &value)) return value;
  return 0;
}

// When the machine was started, in seconds since the Unix epoch; 0: unknown.
double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double time = 0;
    if (word == "btime" && file >> time) return time;
  }
  return 0;
}

int64_t OpenFiles() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (folder == nullptr) return 0;
  int64_t entries = 0;
  while (readdir(folder.get()) != nullptr) ++entries;
  return entries - 3;  // `.`, `..` and the folder itself
}

}  // namespace

void CollectBuildInfo(const std::string& program, MetricFamilies* out) {
  out->Gauge("failback_build_info", "Which build of which program this is; always 1.", 1,
             {{"program", program}, {"version", kVersion}});
}

void CollectProcess(MetricFamilies* out) {
  const std::vector<std::string> stat = StatFields();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (!stat.empty()) {
    out->Counter("process_cpu_seconds_total", "CPU time used, by the program and its kernel work.",
                 (Field(stat, 14) + Field(stat, 15)) / ticks);
    out->Gauge("process_threads", "Threads.", Field(stat, 20));
    out->Gauge("process_virtual_memory_bytes", "Size of the address space.", Field(stat, 23));
    out->Gauge("process_resident_memory_bytes", "Memory in use.",
               Field(stat, 24) * static_cast<double>(sysconf(_SC_PAGESIZE)));
    static const double boot_time = BootTime();
    if (boot_time > 0) {
      out->Gauge("process_start_time_seconds", "When the process was started, as Unix time.",
                 boot_time + Field(stat, 22) / ticks);
    }
  }
  out->Gauge("process_open_fds", "Open files, connections among them.",
             static_cast<double>(OpenFiles()));
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    out->Gauge("process_max_fds", "The most files that may be open.",
               static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace failback
