#include "registry/failback/failback_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/trace_context.h"
#include "registry/failback/failback_shell.h"
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

// Hands a caller the answer as it is to be.
template <typename Response>
absl::AnyInvocable<void(Answer) &&> Answering(Callback<Response> done) {
  return [done = std::move(done)](Answer answer) mutable {
    if (auto* const response = std::get_if<Response>(&answer)) {
      return std::move(done)(std::move(*response));
    }
    const absl::Status& status = std::get<absl::Status>(answer);
    if (status.ok()) return std::move(done)(Response());
    std::move(done)(status);
  };
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
    if (options.manual_journal) journal_options.patience = absl::ZeroDuration();
    journal_options.disk = options.disk;
    auto opened = IntentJournal::Open(std::move(journal_options));
    if (!opened.ok()) return opened.status();
    journal = *std::move(opened);
    options.incarnation = journal->incarnation();
  }
  auto shell = std::make_shared<Shell>(std::move(upstream), std::move(options), std::move(journal));
  shell->Start();
  return std::unique_ptr<FailbackRegistry>(new FailbackRegistry(std::move(shell)));
}

FailbackRegistry::FailbackRegistry(std::shared_ptr<Shell> shell) : shell_(std::move(shell)) {}

FailbackRegistry::~FailbackRegistry() { shell_->Shutdown(); }

void FailbackRegistry::Shutdown() { shell_->Shutdown(); }

// --- Calls: what is wrong with one by itself is refused here; the machine decides the rest.

void FailbackRegistry::OpenSession(const OpenSessionRequest& request,
                                   Callback<OpenSessionResponse> done) {
  if (absl::Status status = ValidateOpenSession(request); !status.ok()) {
    return std::move(done)(status);
  }
  shell_->Ask(input::OpenSession{0, request}, Answering(std::move(done)));
}

void FailbackRegistry::KeepAlive(const KeepAliveRequest& request,
                                 Callback<KeepAliveResponse> done) {
  shell_->Ask(input::KeepAlive{0, request}, Answering(std::move(done)));
}

void FailbackRegistry::CloseSession(const CloseSessionRequest& request,
                                    Callback<CloseSessionResponse> done) {
  shell_->Ask(input::CloseSession{0, request}, Answering(std::move(done)));
}

void FailbackRegistry::Write(Batch batch, Callback<BatchResult> done) {
  if (absl::Status status = batch.Check(kDefaultMaxBatch); !status.ok()) {
    return std::move(done)(status);
  }
  shell_->Ask(input::Write{0, std::move(batch), CurrentTrace()}, Answering(std::move(done)));
}

std::unique_ptr<SubscribeStream> FailbackRegistry::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  return shell_->Subscribe(request, std::move(listener));
}

void FailbackRegistry::Unsubscribe(const UnsubscribeRequest& request,
                                   Callback<UnsubscribeResponse> done) {
  if (absl::Status status = ValidateUnsubscribe(request); !status.ok()) {
    return std::move(done)(status);
  }
  shell_->Ask(input::Unsubscribe{0, request}, Answering(std::move(done)));
}

void FailbackRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  if (absl::Status status = ValidateList(request); !status.ok()) return std::move(done)(status);
  shell_->Ask(input::List{0, request}, [done = std::move(done)](Answer answer) mutable {
    if (const auto* known = std::get_if<std::unique_ptr<const KnownList>>(&answer)) {
      return std::move(done)(PageOf(**known));
    }
    Answering(std::move(done))(std::move(answer));
  });
}

void FailbackRegistry::SetOffline(const SetOfflineRequest& request,
                                  Callback<SetOfflineResponse> done) {
  if (absl::Status status = ValidateSetOffline(request); !status.ok()) {
    return std::move(done)(status);
  }
  const std::shared_ptr<Registry> upstream = shell_->upstream();
  if (upstream == nullptr) {
    return std::move(done)(absl::CancelledError("the registry client was shut down"));
  }
  upstream->SetOffline(request, std::move(done));
}

// --- Operators.

std::string FailbackRegistry::incarnation() const { return shell_->incarnation(); }

agent::v1::UpstreamStatus FailbackRegistry::UpstreamStatus() const {
  agent::v1::UpstreamStatus status;
  shell_->Stats(&status);
  return status;
}

FailbackStatistics FailbackRegistry::Stats() const { return shell_->Stats(nullptr); }

int64_t FailbackRegistry::local_sessions() const { return shell_->local_sessions(); }

bool FailbackRegistry::draining() const { return shell_->draining(); }

std::vector<agent::v1::PendingOperation> FailbackRegistry::Pending(
    const PendingRange& range) const {
  return shell_->Pending(range);
}

std::vector<CarriedRecord> FailbackRegistry::Carried(const std::string& begins) const {
  return shell_->Carried(begins);
}

std::vector<IntentJournal::Intent> FailbackRegistry::PresentIntents() const {
  return shell_->PresentIntents();
}

absl::StatusOr<int64_t> FailbackRegistry::Retry(const std::vector<std::string>& ids) {
  absl::StatusOr<Counted> retried;
  shell_->Ask(input::Retry{0, ids}, Answering<Counted>([&](absl::StatusOr<Counted> answer) {
                retried = std::move(answer);
              }));
  if (!retried.ok()) return retried.status();
  return retried->count;
}

absl::StatusOr<int64_t> FailbackRegistry::Cancel(const std::vector<std::string>& ids,
                                                 int64_t* sent) {
  absl::StatusOr<Counted> cancelled;
  shell_->Ask(input::Cancel{0, ids}, Answering<Counted>([&](absl::StatusOr<Counted> answer) {
                cancelled = std::move(answer);
              }));
  if (!cancelled.ok()) return cancelled.status();
  if (sent != nullptr) *sent += cancelled->sent;
  return cancelled->count;
}

void FailbackRegistry::WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done) {
  shell_->Ask(input::WhenDurable{0}, [done = std::move(done)](Answer answer) mutable {
    std::move(done)(std::get<absl::Status>(answer));
  });
}

void FailbackRegistry::Drain(absl::Duration deadline, Callback<agent::v1::DrainResponse> done) {
  shell_->Ask(input::Drain{0, deadline}, Answering(std::move(done)));
}

std::string FailbackRegistry::CheckInvariants() const { return shell_->CheckInvariants(); }

}  // namespace failback
