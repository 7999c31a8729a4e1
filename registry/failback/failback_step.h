// What goes into a step of the failback machine, and what comes out of it: plain data.
//
// An input says what has happened: a call of a client's or an operator's, an answer or an event of
// the upstream's, a write of the journal, or that time has passed. So a run is the list of its
// inputs with their times, which can be recorded and replayed.
//
// Effects say what is to be done, without a lock. What has an order of its own among several steps
// is not in them: writes to the journal and events for subscribers are appended within the step, to
// the queues of MachineSinks.
//
// Thread safety: plain data.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_STEP_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/base/log.h"
#include "registry/failback/failback_options.h"
#include "registry/failback/intent_journal.h"
#include "registry/failback/known_list.h"
#include "registry/failback/upstream_machine.h"
#include "registry/model/batch.h"
#include "registry/model/event.h"
#include "registry/model/messages.h"

namespace failback {

// The moment of a step.
using Moment = UpstreamMachine::Now;

// Names a caller who waits for an answer, as its owner numbers them; and a call to the upstream
// until it is answered, a stream of it, a local subscription.
using Ticket = uint64_t;
using CallId = uint64_t;
using StreamId = uint64_t;
using SubscriptionId = uint64_t;

// What an operator's command has come to.
struct Counted {
  int64_t count = 0;
  int64_t sent = 0;  // of those cancelled, how many may still take effect
};

// What a call of a client's or an operator's is answered with, and one to the upstream. A status is
// an error, or that all is as asked.
using Answer = std::variant<absl::Status, BatchResult, OpenSessionResponse, KeepAliveResponse,
                            CloseSessionResponse, UnsubscribeResponse, ListResponse,
                            std::unique_ptr<const KnownList>, agent::v1::DrainResponse, Counted>;

namespace input {

// The first input: with what a journal has kept.
struct Start {
  std::vector<IntentJournal::Intent> intents;
  std::vector<IntentJournal::Snapshot> snapshots;
  uint64_t last_generation = 0;
  bool was_put_back = false;
};

// --- Of clients. Valid, as by registry/model/validation.h and Batch::Check.
struct OpenSession {
  Ticket ticket;
  OpenSessionRequest request;
};
struct KeepAlive {
  Ticket ticket;
  KeepAliveRequest request;
};
struct CloseSession {
  Ticket ticket;
  CloseSessionRequest request;
};
struct Write {
  Ticket ticket;
  Batch batch;
  std::string trace;  // of the call; empty: none
};
// Answered by events. Ids are never used again.
struct Subscribe {
  SubscriptionId id;
  SubscribeRequest request;
  std::string owner;  // empty: callers are not distinguished
  bool ends_when_refused = false;
};
// The subscriber has gone.
struct Detach {
  SubscriptionId id;
};
struct Unsubscribe {
  Ticket ticket;
  UnsubscribeRequest request;
};
struct List {
  Ticket ticket;
  ListRequest request;
};

// --- Of operators.
struct WhenDurable {
  Ticket ticket;
};
struct Retry {
  Ticket ticket;
  std::vector<std::string> ids;
};
struct Cancel {
  Ticket ticket;
  std::vector<std::string> ids;
};
struct Drain {
  Ticket ticket;
  absl::Duration deadline;
};

// --- Of the upstream.
// Exactly once for each of Effects::calls but a Subscribe.
struct Answered {
  CallId call;
  Answer answer;
};
// An event, or the end, of a stream that Effects::calls has asked for and `ended` does not name.
struct Streamed {
  StreamId stream;
  EventPtr event;  // null: it has ended
  absl::Status end;
};
// The connection broke while nothing was asked of it.
struct Disconnected {
  absl::Status status;
};

// --- Of the machine's owner.
// The calls that a step has asked for are made: it may ask for more.
struct Made {};
// The journal has tried to write what was appended up to `sequence`.
struct Journalled {
  uint64_t sequence;
  absl::Status status;
};
// Effects::wake_nanos has come, or Effects::more was set.
struct Tick {};
// The last but one: what only memory has is appended to the journal. The last: everyone who waits
// is answered; `journal` is how its last write ended.
struct Closing {};
struct Closed {
  absl::Status journal;
};

}  // namespace input

using Input =
    std::variant<input::Start, input::OpenSession, input::KeepAlive, input::CloseSession,
                 input::Write, input::Subscribe, input::Detach, input::Unsubscribe, input::List,
                 input::WhenDurable, input::Retry, input::Cancel, input::Drain, input::Answered,
                 input::Streamed, input::Disconnected, input::Made, input::Journalled, input::Tick,
                 input::Closing, input::Closed>;

// What a step asks for. Clear() keeps the capacity.
struct Effects {
  struct Call {
    CallId id;  // of a Subscribe its StreamId
    std::variant<Batch, SubscribeRequest, UnsubscribeRequest, OpenSessionRequest, KeepAliveRequest,
                 CloseSessionRequest, ListRequest>
        request;
    std::string trace;  // empty: none
  };
  struct Reply {
    Ticket ticket;
    Answer answer;
  };
  struct LogLine {
    LogLevel level;
    std::string event;
    LogFields fields;
  };

  // To be made in this order; then input::Made.
  std::vector<Call> calls;
  std::vector<Reply> replies;
  std::vector<IntentEvent> events;
  std::vector<LogLine> logs;
  // Streams of the upstream that are to be destroyed, after all the rest.
  std::vector<StreamId> ended;
  // When a Tick is due; Alarms::kNever: it is not.
  int64_t wake_nanos = 0;
  // There is more to do: let others have the lock, then Tick.
  bool more = false;

  void Clear() {
    calls.clear();
    replies.clear();
    events.clear();
    logs.clear();
    ended.clear();
    more = false;
  }
};

// The journal as a queue: what is appended becomes durable in that order, and input::Journalled
// says how far it has come.
class JournalQueue {
 public:
  virtual ~JournalQueue() = default;
  virtual int64_t NewRow() = 0;
  // Each returns its sequence.
  virtual uint64_t Put(IntentJournal::Intent intent) = 0;
  virtual uint64_t Remove(int64_t row) = 0;
  virtual uint64_t PutSnapshot(IntentJournal::Snapshot snapshot) = 0;
  virtual uint64_t ReplaceIncarnation(const std::string& refused,
                                      const std::string& incarnation) = 0;
  virtual void Settle() = 0;
};

// Events for local subscribers: each receives its own in the order in which they were appended.
class EventQueues {
 public:
  virtual ~EventQueues() = default;
  virtual void Post(SubscriptionId subscription, EventPtr event) = 0;
  // The last of it.
  virtual void PostEnd(SubscriptionId subscription, const absl::Status& status) = 0;
};

// Both outlive the machine, and are called within its steps only.
struct MachineSinks {
  JournalQueue* journal = nullptr;  // null: there is none
  EventQueues* subscribers = nullptr;
};

// What is not decided but taken from outside.
struct MachineSetup {
  FailbackOptions options;
  MachineSinks sinks;
  // Effects::events are wanted.
  bool events = false;
  // Names this process to the upstream; not 0.
  uint64_t process = 1;
  // Make new names: of an incarnation, of a local session of an owner.
  std::function<std::string()> new_incarnation;
  std::function<std::string(const std::string& owner)> new_session_id;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_STEP_H_
