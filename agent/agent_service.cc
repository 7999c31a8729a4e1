#include "agent/agent_service.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/base/version.h"
#include "registry/failback/carried_record.h"
#include "registry/failback/merged_pages.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/page_token.h"
#include "registry/rpc/bounded_call.h"

namespace failback {
namespace {

using agent::v1::CancelRequest;
using agent::v1::CancelResponse;
using agent::v1::CarriedIntent;
using agent::v1::DrainRequest;
using agent::v1::DrainResponse;
using agent::v1::GetStatusRequest;
using agent::v1::GetStatusResponse;
using agent::v1::ListIntentsRequest;
using agent::v1::ListIntentsResponse;
using agent::v1::ListPendingRequest;
using agent::v1::ListPendingResponse;
using agent::v1::PendingOperation;
using agent::v1::ReportHealthRequest;
using agent::v1::ReportHealthResponse;
using agent::v1::RetryRequest;
using agent::v1::RetryResponse;

constexpr absl::Duration kDefaultDrainDeadline = absl::Seconds(10);
constexpr int kMaxIntents = 1000;
// Rows of the pending table that are made at once.
constexpr size_t kPendingPortion = 500;
constexpr absl::Duration kMaxDrainDeadline = absl::Hours(1);

// Listings, in page tokens.
constexpr char kPendingPages[] = "pending";
constexpr char kIntentPages[] = "intents";

// Where a page of the pending table ends: rows are sorted by id, then by upstream.
std::string PlaceOf(const PendingOperation& row) {
  return absl::StrCat(row.id(), "\n", row.upstream());
}

// Where a page of intents ends.
std::string PlaceOf(const CarriedRecord& record) {
  return absl::StrCat(record.key, "\n", record.upstream);
}

// After the row that ended the page before; if that is no longer there, after its key. `records`
// are sorted by key.
std::vector<CarriedRecord>::const_iterator PageBegin(const std::vector<CarriedRecord>& records,
                                                     const std::string& after) {
  const std::string key = after.substr(0, after.find('\n'));
  auto it = std::lower_bound(
      records.begin(), records.end(), key,
      [](const CarriedRecord& record, const std::string& place) { return record.key < place; });
  for (auto row = it; row != records.end() && row->key == key; ++row) {
    it = row + 1;
    if (PlaceOf(*row) == after) break;
  }
  return it;
}

// No states are all.
bool IsWanted(registry::v1::IntentState state, const google::protobuf::RepeatedField<int>& states) {
  return states.empty() || std::find(states.begin(), states.end(), state) != states.end();
}

void LogDrain(const absl::StatusOr<DrainResponse>& response, const std::string& by) {
  if (!response.ok()) {
    Log(LogLevel::kWarning, "drain failed", {{"status", response.status().ToString()}, {"by", by}});
    return;
  }
  LogFields fields = {{"unregistered", absl::StrCat(response->unregistered())},
                      {"remaining", absl::StrCat(response->remaining())},
                      {"persistent", absl::StrCat(response->persistent())},
                      {"by", by}};
  // Of several one stands for the others: what one outage leaves fails alike.
  if (response->left_size() > 0) {
    const agent::v1::DrainRemainder& first = response->left(0);
    const absl::Status why = StatusFromProto(first.last_status());
    fields.emplace_back("first", CanonicalKeyText(CanonicalKey(first.key())));
    fields.emplace_back("upstream", first.upstream());
    fields.emplace_back("error", why.ok()
                                     ? "not answered yet"
                                     : why.ToString(absl::StatusToStringMode::kWithNoExtraData));
  }
  Log(response->remaining() == 0 ? LogLevel::kInfo : LogLevel::kWarning, "drained", fields);
}

}  // namespace

AgentService::AgentService(FailbackGroup* registry, HashedWheelTimer* timer, absl::Time start_time,
                           std::shared_ptr<AccessControl> access, AddStatus add_status)
    : registry_(registry),
      start_time_(start_time),
      access_(std::move(access)),
      add_status_(std::move(add_status)),
      retries_(registry, timer) {}

AgentService::~AgentService() = default;

absl::Status AgentService::MayAsk(const grpc::CallbackServerContext& context,
                                  const char* call) const {
  return access_ == nullptr ? absl::OkStatus() : access_->CheckAny(context, call);
}

absl::Status AgentService::MayAdminister(const grpc::CallbackServerContext& context,
                                         const char* call) const {
  if (access_ == nullptr) return absl::OkStatus();
  return access_->Check(context, call, config::v1::PERMISSION_ADMINISTER);
}

std::string AgentService::CallerName(const grpc::CallbackServerContext& context,
                                     const char* call) const {
  if (access_ == nullptr) return context.peer();
  const absl::StatusOr<Identity> who = access_->Identify(context, call);
  return who.ok() ? absl::StrCat(who->ToString(), " at ", context.peer()) : context.peer();
}

absl::StatusOr<GetStatusResponse> AgentService::StatusFor(
    const grpc::CallbackServerContext& context) const {
  GetStatusResponse status = Status();
  if (access_ == nullptr) return status;
  const absl::StatusOr<Identity> who = access_->Identify(context, "GetStatus");
  if (!who.ok()) return who.status();
  const std::shared_ptr<const AccessRules> rules = access_->rules();
  if (rules->JudgeAll(*who, config::v1::PERMISSION_ADMINISTER, std::nullopt).ok()) return status;
  auto* const services = status.mutable_static_services();
  const auto hidden = [&](const agent::v1::StaticServiceStatus& service) {
    const InstanceKey& key = service.key();
    return !rules->Judge(*who, config::v1::PERMISSION_READ, key.namespace_(), key.service()).ok() &&
           !rules->Judge(*who, config::v1::PERMISSION_REGISTER, key.namespace_(), key.service())
                .ok();
  };
  services->erase(std::remove_if(services->begin(), services->end(), hidden), services->end());
  // Paths, addresses, and the words of other clients.
  if (status.has_config()) {
    status.mutable_config()->clear_file();
    status.mutable_config()->clear_error();
  }
  if (status.has_xds()) status.mutable_xds()->clear_last_refusal();
  const auto without_words = [](rpc::v1::Status* error) {
    *error = StatusToProto(WithoutWords(StatusFromProto(*error)));
  };
  for (auto& upstream : *status.mutable_upstreams()) {
    if (upstream.has_journal_error()) without_words(upstream.mutable_journal_error());
    if (!upstream.journal_damaged().empty()) upstream.set_journal_damaged("-");
    if (upstream.has_last_error()) without_words(upstream.mutable_last_error());
  }
  return status;
}

absl::StatusOr<agent::v1::CheckState> AgentService::Report(
    const grpc::CallbackServerContext& context, const ReportHealthRequest& request) const {
  StaticServiceSet::MayReport may_report;
  if (access_ != nullptr) {
    const absl::StatusOr<Identity> who = access_->Identify(context, "ReportHealth");
    if (!who.ok()) return who.status();
    const auto judge = [who = *who, rules = access_->rules()](const std::string& name_space,
                                                              const std::string& service) {
      return rules->Judge(who, config::v1::PERMISSION_REGISTER, name_space, service);
    };
    if (!request.namespace_().empty()) {
      absl::Status status = judge(request.namespace_(), request.service());
      if (!status.ok()) {
        return access_->Denied(*who, "ReportHealth", config::v1::PERMISSION_REGISTER,
                               std::move(status));
      }
    }
    may_report = [judge](const InstanceKey& key) {
      return judge(key.namespace_(), key.service()).ok();
    };
  }
  StaticServiceSet* const services = static_services_;
  if (services == nullptr) {
    return Refusal(registry::v1::ERROR_REASON_NOT_FOUND, "service: none is configured");
  }
  return services->Report(request, may_report);
}

void AgentService::SetStaticServices(StaticServiceSet* services) { static_services_ = services; }

void AgentService::SetConfigStatus(std::function<agent::v1::ConfigStatus()> status) {
  config_status_ = std::move(status);
}

void AgentService::OnDrain(std::function<void()> on_drain) { on_drain_ = std::move(on_drain); }

int64_t AgentService::local_sessions() const {
  const StaticServiceSet* const services = static_services_;
  const int64_t own = services != nullptr && services->has_session() ? 1 : 0;
  return std::max<int64_t>(0, registry_->local_sessions() - own);
}

GetStatusResponse AgentService::Status() const {
  GetStatusResponse response;
  response.set_version(kVersion);
  response.set_incarnation(registry_->incarnation());
  *response.mutable_start_time() = ToProto(start_time_);
  for (auto& upstream : registry_->UpstreamStatuses()) {
    *response.add_upstreams() = std::move(upstream);
  }
  response.set_local_sessions(static_cast<uint64_t>(local_sessions()));
  response.set_draining(registry_->draining());
  if (const StaticServiceSet* services = static_services_; services != nullptr) {
    for (auto& status : services->Status()) {
      *response.add_static_services() = std::move(status);
    }
  }
  if (config_status_ != nullptr) *response.mutable_config() = config_status_();
  if (access_ != nullptr) {
    response.set_denied_calls(static_cast<uint64_t>(access_->counters().denied()));
  }
  if (add_status_ != nullptr) add_status_(&response);
  return response;
}

grpc::ServerUnaryReactor* AgentService::GetStatus(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  return BoundedCall<GetStatusRequest, GetStatusResponse>(
      context, *request, response, MayAsk(*context, "GetStatus"),
      [&](const GetStatusRequest&, Callback<GetStatusResponse> done) {
        std::move(done)(StatusFor(*context));
      });
}

absl::StatusOr<ListPendingResponse> AgentService::Pending(const ListPendingRequest& request) const {
  if (request.page_size() < 0) {
    return InvalidField("page_size", absl::StrCat(request.page_size(), " is negative"));
  }
  const absl::StatusOr<std::string> after = ParsePageToken(kPendingPages, request.page_token());
  if (!after.ok()) return after.status();
  ListPendingResponse response;
  // A page begins after the row that ended the one before. Rows come in portions, so that a page of
  // many thousand takes no more memory than its own.
  std::string place = *after;
  size_t bytes = 0;
  while (true) {
    PendingRange range{place.substr(0, place.find('\n')), kPendingPortion};
    if (request.page_size() > 0) {
      const auto left = static_cast<size_t>(request.page_size() - response.operations_size());
      // Those of the id at which it begins have been seen, and one more tells of a next page.
      range.most = std::min(range.most, left + FailbackGroup::kMaxUpstreams + 1);
    }
    std::vector<PendingOperation> rows = registry_->Pending(range);
    for (PendingOperation& row : rows) {
      std::string of_row = PlaceOf(row);
      if (of_row <= place) continue;
      bytes += row.ByteSizeLong();
      if (PageIsFull(response.operations_size(), request.page_size(), bytes)) {
        response.set_next_page_token(PageToken(kPendingPages, place));
        return response;
      }
      *response.add_operations() = std::move(row);
      place = std::move(of_row);
    }
    if (rows.size() < range.most) return response;
  }
}

absl::StatusOr<ListIntentsResponse> AgentService::Intents(const ListIntentsRequest& request) const {
  if (request.page_size() < 0) {
    return InvalidField("page_size", absl::StrCat(request.page_size(), " is negative"));
  }
  const int size =
      request.page_size() == 0 ? kMaxIntents : std::min(request.page_size(), kMaxIntents);
  const absl::StatusOr<std::string> after = ParsePageToken(kIntentPages, request.page_token());
  if (!after.ok()) return after.status();
  const std::vector<CarriedRecord> records = registry_->Carried();
  ListIntentsResponse response;
  size_t bytes = 0;
  auto last = records.end();  // of the page
  for (auto it = PageBegin(records, *after); it != records.end(); ++it) {
    if (!IsWanted(it->state, request.states())) continue;
    CarriedIntent intent = it->ToProto();
    bytes += intent.ByteSizeLong();
    if (PageIsFull(response.intents_size(), size, bytes)) {
      response.set_next_page_token(PageToken(kIntentPages, PlaceOf(*last)));
      break;
    }
    *response.add_intents() = std::move(intent);
    last = it;
  }
  return response;
}

void AgentService::RetryNow(const RetryRequest& request, Callback<RetryResponse> done) {
  retries_.Retry(request, std::move(done));
}

void AgentService::GiveUp(const CancelRequest& request, Callback<CancelResponse> done) {
  if (request.selector().ids().empty() != request.all()) {
    return std::move(done)(InvalidField("selector.ids", request.all()
                                                            ? "must be empty when all is set"
                                                            : "is required, unless all is set"));
  }
  int64_t sent = 0;
  const absl::StatusOr<int64_t> cancelled = registry_->Cancel(request.selector(), &sent);
  if (!cancelled.ok()) return std::move(done)(cancelled.status());
  registry_->WhenDurable(
      [done = std::move(done), cancelled, sent](const absl::Status& status) mutable {
        if (!status.ok()) return std::move(done)(status);
        CancelResponse response;
        response.set_cancelled(*cancelled);
        response.set_sent(sent);
        std::move(done)(std::move(response));
      });
}

void AgentService::DrainWithin(const DrainRequest& request, const std::string& by,
                               const DrainCallback& done) {
  absl::Duration deadline = FromProto(request.deadline());
  if (deadline == absl::ZeroDuration()) deadline = kDefaultDrainDeadline;
  if (deadline < absl::ZeroDuration() || deadline > kMaxDrainDeadline) {
    return done(InvalidField("deadline",
                             absl::StrCat(absl::FormatDuration(deadline), " is not in 0s..1h")));
  }
  DrainOnce(deadline, by, done);
}

grpc::ServerUnaryReactor* AgentService::ListPending(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return BoundedCall<ListPendingRequest, ListPendingResponse>(
      context, *request, response, MayAdminister(*context, "ListPending"),
      [this](const ListPendingRequest& request, Callback<ListPendingResponse> done) {
        std::move(done)(Pending(request));
      });
}

grpc::ServerUnaryReactor* AgentService::Retry(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return BoundedCall<RetryRequest, RetryResponse>(
      context, *request, response, MayAdminister(*context, "Retry"),
      [this](const RetryRequest& request, Callback<RetryResponse> done) {
        RetryNow(request, std::move(done));
      });
}

grpc::ServerUnaryReactor* AgentService::ListIntents(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return BoundedCall<ListIntentsRequest, ListIntentsResponse>(
      context, *request, response, MayAdminister(*context, "ListIntents"),
      [this](const ListIntentsRequest& request, Callback<ListIntentsResponse> done) {
        std::move(done)(Intents(request));
      });
}

grpc::ServerUnaryReactor* AgentService::Cancel(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return BoundedCall<CancelRequest, CancelResponse>(
      context, *request, response, MayAdminister(*context, "Cancel"),
      [this](const CancelRequest& request, Callback<CancelResponse> done) {
        GiveUp(request, std::move(done));
      });
}

grpc::ServerUnaryReactor* AgentService::Drain(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return BoundedCall<DrainRequest, DrainResponse>(
      context, *request, response, MayAdminister(*context, "Drain"),
      [&](const DrainRequest& request, Callback<DrainResponse> done) {
        // It runs once, and is copied until then.
        auto once = std::make_shared<Callback<DrainResponse>>(std::move(done));
        DrainWithin(
            request, CallerName(*context, "Drain"),
            [once](const absl::StatusOr<DrainResponse>& result) { std::move (*once)(result); });
      });
}

grpc::ServerUnaryReactor* AgentService::ReportHealth(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return BoundedCall<ReportHealthRequest, ReportHealthResponse>(
      context, *request, response, MayAsk(*context, "ReportHealth"),
      [&](const ReportHealthRequest& request, Callback<ReportHealthResponse> done) {
        const absl::StatusOr<agent::v1::CheckState> state = Report(*context, request);
        if (!state.ok()) return std::move(done)(state.status());
        ReportHealthResponse reported;
        reported.set_state(*state);
        std::move(done)(std::move(reported));
      });
}

void AgentService::DrainOnce(absl::Duration deadline, const std::string& by,
                             const DrainCallback& done) {
  std::optional<DrainResponse> complete;
  bool start = false;
  bool first = false;
  {
    MutexLock lock(&drain_->mu);
    complete = drain_->complete;
    if (!complete.has_value()) {
      drain_->waiting.push_back(done);
      start = !std::exchange(drain_->under_way, true);
      first = !std::exchange(drain_->begun, true);
    }
  }
  if (complete.has_value()) return done(*complete);
  if (!start) return;
  if (first) {
    retries_.Close();
    if (on_drain_ != nullptr) on_drain_();
  }
  registry_->Drain(deadline, [drain = drain_, by](const absl::StatusOr<DrainResponse>& response) {
    LogDrain(response, by);
    std::vector<DrainCallback> waiting;
    {
      MutexLock lock(&drain->mu);
      drain->under_way = false;
      if (response.ok() && response->remaining() == 0) drain->complete = *response;
      waiting.swap(drain->waiting);
    }
    for (const DrainCallback& callback : waiting) callback(response);
  });
}

}  // namespace failback
