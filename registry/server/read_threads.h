// Carries out reads (Lists, Subscribes) on threads of their own, on which readers take turns.
//
// What a read costs is its caller's choice: large sets, filters that match little. So the threads
// that serve connections are free to renew sessions: an instance does not expire because others
// read.
//
//   ReadThreads reads(2);
//   ReadThreads::Slot slot = reads.Push("alice", [] { … });
//   reads.Withdraw(slot);      // if it still waits, it is not carried out
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_READ_THREADS_H_
#define FAILBACK_REGISTRY_SERVER_READ_THREADS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "registry/server/fair_queue.h"
#include "retry/executor.h"
#include "retry/mutex.h"

namespace failback {

class ReadThreads {
 public:
  using Task = absl::AnyInvocable<void() &&>;
  using Slot = FairQueue<Task>::Slot;

  explicit ReadThreads(int threads)
      : most_(threads), threads_(std::make_unique<ThreadPool>(threads)) {}

  // Carries out `read` when `reader` has its turn (registry/server/fair_queue.h).
  Slot Push(const std::string& reader, Task read);

  // The read is dropped, with what it holds. False: it does not wait any more.
  bool Withdraw(const Slot& slot);

  // Carries out what waits, and ends the threads. Nothing is pushed after.
  void Join() { threads_.reset(); }

  // Reads that wait.
  int64_t waiting() const;

 private:
  // Carries out what waits, until nothing does.
  void Work();

  const int most_;
  mutable Mutex mu_;
  FairQueue<Task> queue_ ABSL_GUARDED_BY(mu_);
  int busy_ ABSL_GUARDED_BY(mu_) = 0;    // threads in Work()
  std::unique_ptr<ThreadPool> threads_;  // ends before the rest
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_READ_THREADS_H_
