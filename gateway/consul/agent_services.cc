#include "gateway/consul/agent_services.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/consul/mapping.h"
#include "gateway/consul/render.h"
#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback::consul {
namespace {

constexpr absl::Duration kSweepPeriod = absl::Seconds(10);
// How long a client may come back to a TTL check that it has not renewed.
constexpr absl::Duration kRemembered = absl::Hours(1);
// What a check says of itself, and why there is maintenance, for people.
constexpr size_t kMaxOutput = 4096;

using Kind = CheckDefinition::Kind;

absl::Status UnknownService(const std::string& id) {
  return Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                 absl::StrCat("Unknown service ID ", Quoted(id),
                              ": it is not registered at this agent; register it again"));
}

absl::Status UnknownCheck(const std::string& id) {
  return Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                 absl::StrCat("Unknown check ID ", Quoted(id),
                              ": it is not registered at this agent; register its service again"));
}

}  // namespace

std::shared_ptr<AgentServices> AgentServices::Create(Options options) {
  std::shared_ptr<AgentServices> services(new AgentServices(std::move(options)));
  services->Restore();
  auto sweep = PeriodicTask::Start(services->options_.timer, kSweepPeriod,
                                   [weak = std::weak_ptr<AgentServices>(services)] {
                                     if (auto self = weak.lock()) self->Sweep();
                                   });
  if (sweep.ok()) services->sweep_ = *std::move(sweep);  // else the timer has stopped
  return services;
}

void AgentServices::Restore() {
  if (options_.folder == nullptr) return;
  std::vector<ServicePtr> restored;
  for (const std::string& text : options_.folder->TakeAll()) {
    std::optional<ServicePtr> service = Restored(text);
    if (!service.has_value()) continue;
    MutexLock lock(&mu_);
    if (services_.size() >= options_.max_services) break;
    services_[(*service)->definition.id] = *service;
    restored.push_back(*std::move(service));
  }
  for (const ServicePtr& service : restored) StartProbes(service);
}

std::optional<AgentServices::ServicePtr> AgentServices::Restored(const std::string& text) const {
  absl::StatusOr<KeptService> kept = ParseKept(text);
  if (!kept.ok()) {
    Log(LogLevel::kWarning, "a kept service of a Consul client cannot be read",
        {{"error", std::string(kept.status().message())}});
    return std::nullopt;
  }
  auto service = std::make_shared<Service>();
  for (const CheckDefinition& check : kept->definition.checks) {
    service->checks.push_back({{check, check.status, ""}, nullptr});
  }
  const std::string id = kept->definition.id;
  service->definition = std::move(kept->definition);
  service->name_space = std::move(kept->name_space);
  service->owner = std::move(kept->owner);
  service->maintenance = kept->maintenance;
  service->reason = std::move(kept->reason);
  service->renewed_nanos = options_.timer->clock()->NowNanos();
  absl::Status status = Complete(service.get());
  if (status.ok()) status = ValidateChecks(*service);
  if (status.ok()) {
    const absl::StatusOr<ServiceInstance> instance = InstanceOf(*service);
    status = instance.status();
    if (instance.ok()) service->key = instance->key();
  }
  if (!status.ok()) {
    Log(LogLevel::kWarning, "a kept service of a Consul client is not valid any more",
        {{"id", id}, {"error", std::string(status.message())}});
    return std::nullopt;
  }
  if (StatusOf(*service) == CheckStatus::kCritical) {
    service->critical_nanos = service->renewed_nanos;
  }
  // It was unregistered, and the folder has not been told.
  if (service->ttl == absl::ZeroDuration() && options_.carries != nullptr &&
      !options_.carries(service->key)) {
    options_.folder->Forget(id);
    return std::nullopt;
  }
  return service;
}

void AgentServices::Keep(const Service& service) const {
  if (options_.folder == nullptr || stopped_) return;
  KeptService kept;
  kept.definition = service.definition;
  kept.definition.checks.clear();
  for (const Check& check : service.checks) {
    kept.definition.checks.push_back(check.state.definition);
    kept.definition.checks.back().status = check.state.status;
  }
  kept.name_space = service.name_space;
  kept.owner = service.owner;
  kept.maintenance = service.maintenance;
  kept.reason = service.reason;
  options_.folder->Keep(service.definition.id, KeptText(kept));
}

void AgentServices::Forget(const Service& service) const {
  if (options_.folder != nullptr && !stopped_) options_.folder->Forget(service.definition.id);
}

void AgentServices::Stop() {
  sweep_.reset();
  // They end without the lock. Answers that are still to come hold services, and no probes.
  std::vector<std::unique_ptr<RunningCheck>> probes;
  MutexLock lock(&mu_);
  stopped_ = true;
  for (const auto& [id, service] : services_) {
    for (Check& check : service->checks) probes.push_back(std::move(check.running));
  }
  services_.clear();
}

CheckStatus AgentServices::StatusOf(const Service& service) {
  CheckStatus worst = CheckStatus::kPassing;
  for (const Check& check : service.checks) worst = std::max(worst, check.state.status);
  return worst;
}

absl::Status AgentServices::Complete(Service* service) {
  size_t number = 0;
  service->ttl = absl::ZeroDuration();
  service->deregister_after = absl::ZeroDuration();
  for (Check& check : service->checks) {
    CheckDefinition& definition = check.state.definition;
    if (definition.id.empty()) {
      definition.id = DefaultCheckId(service->definition.id, number, service->checks.size());
    }
    ++number;
    if (definition.name.empty()) {
      definition.name = absl::StrCat("Service '", service->definition.name, "' check");
    }
    if (definition.deregister_after > absl::ZeroDuration() &&
        (service->deregister_after == absl::ZeroDuration() ||
         definition.deregister_after < service->deregister_after)) {
      service->deregister_after = definition.deregister_after;
    }
    if (definition.kind != Kind::kTtl) continue;
    if (service->ttl != absl::ZeroDuration()) {
      return InvalidField("Checks", "only one TTL check of a service is supported");
    }
    service->ttl = definition.ttl;
  }
  for (const Check& check : service->checks) {
    const std::string& id = check.state.definition.id;
    if (std::count_if(service->checks.begin(), service->checks.end(),
                      [&](const Check& other) { return other.state.definition.id == id; }) > 1) {
      return InvalidField("Checks", absl::StrCat("two have the CheckID ", Quoted(id)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ServiceInstance> AgentServices::InstanceOf(const Service& service) const {
  absl::StatusOr<ServiceInstance> instance =
      ToInstance(service.definition, service.name_space, options_.own_address, StatusOf(service));
  if (instance.ok() && service.maintenance) {
    consul::SetMaintenance(StatusOf(service), &*instance);
  }
  return instance;
}

absl::Status AgentServices::ValidateChecks(const Service& service) const {
  for (const Check& check : service.checks) {
    if (check.state.definition.kind == Kind::kTtl) continue;
    absl::Status valid = options_.runner == nullptr
                             ? InvalidField("Check", "only TTL checks are supported here")
                             : options_.runner->Validate(check.state.definition);
    if (!valid.ok()) return valid;
  }
  return absl::OkStatus();
}

bool AgentServices::HasLapsed(const Service& service) const {
  return service.ttl != absl::ZeroDuration() &&
         options_.timer->clock()->NowNanos() - service.renewed_nanos >
             absl::ToInt64Nanoseconds(service.ttl);
}

AgentServices::ServicePtr AgentServices::Find(const std::string& id) const {
  const auto it = services_.find(id);
  return it == services_.end() ? nullptr : it->second;
}

absl::Status AgentServices::CheckPlaces(const Identity& caller) const {
  const auto refuse = [](size_t most, const std::string& of) {
    return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                   absl::StrCat("there are ", most, " services of ", of, " at this agent already"));
  };
  if (services_.size() >= options_.max_services) {
    return refuse(options_.max_services, "Consul clients");
  }
  const size_t half = std::max<size_t>(1, options_.max_services / 2);
  if (caller.kind == Identity::Kind::kAnonymous || services_.size() < half) return absl::OkStatus();
  const auto own = std::count_if(services_.begin(), services_.end(), [&](const auto& entry) {
    const Identity& owner = entry.second->owner;
    return owner.kind == caller.kind && owner.names == caller.names;
  });
  if (static_cast<size_t>(own) < half) return absl::OkStatus();
  return refuse(half, caller.ToString());
}

AgentServices::ServicePtr AgentServices::FindCheck(const std::string& id, size_t* place) const {
  for (const auto& [service_id, service] : services_) {
    for (*place = 0; *place < service->checks.size(); ++*place) {
      if (service->checks[*place].state.definition.id == id) return service;
    }
  }
  return nullptr;
}

AgentServices::ServicePtr AgentServices::CopyOf(const Service& service) {
  auto copy = std::make_shared<Service>();
  copy->definition = service.definition;
  copy->name_space = service.name_space;
  copy->owner = service.owner;
  copy->maintenance = service.maintenance;
  copy->reason = service.reason;
  for (const Check& check : service.checks) copy->checks.push_back({check.state, nullptr});
  return copy;
}

void AgentServices::Register(const Identity& caller, const std::string& name_space,
                             const ServiceDefinition& definition, Done done) {
  auto service = std::make_shared<Service>();
  service->definition = definition;
  service->name_space = name_space;
  service->owner = caller;
  for (const CheckDefinition& check : definition.checks) {
    service->checks.push_back({{check, check.status, ""}, nullptr});
  }
  Replace(caller, service, std::move(done));
}

void AgentServices::Replace(const Identity& caller, const ServicePtr& service, Done done) {
  if (absl::Status status = Complete(service.get()); !status.ok()) return std::move(done)(status);
  if (absl::Status status = ValidateChecks(*service); !status.ok()) return std::move(done)(status);
  absl::StatusOr<ServiceInstance> instance = InstanceOf(*service);
  if (!instance.ok()) return std::move(done)(instance.status());
  service->key = instance->key();
  ServicePtr before;
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    const ServicePtr present = Find(service->definition.id);
    if (stopped_) {
      refused = Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the agent is stopping");
    } else if (present == nullptr) {
      refused = CheckPlaces(caller);
    } else {
      // What has the id goes, as who registered it: the caller has to be allowed to do that.
      refused = MayChange(caller, *present);
      if (!refused.ok()) {
        refused = Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED,
                          absl::StrCat("ID: ", Quoted(service->definition.id),
                                       " is a service's that this caller may not change"));
      }
    }
    if (refused.ok()) {
      service->renewed_nanos = options_.timer->clock()->NowNanos();
      if (StatusOf(*service) == CheckStatus::kCritical) {
        service->critical_nanos = service->renewed_nanos;
      }
      before = std::exchange(services_[service->definition.id], service);
    }
  }
  if (!refused.ok()) return std::move(done)(refused);
  InstanceWriter::PutRequest request;
  request.instance = *std::move(instance);
  request.ttl = service->ttl;
  options_.writer->Put(caller, std::move(request),
                       [this, self = shared_from_this(), service, before = std::move(before),
                        done = std::move(done)](const absl::StatusOr<LiveInstance>& live) mutable {
                         absl::Status status = live.status();
                         if (live.ok() && live->ttl < service->ttl)
                           status = TtlIsTooLong(*service, live->ttl);
                         std::move(done)(Placed(service, std::move(before), std::move(status)));
                       });
}

absl::Status AgentServices::TtlIsTooLong(const Service& service, absl::Duration most) const {
  // Its client would renew it too late.
  options_.writer->Remove(service.owner, service.key, registry::v1::INTENT_STATE_UNSPECIFIED,
                          [](const absl::StatusOr<LiveInstance>&) {});
  return InvalidField(
      "TTL", absl::StrCat(absl::FormatDuration(service.ttl),
                          " is longer than what is allowed here, ", absl::FormatDuration(most)));
}

absl::Status AgentServices::Placed(const ServicePtr& service, ServicePtr before,
                                   absl::Status status) {
  if (!status.ok()) {
    MutexLock lock(&mu_);
    const auto it = services_.find(service->definition.id);
    if (it == services_.end() || it->second != service) return status;
    // As it was; the registry has kept that too.
    if (before == nullptr) {
      services_.erase(it);
    } else {
      it->second = std::move(before);
    }
    return status;
  }
  // The same id was another service.
  if (before != nullptr && CanonicalKey(before->key) != CanonicalKey(service->key)) {
    options_.writer->Remove(before->owner, before->key, registry::v1::INTENT_STATE_UNSPECIFIED,
                            [](const absl::StatusOr<LiveInstance>&) {});
  }
  {
    MutexLock lock(&mu_);
    if (Find(service->definition.id) == service) Keep(*service);
  }
  StartProbes(service);
  return absl::OkStatus();
}

void AgentServices::StartProbes(const ServicePtr& service) {
  for (size_t place = 0; place < service->checks.size(); ++place) {
    CheckDefinition definition;
    {
      MutexLock lock(&mu_);
      if (Find(service->definition.id) != service) return;
      definition = service->checks[place].state.definition;
    }
    if (definition.kind == Kind::kTtl) continue;
    std::unique_ptr<RunningCheck> running = options_.runner->Run(
        definition, [weak_self = weak_from_this(), weak = std::weak_ptr<Service>(service), place](
                        CheckStatus status, const std::string& output) {
          if (auto self = weak_self.lock()) self->OnProbe(weak, place, status, output);
        });
    MutexLock lock(&mu_);
    // Else it was replaced meanwhile, or all ends.
    if (Find(service->definition.id) == service) service->checks[place].running.swap(running);
  }
}

bool AgentServices::Note(CheckStatus status, const std::string& output, Check* check,
                         Service* service) {
  const CheckStatus before = StatusOf(*service);
  check->state.status = status;
  check->state.output = output.substr(0, kMaxOutput);
  const CheckStatus after = StatusOf(*service);
  if (after == before) return false;
  service->critical_nanos =
      after == CheckStatus::kCritical ? options_.timer->clock()->NowNanos() : 0;
  Keep(*service);
  return true;
}

void AgentServices::OnProbe(const std::weak_ptr<Service>& weak, size_t place, CheckStatus status,
                            const std::string& output) {
  ServicePtr service = weak.lock();
  if (service == nullptr) return;
  bool changed = false;
  {
    MutexLock lock(&mu_);
    changed = Find(service->definition.id) == service &&
              Note(status, output, &service->checks[place], service.get());
  }
  if (changed) {
    PutAgain(service->owner, service, [id = service->definition.id](const absl::Status& put) {
      if (put.ok()) return;
      Log(LogLevel::kWarning, "a check's result was not carried",
          {{"service", id}, {"status", put.ToString(absl::StatusToStringMode::kWithNoExtraData)}});
    });
  }
  // Where it was unregistered meanwhile this ends its probes, which wait for reports: not here.
  options_.timer->NewTimeout([service = std::move(service)] {}, absl::ZeroDuration()).IgnoreError();
}

void AgentServices::PutAgain(const Identity& caller, const ServicePtr& service, Done done) {
  InstanceWriter::PutRequest request;
  absl::Status bad;
  {
    MutexLock lock(&mu_);
    if (Find(service->definition.id) != service) {
      bad = UnknownService(service->definition.id);
    } else if (absl::StatusOr<ServiceInstance> instance = InstanceOf(*service); instance.ok()) {
      request.instance = *std::move(instance);
      request.ttl = service->ttl;
    } else {
      bad = instance.status();
    }
  }
  if (!bad.ok()) return std::move(done)(bad);
  options_.writer->Put(caller, std::move(request),
                       [done = std::move(done)](const absl::StatusOr<LiveInstance>& live) mutable {
                         std::move(done)(live.status());
                       });
}

void AgentServices::ReportCheck(const Identity& caller, const std::string& id, CheckStatus status,
                                const std::string& output, Done done) {
  ServicePtr service;
  size_t place = 0;
  bool changed = false;
  absl::Status bad;
  InstanceKey key;
  {
    MutexLock lock(&mu_);
    service = FindCheck(id, &place);
    bad = Hidden(caller, service.get(), UnknownCheck(id));
    if (bad.ok() && service->checks[place].state.definition.kind != Kind::kTtl) {
      bad = InvalidField("CheckID", absl::StrCat(Quoted(id), " is no TTL check"));
    }
    if (bad.ok()) {
      changed = Note(status, output, &service->checks[place], service.get());
      changed = HasLapsed(*service) || changed;
      key = service->key;
    }
  }
  if (!bad.ok()) return std::move(done)(bad);
  const auto renewed = [this, self = shared_from_this(), service](const absl::Status& answer) {
    if (!answer.ok()) return;
    MutexLock lock(&mu_);
    service->renewed_nanos = options_.timer->clock()->NowNanos();
  };
  if (changed) {
    return PutAgain(caller, service, [renewed, done = std::move(done)](absl::Status put) mutable {
      renewed(put);
      std::move(done)(std::move(put));
    });
  }
  options_.writer->Renew(
      caller, key, absl::ZeroDuration(),
      [this, caller, service, renewed,
       done = std::move(done)](const absl::StatusOr<LiveInstance>& live) mutable {
        if (!absl::IsNotFound(live.status())) {
          renewed(live.status());
          return std::move(done)(live.status());
        }
        // It has lapsed, or the registry has forgotten it: its client is here again.
        PutAgain(caller, service, [renewed, done = std::move(done)](absl::Status put) mutable {
          renewed(put);
          std::move(done)(std::move(put));
        });
      });
}

void AgentServices::SetMaintenance(const Identity& caller, const std::string& id, bool enable,
                                   const std::string& reason, Done done) {
  ServicePtr service;
  absl::Status bad;
  {
    MutexLock lock(&mu_);
    service = Find(id);
    bad = Hidden(caller, service.get(), UnknownService(id));
    if (bad.ok()) {
      service->maintenance = enable;
      service->reason = enable ? reason.substr(0, kMaxOutput) : "";
      Keep(*service);
    }
  }
  if (!bad.ok()) return std::move(done)(bad);
  PutAgain(caller, service, std::move(done));
}

void AgentServices::RegisterCheck(const Identity& caller, const CheckDefinition& check, Done done) {
  ServicePtr service;
  absl::Status bad;
  {
    MutexLock lock(&mu_);
    size_t place = 0;
    const ServicePtr owner = FindCheck(check.id, &place);
    const ServicePtr present = Find(check.service_id);
    bad = Hidden(caller, present.get(), UnknownService(check.service_id));
    if (bad.ok() && owner != nullptr && owner != present) {
      bad = InvalidField("ID", absl::StrCat(Quoted(check.id), " is a check of another service"));
    }
    if (bad.ok() && owner == nullptr && present->checks.size() >= kMaxChecks) {
      bad = InvalidField("ServiceID", absl::StrCat("it has ", kMaxChecks, " checks already"));
    }
    if (bad.ok()) {
      service = CopyOf(*present);
      const Check added = {{check, check.status, ""}, nullptr};
      if (owner == nullptr) {
        service->checks.push_back({added.state, nullptr});
      } else {
        service->checks[place].state = added.state;
      }
    }
  }
  if (!bad.ok()) return std::move(done)(bad);
  Replace(caller, service, std::move(done));
}

void AgentServices::DeregisterCheck(const Identity& caller, const std::string& id, Done done) {
  ServicePtr service;
  absl::Status bad;
  {
    MutexLock lock(&mu_);
    size_t place = 0;
    const ServicePtr present = FindCheck(id, &place);
    bad = Hidden(caller, present.get(), UnknownCheck(id));
    if (bad.ok()) {
      service = CopyOf(*present);
      service->checks.erase(service->checks.begin() + static_cast<int64_t>(place));
    }
  }
  if (!bad.ok()) return std::move(done)(bad);
  Replace(caller, service, std::move(done));
}

void AgentServices::Remove(const Identity& caller, const ServicePtr& service, Done done) {
  options_.writer->Remove(caller, service->key, registry::v1::INTENT_STATE_UNSPECIFIED,
                          [this, self = shared_from_this(), service, done = std::move(done)](
                              const absl::StatusOr<LiveInstance>& gone) mutable {
                            ServicePtr ended;  // its probes end without the lock
                            if (gone.ok()) {
                              MutexLock lock(&mu_);
                              const auto it = services_.find(service->definition.id);
                              if (it != services_.end() && it->second == service) {
                                ended = std::move(it->second);
                                services_.erase(it);
                                Forget(*service);
                              }
                            }
                            std::move(done)(gone.status());
                          });
}

void AgentServices::Deregister(const Identity& caller, const std::string& id, Done answer) {
  Done done = [id, answer = std::move(answer)](absl::Status gone) mutable {
    // One that another client has is none of this one's: done.
    if (ReasonOf(gone) == registry::v1::ERROR_REASON_SUPERSEDED) gone = absl::OkStatus();
    const bool denied = absl::IsPermissionDenied(gone) || absl::IsUnauthenticated(gone);
    std::move(answer)(denied ? UnknownService(id) : std::move(gone));
  };
  ServicePtr service;
  {
    MutexLock lock(&mu_);
    service = Find(id);
  }
  if (service != nullptr) return Remove(caller, service, std::move(done));
  const std::vector<InstanceKey> carried =
      options_.carried == nullptr ? std::vector<InstanceKey>() : options_.carried(id);
  if (carried.empty()) return std::move(done)(UnknownService(id));
  if (carried.size() > 1) {
    return std::move(done)(absl::FailedPreconditionError(
        absl::StrCat("this agent carries ", carried.size(), " services with the ID ", Quoted(id),
                     "; unregister the right one by its name (failbackctl unregister)")));
  }
  options_.writer->Remove(
      caller, carried.front(), registry::v1::INTENT_STATE_UNSPECIFIED,
      [done = std::move(done)](const absl::StatusOr<LiveInstance>& gone) mutable {
        std::move(done)(gone.status());
      });
}

std::map<std::string, AgentServices::Shown> AgentServices::Look() const {
  std::map<std::string, Shown> shown;
  MutexLock lock(&mu_);
  for (const auto& [id, service] : services_) {
    absl::StatusOr<ServiceInstance> instance = InstanceOf(*service);
    if (!instance.ok()) continue;
    Shown& entry = shown[id];
    entry.instance = *std::move(instance);
    entry.maintenance = service->maintenance;
    entry.reason = service->reason;
    entry.lapsed = HasLapsed(*service);
    for (const Check& check : service->checks) entry.checks.push_back(check.state);
  }
  return shown;
}

void AgentServices::Sweep() {
  std::vector<ServicePtr> forgotten, critical;
  {
    MutexLock lock(&mu_);
    const int64_t now = options_.timer->clock()->NowNanos();
    for (auto it = services_.begin(); it != services_.end();) {
      const Service& service = *it->second;
      const bool limited = service.deregister_after != absl::ZeroDuration();
      const absl::Duration kept = service.ttl + (limited ? service.deregister_after : kRemembered);
      if (HasLapsed(service) && now - service.renewed_nanos > absl::ToInt64Nanoseconds(kept)) {
        Forget(service);
        forgotten.push_back(std::move(it->second));
        it = services_.erase(it);
        continue;
      }
      if (limited && service.critical_nanos != 0 &&
          now - service.critical_nanos > absl::ToInt64Nanoseconds(service.deregister_after)) {
        critical.push_back(it->second);
      }
      ++it;
    }
  }
  for (const ServicePtr& service : critical) {
    Log(LogLevel::kWarning, "a service was critical for too long, and is unregistered",
        {{"service", service->definition.name}, {"id", service->definition.id}});
    Remove(service->owner, service, [](const absl::Status&) {});
  }
}

}  // namespace failback::consul
