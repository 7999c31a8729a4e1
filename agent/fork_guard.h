// Distinguishes a process from the children that it forks.
//
// A child has the parent's memory without its threads: locks may be held for ever, nothing is
// carried anywhere, and the sockets are the parent's. What was made before the fork must not be
// used in it, and can find that out here without touching a lock.
//
//   const ForkGuard guard;       // a member of what threads work for
//   if (guard.inherited()) return Error();
//
// Thread safety: all methods from any thread. Only fork() is noticed (through pthread_atfork), not
// a bare clone().

#ifndef FAILBACK_AGENT_FORK_GUARD_H_
#define FAILBACK_AGENT_FORK_GUARD_H_

#include <memory>

namespace failback {

class ForkGuard {
 public:
  ForkGuard();

  // True in a child of the process that made the guard.
  bool inherited() const;

  // Keeps what must not be destroyed in a child, for as long as that lives. From one thread of the
  // child at a time.
  static void Keep(std::shared_ptr<void> inherited);

 private:
  const int generation_;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_FORK_GUARD_H_
