#include "agent/service_intents.h"

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

constexpr size_t kBatch = 250;
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

void ServiceIntents::State(const std::string& key, Wanted wanted) {
  MutexLock lock(&mu_);
  const auto [it, inserted] = intents_.try_emplace(key);
  Intent& intent = it->second;
  if (inserted || intent.progress != Progress::kDue) due_.push_back(&it->first);
  intent.wanted = std::move(wanted);
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
                      const std::string key = CanonicalKey(record.instance().key());
                      if (!wanted(key)) self->State(key, Wanted());
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
      due_.push_back(&key);
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
    Batch batch;
    {
      MutexLock lock(&mu_);
      if (!stopped_ && !session_id_.empty()) batch = NextBatch();
      if (batch.empty()) {
        flushing_ = false;
        idle_.SignalAll();
        return;
      }
    }
    std::vector<std::string> keys;
    keys.reserve(batch.size());
    for (const failback::Intent& intent : batch.intents()) keys.push_back(intent.key);
    const std::string session_id = batch.session_id();
    registry_->Write(std::move(batch),
                     [weak = weak_from_this(), session_id,
                      keys = std::move(keys)](const absl::StatusOr<BatchResult>& result) {
                       if (auto self = weak.lock()) self->Answered(session_id, keys, result);
                     });
  }
}

Batch ServiceIntents::NextBatch() {
  if (due_.empty()) return Batch();
  const bool present = static_cast<bool>(intents_.at(*due_.front()).wanted.instance);
  Batch batch(present ? Batch::Kind::kRegister : Batch::Kind::kUnregister, session_id_);
  while (!due_.empty() && batch.size() < kBatch) {
    const std::string& key = *due_.front();
    Intent& intent = intents_.at(key);
    if (static_cast<bool>(intent.wanted.instance) != present) break;
    due_.pop_front();
    intent.progress = Progress::kSent;
    if (present) {
      batch.Put(key, intent.wanted.instance, intent.wanted.persistent, /*generation=*/0);
    } else {
      batch.Remove(key, /*generation=*/0);
    }
  }
  return batch;
}

void ServiceIntents::Answered(const std::string& session_id, const std::vector<std::string>& keys,
                              const absl::StatusOr<BatchResult>& result) {
  if (ReasonOf(result.status()) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
    return Lost(session_id);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const absl::Status status = !result.ok() ? result.status()
                                : result->results.empty()
                                    ? absl::OkStatus()  // all as asked
                                    : StatusFromProto(result->results[i].status());
    if (!status.ok()) {
      Refused(keys[i], status);
      continue;
    }
    MutexLock lock(&mu_);
    const auto it = intents_.find(keys[i]);
    if (it != intents_.end() && it->second.progress == Progress::kSent &&
        !it->second.wanted.instance) {
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
      {{"key", CanonicalKeyText(key)},
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
      due_.push_back(&key);
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
