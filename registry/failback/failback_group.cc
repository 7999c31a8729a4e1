#include "registry/failback/failback_group.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/failback/fan_out.h"
#include "registry/failback/group_sessions.h"
#include "registry/failback/group_state_dir.h"
#include "registry/failback/merged_pages.h"
#include "registry/failback/merged_subscription.h"
#include "registry/failback/status_policy.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

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

// --- Opening and closing.

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
  FanOut<Response>(
      *members,
      [&](size_t i, Registry& member, Callback<Response> done) {
        (member.*method)(std::move(requests[i]), std::move(done));
      },
      [done = std::move(done), merge = std::move(merge)](Answers<Response> answers) mutable {
        std::vector<Response> responses;
        for (auto& answer : answers) {
          if (!answer.ok()) return std::move(done)(answer.status());
          responses.push_back(*std::move(answer));
        }
        std::move(done)(merge(std::move(responses)));
      });
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
  CallAll(&Registry::Write, Split(batch), std::move(done),
          [members = members_, requested = batch.generations()](std::vector<BatchResult> results) {
            for (BatchResult& result : results) FillIn(requested, &result);
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

const FailbackGroup::Member* FailbackGroup::Only(const std::string& upstream) const {
  if (members_->size() == 1) return &members_->front();
  for (const Member& member : *members_) {
    if (member.name == upstream) return &member;
  }
  return nullptr;
}

std::unique_ptr<SubscribeStream> FailbackGroup::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  const auto members = members_;
  auto merged = std::make_shared<MergedSubscription>(members->size(), request, listener);
  auto stream = std::make_unique<MergedSubscription::Stream>(merged);
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
      stream->Add(
          member.Subscribe(requests[i], std::make_shared<MergedSubscription::Source>(merged, i)));
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
  if (const Member* only = Only(request.upstream()); only != nullptr) {
    return only->registry->SetOffline(forwarded, std::move(done));
  }
  FanOut<SetOfflineResponse>(
      *members,
      [&](size_t i, FailbackRegistry& member, Callback<SetOfflineResponse> done) {
        member.SetOffline(forwarded, std::move(done));
      },
      [members, done = std::move(done)](Answers<SetOfflineResponse> answers) mutable {
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
  if (const Member* only = Only(request.upstream()); only != nullptr) {
    return only->registry->List(request, std::move(done));
  }
  if (absl::Status status = ValidateList(request); !status.ok()) return std::move(done)(status);
  auto place = MergedPlace::Parse(request.page_token(), members->size());
  if (!place.ok()) return std::move(done)(place.status());
  FanOut<ListResponse>(
      *members,
      [&](size_t i, FailbackRegistry& member, Callback<ListResponse> done) {
        if (!place->tokens[i].has_value()) return std::move(done)(ListResponse());  // has no more
        ListRequest own = request;
        own.set_page_token(*place->tokens[i]);
        member.List(own, std::move(done));
      },
      [page_size = request.page_size(), place = *place,
       done = std::move(done)](Answers<ListResponse> answers) mutable {
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
}

}  // namespace failback
