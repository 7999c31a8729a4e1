// The stories of model_story.h played by the failback machine alone: no shell, no timer, no thread.
// Its calls are data, which a link on simulated time delays, reorders, loses and lies about. The heap
// is the simulation's (story_heap.h): malloc took a seventh of the time.
//
// FAILBACK_SEED=n runs one seed; FAILBACK_SEEDS=n as many from FAILBACK_FIRST_SEED (default 1);
// `./dev model` does it for you.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/canonical.h"
#include "registry/model/validation.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/registry/failback/model_story.h"
#include "tests/registry/failback/seeds.h"
#include "tests/registry/failback/subscriber_model.h"
#include "tests/simulate/story_heap.h"

namespace failback {
namespace {

// What is to happen when, in the order of time, and of its planning.
class Agenda {
 public:
  using Work = absl::AnyInvocable<void() &&>;

  int64_t now() const { return now_; }
  void set_now(int64_t now) { now_ = now; }
  int64_t next() const { return entries_.empty() ? INT64_MAX : entries_.front().at; }
  void After(absl::Duration delay, Work work) {
    entries_.push_back({now_ + absl::ToInt64Nanoseconds(delay), ++last_, std::move(work)});
    std::push_heap(entries_.begin(), entries_.end());
  }
  Work Pop() {
    std::pop_heap(entries_.begin(), entries_.end());
    Work work = std::move(entries_.back().work);
    entries_.pop_back();
    return work;
  }

 private:
  struct Entry {
    int64_t at;
    uint64_t serial;
    Work work;
    // The first is the greatest, for a heap.
    bool operator<(const Entry& other) const {
      return at != other.at ? at > other.at : serial > other.serial;
    }
  };
  int64_t now_ = 0;
  uint64_t last_ = 0;
  std::vector<Entry> entries_;
};

// A journal that is written at once, and outlives the machine.
class MemoryJournal final : public JournalQueue {
 public:
  int64_t NewRow() override { return ++last_row_; }
  uint64_t Put(IntentJournal::Intent intent) override {
    generation_ = std::max(generation_, intent.generation);
    const int64_t row = intent.row;
    rows_[row] = std::move(intent);
    return ++sequence_;
  }
  uint64_t Remove(int64_t row) override {
    rows_.erase(row);
    return ++sequence_;
  }
  uint64_t PutSnapshot(IntentJournal::Snapshot snapshot) override {
    if (snapshot.event.empty()) {
      snapshots_.erase(snapshot.selector);
    } else {
      snapshots_[snapshot.selector] = std::move(snapshot.event);
    }
    return ++sequence_;
  }
  uint64_t ReplaceIncarnation(const std::string&, const std::string&) override {
    return ++sequence_;
  }
  void Settle() override {}

  uint64_t sequence() const { return sequence_; }
  input::Start Kept() const {
    input::Start start;
    for (const auto& [row, intent] : rows_) start.intents.push_back(intent);
    for (const auto& [selector, event] : snapshots_) start.snapshots.push_back({selector, event});
    start.last_generation = generation_;
    return start;
  }

 private:
  std::map<int64_t, IntentJournal::Intent> rows_;
  std::map<std::string, std::string> snapshots_;
  int64_t last_row_ = 0;
  uint64_t generation_ = 0;
  uint64_t sequence_ = 0;
};

class MachineSubject final : public Subject, private EventQueues {
 public:
  void Start() override {
    Machine::Setup setup;
    setup.options = options;
    setup.sinks.journal = journal ? &journal_ : nullptr;
    setup.sinks.subscribers = this;
    setup.events = true;
    setup.process = static_cast<uint64_t>(++life_);
    setup.new_incarnation = [this] { return absl::StrCat("inc-", ++minted_); };
    setup.new_session_id = [this](const std::string&) { return absl::StrCat("local-", ++minted_); };
    reported_ = journal_.sequence();
    machine_.emplace(std::move(setup), Now());
    Run(journal_.Kept());
  }
  void Crash() override {
    End();
    Start();
  }
  void End() override {
    Run(input::Closing{});
    Run(input::Closed{absl::OkStatus()});
    EXPECT_TRUE(callers_.empty()) << "callers who were not answered";
    EXPECT_TRUE(streams_.empty()) << "streams that were not ended";
    machine_.reset();
    callers_.clear();
    streams_.clear();
    subscribers_.clear();
    world.keys_in_flight.clear();
    world.calls_in_flight = 0;
    ++life_;
  }
  Target* target() override { return &target_; }
  int64_t NowNanos() override { return agenda_.now(); }

  void Advance(absl::Duration duration) override {
    const int64_t end = agenda_.now() + absl::ToInt64Nanoseconds(duration);
    while (true) {
      const int64_t next = std::min(agenda_.next(), wake_nanos_);
      if (next > end) break;
      agenda_.set_now(std::max(next, agenda_.now()));
      if (agenda_.next() <= agenda_.now()) {
        std::move(agenda_.Pop())();
      } else {
        Run(input::Tick{});
      }
    }
    agenda_.set_now(end);
  }

  void Write(Batch batch, Done done) override {
    if (const absl::Status status = batch.Check(kDefaultMaxBatch); !status.ok()) {
      return done(status, {});
    }
    Ask(input::Write{0, std::move(batch), ""}, [done = std::move(done)](Answer answer) {
      if (const auto* const status = std::get_if<absl::Status>(&answer)) return done(*status, {});
      done(absl::OkStatus(), std::get<BatchResult>(answer).results);
    });
  }
  std::string OpenSession(const OpenSessionRequest& request) override {
    std::string id;
    Ask(input::OpenSession{0, request}, [&](Answer answer) {
      if (const auto* const opened = std::get_if<OpenSessionResponse>(&answer)) {
        id = opened->session_id();
      }
    });
    return id;
  }
  absl::Status CloseSession(const std::string& id) override {
    absl::Status closed = absl::UnknownError("no answer yet");
    input::CloseSession close{0, {}};
    close.request.set_session_id(id);
    Ask(std::move(close), [&](Answer answer) { closed = std::get<absl::Status>(answer); });
    return closed;
  }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<SubscriberModel> model) override {
    const SubscriptionId id = ++last_subscription_;
    subscribers_[id] = std::move(model);
    Run(input::Subscribe{id, request, ""});
    return std::make_unique<Handle>(this, id);
  }
  void RetryAll() override {
    Ask(input::Retry{0, {}}, [](Answer) {});
  }
  void Drain(absl::Duration deadline, std::function<void()> done) override {
    Ask(input::Drain{0, deadline}, [done = std::move(done)](Answer) { done(); });
  }
  std::vector<agent::v1::PendingOperation> Pending() override {
    return machine_->Pending(Now(), PendingRange());
  }
  std::string CheckInvariants() override { return machine_->CheckInvariants(); }

 private:
  using Caller = absl::AnyInvocable<void(Answer) &&>;

  class Handle final : public SubscribeStream {
   public:
    Handle(MachineSubject* subject, SubscriptionId id)
        : subject_(subject), id_(id), life_(subject->life_) {}
    ~Handle() override {
      if (subject_->life_ != life_) return;
      subject_->subscribers_.erase(id_);
      subject_->Run(input::Detach{id_});
    }

   private:
    MachineSubject* const subject_;
    const SubscriptionId id_;
    const int life_;
  };

  // One stream of the registry's: what it says arrives later, in order, until it is ended.
  struct Stream {
    std::unique_ptr<SubscribeStream> target;
    std::deque<input::Streamed> queue;
  };
  using StreamPtr = std::shared_ptr<Stream>;
  class Listener final : public NotifyListener {
   public:
    Listener(MachineSubject* subject, StreamId id, std::weak_ptr<Stream> stream)
        : subject_(subject), id_(id), stream_(std::move(stream)) {}
    void OnEvent(const EventPtr& event) override { Post({id_, event, absl::OkStatus()}); }
    void OnEnd(const absl::Status& status) override { Post({id_, nullptr, status}); }

   private:
    void Post(input::Streamed said) {
      const StreamPtr stream = stream_.lock();
      if (stream == nullptr) return;  // ended
      stream->queue.push_back(std::move(said));
      subject_->agenda_.After(Upto(&subject_->world, absl::Milliseconds(30)),
                              [subject = subject_, weak = stream_] {
                                const StreamPtr stream = weak.lock();
                                if (stream == nullptr || stream->queue.empty()) return;
                                input::Streamed next = std::move(stream->queue.front());
                                stream->queue.pop_front();
                                subject->Run(std::move(next));
                              });
    }
    MachineSubject* const subject_;
    const StreamId id_;
    const std::weak_ptr<Stream> stream_;
  };

  Moment Now() const {
    return {agenda_.now(), absl::FromUnixSeconds(1700000000) + absl::Nanoseconds(agenda_.now())};
  }

  template <typename In>
  void Ask(In in, Caller caller) {
    in.ticket = ++last_ticket_;
    callers_.emplace(in.ticket, std::move(caller));
    Run(std::move(in));
  }

  // A step, and all that follows from it.
  void Run(Input&& in) {
    machine_->Step(std::move(in), Now(), &effects_);
    while (true) {
      wake_nanos_ = effects_.wake_nanos;
      const bool made = !effects_.calls.empty();
      const bool more = effects_.more;
      CarryOut();
      if (journal_.sequence() > reported_) {
        reported_ = journal_.sequence();
        machine_->Step(input::Journalled{reported_, absl::OkStatus()}, Now(), &effects_);
        if (made) machine_->Step(input::Made{}, Now(), &effects_);
      } else if (made) {
        machine_->Step(input::Made{}, Now(), &effects_);
      } else if (more) {
        machine_->Step(input::Tick{}, Now(), &effects_);
      } else {
        return;
      }
    }
  }

  // Nothing of this leads to another Run.
  void CarryOut() {
    for (const IntentEvent& event : effects_.events) on_event(event);
    for (Effects::Reply& reply : effects_.replies) {
      const auto it = callers_.find(reply.ticket);
      if (it == callers_.end()) {
        ADD_FAILURE() << "two answers";
        continue;
      }
      Caller caller = std::move(it->second);
      callers_.erase(it);
      std::move(caller)(std::move(reply.answer));
    }
    for (const StreamId id : effects_.ended) EXPECT_EQ(streams_.erase(id), 1u);
    for (Effects::Call& call : effects_.calls) Make(call);
    effects_.Clear();
  }

  // --- The link.

  void Make(Effects::Call& call) {
    struct Visitor {
      void operator()(Batch& batch) { subject->Send(id, std::move(batch)); }
      void operator()(const SubscribeRequest& request) { subject->Open(id, request); }
      void operator()(UnsubscribeRequest& request) {
        subject->Carry<UnsubscribeResponse>(id, std::move(request), &Registry::Unsubscribe, {});
      }
      void operator()(OpenSessionRequest& request) {
        subject->Carry<OpenSessionResponse>(id, std::move(request), &Registry::OpenSession, {});
      }
      void operator()(KeepAliveRequest& request) {
        subject->Carry<KeepAliveResponse>(id, std::move(request), &Registry::KeepAlive, {});
      }
      void operator()(CloseSessionRequest& request) {
        subject->Carry<CloseSessionResponse>(id, std::move(request), &Registry::CloseSession, {});
      }
      void operator()(ListRequest& request) {
        subject->Carry<ListResponse>(id, std::move(request), &Registry::List, {});
      }
      MachineSubject* const subject;
      const CallId id;
    };
    std::visit(Visitor{this, call.id}, call.request);
  }

  void Send(CallId id, Batch batch) {
    EXPECT_EQ(batch.Check(kDefaultMaxBatch), absl::OkStatus());
    std::vector<std::string> keys;
    keys.reserve(batch.size());
    for (const Intent& intent : batch.intents()) {
      keys.push_back(intent.key);
      if (world.keys_in_flight.count(intent.key) > 0) {
        absl::StrAppend(&world.violation, "two calls in flight for ", CanonicalKeyText(intent.key),
                        "\n");
      }
      world.keys_in_flight.insert(intent.key);
    }
    if (++world.calls_in_flight > world.max_calls_in_flight) {
      absl::StrAppend(&world.violation, world.calls_in_flight, " calls in flight\n");
    }
    Carry<BatchResult>(id, std::move(batch), &Registry::Write, std::move(keys));
  }

  // A call under way, until it is answered.
  struct Call {
    int life;
    std::vector<std::string> keys;
    input::Answered answered;
  };
  using CallPtr = std::unique_ptr<Call>;

  // Takes the call to the registry and its answer back, or not.
  template <typename Response, typename Request, typename Method>
  void Carry(CallId id, Request request, Method method, std::vector<std::string> keys) {
    LinkPlan plan = DecideFate(&world);
    Tell(id, plan);
    auto call = std::make_unique<Call>(Call{life_, std::move(keys), {id, absl::OkStatus()}});
    CallPtr given_up;
    if (plan.status.has_value()) {
      call->answered.answer = *std::move(plan.status);
      given_up = std::exchange(call, nullptr);
    }
    // What the registry still does is done, for any caller.
    if (plan.applied) {
      agenda_.After(plan.apply_after, [this, method, after = plan.answer_after,
                                       request = std::move(request),
                                       call = std::move(call)]() mutable {
        (target_.registry()->*method)(std::move(request), [&](absl::StatusOr<Response> response) {
          if (call == nullptr) return;
          if (response.ok()) {
            call->answered.answer = *std::move(response);
          } else {
            call->answered.answer = response.status();
          }
          AnswerAfter(after, std::move(call));
        });
      });
    }
    if (given_up != nullptr) AnswerAfter(plan.answer_after, std::move(given_up));
  }

  void AnswerAfter(absl::Duration delay, CallPtr call) {
    agenda_.After(delay, [this, call = std::move(call)] {
      if (call->life != life_) return;
      for (const std::string& key : call->keys) {
        world.keys_in_flight.erase(world.keys_in_flight.find(key));
      }
      if (!call->keys.empty()) --world.calls_in_flight;
      Run(std::move(call->answered));
    });
  }

  void Open(StreamId id, const SubscribeRequest& request) {
    const auto stream = std::make_shared<Stream>();
    streams_[id] = stream;
    const LinkPlan plan = DecideFate(&world);
    Tell(id, plan);
    const std::weak_ptr<Stream> weak = stream;
    if (plan.applied) {
      agenda_.After(plan.apply_after, [this, id, weak, request] {
        // One that was given up may arrive all the same, and has no caller.
        auto target =
            target_.registry()->Subscribe(request, std::make_shared<Listener>(this, id, weak));
        if (const StreamPtr stream = weak.lock()) stream->target = std::move(target);
      });
    }
    if (plan.status.has_value()) {
      agenda_.After(plan.answer_after, [this, id, weak, status = *plan.status] {
        if (weak.lock() != nullptr) Run(input::Streamed{id, nullptr, status});
      });
    }
  }

  void Tell(CallId id, const LinkPlan& plan) {
    if (!world.trace) return;
    world.trace(absl::StrCat("    call ", id, " applied ",
                             plan.applied ? absl::FormatDuration(plan.apply_after) : "never",
                             " answer ",
                             plan.status.has_value() ? plan.status->ToString() : "honest", " ",
                             absl::FormatDuration(plan.answer_after)));
  }

  // --- EventQueues: here they are heard at once.
  void Post(SubscriptionId subscription, EventPtr event) override {
    const auto it = subscribers_.find(subscription);
    if (it != subscribers_.end()) it->second->Hear(*event);
  }
  void PostEnd(SubscriptionId subscription, const absl::Status& status) override {
    const auto it = subscribers_.find(subscription);
    if (it != subscribers_.end()) it->second->End();
  }

  ModelTarget target_;
  Agenda agenda_;
  MemoryJournal journal_;
  uint64_t reported_ = 0;
  std::optional<Machine> machine_;
  Effects effects_;
  int64_t wake_nanos_ = 0;
  int life_ = 0;
  int minted_ = 0;
  Ticket last_ticket_ = 0;
  SubscriptionId last_subscription_ = 0;
  absl::flat_hash_map<Ticket, Caller> callers_;
  absl::flat_hash_map<SubscriptionId, std::shared_ptr<SubscriberModel>> subscribers_;
  absl::flat_hash_map<StreamId, StreamPtr> streams_;
};

// In blocks, which Bazel spreads over its shards.
constexpr int kBlocks = 8;

class MachineModelTest : public testing::TestWithParam<int> {};

TEST_P(MachineModelTest, TheRegistryHoldsTheLastIntentsWhenFaultsStop) {
  RunSeeds(40000, {kBlocks, GetParam()}, [](uint32_t seed) {
    MachineSubject subject;
    Story(seed, &subject).Run();
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, MachineModelTest, testing::Range(0, kBlocks));

}  // namespace
}  // namespace failback
