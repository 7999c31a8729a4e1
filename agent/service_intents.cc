#include "agent/service_intents.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

constexpr int kBatch = 250;
// The longest that a local session may have: the services live as long as the process, and a
// restarted one has so long to claim them.
constexpr absl::Duration kSessionTtl = absl::Hours(1);
constexpr absl::Duration kTellAgainAfter = absl::Seconds(5);
constexpr absl::Duration kReopenAfter = absl::Seconds(1);

bool IsFinal(const absl::Status& status) {
  const ErrorReason reason = ReasonOf(status);
  return reason == registry::v1::ERROR_REASON_INVALID_FIELD ||
         reason == registry::v1::ERROR_REASON_TOO_LARGE ||
         reason == registry::v1::ERROR_REASON_DRAINING || absl::IsCancelled(status);
}

}  // namespace

void ServiceIntents::Start(std::function<bool(const std::string&)> wanted) {
  {
    MutexLock lock(&mu_);
    wanted_ = std::move(wanted);
  }
  OpenSession();
}

void ServiceIntents::Stop() {
  std::unique_ptr<PeriodicTask> renewal;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    renewal.swap(renewal_);
    while (flushing_) idle_.Wait(&mu_);
  }
}

void ServiceIntents::State(const InstanceKey& key, std::optional<ServiceInstance> instance) {
  const std::string canonical = CanonicalKey(key);
  MutexLock lock(&mu_);
  const auto [it, inserted] = intents_.try_emplace(canonical);
  Intent& intent = it->second;
  if (inserted || intent.progress != Progress::kDue) due_.push_back(canonical);
  intent.key = key;
  intent.instance = std::move(instance);
  intent.progress = Progress::kDue;
}

// --- The session.

void ServiceIntents::OpenSession() {
  OpenSessionRequest request;
  request.set_incarnation(incarnation_);
  request.set_client_name(incarnation_);
  *request.mutable_ttl() = ToProto(kSessionTtl);
  registry_->OpenSession(
      request, [weak = weak_from_this()](const absl::StatusOr<OpenSessionResponse>& response) {
        if (auto self = weak.lock()) self->Opened(response);
      });
}

void ServiceIntents::Opened(const absl::StatusOr<OpenSessionResponse>& response) {
  if (!response.ok()) {
    Log(LogLevel::kWarning, "static services have no session",
        {{"code", absl::StatusCodeToString(response.status().code())},
         {"message", std::string(response.status().message())}});
    MutexLock lock(&mu_);
    return After(kReopenAfter, &ServiceIntents::OpenSession);
  }
  const absl::Duration ttl = FromProto(response->ttl());
  auto renewal = PeriodicTask::Start(timer_, ttl / 3, [this] { Renew(); });
  std::function<bool(const std::string&)> wanted;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    session_id_ = response->session_id();
    if (renewal.ok()) renewal_.swap(*renewal);
    wanted.swap(wanted_);
  }
  if (wanted != nullptr) ListEarlier(wanted, "");
  Flush();
}

void ServiceIntents::ListEarlier(const std::function<bool(const std::string&)>& wanted,
                                 const std::string& page_token) {
  ListRequest request;
  request.set_incarnation(incarnation_);
  request.set_page_token(page_token);
  registry_->List(request,
                  [weak = weak_from_this(), wanted](const absl::StatusOr<ListResponse>& response) {
                    auto self = weak.lock();
                    if (self == nullptr || !response.ok()) return;
                    for (const InstanceRecord& record : response->records()) {
                      const InstanceKey& key = record.instance().key();
                      if (!wanted(CanonicalKey(key))) self->State(key, std::nullopt);
                    }
                    self->Flush();
                    if (!response->next_page_token().empty()) {
                      self->ListEarlier(wanted, response->next_page_token());
                    }
                  });
}

void ServiceIntents::Renew() {
  KeepAliveRequest request;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    request.set_session_id(session_id_);
  }
  registry_->KeepAlive(request, [weak = weak_from_this(), id = request.session_id()](
                                    const absl::StatusOr<KeepAliveResponse>& response) {
    auto self = weak.lock();
    if (self != nullptr &&
        ReasonOf(response.status()) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
      self->Lost(id);
    }
  });
}

void ServiceIntents::Lost(const std::string& session_id) {
  {
    MutexLock lock(&mu_);
    if (stopped_ || session_id != session_id_) return;
    session_id_.clear();
    due_.clear();
    for (auto& [key, intent] : intents_) {
      intent.progress = Progress::kDue;
      due_.push_back(key);
    }
  }
  OpenSession();
}

bool ServiceIntents::has_session() const {
  MutexLock lock(&mu_);
  return !session_id_.empty();
}

// --- Sending to the registry.

void ServiceIntents::Flush() {
  {
    MutexLock lock(&mu_);
    if (flushing_) return;
    flushing_ = true;
  }
  while (true) {
    auto batch = std::make_shared<DueIntents>();
    {
      MutexLock lock(&mu_);
      if (stopped_ || session_id_.empty() || !NextBatch(batch.get())) {
        flushing_ = false;
        idle_.SignalAll();
        return;
      }
    }
    if (batch->deregistrations.deregistrations().empty()) {
      registry_->Register(
          batch->registrations,
          [weak = weak_from_this(), batch](const absl::StatusOr<RegisterResponse>& answer) {
            if (auto self = weak.lock()) self->Answered(*batch, answer);
          });
    } else {
      registry_->Unregister(
          batch->deregistrations,
          [weak = weak_from_this(), batch](const absl::StatusOr<UnregisterResponse>& answer) {
            if (auto self = weak.lock()) self->Answered(*batch, answer);
          });
    }
  }
}

bool ServiceIntents::NextBatch(DueIntents* batch) {
  batch->session_id = session_id_;
  batch->registrations.set_session_id(session_id_);
  batch->deregistrations.set_session_id(session_id_);
  std::optional<bool> present;
  while (!due_.empty() && batch->keys.size() < kBatch) {
    const std::string key = due_.front();
    Intent& intent = intents_.at(key);
    if (present.value_or(intent.instance.has_value()) != intent.instance.has_value()) break;
    present = intent.instance.has_value();
    due_.pop_front();
    intent.progress = Progress::kSent;
    batch->keys.push_back(key);
    if (*present) {
      *batch->registrations.add_registrations()->mutable_instance() = *intent.instance;
    } else {
      *batch->deregistrations.add_deregistrations()->mutable_key() = intent.key;
    }
  }
  return present.has_value();
}

template <typename Response>
void ServiceIntents::Answered(const DueIntents& batch, const absl::StatusOr<Response>& response) {
  if (ReasonOf(response.status()) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
    return Lost(batch.session_id);
  }
  for (size_t i = 0; i < batch.keys.size(); ++i) {
    const absl::Status status =
        response.ok() ? StatusFromProto(response->results(static_cast<int>(i)).status())
                      : response.status();
    if (!status.ok()) {
      Refused(batch.keys[i], status);
      continue;
    }
    MutexLock lock(&mu_);
    const auto it = intents_.find(batch.keys[i]);
    if (it != intents_.end() && it->second.progress == Progress::kSent &&
        !it->second.instance.has_value()) {
      intents_.erase(it);
    }
  }
}

void ServiceIntents::Refused(const std::string& key, const absl::Status& status) {
  const bool draining = ReasonOf(status) == registry::v1::ERROR_REASON_DRAINING;
  MutexLock lock(&mu_);
  const auto it = intents_.find(key);
  if (stopped_ || it == intents_.end() || it->second.progress != Progress::kSent) return;
  Log(draining ? LogLevel::kDebug : LogLevel::kError, "static service refused",
      {{"key", KeyText(it->second.key)},
       {"code", absl::StatusCodeToString(status.code())},
       {"message", std::string(status.message())}});
  if (IsFinal(status)) return;
  it->second.progress = Progress::kRefused;
  After(RetryDelayOf(status).value_or(kTellAgainAfter), &ServiceIntents::TellAgain);
}

void ServiceIntents::TellAgain() {
  {
    MutexLock lock(&mu_);
    for (auto& [key, intent] : intents_) {
      if (intent.progress != Progress::kRefused) continue;
      intent.progress = Progress::kDue;
      due_.push_back(key);
    }
  }
  Flush();
}

void ServiceIntents::After(absl::Duration delay, void (ServiceIntents::*what)()) {
  if (stopped_) return;
  // A wheel that refuses is stopped, as the process ends.
  timer_
      ->NewTimeout(
          [weak = weak_from_this(), what] {
            if (auto self = weak.lock()) ((*self).*what)();
          },
          delay)
      .IgnoreError();
}

}  // namespace failback
