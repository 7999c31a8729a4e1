// The shell around the failback machine: one mutex around its steps, one timeout, and what its
// effects ask for, done without the lock.
//
// Every method takes a step with what has happened and then carries out what came of it, in this
// order: the history's events, log lines, notifications of listeners, answers, the ends of streams;
// then the calls to the upstream. One thread at a time makes calls, and one ends streams.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_SHELL_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_SHELL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "registry/failback/call_gate.h"
#include "registry/failback/failback_machine.h"
#include "registry/failback/failback_registry.h"
#include "registry/watch/serial_notifier.h"
#include "retry/mutex.h"

namespace failback {

class FailbackRegistry::Shell final : public std::enable_shared_from_this<Shell>,
                                      private JournalQueue,
                                      private EventQueues {
 public:
  // Who waits for an answer.
  using Caller = absl::AnyInvocable<void(Answer) &&>;

  // `journal` may be null.
  Shell(std::unique_ptr<Registry> upstream, Options options,
        std::shared_ptr<IntentJournal> journal);

  void Start();
  // Runs every callback that is still owed with CANCELLED and waits for other threads to leave.
  void Shutdown();

  // Something has happened.
  void Do(Input input);
  // A call of `caller`'s, which is answered exactly once.
  template <typename In>
  void Ask(In input, Caller caller);
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener);

  // Null after Shutdown().
  std::shared_ptr<Registry> upstream() const;
  const Options& options() const { return options_; }
  std::string incarnation() const;
  int64_t local_sessions() const;
  bool draining() const;
  FailbackStatistics Stats(agent::v1::UpstreamStatus* status) const;
  std::vector<agent::v1::PendingOperation> Pending(const PendingRange& range) const;
  std::vector<IntentJournal::Intent> PresentIntents() const;
  std::vector<CarriedRecord> Carried(const std::string& begins) const;
  std::string CheckInvariants() const;

 private:
  class LocalStream;
  class StreamListener;

  // A thread inside: keeps the shell, and lets Shutdown() wait for the others.
  class Entry {
   public:
    explicit Entry(Shell* shell) : shell_(shell->shared_from_this()), pass_(&shell->gate_) {}
    // False after Shutdown(): leave at once.
    bool ok() const { return pass_.ok(); }

   private:
    const std::shared_ptr<Shell> shell_;
    const CallGate::Pass pass_;
  };

  // What steps have asked for, to be done without the lock.
  struct Todo {
    Effects effects;
    std::vector<std::pair<Caller, Answer>> answers;
    std::vector<std::shared_ptr<SerialNotifier>> notifiers;
  };

  // A stream that the machine no longer wants; its registry outlives it.
  struct EndedStream {
    std::shared_ptr<Registry> upstream;
    std::unique_ptr<SubscribeStream> stream;
  };

  static absl::Status ShutDown() {
    return absl::CancelledError("the registry client was shut down");
  }
  Moment Now() const;
  Ticket TakeTicket(Caller caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Step(Input input, Todo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Arms the timeout, unless it comes before.
  void Arm(int64_t wake_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnDue();
  // What is to be done now, and all that follows from it.
  void Finish(Todo* todo) ABSL_LOCKS_EXCLUDED(mu_);
  void CarryOut(Todo* todo) ABSL_LOCKS_EXCLUDED(mu_);
  // Destroys the streams that steps have ended, unless another thread does. It waits for their
  // listeners; were it two threads, each in a listener of a stream that the other one destroys,
  // both would wait for ever.
  void EndStreams() ABSL_LOCKS_EXCLUDED(mu_);

  // Makes the calls that steps have asked for, unless another thread does.
  void MakeCalls() ABSL_LOCKS_EXCLUDED(mu_);
  // Those that wait now. False: there are none, or another thread makes them.
  bool MakeRound() ABSL_LOCKS_EXCLUDED(mu_);
  void Make(Effects::Call call, const std::shared_ptr<Registry>& upstream);
  void OpenStream(StreamId id, const SubscribeRequest& request,
                  const std::shared_ptr<Registry>& upstream);
  template <typename Response>
  Callback<Response> AnswerTo(CallId id);

  // JournalQueue and EventQueues, within steps.
  int64_t NewRow() override { return journal_->NewRow(); }
  uint64_t Put(IntentJournal::Intent intent) override { return journal_->Put(std::move(intent)); }
  uint64_t Remove(int64_t row) override { return journal_->Remove(row); }
  uint64_t PutSnapshot(IntentJournal::Snapshot snapshot) override {
    return journal_->PutSnapshot(std::move(snapshot));
  }
  uint64_t ReplaceIncarnation(const std::string& refused, const std::string& incarnation) override {
    return journal_->ReplaceIncarnation(refused, incarnation);
  }
  void Settle() override { journal_->Settle(); }
  void Post(SubscriptionId subscription, EventPtr event) override;
  void PostEnd(SubscriptionId subscription, const absl::Status& status) override;
  Machine::Setup MachineSetup();

  const Options options_;
  const std::shared_ptr<IntentJournal> journal_;
  CallGate gate_;

  mutable Mutex mu_;
  std::shared_ptr<Registry> upstream_ ABSL_GUARDED_BY(mu_);
  Machine machine_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // every caller has its answer
  // Who waits, by ticket; those that are free.
  std::vector<Caller> callers_ ABSL_GUARDED_BY(mu_);
  std::vector<Ticket> free_tickets_ ABSL_GUARDED_BY(mu_);
  // Local subscribers, and those for whom something was posted in the step under way.
  absl::flat_hash_map<SubscriptionId, std::shared_ptr<SerialNotifier>> subscribers_
      ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<SerialNotifier>> posted_ ABSL_GUARDED_BY(mu_);
  SubscriptionId last_subscription_ ABSL_GUARDED_BY(mu_) = 0;
  // Streams of the upstream that the machine wants; null: the call is not made yet.
  absl::flat_hash_map<StreamId, std::unique_ptr<SubscribeStream>> streams_ ABSL_GUARDED_BY(mu_);
  // To be destroyed, and whether a thread does.
  std::vector<EndedStream> ended_ ABSL_GUARDED_BY(mu_);
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  // To be made, in this order; and whether a thread does.
  std::deque<Effects::Call> calls_ ABSL_GUARDED_BY(mu_);
  bool making_ ABSL_GUARDED_BY(mu_) = false;
  Timeout timeout_ ABSL_GUARDED_BY(mu_);
  int64_t armed_for_nanos_ ABSL_GUARDED_BY(mu_) = Alarms::kNever;
};

template <typename In>
void FailbackRegistry::Shell::Ask(In input, Caller caller) {
  Entry entry(this);
  if (!entry.ok()) return std::move(caller)(ShutDown());
  Todo todo;
  {
    MutexLock lock(&mu_);
    if (closed_) {
      // It was shut down since this thread entered: from within a callback, which does not wait.
      todo.answers.emplace_back(std::move(caller), ShutDown());
    } else {
      input.ticket = TakeTicket(std::move(caller));
      Step(std::move(input), &todo);
    }
  }
  Finish(&todo);
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_SHELL_H_
