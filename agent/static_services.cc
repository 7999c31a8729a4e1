#include "agent/static_services.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/health/health_checker.h"
#include "agent/health/io_thread.h"
#include "agent/health/new_probe.h"
#include "agent/service_intents.h"
#include "google/protobuf/util/message_differencer.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"
#include "registry/model/blob.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "retry/mutex.h"

namespace failback {
namespace {

using agent::v1::HealthCheck;
using agent::v1::ReportHealthRequest;
using agent::v1::StaticServiceStatus;
using google::protobuf::util::MessageDifferencer;

constexpr size_t kMaxNoteLength = 1024;
// Between the first tries of two checks, so that many do not fall on one moment.
constexpr absl::Duration kFirstTrySpacing = absl::Milliseconds(5);

agent::v1::CheckState ToProto(CheckState state) {
  switch (state) {
    case CheckState::kUnknown:
      return agent::v1::CHECK_STATE_UNKNOWN;
    case CheckState::kPassing:
      return agent::v1::CHECK_STATE_PASSING;
    case CheckState::kCritical:
      return agent::v1::CHECK_STATE_CRITICAL;
  }
  return agent::v1::CHECK_STATE_UNSPECIFIED;
}

struct Check {
  HealthCheck spec;
  std::unique_ptr<HealthChecker> checker;

  void AddTo(StaticServiceSet::CheckCounters* counters) const {
    const HealthChecker::Snapshot now = checker->snapshot();
    StaticServiceSet::CheckCounter& counter = (*counters)[CheckKind(spec)];
    counter.passes += now.passes;
    counter.failures += now.failures;
  }
};

// A service at rest is small, as there may be ten thousand: its instance is the bytes that its
// intent, and the registry's record, share.
struct Service {
  // As configured: CanonicalRegistration, without a status.
  Blob instance;
  bool persistent = false;
  bool register_when_healthy = false;
  absl::Duration deregister_critical_after = absl::InfiniteDuration();
  std::vector<std::shared_ptr<Check>> checks;
  CheckState state = CheckState::kUnknown;
  absl::Time since;
  // The last verdict; none before the first. An unknown state leaves it as it is.
  std::optional<bool> well;
  bool was_well = false;
  // Critical for longer than the service allows.
  bool given_up = false;
  // How often it has become critical, for a timeout to know its own.
  uint64_t criticals = 0;
  // What was stated last: nothing yet, an instance, or, null, that it is gone.
  bool stated = false;
  Blob intent;
};

const char* NameOf(CheckState state) {
  switch (state) {
    case CheckState::kPassing:
      return "passing";
    case CheckState::kCritical:
      return "critical";
    case CheckState::kUnknown:
      break;
  }
  return "unknown";
}

// Of a service whose state was another: what it is now, and the first check's error that made it
// so.
LogFields HealthFields(const std::string& key, const Service& service, CheckState before) {
  const KeyNames names = SplitCanonicalKey(key);
  LogFields fields = {{"namespace", std::string(names.name_space)},
                      {"service", std::string(names.service)},
                      {"instance", std::string(names.instance_id)},
                      {"was", NameOf(before)},
                      {"is", NameOf(service.state)}};
  for (const auto& check : service.checks) {
    const HealthChecker::Snapshot now = check->checker->snapshot();
    if (now.state != CheckState::kCritical) continue;
    fields.emplace_back("check",
                        check->spec.name().empty() ? CheckKind(check->spec) : check->spec.name());
    fields.emplace_back("why", now.last_error);
    break;
  }
  return fields;
}

CheckState Worst(const Service& service) {
  CheckState worst = CheckState::kPassing;
  for (const auto& check : service.checks) {
    const CheckState state = check->checker->state();
    if (state == CheckState::kCritical) return state;
    if (state == CheckState::kUnknown) worst = state;
  }
  return worst;
}

InstanceKey KeyOf(const std::string& canonical) {
  InstanceKey key;
  ParseCanonicalKey(canonical, &key);
  return key;
}

// What the registry should have of the service, of which there is a verdict; null: nothing.
Blob Desired(const Service& service) {
  if (service.given_up || (service.register_when_healthy && !service.was_well)) return Blob();
  if (service.checks.empty()) return service.instance;
  ServiceInstance instance;
  instance.ParseFromArray(service.instance.data(), static_cast<int>(service.instance.size()));
  instance.set_status(*service.well ? registry::v1::HEALTH_STATUS_HEALTHY
                                    : registry::v1::HEALTH_STATUS_UNHEALTHY);
  return Blob(CanonicalRegistration(instance));
}

bool IsMeant(const std::string& key, const ReportHealthRequest& request) {
  const KeyNames names = SplitCanonicalKey(key);
  return names.service == request.service() &&
         (request.namespace_().empty() || names.name_space == request.namespace_()) &&
         (request.instance_id().empty() || names.instance_id == request.instance_id());
}

absl::Status ValidateReport(const ReportHealthRequest& request) {
  if (request.service().empty()) return InvalidField("service", "is required");
  if (request.state() != agent::v1::CHECK_STATE_PASSING &&
      request.state() != agent::v1::CHECK_STATE_CRITICAL) {
    return InvalidField("state", absl::StrCat(agent::v1::CheckState_Name(request.state()),
                                              " is not PASSING or CRITICAL"));
  }
  if (request.note().size() > kMaxNoteLength) {
    return InvalidField(
        "note", absl::StrCat(request.note().size(), " bytes are more than ", kMaxNoteLength));
  }
  return absl::OkStatus();
}

}  // namespace

class StaticServiceSet::Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(Options options)
      : options_(std::move(options)),
        intents_(std::make_shared<ServiceIntents>(options_.timer, options_.registry,
                                                  kStaticServicesIncarnation)) {
    if (options_.new_probe == nullptr) {
      options_.new_probe = [this](const HealthCheck& check) { return NewProbe(&io_, check); };
    }
  }

  void Apply(const std::vector<StaticServiceSpec>& specs) {
    // Checkers are destroyed without the lock, as their end waits for their news.
    std::map<std::string, Service> before;
    bool open = options_.claim_earlier || !specs.empty();
    {
      MutexLock lock(&mu_);
      before.swap(services_);
      order_.clear();
      order_.reserve(specs.size());
      int tries = 0;
      for (const StaticServiceSpec& spec : specs) {
        const auto place = services_.try_emplace(CanonicalKey(spec.instance.key())).first;
        const std::string& key = place->first;
        Service& service = place->second;
        const auto old = before.find(key);
        if (old != before.end()) {
          service = old->second;
        } else {
          service.since = options_.timer->clock()->WallNow();
        }
        SetChecks(key, spec.checks, &service, &tries);
        Blob instance(CanonicalRegistration(spec.instance));
        // The bytes that others share already, where they are the same.
        if (instance != service.instance) service.instance = std::move(instance);
        service.persistent = spec.instance.persistent();
        service.register_when_healthy = spec.register_when_healthy;
        service.deregister_critical_after = spec.deregister_critical_after;
        Evaluate(key, &service);
        order_.push_back(&key);
      }
      for (const auto& [key, service] : before) CountRetired(key, service);
      for (const auto& [key, service] : before) {
        if (services_.count(key) == 0 && service.intent) {
          intents_->State(key, ServiceIntents::Wanted());
        }
      }
      open = open && !std::exchange(open_, open_ || open);
    }
    if (open) Open();
    intents_->Flush();
  }

  void Stop() {
    std::map<std::string, Service> services;
    {
      MutexLock lock(&mu_);
      services.swap(services_);
      order_.clear();
    }
    services.clear();
    intents_->Stop();
  }

  absl::StatusOr<agent::v1::CheckState> Report(const ReportHealthRequest& request,
                                               const MayReport& may_report) {
    if (absl::Status status = ValidateReport(request); !status.ok()) return status;
    std::shared_ptr<Check> check;
    std::string key;
    {
      MutexLock lock(&mu_);
      absl::StatusOr<std::shared_ptr<Check>> found = FindTtlCheck(request, may_report, &key);
      if (!found.ok()) return found.status();
      check = *std::move(found);
    }
    check->checker->Report(request.state() == agent::v1::CHECK_STATE_PASSING
                               ? absl::OkStatus()
                               : absl::UnavailableError(request.note().empty()
                                                            ? "reported as critical"
                                                            : request.note()));
    MutexLock lock(&mu_);
    const auto it = services_.find(key);
    return ToProto(it == services_.end() ? CheckState::kUnknown : it->second.state);
  }

  std::vector<StaticServiceStatus> Status() const {
    std::vector<StaticServiceStatus> all;
    MutexLock lock(&mu_);
    for (const std::string* const key : order_) {
      const Service& service = services_.at(*key);
      if (service.checks.empty()) continue;
      StaticServiceStatus& status = all.emplace_back();
      *status.mutable_key() = KeyOf(*key);
      status.set_registered(static_cast<bool>(service.intent));
      status.set_state(ToProto(service.state));
      *status.mutable_since() = failback::ToProto(service.since);
      for (const auto& check : service.checks) {
        const HealthChecker::Snapshot now = check->checker->snapshot();
        agent::v1::CheckStatus& out = *status.add_checks();
        out.set_name(check->spec.name());
        out.set_kind(CheckKind(check->spec));
        out.set_state(ToProto(now.state));
        *out.mutable_since() = failback::ToProto(now.since);
        out.set_last_error(MadeUtf8(now.last_error));
        out.set_passes(now.passes);
        out.set_failures(now.failures);
      }
    }
    return all;
  }

  bool has_session() const { return intents_->has_session(); }

  StaticServiceSet::CheckCounters Counters() const {
    MutexLock lock(&mu_);
    StaticServiceSet::CheckCounters counters = retired_;
    for (const auto& [key, service] : services_) {
      for (const auto& check : service.checks) check->AddTo(&counters);
    }
    return counters;
  }

 private:
  // Keeps what the checks of a former service have counted, but of those that go on under its key.
  void CountRetired(const std::string& key, const Service& former)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto now = services_.find(key);
    for (const auto& check : former.checks) {
      const bool goes_on =
          now != services_.end() &&
          std::count(now->second.checks.begin(), now->second.checks.end(), check) > 0;
      if (!goes_on) check->AddTo(&retired_);
    }
  }

  void Open() {
    if (!options_.claim_earlier) return intents_->Start(nullptr);
    intents_->Start([weak = weak_from_this()](const std::string& key) {
      auto self = weak.lock();
      if (self == nullptr) return true;
      MutexLock lock(&self->mu_);
      return self->services_.count(key) > 0;
    });
  }

  // Checks that are the same as before go on.
  void SetChecks(const std::string& key, const std::vector<HealthCheck>& specs, Service* service,
                 int* tries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::shared_ptr<Check>> checks;
    for (const HealthCheck& spec : specs) {
      const auto same = std::find_if(
          service->checks.begin(), service->checks.end(),
          [&](const auto& check) { return MessageDifferencer::Equals(check->spec, spec); });
      if (same != service->checks.end()) {
        checks.push_back(*same);
        continue;
      }
      HealthChecker::Options options = CheckOptions(spec);
      options.first_delay = absl::ZeroDuration();
      absl::IDivDuration(kFirstTrySpacing * (*tries)++, options.interval, &options.first_delay);
      auto check = std::make_shared<Check>();
      check->spec = spec;
      check->checker =
          HealthChecker::Start(options_.timer, spec.has_ttl() ? nullptr : options_.new_probe(spec),
                               options, [this, key] { Changed(key); });
      checks.push_back(std::move(check));
    }
    service->checks = std::move(checks);
  }

  void Changed(const std::string& key) {
    CheckState before;
    CheckState after;
    LogFields fields;
    {
      MutexLock lock(&mu_);
      const auto it = services_.find(key);
      if (it == services_.end()) return;
      before = it->second.state;
      Evaluate(key, &it->second);
      after = it->second.state;
      if (before != after) fields = HealthFields(key, it->second, before);
    }
    intents_->Flush();
    if (before == after) return;
    // That a service is well at the start is as it should be.
    const LogLevel level = after == CheckState::kCritical   ? LogLevel::kWarning
                           : before == CheckState::kUnknown ? LogLevel::kDebug
                                                            : LogLevel::kInfo;
    health_log_.Log(level, "health", std::move(fields));
  }

  // Brings state, verdict and intent up to date with the checks.
  void Evaluate(const std::string& key, Service* service) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const CheckState state = Worst(*service);
    const bool became_critical = state == CheckState::kCritical && state != service->state;
    if (state != service->state) {
      service->state = state;
      service->since = options_.timer->clock()->WallNow();
    }
    if (state != CheckState::kUnknown) service->well = state == CheckState::kPassing;
    if (state == CheckState::kPassing) service->was_well = true;
    if (state != CheckState::kCritical) service->given_up = false;
    if (became_critical) StartGivingUp(key, service);
    StateIntent(key, service);
  }

  void StartGivingUp(const std::string& key, Service* service) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++service->criticals;
    if (service->deregister_critical_after == absl::InfiniteDuration()) return;
    // The wheel refuses only when it is stopped.
    options_.timer
        ->NewTimeout(
            [weak = weak_from_this(), key, number = service->criticals] {
              if (auto self = weak.lock()) self->GiveUp(key, number);
            },
            service->deregister_critical_after)
        .IgnoreError();
  }

  void GiveUp(const std::string& key, uint64_t number) {
    {
      MutexLock lock(&mu_);
      const auto it = services_.find(key);
      if (it == services_.end() || it->second.criticals != number ||
          it->second.state != CheckState::kCritical) {
        return;
      }
      it->second.given_up = true;
      StateIntent(key, &it->second);
    }
    intents_->Flush();
  }

  void StateIntent(const std::string& key, Service* service) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // Before the first verdict nothing is said, so what an earlier life of the agent has said
    // holds.
    if (!service->well.has_value()) return;
    Blob desired = Desired(*service);
    // It was not registered, so it need not be unregistered.
    if (!service->stated && !desired && !options_.claim_earlier) return;
    if (service->stated && service->intent == desired) return;
    service->stated = true;
    service->intent = desired;
    intents_->State(key, {std::move(desired), service->persistent});
  }

  absl::StatusOr<std::shared_ptr<Check>> FindTtlCheck(const ReportHealthRequest& request,
                                                      const MayReport& may_report, std::string* key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::shared_ptr<Check>> checks;
    std::vector<std::string> names;
    std::vector<std::string> found;
    for (const std::string* const candidate : order_) {
      if (!IsMeant(*candidate, request)) continue;
      if (may_report != nullptr && !may_report(KeyOf(*candidate))) continue;
      found.push_back(CanonicalKeyText(*candidate));
      for (const auto& check : services_.at(*candidate).checks) {
        if (!check->spec.has_ttl()) continue;
        if (!request.check().empty() && check->spec.name() != request.check()) continue;
        checks.push_back(check);
        names.push_back(absl::StrCat(found.back(), " ", check->spec.name()));
        *key = *candidate;
      }
    }
    if (found.empty()) {
      return Refusal(
          registry::v1::ERROR_REASON_NOT_FOUND,
          absl::StrCat("service: no static service '", request.service(), "' is configured"));
    }
    if (checks.empty()) {
      return Refusal(
          registry::v1::ERROR_REASON_NOT_FOUND,
          absl::StrCat("check: ", absl::StrJoin(found, ", "), " has no check of kind ttl",
                       request.check().empty() ? "" : " named ", request.check()));
    }
    if (checks.size() > 1) {
      return InvalidField(
          found.size() > 1 ? "instance_id" : "check",
          absl::StrCat("is required, as several are meant: ", absl::StrJoin(names, ", ")));
    }
    return checks[0];
  }

  Options options_;
  const std::shared_ptr<ServiceIntents> intents_;
  IoThread io_;

  LogThrottle health_log_;

  mutable Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  // By CanonicalKey.
  std::map<std::string, Service> services_ ABSL_GUARDED_BY(mu_);
  // Its keys, in the order of the configuration.
  std::vector<const std::string*> order_ ABSL_GUARDED_BY(mu_);
  // Of checks that are no more.
  StaticServiceSet::CheckCounters retired_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<StaticServiceSet> StaticServiceSet::Start(
    Options options, const std::vector<StaticServiceSpec>& specs) {
  auto core = std::make_shared<Core>(std::move(options));
  core->Apply(specs);
  return std::unique_ptr<StaticServiceSet>(new StaticServiceSet(std::move(core)));
}

StaticServiceSet::StaticServiceSet(std::shared_ptr<Core> core) : core_(std::move(core)) {}

StaticServiceSet::~StaticServiceSet() { core_->Stop(); }

void StaticServiceSet::Apply(const std::vector<StaticServiceSpec>& specs) { core_->Apply(specs); }

absl::StatusOr<agent::v1::CheckState> StaticServiceSet::Report(const ReportHealthRequest& request,
                                                               const MayReport& may_report) {
  return core_->Report(request, may_report);
}

bool StaticServiceSet::has_session() const { return core_->has_session(); }

StaticServiceSet::CheckCounters StaticServiceSet::Counters() const { return core_->Counters(); }

std::vector<StaticServiceStatus> StaticServiceSet::Status() const { return core_->Status(); }

}  // namespace failback
