// The servers that are measured against each other, each a process of its own.
//
// Thread safety: as Process.

#ifndef FAILBACK_TESTS_BENCH_SUBJECT_H_
#define FAILBACK_TESTS_BENCH_SUBJECT_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/util/process.h"

namespace failback {

inline constexpr char kBareGrpc[] = "bare-grpc";
// The same, which writes a page and syncs it before it answers a Register.
inline constexpr char kBareGrpcSynced[] = "bare-grpc-fdatasync";
inline constexpr char kFailbackMemory[] = "failback-memory";
inline constexpr char kFailbackNormal[] = "failback-sqlite-normal";
inline constexpr char kFailbackFull[] = "failback-sqlite-full";

class Subject {
 public:
  struct Options {
    // Of failback-registry: leases that end together do so.
    bool eviction_guard = true;
    // The store, for one that is to be opened again; empty: a new one.
    std::string store_dir;
    // Of bare_server: whether Register puts instances in a map.
    bool map = true;
    std::string listen = "127.0.0.1:0";
    std::vector<std::string> more_args;
  };

  // Starts the subject named and waits until it serves. Dies when it cannot.
  Subject(const std::string& name, const Options& options);

  const std::string& address() const { return address_; }
  Process& process() { return *process_; }

  // User and system time so far.
  double CpuSeconds() const;
  // Memory of its own, without what it maps from files.
  int64_t AnonymousBytes() const;

 private:
  std::unique_ptr<TempDir> own_dir_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

// As Subject, of any process.
double CpuSecondsOf(pid_t pid);
int64_t AnonymousBytesOf(pid_t pid);

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_SUBJECT_H_
