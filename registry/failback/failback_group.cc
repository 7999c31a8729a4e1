#include "registry/failback/failback_group.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/failback/group_sessions.h"
#include "registry/failback/group_state_dir.h"
#include "registry/failback/merged_pages.h"
#include "registry/failback/status_policy.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/validation.h"
#include "registry/watch/merged_set.h"
#include "registry/watch/owned_listener.h"
#include "registry/watch/serial_notifier.h"
#include "retry/mutex.h"

namespace failback {
namespace {

// Waits for the answers of one call at each member.
template <typename Response>
class Gather : public std::enable_shared_from_this<Gather<Response>> {
 public:
  using Answers = std::vector<absl::StatusOr<Response>>;
  using Done = absl::AnyInvocable<void(Answers) &&>;

  Gather(size_t members, Done done)
      : done_(std::move(done)),
        answers_(members, absl::UnknownError("no answer")),
        missing_(members) {}

  Callback<Response> Of(size_t member) {
    return [self = this->shared_from_this(), member](absl::StatusOr<Response> answer) {
      self->Answered(member, std::move(answer));
    };
  }

 private:
  void Answered(size_t member, absl::StatusOr<Response> answer) {
    {
      MutexLock lock(&mu_);
      answers_[member] = std::move(answer);
      if (--missing_ > 0) return;
    }
    std::move(done_)(std::move(answers_));
  }

  Done done_;  // used once, by the last one
  Mutex mu_;
  Answers answers_;
  size_t missing_ ABSL_GUARDED_BY(mu_);
};

absl::Status NameError(const std::string& name, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("upstream '", name, "': ", problem));
}

absl::Status ValidateName(const std::string& name) {
  const auto bad = [](char c) { return c <= ' ' || c > '~'; };
  if (name.empty()) return NameError(name, "has no name");
  if (name.size() > kMaxServiceLength) {
    return NameError(name, absl::StrCat("is longer than ", kMaxServiceLength, " characters"));
  }
  if (std::any_of(name.begin(), name.end(), bad)) {
    return NameError(name, "has a space or a character that is not printable ASCII");
  }
  return absl::OkStatus();
}

}  // namespace

// One subscription at every member, merged into one.
class FailbackGroup::Merged : public std::enable_shared_from_this<Merged> {
 public:
  // The subscriber resumes from the position of `request`, if that has one.
  Merged(size_t members, const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener)
      : owner_(OwnerOf(listener.get())),
        notifier_(std::move(listener)),
        epoch_(request.epoch()),
        revision_(request.revision()),
        set_(members, FirstEpoch()),
        apart_(epoch_ != 0 || revision_ != 0) {}

  // Receives the events of one member.
  class Source final : public OwnedListener {
   public:
    Source(std::shared_ptr<Merged> merged, size_t member)
        : merged_(std::move(merged)), member_(member) {}
    const std::string& owner() const override { return merged_->owner_; }
    void OnEvent(const EventPtr& event) override { merged_->OnEvent(member_, *event); }
    void OnEnd(const absl::Status& status) override { merged_->End(status); }

   private:
    const std::shared_ptr<Merged> merged_;
    const size_t member_;
  };

  // The subscriber's handle.
  class Stream final : public SubscribeStream {
   public:
    explicit Stream(std::shared_ptr<Merged> merged) : merged_(std::move(merged)) {}
    ~Stream() override {
      streams_.clear();
      merged_->Close();
    }
    void Add(std::unique_ptr<SubscribeStream> stream) { streams_.push_back(std::move(stream)); }

   private:
    const std::shared_ptr<Merged> merged_;
    std::vector<std::unique_ptr<SubscribeStream>> streams_;
  };

  // Begins after `grace` with what is known by then.
  void BeginAfter(HashedWheelTimer* timer, absl::Duration grace) {
    auto timeout = timer->PutBack(
        [weak = weak_from_this()] {
          if (auto self = weak.lock()) self->Begin();
        },
        grace);
    MutexLock lock(&mu_);
    if (!timeout.ok() || ended_) return;
    begin_ = *std::move(timeout);
  }

  void End(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      ended_ = true;
      begin_.Cancel();
      notifier_.PostEnd(status);
    }
    notifier_.Deliver();
  }

 private:
  // Epochs are compared for equality only, and must not be those of another life of the process.
  static uint64_t FirstEpoch() { return Digest64(RandomId()) | 1; }

  void OnEvent(size_t member, const Event& event) {
    {
      MutexLock lock(&mu_);
      Publish(set_.Apply(member, event));
    }
    notifier_.Deliver();
  }

  void Begin() {
    {
      MutexLock lock(&mu_);
      if (EventPtr event = set_.Begin(); event != nullptr || !apart_) {
        Publish(std::move(event));
      } else if (!std::exchange(told_stale_, true)) {  // nothing is known anywhere
        notifier_.Post(StaleAt(epoch_, revision_));
      }
    }
    notifier_.Deliver();
  }

  // One who resumes may have seen more than was known here when every upstream became unavailable:
  // it is notified only that its set is stale, until an upstream has sent the current state.
  void Publish(EventPtr event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (event == nullptr) return;
    if (!apart_) {
      notifier_.Post(std::move(event));
    } else if (set_.AnyFresh()) {
      apart_ = false;
      notifier_.Post(set_.Current());
    } else if (!std::exchange(told_stale_, true)) {
      notifier_.Post(StaleAt(epoch_, revision_));
    }
  }

  void Close() {
    {
      MutexLock lock(&mu_);
      ended_ = true;
      begin_.Cancel();
    }
    notifier_.Close();
  }

  const std::string owner_;
  SerialNotifier notifier_;
  const uint64_t epoch_;
  const uint64_t revision_;
  Mutex mu_;
  MergedSet set_ ABSL_GUARDED_BY(mu_);
  bool apart_ ABSL_GUARDED_BY(mu_);
  bool told_stale_ ABSL_GUARDED_BY(mu_) = false;
  Timeout begin_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// --- Life.

absl::StatusOr<std::unique_ptr<FailbackGroup>> FailbackGroup::Create(
    std::vector<Upstream> upstreams, const FailbackRegistry::Options& options) {
  if (options.timer == nullptr) return absl::InvalidArgumentError("timer: is required");
  if (upstreams.empty()) return absl::InvalidArgumentError("upstreams: names none");
  if (upstreams.size() > kMaxUpstreams) {
    return absl::InvalidArgumentError(absl::StrCat("upstreams: ", upstreams.size(),
                                                   " are more than the ", kMaxUpstreams,
                                                   " that one agent can have"));
  }
  std::set<std::string> names;
  for (Upstream& upstream : upstreams) {
    if (upstream.name.empty()) upstream.name = upstream.uri;
    if (absl::Status status = ValidateName(upstream.name); !status.ok()) return status;
    if (!names.insert(upstream.name).second) return NameError(upstream.name, "is there twice");
  }
  std::unique_ptr<FailbackGroup> group(new FailbackGroup(options));
  if (absl::Status status = group->Open(std::move(upstreams), options); !status.ok()) {
    return status;
  }
  return group;
}

FailbackGroup::FailbackGroup(const FailbackRegistry::Options& options)
    : begin_grace_(options.stale_grace), timer_(options.timer) {}

absl::Status FailbackGroup::Open(std::vector<Upstream> upstreams,
                                 const FailbackRegistry::Options& options) {
  auto members = std::make_shared<Members>(upstreams.size());
  std::optional<GroupStateDir> state;
  if (!options.state_dir.empty()) {
    auto opened = GroupStateDir::Open(options.state_dir);
    if (!opened.ok()) return opened.status();
    state = *std::move(opened);
  }
  // Those that were there last time first: the others begin with what they hold.
  std::optional<std::vector<IntentJournal::Intent>> held;
  for (const bool former : {true, false}) {
    for (size_t i = 0; i < upstreams.size(); ++i) {
      Upstream& upstream = upstreams[i];
      const bool was_there = state.has_value() && state->WasThere(upstream.name);
      if (was_there != former) continue;
      FailbackRegistry::Options own = options;
      own.upstream_name = upstream.name;
      if (state.has_value()) {
        own.state_dir = state->Folder(upstream.name);
        if (!former) {
          if (!held.has_value()) {
            auto taken = state->TakeOver();
            if (!taken.ok()) return taken.status();
            held = *std::move(taken);
          }
          own.adopt = held;
        }
      }
      auto registry = FailbackRegistry::Create(std::move(upstream.registry), std::move(own));
      if (!registry.ok()) return registry.status();
      (*members)[i] = {upstream.name, upstream.uri, *std::move(registry)};
      if (former && !held.has_value()) held = (*members)[i].registry->PresentIntents();
    }
  }
  members_ = std::move(members);
  if (!state.has_value()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const Member& member : *members_) names.push_back(member.name);
  absl::Status kept = state->Keep(names);
  lock_ = state->TakeLock();
  return kept;
}

FailbackGroup::~FailbackGroup() {
  if (members_ == nullptr) return;
  for (const Member& member : *members_) member.registry->Shutdown();
}

// --- Calls at every member.

template <typename Request>
std::vector<Request> FailbackGroup::Split(const Request& request) const {
  const std::vector<std::string> ids = SplitSessionId(request.session_id(), members_->size());
  std::vector<Request> requests(members_->size(), request);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].set_session_id(ids[i]);
  return requests;
}

template <typename Method, typename Request, typename Response, typename Merge>
void FailbackGroup::CallAll(Method method, std::vector<Request> requests, Callback<Response> done,
                            Merge merge) const {
  const auto members = members_;  // a callback may destroy the group
  if (members->size() == 1) {
    Registry& only = *members->front().registry;
    return (only.*method)(std::move(requests.front()), std::move(done));
  }
  auto gather = std::make_shared<Gather<Response>>(
      members->size(), [done = std::move(done), merge = std::move(merge)](
                           std::vector<absl::StatusOr<Response>> answers) mutable {
        std::vector<Response> responses;
        for (auto& answer : answers) {
          if (!answer.ok()) return std::move(done)(answer.status());
          responses.push_back(*std::move(answer));
        }
        std::move(done)(merge(std::move(responses)));
      });
  for (size_t i = 0; i < members->size(); ++i) {
    Registry& member = *(*members)[i].registry;
    (member.*method)(std::move(requests[i]), gather->Of(i));
  }
}

void FailbackGroup::OpenSession(const OpenSessionRequest& request,
                                Callback<OpenSessionResponse> done) {
  const std::vector<OpenSessionRequest> requests(members_->size(), request);
  CallAll(&Registry::OpenSession, requests, std::move(done), [](auto responses) {
    OpenSessionResponse merged = responses.front();
    std::vector<std::string> ids;
    uint64_t epoch = 0;
    for (const OpenSessionResponse& response : responses) {
      ids.push_back(response.session_id());
      epoch ^= response.epoch();
      merged.set_resumed(merged.resumed() && response.resumed());
    }
    merged.set_session_id(JoinSessionIds(ids));
    merged.set_epoch(epoch | 1);
    return merged;
  });
}

void FailbackGroup::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  CallAll(&Registry::KeepAlive, Split(request), std::move(done),
          [id = request.session_id()](auto responses) {
            KeepAliveResponse merged = responses.front();
            uint64_t epoch = 0;
            for (const KeepAliveResponse& response : responses) epoch ^= response.epoch();
            merged.set_session_id(id);
            merged.set_epoch(epoch | 1);
            return merged;
          });
}

void FailbackGroup::CloseSession(const CloseSessionRequest& request,
                                 Callback<CloseSessionResponse> done) {
  CallAll(&Registry::CloseSession, Split(request), std::move(done),
          [](auto responses) { return responses.front(); });
}

BatchResult FailbackGroup::MergeResults(const Members& members,
                                        const std::vector<BatchResult>& results) {
  BatchResult merged;
  merged.results.resize(results.front().results.size());
  for (size_t item = 0; item < merged.results.size(); ++item) {
    registry::v1::IntentResult& result = merged.results[item];
    for (size_t i = 0; i < results.size(); ++i) {
      const registry::v1::IntentResult& own = results[i].results[item];
      registry::v1::TargetResult& target = *result.add_targets();
      target.set_upstream(members[i].name);
      target.set_generation(own.generation());
      target.set_state(own.state());
      if (own.has_status()) *target.mutable_status() = own.status();
      result.set_state(i == 0 ? own.state() : LesserState(result.state(), own.state()));
      if (result.has_status() || own.status().code() == 0) continue;
      *result.mutable_status() = own.status();
      result.mutable_status()->set_message(
          absl::StrCat(members[i].name, ": ", own.status().message()));
    }
    result.set_generation(results.front().results[item].generation());
  }
  return merged;
}

void FailbackGroup::Write(Batch batch, Callback<BatchResult> done) {
  if (const auto members = members_; members->size() == 1) {
    return members->front().registry->Write(std::move(batch), std::move(done));
  }
  const std::vector<std::string> ids = SplitSessionId(batch.session_id(), members_->size());
  std::vector<Batch> batches(members_->size(), batch);
  for (size_t i = 0; i < batches.size(); ++i) batches[i].set_session_id(ids[i]);
  CallAll(&Registry::Write, std::move(batches), std::move(done),
          [members = members_, asked = batch.generations()](std::vector<BatchResult> results) {
            for (BatchResult& result : results) FillIn(asked, &result);
            return MergeResults(*members, results);
          });
}

// --- Subscriptions and listings.

absl::Status FailbackGroup::CheckUpstream(const std::string& field,
                                          const std::string& upstream) const {
  if (upstream.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const Member& member : *members_) {
    if (member.name == upstream) return absl::OkStatus();
    names.push_back(member.name);
  }
  return InvalidField(field,
                      absl::StrCat(Quoted(upstream), " is not an upstream of this agent, as ",
                                   absl::StrJoin(names, ", ")));
}

std::unique_ptr<SubscribeStream> FailbackGroup::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  const auto members = members_;
  auto merged = std::make_shared<Merged>(members->size(), request, listener);
  auto stream = std::make_unique<Merged::Stream>(merged);
  if (absl::Status status = CheckUpstream("upstream", request.upstream()); !status.ok()) {
    merged->End(status);
    return stream;
  }
  if (members->size() == 1) {
    return members->front().registry->Subscribe(request, std::move(listener));
  }
  std::vector<SubscribeRequest> requests = Split(request);
  if (request.upstream().empty()) {
    merged->BeginAfter(timer_, begin_grace_);
    // The position is one of the merged stream.
    for (SubscribeRequest& own : requests) {
      own.clear_epoch();
      own.clear_revision();
    }
  }
  std::unique_ptr<SubscribeStream> only;
  for (size_t i = 0; i < members->size(); ++i) {
    FailbackRegistry& member = *(*members)[i].registry;
    if (request.upstream().empty()) {
      stream->Add(member.Subscribe(requests[i], std::make_shared<Merged::Source>(merged, i)));
    } else if (request.upstream() == (*members)[i].name) {
      only = member.Subscribe(requests[i], listener);
    } else if (!request.session_id().empty()) {
      // An older subscription of this name may have been at the others.
      UnsubscribeRequest older;
      older.set_session_id(requests[i].session_id());
      older.set_subscription_id(request.subscription_id());
      member.Unsubscribe(older, [](const absl::StatusOr<UnsubscribeResponse>&) {});
    }
  }
  if (only != nullptr) return only;
  return stream;
}

void FailbackGroup::SetOffline(const SetOfflineRequest& request,
                               Callback<SetOfflineResponse> done) {
  const auto members = members_;
  if (absl::Status status = CheckUpstream("upstream", request.upstream()); !status.ok()) {
    return std::move(done)(status);
  }
  SetOfflineRequest forwarded = request;
  forwarded.clear_upstream();
  for (const Member& member : *members) {
    if (members->size() > 1 && request.upstream() != member.name) continue;
    return member.registry->SetOffline(forwarded, std::move(done));
  }
  auto gather = std::make_shared<Gather<SetOfflineResponse>>(
      members->size(), [members, done = std::move(done)](
                           std::vector<absl::StatusOr<SetOfflineResponse>> answers) mutable {
        const absl::StatusOr<SetOfflineResponse>* best = nullptr;
        for (size_t i = 0; i < answers.size(); ++i) {
          // One that does not have the instance has nothing to do.
          if (!answers[i].ok() && !absl::IsNotFound(answers[i].status())) {
            return std::move(done)(absl::Status(
                answers[i].status().code(),
                absl::StrCat((*members)[i].name, ": ", answers[i].status().message())));
          }
          if (best == nullptr || (!best->ok() && answers[i].ok())) best = &answers[i];
        }
        std::move(done)(*best);
      });
  for (size_t i = 0; i < members->size(); ++i) {
    (*members)[i].registry->SetOffline(forwarded, gather->Of(i));
  }
}

void FailbackGroup::Unsubscribe(const UnsubscribeRequest& request,
                                Callback<UnsubscribeResponse> done) {
  CallAll(&Registry::Unsubscribe, Split(request), std::move(done),
          [](auto responses) { return responses.front(); });
}

void FailbackGroup::List(const ListRequest& request, Callback<ListResponse> done) {
  const auto members = members_;
  if (absl::Status status = CheckUpstream("upstream", request.upstream()); !status.ok()) {
    return std::move(done)(status);
  }
  for (const Member& member : *members) {
    if (members->size() > 1 && request.upstream() != member.name) continue;
    return member.registry->List(request, std::move(done));
  }
  if (absl::Status status = ValidateList(request); !status.ok()) return std::move(done)(status);
  auto place = MergedPlace::Parse(request.page_token(), members->size());
  if (!place.ok()) return std::move(done)(place.status());
  auto gather = std::make_shared<Gather<ListResponse>>(
      members->size(), [page_size = request.page_size(), place = *place, done = std::move(done)](
                           std::vector<absl::StatusOr<ListResponse>> answers) mutable {
        // What the others know is the answer while one upstream is unavailable and this agent knows
        // nothing of what it has.
        const auto unavailable = [](const absl::StatusOr<ListResponse>& answer) {
          return IsConnectionFailure(answer.status()) && !IsDeniedUpstream(answer.status());
        };
        if (std::all_of(answers.begin(), answers.end(), unavailable)) {
          return std::move(done)(answers.front().status());
        }
        std::vector<ListResponse> pages;
        for (auto& answer : answers) {
          if (unavailable(answer)) {
            pages.emplace_back().set_stale(true);
          } else if (!answer.ok()) {
            return std::move(done)(answer.status());
          } else {
            pages.push_back(*std::move(answer));
          }
        }
        std::move(done)(MergePages(page_size, place, pages));
      });
  for (size_t i = 0; i < members->size(); ++i) {
    if (!place->tokens[i].has_value()) {
      gather->Of(i)(ListResponse());
      continue;
    }
    ListRequest own = request;
    own.set_page_token(*place->tokens[i]);
    (*members)[i].registry->List(own, gather->Of(i));
  }
}

// --- Operator.

std::string FailbackGroup::incarnation() const { return members_->front().registry->incarnation(); }

std::vector<agent::v1::UpstreamStatus> FailbackGroup::UpstreamStatuses() const {
  std::vector<agent::v1::UpstreamStatus> statuses;
  for (const Member& member : *members_) {
    agent::v1::UpstreamStatus& status = statuses.emplace_back(member.registry->UpstreamStatus());
    status.set_name(member.name);
    status.set_uri(member.uri);
    status.set_incarnation(member.registry->incarnation());
  }
  return statuses;
}

std::vector<FailbackStatistics> FailbackGroup::Stats() const {
  std::vector<FailbackStatistics> all;
  for (const Member& member : *members_) {
    all.emplace_back(member.registry->Stats()).upstream = member.name;
  }
  return all;
}

int64_t FailbackGroup::local_sessions() const {
  int64_t most = 0;
  for (const Member& member : *members_) most = std::max(most, member.registry->local_sessions());
  return most;
}

bool FailbackGroup::draining() const { return members_->front().registry->draining(); }

std::vector<agent::v1::PendingOperation> FailbackGroup::Pending() const {
  std::vector<agent::v1::PendingOperation> rows;
  for (const Member& member : *members_) {
    auto own = member.registry->Pending();
    std::move(own.begin(), own.end(), std::back_inserter(rows));
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::tie(a.id(), a.upstream()) < std::tie(b.id(), b.upstream());
  });
  return rows;
}

std::vector<agent::v1::CarriedIntent> FailbackGroup::Carried(const std::string& begins) const {
  std::vector<std::pair<std::string, agent::v1::CarriedIntent>> rows;
  for (const Member& member : *members_) {
    for (agent::v1::CarriedIntent& intent : member.registry->Carried(begins)) {
      intent.set_upstream(member.name);
      rows.emplace_back(CanonicalKey(intent.instance().key()), std::move(intent));
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<agent::v1::CarriedIntent> intents;
  intents.reserve(rows.size());
  for (auto& [key, intent] : rows) intents.push_back(std::move(intent));
  return intents;
}

absl::StatusOr<int64_t> FailbackGroup::ForPending(const agent::v1::PendingSelector& selector,
                                                  Act act) {
  const auto members = members_;
  if (absl::Status status = CheckUpstream("selector.upstream", selector.upstream()); !status.ok()) {
    return status;
  }
  std::set<std::string> unknown(selector.ids().begin(), selector.ids().end());
  std::vector<std::vector<std::string>> ids(members->size());
  const auto meant = [&](const Member& member) {
    return selector.upstream().empty() || selector.upstream() == member.name;
  };
  for (size_t i = 0; i < members->size(); ++i) {
    if (!meant((*members)[i])) continue;
    std::set<std::string> pending;
    for (const auto& row : (*members)[i].registry->Pending()) pending.insert(row.id());
    for (const std::string& id :
         std::set<std::string>(selector.ids().begin(), selector.ids().end())) {
      if (pending.count(id) == 0) continue;
      unknown.erase(id);
      ids[i].push_back(id);
    }
  }
  if (!unknown.empty()) {
    return Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                   absl::StrCat(Quoted(*unknown.begin(), kMaxQuotedId),
                                " is not pending; `failbackctl pending` lists what is"));
  }
  int64_t sum = 0;
  for (size_t i = 0; i < members->size(); ++i) {
    const Member& member = (*members)[i];
    if (!meant(member) || (!selector.ids().empty() && ids[i].empty())) continue;
    const absl::StatusOr<int64_t> count = act(member.registry.get(), ids[i]);
    // One that was acknowledged meanwhile needs nothing any more.
    if (count.ok()) {
      sum += *count;
    } else if (!absl::IsNotFound(count.status())) {
      return count.status();
    }
  }
  return sum;
}

absl::StatusOr<int64_t> FailbackGroup::Retry(const agent::v1::PendingSelector& selector) {
  return ForPending(selector, [](FailbackRegistry* registry, const std::vector<std::string>& ids) {
    return registry->Retry(ids);
  });
}

absl::StatusOr<int64_t> FailbackGroup::Cancel(const agent::v1::PendingSelector& selector,
                                              int64_t* sent) {
  return ForPending(selector,
                    [sent](FailbackRegistry* registry, const std::vector<std::string>& ids) {
                      return registry->Cancel(ids, sent);
                    });
}

void FailbackGroup::WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done) {
  const auto members = members_;
  auto gather = std::make_shared<Gather<bool>>(
      members->size(),
      [done = std::move(done)](const std::vector<absl::StatusOr<bool>>& answers) mutable {
        for (const auto& answer : answers) {
          if (!answer.ok()) return std::move(done)(answer.status());
        }
        std::move(done)(absl::OkStatus());
      });
  for (size_t i = 0; i < members->size(); ++i) {
    (*members)[i].registry->WhenDurable([of = gather->Of(i)](const absl::Status& status) mutable {
      std::move(of)(status.ok() ? absl::StatusOr<bool>(true) : status);
    });
  }
}

void FailbackGroup::Drain(absl::Duration deadline, Callback<agent::v1::DrainResponse> done) {
  const auto members = members_;
  using agent::v1::DrainResponse;
  auto gather = std::make_shared<Gather<DrainResponse>>(
      members->size(),
      [done = std::move(done)](const std::vector<absl::StatusOr<DrainResponse>>& answers) mutable {
        DrainResponse sum;
        for (const auto& answer : answers) {
          if (!answer.ok()) return std::move(done)(answer.status());
          sum.set_unregistered(sum.unregistered() + answer->unregistered());
          sum.set_remaining(sum.remaining() + answer->remaining());
          sum.set_persistent(sum.persistent() + answer->persistent());
        }
        std::move(done)(std::move(sum));
      });
  for (size_t i = 0; i < members->size(); ++i) {
    (*members)[i].registry->Drain(deadline, gather->Of(i));
  }
}

}  // namespace failback
