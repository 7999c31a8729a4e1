#include "registry/failback/failback_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_core.h"
#include "registry/model/ids.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

absl::Status ValidateOptions(const FailbackRegistry::Options& options) {
  if (options.timer == nullptr) return absl::InvalidArgumentError("timer: is required");
  const auto at_least = [](const char* name, double value, int64_t least) {
    if (value >= static_cast<double>(least)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", value, " is not ", least, " or more"));
  };
  const auto not_negative = [](const char* name, absl::Duration value) {
    if (value >= absl::ZeroDuration()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", absl::FormatDuration(value), " is negative"));
  };
  OpenSessionRequest session;
  session.set_incarnation(options.incarnation);
  session.set_client_name(options.client_name);
  for (const absl::Status& status :
       {at_least("max_calls_in_flight", options.max_calls_in_flight, 1),
        at_least("max_batch", options.max_batch, 1),
        at_least("max_records", options.max_records, 1),
        at_least("max_pending", options.max_pending, 1),
        at_least("max_subscriptions", options.max_subscriptions, 1),
        at_least("max_listeners", options.max_listeners, 1),
        at_least("max_sessions", options.max_sessions, 1),
        at_least("retries_per_second", options.retries_per_second, 1),
        at_least("retry_burst", options.retry_burst, 1),
        not_negative("session_ttl", options.session_ttl),
        not_negative("superseded_period", options.superseded_period),
        at_least("max_local_ttl", absl::ToDoubleSeconds(options.max_local_ttl), 1),
        not_negative("stale_grace", options.stale_grace),
        not_negative("empty_snapshot_hold", options.empty_snapshot_hold),
        not_negative("anti_entropy_interval", options.anti_entropy_interval),
        ValidateRetryPolicy("retry", options.retry),
        ValidateBackoff("reconnect", options.reconnect), ValidateOpenSession(session)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FailbackRegistry>> FailbackRegistry::Create(
    std::unique_ptr<Registry> upstream, Options options) {
  if (upstream == nullptr) return absl::InvalidArgumentError("upstream: is required");
  const bool unnamed = options.incarnation.empty();
  if (unnamed) options.incarnation = RandomId();
  if (absl::Status status = ValidateOptions(options); !status.ok()) return status;
  if (options.random == nullptr) options.random = EntropyRandom();
  std::shared_ptr<IntentJournal> journal;
  if (!options.state_dir.empty()) {
    IntentJournal::Options journal_options;
    journal_options.dir = options.state_dir;
    if (!unnamed) journal_options.incarnation = options.incarnation;
    journal_options.full_sync = options.full_sync;
    journal_options.timer = options.timer;
    journal_options.manual = options.manual_journal;
    auto opened = IntentJournal::Open(std::move(journal_options));
    if (!opened.ok()) return opened.status();
    journal = *std::move(opened);
    options.incarnation = journal->incarnation();
  }
  auto core = Core::Create(std::move(upstream), std::move(options), std::move(journal));
  core->Start();
  return std::unique_ptr<FailbackRegistry>(new FailbackRegistry(std::move(core)));
}

FailbackRegistry::FailbackRegistry(std::shared_ptr<Core> core) : core_(std::move(core)) {}

FailbackRegistry::~FailbackRegistry() { core_->Shutdown(); }

void FailbackRegistry::Shutdown() { core_->Shutdown(); }

std::vector<agent::v1::CarriedIntent> FailbackRegistry::Carried(const std::string& begins) const {
  return core_->Carried(begins);
}
std::vector<IntentJournal::Intent> FailbackRegistry::PresentIntents() const {
  return core_->PresentIntents();
}

void FailbackRegistry::OpenSession(const OpenSessionRequest& request,
                                   Callback<OpenSessionResponse> done) {
  core_->OpenSession(request, std::move(done));
}

void FailbackRegistry::KeepAlive(const KeepAliveRequest& request,
                                 Callback<KeepAliveResponse> done) {
  core_->KeepAlive(request, std::move(done));
}

void FailbackRegistry::CloseSession(const CloseSessionRequest& request,
                                    Callback<CloseSessionResponse> done) {
  core_->CloseSession(request, std::move(done));
}

void FailbackRegistry::Write(Batch batch, Callback<BatchResult> done) {
  core_->Write(std::move(batch), std::move(done));
}

std::unique_ptr<SubscribeStream> FailbackRegistry::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  return core_->Subscribe(request, std::move(listener));
}

void FailbackRegistry::Unsubscribe(const UnsubscribeRequest& request,
                                   Callback<UnsubscribeResponse> done) {
  core_->Unsubscribe(request, std::move(done));
}

void FailbackRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  core_->List(request, std::move(done));
}

void FailbackRegistry::SetOffline(const SetOfflineRequest& request,
                                  Callback<SetOfflineResponse> done) {
  core_->SetOffline(request, std::move(done));
}

std::string FailbackRegistry::incarnation() const { return core_->incarnation(); }

agent::v1::UpstreamStatus FailbackRegistry::UpstreamStatus() const {
  return core_->UpstreamStatus();
}

FailbackStatistics FailbackRegistry::Stats() const { return core_->Stats(); }

int64_t FailbackRegistry::local_sessions() const { return core_->local_sessions(); }

bool FailbackRegistry::draining() const { return core_->draining(); }

std::vector<agent::v1::PendingOperation> FailbackRegistry::Pending() const {
  return core_->Pending();
}

absl::StatusOr<int64_t> FailbackRegistry::Retry(const std::vector<std::string>& ids) {
  return core_->Retry(ids);
}

void FailbackRegistry::WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done) {
  core_->WhenDurable(std::move(done));
}

absl::StatusOr<int64_t> FailbackRegistry::Cancel(const std::vector<std::string>& ids,
                                                 int64_t* sent) {
  return core_->Cancel(ids, sent);
}

std::string FailbackRegistry::CheckInvariants() const { return core_->CheckInvariants(); }

void FailbackRegistry::Drain(absl::Duration deadline, Callback<agent::v1::DrainResponse> done) {
  core_->Drain(deadline, std::move(done));
}

}  // namespace failback
