#include "gateway/door/door_sessions.h"

#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "registry/security/guarded_registry.h"
#include "retry/mutex.h"

namespace failback {
namespace {

constexpr size_t kMostIncarnation = 128;
constexpr size_t kMostClientName = 128;

absl::Status NotLive(const InstanceKey& key) {
  return Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                 absl::StrCat(KeyText(key),
                              ": nothing is registered here that lives on renewals; it was never "
                              "registered with a TTL, or has expired: register it"));
}

// The outcome of the one item of a call.
template <typename Response>
absl::StatusOr<registry::v1::IntentState> Outcome(const absl::StatusOr<Response>& response) {
  if (!response.ok()) return response.status();
  if (response->results().empty()) return registry::v1::INTENT_STATE_ACKNOWLEDGED;
  const absl::Status status = StatusFromProto(response->results(0).status());
  if (!status.ok()) return status;
  return response->results(0).state();
}

}  // namespace

std::string DoorIncarnation(const std::string& door, const InstanceKey& key) {
  std::string name = absl::StrCat(door, ":", KeyText(key));
  if (name.size() <= kMostIncarnation) return name;
  const std::string digest = absl::WebSafeBase64Escape(Sha256(name).substr(0, 15));
  return absl::StrCat(name.substr(0, kMostIncarnation - digest.size() - 1), "#", digest);
}

class DoorSessions::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(Registry* registry, std::shared_ptr<AccessControl> access, Options options)
      : registry_(registry), access_(std::move(access)), options_(std::move(options)) {}

  void Put(const Identity& caller, PutRequest request, Callback<LiveInstance> done);
  void Renew(const Identity& caller, InstanceKey key, absl::Duration ttl,
             Callback<LiveInstance> done);
  void Remove(const Identity& caller, InstanceKey key, registry::v1::IntentState wait_for,
              Callback<LiveInstance> done);
  int64_t live() const {
    MutexLock lock(&mu_);
    return live_;
  }

 private:
  // What is known of an instance that was put with a TTL.
  struct Live {
    std::string session_id;
    ServiceInstance instance;
    absl::Duration ttl;
    int64_t deadline_nanos = 0;
    uint64_t serial = 0;  // another one each time that it began to live
  };
  struct Slot {
    std::optional<Live> live;
    bool busy = false;
    std::deque<absl::AnyInvocable<void() &&>> waiting;  // for their turns
  };

  // What is done when no other write of the key is under way.
  using Work = absl::AnyInvocable<void(Callback<LiveInstance>) &&>;
  // Runs `work` at its turn, with a callback that ends the turn and answers `done`.
  void Enter(const std::string& key, Callback<LiveInstance> done, Work work);
  void Leave(const std::string& key);
  // As many wait as may.
  bool Crowded(const std::string& key) const;

  absl::Status MayRegister(const Identity& caller, const InstanceKey& key) const;
  // `late`: its time is over here; the registry, which gives every session its time again after a
  // pause, says whether it is there too.
  void PutLive(const Identity& caller, PutRequest request, bool late, Callback<LiveInstance> done);
  void PutInSession(const Identity& caller, PutRequest request, const OpenSessionResponse& session,
                    Callback<LiveInstance> done);
  void PutPersistent(const Identity& caller, PutRequest request, Callback<LiveInstance> done);
  void RemoveNow(const Identity& caller, const InstanceKey& key, registry::v1::IntentState wait_for,
                 Callback<LiveInstance> done);
  // Answers when nothing of the key lives on renewals any more.
  void EndLive(const Identity& caller, const std::string& key, registry::v1::IntentState state,
               Callback<LiveInstance> done);
  void CloseSession(const Identity& caller, const std::string& session_id,
                    absl::AnyInvocable<void() &&> then);

  std::optional<Live> LiveOf(const std::string& key) const;
  void SetLive(const std::string& key, std::optional<Live> live);
  // Looks after a while whether what lived then has not been renewed.
  void ForgetLater(const std::string& key, uint64_t serial, absl::Duration delay);
  void ForgetIfOver(const std::string& key, uint64_t serial);

  // Calls `use` with the registry as the caller may use it.
  template <typename Use>
  void With(const Identity& caller, Use use) {
    if (access_ == nullptr) return use(registry_);
    GuardedRegistry guarded(registry_, access_, caller);
    use(static_cast<Registry*>(&guarded));
  }

  Registry* const registry_;
  const std::shared_ptr<AccessControl> access_;
  const Options options_;
  std::atomic<uint64_t> last_serial_{0};
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Slot> slots_ ABSL_GUARDED_BY(mu_);
  int64_t live_ ABSL_GUARDED_BY(mu_) = 0;
};

void DoorSessions::Core::Enter(const std::string& key, Callback<LiveInstance> done, Work work) {
  if (Crowded(key)) {
    return std::move(done)(
        WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED,
                               absl::StrCat(kMostWaiting, " writes of this instance wait already")),
                       absl::Seconds(1)));
  }
  absl::AnyInvocable<void()&&> run = [self = shared_from_this(), key, done = std::move(done),
                                      work = std::move(work)]() mutable {
    std::move(work)(
        [self, key, done = std::move(done)](absl::StatusOr<LiveInstance> answer) mutable {
          self->Leave(key);
          std::move(done)(std::move(answer));
        });
  };
  {
    MutexLock lock(&mu_);
    Slot& slot = slots_[key];
    if (slot.busy) {
      slot.waiting.push_back(std::move(run));
      return;
    }
    slot.busy = true;
  }
  std::move(run)();
}

bool DoorSessions::Core::Crowded(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto it = slots_.find(key);
  return it != slots_.end() && it->second.waiting.size() >= kMostWaiting;
}

void DoorSessions::Core::Leave(const std::string& key) {
  absl::AnyInvocable<void() &&> next;
  {
    MutexLock lock(&mu_);
    const auto it = slots_.find(key);
    if (it->second.waiting.empty()) {
      it->second.busy = false;
      if (!it->second.live.has_value()) slots_.erase(it);
      return;
    }
    next = std::move(it->second.waiting.front());
    it->second.waiting.pop_front();
  }
  std::move(next)();
}

// --- What lives.

std::optional<DoorSessions::Core::Live> DoorSessions::Core::LiveOf(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto it = slots_.find(key);
  return it == slots_.end() ? std::nullopt : it->second.live;
}

void DoorSessions::Core::SetLive(const std::string& key, std::optional<Live> live) {
  MutexLock lock(&mu_);
  std::optional<Live>& known = slots_[key].live;  // it is busy: its turn goes on
  live_ += int64_t{live.has_value()} - int64_t{known.has_value()};
  known = std::move(live);
}

void DoorSessions::Core::ForgetLater(const std::string& key, uint64_t serial,
                                     absl::Duration delay) {
  // Refused only when the timer has stopped, with the process.
  options_.timer
      ->ScheduleUnbounded(
          [weak = weak_from_this(), key, serial] {
            if (const auto self = weak.lock()) self->ForgetIfOver(key, serial);
          },
          delay)
      .IgnoreError();
}

void DoorSessions::Core::ForgetIfOver(const std::string& key, uint64_t serial) {
  absl::Duration rest;
  {
    MutexLock lock(&mu_);
    const auto it = slots_.find(key);
    if (it == slots_.end() || !it->second.live.has_value()) return;
    if (it->second.live->serial != serial) return;
    const int64_t now = options_.timer->clock()->NowNanos();
    // A TTL longer than it lives: the daemon may have been paused.
    rest = absl::Nanoseconds(it->second.live->deadline_nanos - now) + it->second.live->ttl;
    if (rest <= absl::ZeroDuration()) {
      it->second.live.reset();
      --live_;
      if (!it->second.busy) slots_.erase(it);
      return;
    }
  }
  ForgetLater(key, serial, rest);
}

// --- Writes.

void DoorSessions::Core::Put(const Identity& caller, PutRequest request,
                             Callback<LiveInstance> done) {
  NormalizeKey(request.instance.mutable_key());
  if (auto status = ValidateInstance(FieldPath(), request.instance); !status.ok())
    return std::move(done)(status);
  if (request.ttl < absl::ZeroDuration()) {
    return std::move(done)(InvalidField("ttl", "is not positive"));
  }
  const bool live = request.ttl > absl::ZeroDuration();
  if (live && request.instance.persistent()) {
    return std::move(done)(
        InvalidField("persistent", "does not go with a ttl: leave one of them out"));
  }
  const std::string key = CanonicalKey(request.instance.key());
  Enter(key, std::move(done),
        [self = shared_from_this(), caller, live,
         request = std::move(request)](Callback<LiveInstance> done) mutable {
          if (live) {
            return self->PutLive(caller, std::move(request), /*late=*/false, std::move(done));
          }
          self->PutPersistent(caller, std::move(request), std::move(done));
        });
}

void DoorSessions::Core::Renew(const Identity& caller, InstanceKey key, absl::Duration ttl,
                               Callback<LiveInstance> done) {
  NormalizeKey(&key);
  if (auto status = ValidateKey(FieldPath("key"), key); !status.ok())
    return std::move(done)(status);
  if (ttl < absl::ZeroDuration()) return std::move(done)(InvalidField("ttl", "is not positive"));
  const std::string canonical = CanonicalKey(key);
  Enter(canonical, std::move(done),
        [self = shared_from_this(), caller, key, canonical,
         ttl](Callback<LiveInstance> done) mutable {
          std::optional<Live> live = self->LiveOf(canonical);
          const int64_t now = self->options_.timer->clock()->NowNanos();
          if (!live.has_value()) {
            // Whether it is there is not for a caller who may not register it to learn.
            absl::Status may = self->MayRegister(caller, key);
            return std::move(done)(may.ok() ? NotLive(key) : std::move(may));
          }
          PutRequest request;
          request.instance = std::move(live->instance);
          request.ttl = ttl > absl::ZeroDuration() ? ttl : live->ttl;
          self->PutLive(caller, std::move(request), /*late=*/live->deadline_nanos < now,
                        std::move(done));
        });
}

absl::Status DoorSessions::Core::MayRegister(const Identity& caller, const InstanceKey& key) const {
  if (access_ == nullptr) return absl::OkStatus();
  absl::Status may = access_->rules()->Judge(caller, config::v1::PERMISSION_REGISTER,
                                             key.namespace_(), key.service());
  if (may.ok()) return may;
  return access_->Denied(caller, "Register", config::v1::PERMISSION_REGISTER, std::move(may));
}

void DoorSessions::Core::PutLive(const Identity& caller, PutRequest request, bool late,
                                 Callback<LiveInstance> done) {
  // Before a session is opened: its incarnation, which is made of the key, would be the caller's
  // also when the registration is refused, and keep those out who may register.
  if (auto may = MayRegister(caller, request.instance.key()); !may.ok()) {
    return std::move(done)(std::move(may));
  }
  OpenSessionRequest open;
  open.set_incarnation(DoorIncarnation(options_.door, request.instance.key()));
  open.set_client_name(
      absl::StrCat(options_.door, " ", caller.ToString()).substr(0, kMostClientName));
  *open.mutable_ttl() = ToProto(request.ttl);
  With(caller, [&](Registry* registry) {
    registry->OpenSession(open, [self = shared_from_this(), caller, late,
                                 request = std::move(request), done = std::move(done)](
                                    absl::StatusOr<OpenSessionResponse> session) mutable {
      if (!session.ok()) return std::move(done)(session.status());
      if (late && !session->resumed()) {
        self->SetLive(CanonicalKey(request.instance.key()), std::nullopt);
        return self->CloseSession(caller, session->session_id(),
                                  [key = request.instance.key(), done = std::move(done)]() mutable {
                                    std::move(done)(NotLive(key));
                                  });
      }
      self->PutInSession(caller, std::move(request), *session, std::move(done));
    });
  });
}

void DoorSessions::Core::PutInSession(const Identity& caller, PutRequest request,
                                      const OpenSessionResponse& session,
                                      Callback<LiveInstance> done) {
  RegisterRequest call;
  call.set_session_id(session.session_id());
  call.set_wait_for(request.wait_for);
  *call.add_registrations()->mutable_instance() = request.instance;
  With(caller, [&](Registry* registry) {
    registry->Register(
        call, [self = shared_from_this(), caller, request = std::move(request), session,
               done = std::move(done)](const absl::StatusOr<RegisterResponse>& response) mutable {
          const std::string key = CanonicalKey(request.instance.key());
          const absl::StatusOr<registry::v1::IntentState> state = Outcome(response);
          if (!state.ok()) {
            if (session.resumed()) return std::move(done)(state.status());
            // A session that holds nothing takes no place.
            return self->CloseSession(
                caller, session.session_id(),
                [done = std::move(done), why = state.status()]() mutable { std::move(done)(why); });
          }
          const absl::Duration ttl = FromProto(session.ttl());
          const std::optional<Live> before = self->LiveOf(key);
          Live live{session.session_id(), std::move(request.instance), ttl};
          live.deadline_nanos =
              self->options_.timer->clock()->NowNanos() + absl::ToInt64Nanoseconds(ttl);
          live.serial = before.has_value() ? before->serial : ++self->last_serial_;
          if (!before.has_value()) self->ForgetLater(key, live.serial, ttl);
          self->SetLive(key, std::move(live));
          std::move(done)(LiveInstance{*state, ttl});
        });
  });
}

void DoorSessions::Core::PutPersistent(const Identity& caller, PutRequest request,
                                       Callback<LiveInstance> done) {
  RegisterRequest call;
  call.set_wait_for(request.wait_for);
  request.instance.set_persistent(options_.persistent);
  const std::string key = CanonicalKey(request.instance.key());
  *call.add_registrations()->mutable_instance() = std::move(request.instance);
  With(caller, [&](Registry* registry) {
    registry->Register(call, [self = shared_from_this(), caller, key, done = std::move(done)](
                                 const absl::StatusOr<RegisterResponse>& response) mutable {
      const absl::StatusOr<registry::v1::IntentState> state = Outcome(response);
      if (!state.ok()) return std::move(done)(state.status());
      // What it was before lived on renewals: the session has nothing left to end.
      self->EndLive(caller, key, *state, std::move(done));
    });
  });
}

void DoorSessions::Core::Remove(const Identity& caller, InstanceKey key,
                                registry::v1::IntentState wait_for, Callback<LiveInstance> done) {
  NormalizeKey(&key);
  if (auto status = ValidateKey(FieldPath("key"), key); !status.ok())
    return std::move(done)(status);
  // Who shows nothing is to hear that, and not whose session it is.
  if (auto may = MayRegister(caller, key); !may.ok()) return std::move(done)(std::move(may));
  Enter(CanonicalKey(key), std::move(done),
        [self = shared_from_this(), caller, key, wait_for](Callback<LiveInstance> done) mutable {
          self->RemoveNow(caller, key, wait_for, std::move(done));
        });
}

void DoorSessions::Core::RemoveNow(const Identity& caller, const InstanceKey& key,
                                   registry::v1::IntentState wait_for,
                                   Callback<LiveInstance> done) {
  const std::string canonical = CanonicalKey(key);
  const std::optional<Live> live = LiveOf(canonical);
  UnregisterRequest call;
  if (live.has_value()) call.set_session_id(live->session_id);
  call.set_wait_for(wait_for);
  *call.add_deregistrations()->mutable_key() = key;
  With(caller, [&](Registry* registry) {
    registry->Unregister(
        call, [self = shared_from_this(), caller, key, canonical, wait_for, live,
               done = std::move(done)](const absl::StatusOr<UnregisterResponse>& response) mutable {
          const absl::StatusOr<registry::v1::IntentState> state = Outcome(response);
          const bool expired = live.has_value() && ReasonOf(state.status()) ==
                                                       registry::v1::ERROR_REASON_SESSION_UNKNOWN;
          if (!state.ok() && !expired) return std::move(done)(state.status());
          if (!expired) return self->EndLive(caller, canonical, *state, std::move(done));
          self->SetLive(canonical, std::nullopt);
          self->RemoveNow(caller, key, wait_for, std::move(done));
        });
  });
}

void DoorSessions::Core::EndLive(const Identity& caller, const std::string& key,
                                 registry::v1::IntentState state, Callback<LiveInstance> done) {
  const LiveInstance answer{state, absl::ZeroDuration()};
  const std::optional<Live> live = LiveOf(key);
  if (!live.has_value()) return std::move(done)(answer);
  SetLive(key, std::nullopt);
  CloseSession(caller, live->session_id,
               [answer, done = std::move(done)]() mutable { std::move(done)(answer); });
}

void DoorSessions::Core::CloseSession(const Identity& caller, const std::string& session_id,
                                      absl::AnyInvocable<void() &&> then) {
  CloseSessionRequest close;
  close.set_session_id(session_id);
  With(caller, [&](Registry* registry) {
    // One that stays expires.
    registry->CloseSession(
        close, [then = std::move(then)](const absl::StatusOr<CloseSessionResponse>&) mutable {
          std::move(then)();
        });
  });
}

DoorSessions::DoorSessions(Registry* registry, std::shared_ptr<AccessControl> access,
                           Options options)
    : core_(std::make_shared<Core>(registry, std::move(access), std::move(options))) {}

DoorSessions::~DoorSessions() = default;

void DoorSessions::Put(const Identity& caller, PutRequest request, Callback<LiveInstance> done) {
  core_->Put(caller, std::move(request), std::move(done));
}

void DoorSessions::Renew(const Identity& caller, const InstanceKey& key, absl::Duration ttl,
                         Callback<LiveInstance> done) {
  core_->Renew(caller, key, ttl, std::move(done));
}

void DoorSessions::Remove(const Identity& caller, const InstanceKey& key,
                          registry::v1::IntentState wait_for, Callback<LiveInstance> done) {
  core_->Remove(caller, key, wait_for, std::move(done));
}

int64_t DoorSessions::live() const { return core_->live(); }

}  // namespace failback
