// What a benchmark has measured: a table for people, JSON lines for programs.
//
// A run measures each (workload, subject, metric) once per round, with the subjects interleaved,
// and adds every value as it comes. What is shown is the median over the rounds. A ratio is taken
// within each round, where both sides saw the same machine, and its median is shown.
//
//   Report report({"registry", json_path, revision});
//   for (round …) { report.Add("renew", "bare-grpc", "renewals_per_s", value, "1/s"); … }
//   report.Ratio("renew", "renewals_per_s", "failback-memory", "bare-grpc");
//   return report.Finish() ? 0 : 1;
//
// A JSON line has the keys workload, subject, metric, value, unit, rounds, and machine, date,
// compiler, revision, load_before (the machine's load average when the run began: other work makes
// absolute figures worse, and ratios less sure).
//
// Thread safety: one thread.

#ifndef FAILBACK_TESTS_BENCH_REPORT_H_
#define FAILBACK_TESTS_BENCH_REPORT_H_

#include <string>
#include <vector>

namespace failback {

// The value in the middle, of an even number the mean of the two; 0 of none.
double Median(std::vector<double> values);
// The smallest value that `share` (0 to 1) of all are not above; 0 of none.
double Percentile(std::vector<double> values, double share);

class Report {
 public:
  struct Options {
    // Of the benchmark.
    std::string name;
    // Where JSON lines go; empty: nowhere. Relative paths are those of the person who called
    // `bazel run`.
    std::string json_path;
    // Of the source, as git names it.
    std::string revision;
  };

  // Shows what it is run on.
  explicit Report(Options options);

  // One round's value.
  void Add(const std::string& workload, const std::string& subject, const std::string& metric,
           double value, const std::string& unit);

  // Adds metric `<metric>_ratio` of `subject`: its value over that of `base`, round by round.
  // Nothing when either was not measured.
  void Ratio(const std::string& workload, const std::string& metric, const std::string& subject,
             const std::string& base);

  // The median so far; 0 when there is none.
  double Value(const std::string& workload, const std::string& subject,
               const std::string& metric) const;

  // A line for people that is no measurement.
  void Note(const std::string& text);

  // Shows the table and writes the JSON lines. False, with a message, when the file cannot be
  // written.
  bool Finish();

 private:
  struct Row {
    std::string workload;
    std::string subject;
    std::string metric;
    std::string unit;
    std::vector<double> values;
  };

  const Row* Find(const std::string& workload, const std::string& subject,
                  const std::string& metric) const;
  void WriteTable() const;

  const Options options_;
  const std::string machine_;
  const std::string date_;
  const std::string compiler_;
  const double load_before_;
  std::vector<Row> rows_;
  std::vector<std::string> notes_;
};

// `path` as the person who called `bazel run` meant it.
std::string CallersPath(const std::string& path);

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_REPORT_H_
