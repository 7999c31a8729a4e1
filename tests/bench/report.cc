#include "tests/bench/report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace failback {
namespace {

// The value of the first line of `file` that starts with `key`, behind its colon.
std::string LineOf(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && absl::StartsWith(line, key)) {
      return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
  }
  return "unknown";
}

std::string Machine() {
  utsname names{};
  uname(&names);
  const double kib = std::atof(LineOf("/proc/meminfo", "MemTotal").c_str());
  return absl::StrFormat("%s, %d cores, %.0f GiB, %s %s", LineOf("/proc/cpuinfo", "model name"),
                         std::thread::hardware_concurrency(), kib / (1 << 20), names.sysname,
                         names.release);
}

std::string Compiler() {
#if defined(__clang__)
  return absl::StrCat("clang ", __clang_version__);
#else
  return absl::StrCat("gcc ", __VERSION__);
#endif
}

double LoadAverage() {
  double load[1] = {0};
  return getloadavg(load, 1) == 1 ? load[0] : 0;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Three digits that count, and thousands apart.
std::string Readable(double value) {
  const double size = std::fabs(value);
  if (size < 10) return absl::StrFormat("%.3f", value);
  if (size < 1000) return absl::StrFormat("%.1f", value);
  std::string digits = absl::StrFormat("%.0f", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(at, ",");
  }
  return digits;
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const size_t index = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  return values[std::min(index, values.size() - 1)];
}

std::string CallersPath(const std::string& path) {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || path[0] == '/' || directory == nullptr) return path;
  return absl::StrCat(directory, "/", path);
}

Report::Report(Options options)
    : options_(std::move(options)),
      machine_(Machine()),
      date_(absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone())),
      compiler_(Compiler()),
      load_before_(LoadAverage()) {
  std::printf("%s: %s\n  %s\n  %s, revision %s, load average %.2f before\n\n",
              options_.name.c_str(), date_.c_str(), machine_.c_str(), compiler_.c_str(),
              options_.revision.c_str(), load_before_);
  std::fflush(stdout);
}

void Report::Add(const std::string& workload, const std::string& subject, const std::string& metric,
                 double value, const std::string& unit) {
  if (const Row* row = Find(workload, subject, metric)) {
    const_cast<Row*>(row)->values.push_back(value);
    return;
  }
  rows_.push_back({workload, subject, metric, unit, {value}});
}

void Report::Ratio(const std::string& workload, const std::string& metric,
                   const std::string& subject, const std::string& base) {
  const Row* const measured = Find(workload, subject, metric);
  const Row* const limit = Find(workload, base, metric);
  if (measured == nullptr || limit == nullptr) return;
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(measured->values.size(), limit->values.size()); ++i) {
    if (limit->values[i] != 0) ratios.push_back(measured->values[i] / limit->values[i]);
  }
  if (ratios.empty()) return;
  rows_.push_back({workload, subject, metric + "_ratio", "x of " + base, std::move(ratios)});
}

double Report::Value(const std::string& workload, const std::string& subject,
                     const std::string& metric) const {
  const Row* const row = Find(workload, subject, metric);
  return row == nullptr ? 0 : Median(row->values);
}

void Report::Note(const std::string& text) { notes_.push_back(text); }

bool Report::Finish() {
  std::stable_sort(rows_.begin(), rows_.end(),
                   [](const Row& a, const Row& b) { return a.workload < b.workload; });
  WriteTable();
  if (options_.json_path.empty()) return true;
  const std::string path = CallersPath(options_.json_path);
  std::ofstream out(path);
  for (const Row& row : rows_) {
    out << "{\"workload\":" << Quoted(row.workload) << ",\"subject\":" << Quoted(row.subject)
        << ",\"metric\":" << Quoted(row.metric)
        << ",\"value\":" << absl::StrFormat("%.6g", Median(row.values))
        << ",\"unit\":" << Quoted(row.unit) << ",\"rounds\":" << row.values.size()
        << ",\"machine\":" << Quoted(machine_) << ",\"date\":" << Quoted(date_)
        << ",\"compiler\":" << Quoted(compiler_) << ",\"revision\":" << Quoted(options_.revision)
        << ",\"load_before\":" << absl::StrFormat("%.2f", load_before_) << "}\n";
  }
  out.flush();
  if (!out) std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return static_cast<bool>(out);
}

void Report::WriteTable() const {
  size_t subject_width = 0;
  size_t metric_width = 0;
  for (const Row& row : rows_) {
    subject_width = std::max(subject_width, row.subject.size());
    metric_width = std::max(metric_width, row.metric.size());
  }
  std::string workload;
  for (const Row& row : rows_) {
    if (row.workload != workload) std::printf("%s\n", row.workload.c_str());
    workload = row.workload;
    std::printf("  %-*s  %-*s  %14s %s", static_cast<int>(subject_width), row.subject.c_str(),
                static_cast<int>(metric_width), row.metric.c_str(),
                Readable(Median(row.values)).c_str(), row.unit.c_str());
    if (row.values.size() > 1) {
      const auto [low, high] = std::minmax_element(row.values.begin(), row.values.end());
      std::printf("  (%s to %s)", Readable(*low).c_str(), Readable(*high).c_str());
    }
    std::printf("\n");
  }
  for (const std::string& note : notes_) std::printf("note: %s\n", note.c_str());
  std::fflush(stdout);
}

const Report::Row* Report::Find(const std::string& workload, const std::string& subject,
                                const std::string& metric) const {
  for (const Row& row : rows_) {
    if (row.workload == workload && row.subject == subject && row.metric == metric) return &row;
  }
  return nullptr;
}

}  // namespace failback
