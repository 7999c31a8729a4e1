#include "registry/failback/failback_shell.h"

#include <algorithm>
#include <utility>

#include "registry/base/log.h"
#include "registry/base/trace_context.h"
#include "registry/model/canonical.h"
#include "registry/model/ids.h"
#include "registry/model/validation.h"
#include "registry/refusable_listener.h"
#include "registry/watch/owned_listener.h"

namespace failback {

// A subscriber's handle. Destroying it takes the subscriber off its watch.
class FailbackRegistry::Shell::LocalStream final : public SubscribeStream {
 public:
  LocalStream(std::weak_ptr<Shell> shell, SubscriptionId id,
              std::shared_ptr<SerialNotifier> notifier)
      : shell_(std::move(shell)), id_(id), notifier_(std::move(notifier)) {}

  ~LocalStream() override {
    if (auto shell = shell_.lock()) {
      shell->Do(input::Detach{id_});
      MutexLock lock(&shell->mu_);
      shell->subscribers_.erase(id_);
    }
    notifier_->Close();
  }

 private:
  const std::weak_ptr<Shell> shell_;
  const SubscriptionId id_;
  const std::shared_ptr<SerialNotifier> notifier_;
};

// Receives one stream of the upstream.
class FailbackRegistry::Shell::StreamListener final : public NotifyListener {
 public:
  StreamListener(std::weak_ptr<Shell> shell, StreamId id) : shell_(std::move(shell)), id_(id) {}

  void OnEvent(const EventPtr& event) override {
    if (auto shell = shell_.lock()) shell->Do(input::Streamed{id_, event, absl::OkStatus()});
  }
  void OnEnd(const absl::Status& status) override {
    if (auto shell = shell_.lock()) shell->Do(input::Streamed{id_, nullptr, status});
  }

 private:
  const std::weak_ptr<Shell> shell_;
  const StreamId id_;
};

FailbackRegistry::Shell::Shell(std::unique_ptr<Registry> upstream, Options options,
                               std::shared_ptr<IntentJournal> journal)
    : options_(std::move(options)),
      journal_(std::move(journal)),
      upstream_(std::move(upstream)),
      machine_(MachineSetup(), Now()) {}

Machine::Setup FailbackRegistry::Shell::MachineSetup() {
  Machine::Setup setup;
  setup.options = options_;
  setup.sinks.journal = journal_ == nullptr ? nullptr : this;
  setup.sinks.subscribers = this;
  setup.events = options_.on_event != nullptr;
  setup.process = Digest64(RandomId()) | 1;
  setup.new_incarnation = [] { return RandomId(); };
  setup.new_session_id = [](const std::string& owner) { return NewSessionId(owner); };
  return setup;
}

void FailbackRegistry::Shell::Start() {
  // A connection that breaks while nothing is asked of it is noticed now, not at the next renewal.
  upstream()->SetDisconnectListener([weak = weak_from_this()](const absl::Status& status) {
    if (auto self = weak.lock()) self->Do(input::Disconnected{status});
  });
  input::Start start;
  if (journal_ != nullptr) {
    start.intents = journal_->TakeIntents();
    start.snapshots = journal_->TakeSnapshots();
    start.last_generation = journal_->last_generation();
    start.was_put_back = journal_->was_put_back();
  }
  Entry entry(this);
  Todo todo;
  {
    MutexLock lock(&mu_);
    Step(std::move(start), &todo);
  }
  if (journal_ != nullptr) {
    journal_->Start([weak = weak_from_this()](uint64_t sequence, const absl::Status& status) {
      if (auto self = weak.lock()) self->Do(input::Journalled{sequence, status});
    });
  }
  Finish(&todo);
}

void FailbackRegistry::Shell::Shutdown() {
  gate_.Close();
  Todo todo;
  {
    MutexLock lock(&mu_);
    timeout_.Cancel();
    Step(input::Closing{}, &todo);
  }
  // What was accepted becomes durable, and is answered so.
  const absl::Status journalled = journal_ == nullptr ? absl::OkStatus() : journal_->Stop();
  std::shared_ptr<Registry> upstream;
  {
    MutexLock lock(&mu_);
    Step(input::Closed{journalled}, &todo);
    closed_ = true;
    timeout_.Cancel();
    calls_.clear();
    upstream = std::move(upstream_);
  }
  CarryOut(&todo);
}

// --- Steps.

Moment FailbackRegistry::Shell::Now() const {
  return {options_.timer->clock()->NowNanos(), options_.timer->clock()->WallNow()};
}

Ticket FailbackRegistry::Shell::TakeTicket(Caller caller) {
  if (free_tickets_.empty()) {
    free_tickets_.push_back(callers_.size());
    callers_.emplace_back();
  }
  const Ticket ticket = free_tickets_.back();
  free_tickets_.pop_back();
  callers_[ticket] = std::move(caller);
  return ticket;
}

void FailbackRegistry::Shell::Do(Input input) {
  Entry entry(this);
  if (!entry.ok()) return;
  Todo todo;
  {
    MutexLock lock(&mu_);
    Step(std::move(input), &todo);
  }
  Finish(&todo);
}

void FailbackRegistry::Shell::Step(Input input, Todo* todo) {
  Effects& effects = todo->effects;
  machine_.Step(std::move(input), Now(), &effects);
  for (Effects::Reply& reply : effects.replies) {
    todo->answers.emplace_back(std::move(callers_[reply.ticket]), std::move(reply.answer));
    free_tickets_.push_back(reply.ticket);
  }
  effects.replies.clear();
  for (Effects::Call& call : effects.calls) {
    if (std::holds_alternative<SubscribeRequest>(call.request)) streams_.emplace(call.id, nullptr);
    calls_.push_back(std::move(call));
  }
  effects.calls.clear();
  for (const StreamId id : effects.ended) {
    const auto it = streams_.find(id);
    ended_.push_back({upstream_, std::move(it->second)});
    streams_.erase(it);
  }
  effects.ended.clear();
  for (auto& notifier : posted_) todo->notifiers.push_back(std::move(notifier));
  posted_.clear();
  Arm(effects.wake_nanos);
}

void FailbackRegistry::Shell::Arm(int64_t wake_nanos) {
  if (wake_nanos >= armed_for_nanos_ || gate_.closed()) return;
  armed_for_nanos_ = wake_nanos;
  const absl::Duration left =
      absl::Nanoseconds(std::max<int64_t>(wake_nanos - options_.timer->clock()->NowNanos(), 0));
  if (timeout_.Reschedule(left)) return;
  auto timeout = options_.timer->ScheduleUnbounded(
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->OnDue();
      },
      left);
  // Refused only by a wheel that was stopped; then nothing is due any more.
  if (timeout.ok()) timeout_ = *std::move(timeout);
}

void FailbackRegistry::Shell::OnDue() {
  {
    MutexLock lock(&mu_);
    armed_for_nanos_ = Alarms::kNever;
  }
  Do(input::Tick{});
}

void FailbackRegistry::Shell::Post(SubscriptionId subscription, EventPtr event) {
  mu_.AssertHeld();
  const auto it = subscribers_.find(subscription);
  if (it == subscribers_.end()) return;
  it->second->Post(std::move(event));
  posted_.push_back(it->second);
}

void FailbackRegistry::Shell::PostEnd(SubscriptionId subscription, const absl::Status& status) {
  mu_.AssertHeld();
  const auto it = subscribers_.find(subscription);
  if (it == subscribers_.end()) return;
  it->second->PostEnd(status);
  posted_.push_back(std::move(it->second));
  subscribers_.erase(it);
}

// --- What follows.

void FailbackRegistry::Shell::Finish(Todo* todo) {
  CarryOut(todo);
  while (todo->effects.more) {
    Todo next;
    {
      MutexLock lock(&mu_);
      Step(input::Tick{}, &next);
    }
    CarryOut(&next);
    todo->effects.more = next.effects.more;
  }
  if (journal_ != nullptr) journal_->Flush();
  MakeCalls();
}

void FailbackRegistry::Shell::CarryOut(Todo* todo) {
  // Answers last: a caller that is answered finds the events in the history, was notified of the end
  // of what it has ended, and may destroy the registry.
  for (const IntentEvent& event : todo->effects.events) {
    if (!gate_.closed()) options_.on_event(event);
  }
  for (const Effects::LogLine& line : todo->effects.logs) Log(line.level, line.event, line.fields);
  for (const auto& notifier : todo->notifiers) notifier->Deliver();
  for (auto& [caller, answer] : todo->answers) std::move(caller)(std::move(answer));
  EndStreams();  // after all the rest: it may wait
}

void FailbackRegistry::Shell::EndStreams() {
  {
    MutexLock lock(&mu_);
    if (ending_) return;
    ending_ = true;
  }
  for (bool more = true; more;) {
    std::vector<EndedStream> ended;  // destroyed after the lock is released
    MutexLock lock(&mu_);
    ended.swap(ended_);
    more = ending_ = !ended.empty();
  }
}

void FailbackRegistry::Shell::MakeCalls() {
  while (MakeRound()) {
  }
}

bool FailbackRegistry::Shell::MakeRound() {
  // The calls that are there now: those that come meanwhile do not put off what the machine sends
  // when these are made.
  std::deque<Effects::Call> round;
  {
    MutexLock lock(&mu_);
    if (making_ || calls_.empty()) return false;
    making_ = true;
    round.swap(calls_);
  }
  for (Effects::Call& call : round) {
    const std::shared_ptr<Registry> to = upstream();
    if (to == nullptr) break;
    Make(std::move(call), to);
  }
  Todo todo;
  {
    MutexLock lock(&mu_);
    making_ = false;
    if (!closed_) Step(input::Made{}, &todo);
  }
  // It may wait for a listener, while another thread makes calls.
  CarryOut(&todo);
  if (todo.effects.more) Do(input::Tick{});
  return true;
}

template <typename Response>
Callback<Response> FailbackRegistry::Shell::AnswerTo(CallId id) {
  return [weak = weak_from_this(), id](absl::StatusOr<Response> response) {
    auto self = weak.lock();
    if (self == nullptr) return;
    self->Do(input::Answered{
        id, response.ok() ? Answer(*std::move(response)) : Answer(response.status())});
  };
}

void FailbackRegistry::Shell::Make(Effects::Call call, const std::shared_ptr<Registry>& upstream) {
  const ScopedTrace trace(std::move(call.trace));
  struct Visitor {
    void operator()(Batch& batch) {
      upstream->Write(std::move(batch), shell->AnswerTo<BatchResult>(id));
    }
    void operator()(const SubscribeRequest& request) { shell->OpenStream(id, request, upstream); }
    void operator()(const UnsubscribeRequest& request) {
      upstream->Unsubscribe(request, shell->AnswerTo<UnsubscribeResponse>(id));
    }
    void operator()(const OpenSessionRequest& request) {
      upstream->OpenSession(request, shell->AnswerTo<OpenSessionResponse>(id));
    }
    void operator()(const KeepAliveRequest& request) {
      upstream->KeepAlive(request, shell->AnswerTo<KeepAliveResponse>(id));
    }
    void operator()(const CloseSessionRequest& request) {
      upstream->CloseSession(request, shell->AnswerTo<CloseSessionResponse>(id));
    }
    void operator()(const ListRequest& request) {
      upstream->List(request, shell->AnswerTo<ListResponse>(id));
    }
    Shell* const shell;
    const std::shared_ptr<Registry>& upstream;
    const CallId id;
  };
  std::visit(Visitor{this, upstream, call.id}, call.request);
}

void FailbackRegistry::Shell::OpenStream(StreamId id, const SubscribeRequest& request,
                                         const std::shared_ptr<Registry>& upstream) {
  {
    MutexLock lock(&mu_);
    if (!streams_.contains(id)) return;  // no longer wanted
  }
  std::unique_ptr<SubscribeStream> stream =
      upstream->Subscribe(request, std::make_shared<StreamListener>(weak_from_this(), id));
  MutexLock lock(&mu_);
  if (const auto it = streams_.find(id); it != streams_.end()) {
    it->second = std::move(stream);
  } else {
    ended_.push_back({upstream, std::move(stream)});  // it has ended already, or is not wanted
  }
}

// --- Local subscribers, and how things stand.

std::unique_ptr<SubscribeStream> FailbackRegistry::Shell::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  input::Subscribe input{0, request, OwnerOf(listener.get()), EndsWhenRefused(listener.get())};
  const auto notifier = std::make_shared<SerialNotifier>(std::move(listener));
  Entry entry(this);
  absl::Status refused = ValidateSubscribe(request);
  if (!entry.ok()) refused = ShutDown();
  Todo todo;
  SubscriptionId id;
  {
    MutexLock lock(&mu_);
    id = input.id = ++last_subscription_;
    // It was shut down since this thread entered: from within a callback, which does not wait.
    if (closed_ && refused.ok()) refused = ShutDown();
    if (refused.ok()) {
      subscribers_.emplace(id, notifier);
      Step(std::move(input), &todo);
    }
  }
  auto stream = std::make_unique<LocalStream>(weak_from_this(), id, notifier);
  if (!refused.ok()) {
    notifier->PostEnd(refused);
    notifier->Deliver();
    return stream;
  }
  Finish(&todo);
  return stream;
}

std::shared_ptr<Registry> FailbackRegistry::Shell::upstream() const {
  MutexLock lock(&mu_);
  return upstream_;
}

std::string FailbackRegistry::Shell::incarnation() const {
  MutexLock lock(&mu_);
  return machine_.incarnation();
}

int64_t FailbackRegistry::Shell::local_sessions() const {
  MutexLock lock(&mu_);
  return machine_.local_sessions();
}

bool FailbackRegistry::Shell::draining() const {
  MutexLock lock(&mu_);
  return machine_.draining();
}

FailbackStatistics FailbackRegistry::Shell::Stats(agent::v1::UpstreamStatus* status) const {
  std::optional<IntentJournal::Statistics> journal;
  if (journal_ != nullptr) journal = journal_->Stats();
  MutexLock lock(&mu_);
  const Moment now = Now();
  FailbackStatistics stats = machine_.Stats(now);
  stats.journal = std::move(journal);
  if (status != nullptr) *status = machine_.UpstreamStatus(now, stats);
  return stats;
}

std::vector<agent::v1::PendingOperation> FailbackRegistry::Shell::Pending(
    const PendingRange& range) const {
  MutexLock lock(&mu_);
  return machine_.Pending(Now(), range);
}

std::vector<IntentJournal::Intent> FailbackRegistry::Shell::PresentIntents() const {
  MutexLock lock(&mu_);
  return machine_.PresentIntents();
}

std::vector<CarriedRecord> FailbackRegistry::Shell::Carried(const std::string& begins) const {
  MutexLock lock(&mu_);
  return machine_.Carried(Now(), begins);
}

std::string FailbackRegistry::Shell::CheckInvariants() const {
  MutexLock lock(&mu_);
  return machine_.CheckInvariants();
}

}  // namespace failback
