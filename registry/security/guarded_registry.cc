#include "registry/security/guarded_registry.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/validation.h"
#include "registry/refusable_listener.h"
#include "registry/security/token_seal.h"
#include "registry/watch/owned_listener.h"
#include "registry/watch/serial_notifier.h"

namespace failback {
namespace {

using config::v1::Permission;
using registry::v1::ListScope;

const std::string& NamespaceOf(const std::string& ns) {
  static const auto* const kDefault = new std::string(kDefaultNamespace);
  return ns.empty() ? *kDefault : ns;
}

absl::Status JudgeRead(const AccessRules& rules, const Identity& caller, const Selector& selector) {
  const std::string& ns = NamespaceOf(selector.namespace_());
  if (selector.service().empty()) {
    return rules.JudgeAll(caller, config::v1::PERMISSION_READ, ns);
  }
  return rules.Judge(caller, config::v1::PERMISSION_READ, ns, selector.service());
}

// Removes what `caller` may not see.
void Filter(const AccessRules& rules, const Identity& caller, bool own, ListResponse* response) {
  // Records are sorted: the answer for one service is asked for once.
  const InstanceKey* last = nullptr;
  bool visible = false;
  const auto hidden = [&](const InstanceRecord& record) {
    const InstanceKey& key = record.instance().key();
    if (last == nullptr || last->service() != key.service() ||
        last->namespace_() != key.namespace_()) {
      last = &key;
      const auto may = [&](Permission what) {
        return rules.Judge(caller, what, NamespaceOf(key.namespace_()), key.service()).ok();
      };
      visible = may(config::v1::PERMISSION_READ) || (own && may(config::v1::PERMISSION_REGISTER));
    }
    return !visible;
  };
  auto* const records = response->mutable_records();
  int kept = 0;
  std::vector<bool> hide(records->size());
  for (int i = 0; i < records->size(); ++i) hide[i] = hidden(records->Get(i));
  for (int i = 0; i < records->size(); ++i) {
    if (!hide[i]) records->SwapElements(kept++, i);
  }
  records->DeleteSubrange(kept, records->size() - kept);
}

// What a caller may not do with the services of a batch.
struct Judged {
  std::vector<absl::Status> denied;  // of each intent: OK, or why it is not carried out
  std::optional<absl::Status> first;
  std::vector<size_t> unreadable;  // intents whose services may not be read
};

Judged JudgeIntents(const AccessRules& rules, const Identity& caller, const Batch& batch) {
  Judged judged;
  judged.denied.resize(batch.size());
  // Intents of one service mostly come one after the other: it is judged once.
  std::string_view last;
  absl::Status denied;
  bool readable = false;
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::string_view service = ServiceKeyOf(batch.intents()[i].key);
    if (i == 0 || service != last) {
      last = service;
      const size_t end = std::min(service.find('\0'), service.size());
      const std::string_view ns = service.substr(0, end);
      const std::string_view name = service.substr(std::min(end + 1, service.size()));
      denied = rules.Judge(caller, config::v1::PERMISSION_REGISTER, ns, name);
      readable = rules.Judge(caller, config::v1::PERMISSION_READ, ns, name).ok();
    }
    if (!denied.ok() && !judged.first.has_value()) judged.first = denied;
    judged.denied[i] = denied;
    if (!readable) judged.unreadable.push_back(i);
  }
  return judged;
}

// Answers `done` without the names of those who hold the keys of the intents `hidden`.
Callback<BatchResult> WithoutHolders(std::vector<size_t> hidden, Callback<BatchResult> done) {
  if (hidden.empty()) return done;
  return [hidden = std::move(hidden),
          done = std::move(done)](absl::StatusOr<BatchResult> result) mutable {
    for (const size_t i : hidden) {
      if (!result.ok() || i >= result->results.size()) break;
      auto& one = result->results[i];
      if (one.status().code() == 0) continue;
      const absl::Status status = StatusFromProto(one.status());
      if (!ReasonMetadata(status, "holder").has_value()) continue;
      *one.mutable_status() = StatusToProto(
          Refusal(ReasonOf(status), std::string(status.message()),
                  {{"rank", ReasonMetadata(status, "rank").value_or("0")},
                   {"generation", ReasonMetadata(status, "generation").value_or("0")}}));
    }
    std::move(done)(std::move(result));
  };
}

// A scope goes to the registry with so many services at most: it looks for each, and others wait.
constexpr int kMaxServices = 200;

// Where a listing for a caller who may not read everything goes on.
struct Place {
  std::string first_service;  // of the part of the caller's services that is listed
  std::string token;          // in its listing; empty: from its beginning

  static Place Parse(const std::string& text) {
    const size_t end = std::min(text.find('\0'), text.size());
    return {text.substr(0, end), end == text.size() ? "" : text.substr(end + 1)};
  }
  // Empty for the beginning of the first part, where no listing goes on.
  std::string Format() const {
    if (first_service.empty() && token.empty()) return "";
    return first_service + '\0' + token;
  }
};

// Leaves those services of `scope`, which has one grant at most, that are listed in one go from
// `first` on; which one comes after them, empty: none.
std::string KeepPart(const std::string& first, ListScope* scope) {
  if (scope->grants().empty()) return "";
  auto* const services = scope->mutable_grants(0)->mutable_services();
  const auto begin = std::lower_bound(services->begin(), services->end(), first);
  const auto end = begin + std::min<ptrdiff_t>(kMaxServices, services->end() - begin);
  std::string next = end == services->end() ? "" : *end;
  services->erase(end, services->end());
  services->erase(services->begin(), begin);
  return next;
}

// Passes on what a subscription receives, until new rules end it.
class GuardedListener final : public OwnedListener, public RefusableListener {
 public:
  GuardedListener(std::shared_ptr<NotifyListener> listener, std::string owner)
      : owner_(std::move(owner)),
        ends_when_refused_(EndsWhenRefused(listener.get())),
        notifier_(std::move(listener)) {}

  const std::string& owner() const override { return owner_; }

  void OnEvent(const EventPtr& event) override {
    notifier_.Post(event);
    notifier_.Deliver();
  }
  void OnEnd(const absl::Status& status) override {
    notifier_.PostEnd(status);
    notifier_.Deliver();
  }
  bool ends_when_refused() const override { return ends_when_refused_; }
  void Close() { notifier_.Close(); }

 private:
  const std::string owner_;
  const bool ends_when_refused_;
  SerialNotifier notifier_;
};

}  // namespace

class GuardedRegistry::Stream final : public SubscribeStream {
 public:
  Stream(std::shared_ptr<AccessControl> access, AccessControl::WatchId watch,
         std::shared_ptr<GuardedListener> guarded, std::unique_ptr<SubscribeStream> stream)
      : access_(std::move(access)),
        watch_(watch),
        listener_(std::move(guarded)),
        stream_(std::move(stream)) {}
  ~Stream() override {
    access_->Unwatch(watch_);
    stream_.reset();
    listener_->Close();
  }

 private:
  const std::shared_ptr<AccessControl> access_;
  const AccessControl::WatchId watch_;
  const std::shared_ptr<GuardedListener> listener_;
  std::unique_ptr<SubscribeStream> stream_;
};

GuardedRegistry::GuardedRegistry(Registry* registry, std::shared_ptr<AccessControl> access,
                                 Identity caller)
    : registry_(registry), access_(std::move(access)), caller_(std::move(caller)) {}

absl::Status GuardedRegistry::CheckSession(const char* call, const std::string& session_id) const {
  const std::string owner = SessionOwner(session_id);
  absl::Status status = owner.empty() || owner == caller_.OwnerTag()
                            ? access_->rules()->JudgeAny(caller_)
                            : SessionNotOwned();
  if (status.ok()) return status;
  return access_->Denied(caller_, call, config::v1::PERMISSION_UNSPECIFIED, std::move(status));
}

void GuardedRegistry::OpenSession(const OpenSessionRequest& request,
                                  Callback<OpenSessionResponse> done) {
  if (absl::Status status = access_->rules()->JudgeAny(caller_); !status.ok()) {
    return std::move(done)(access_->Denied(caller_, "OpenSession",
                                           config::v1::PERMISSION_UNSPECIFIED, std::move(status)));
  }
  access_->NoteOwner(caller_);
  OpenSessionRequest owned = request;
  owned.set_owner(caller_.OwnerTag());
  registry_->OpenSession(owned, [access = access_, caller = caller_, done = std::move(done)](
                                    absl::StatusOr<OpenSessionResponse> response) mutable {
    absl::Status status = response.status();
    // A registry that keeps no owners must not hand out a session that was there before.
    if (status.ok() && response->resumed() &&
        SessionOwner(response->session_id()) != caller.OwnerTag()) {
      status = SessionNotOwned();
    }
    if (ReasonOf(status) == registry::v1::ERROR_REASON_SESSION_NOT_OWNED) {
      status = access->Denied(caller, "OpenSession", config::v1::PERMISSION_UNSPECIFIED,
                              std::move(status));
    }
    if (!status.ok()) return std::move(done)(std::move(status));
    std::move(done)(std::move(response));
  });
}

void GuardedRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  absl::Status status = CheckSession("KeepAlive", request.session_id());
  if (!status.ok()) return std::move(done)(std::move(status));
  if (!request.has_report() ||
      access_->rules()->JudgeSome(caller_, config::v1::PERMISSION_REGISTER).ok()) {
    return registry_->KeepAlive(request, std::move(done));
  }
  // Who may register nothing carries no intents.
  KeepAliveRequest unreported = request;
  unreported.clear_report();
  registry_->KeepAlive(unreported, std::move(done));
}

void GuardedRegistry::CloseSession(const CloseSessionRequest& request,
                                   Callback<CloseSessionResponse> done) {
  absl::Status status = CheckSession("CloseSession", request.session_id());
  if (!status.ok()) return std::move(done)(std::move(status));
  registry_->CloseSession(request, std::move(done));
}

void GuardedRegistry::Write(Batch batch, Callback<BatchResult> done) {
  const char* const call = batch.kind() == Batch::Kind::kRegister ? "Register" : "Unregister";
  if (absl::Status status = CheckSession(call, batch.session_id()); !status.ok()) {
    return std::move(done)(std::move(status));
  }
  Judged judged = JudgeIntents(*access_->rules(), caller_, batch);
  done = WithoutHolders(std::move(judged.unreadable), std::move(done));
  if (!judged.first.has_value()) return registry_->Write(std::move(batch), std::move(done));
  access_->Denied(caller_, call, config::v1::PERMISSION_REGISTER, *judged.first).IgnoreError();
  done = batch.Refuse(std::move(judged.denied), std::move(done));
  if (batch.empty()) return std::move(done)(BatchResult());
  registry_->Write(std::move(batch), std::move(done));
}

std::unique_ptr<SubscribeStream> GuardedRegistry::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  struct Refused : SubscribeStream {};
  if (!request.session_id().empty()) {
    absl::Status status = CheckSession("Subscribe", request.session_id());
    if (!status.ok()) {
      listener->OnEnd(status);
      return std::make_unique<Refused>();
    }
  }
  auto guarded = std::make_shared<GuardedListener>(std::move(listener), caller_.OwnerTag());
  auto judge = [caller = caller_, selector = request.selector()](const AccessRules& rules) {
    return JudgeRead(rules, caller, selector);
  };
  // Watched before it is judged: rules that come in between take effect one way or the other.
  const AccessControl::WatchId watch =
      access_->Watch(judge, [access = std::weak_ptr(access_), caller = caller_,
                             guarded = std::weak_ptr(guarded)](const absl::Status& status) {
        if (const auto counts = access.lock()) {
          counts->Denied(caller, "Subscribe", config::v1::PERMISSION_READ, status).IgnoreError();
        }
        if (const auto open = guarded.lock()) open->OnEnd(status);
      });
  if (absl::Status status = judge(*access_->rules()); !status.ok()) {
    access_->Unwatch(watch);
    guarded->OnEnd(access_->Denied(caller_, "Subscribe", config::v1::PERMISSION_READ, status));
    return std::make_unique<Stream>(access_, watch, std::move(guarded), nullptr);
  }
  auto stream = registry_->Subscribe(request, guarded);
  return std::make_unique<Stream>(access_, watch, std::move(guarded), std::move(stream));
}

void GuardedRegistry::Unsubscribe(const UnsubscribeRequest& request,
                                  Callback<UnsubscribeResponse> done) {
  absl::Status status = CheckSession("Unsubscribe", request.session_id());
  if (!status.ok()) return std::move(done)(std::move(status));
  registry_->Unsubscribe(request, std::move(done));
}

void GuardedRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  const auto rules = access_->rules();
  const Selector& selector = request.selector();
  const bool own = !request.incarnation().empty();
  const bool one_service = !selector.service().empty() && !own;
  absl::Status status =
      one_service ? JudgeRead(*rules, caller_, selector) : rules->JudgeAny(caller_);
  if (!status.ok()) {
    return std::move(done)(
        access_->Denied(caller_, "List", config::v1::PERMISSION_READ, std::move(status)));
  }
  if (one_service) return registry_->List(request, std::move(done));
  // Of which namespace; nullopt: of all.
  std::optional<std::string> ns;
  if (!own || request.has_selector()) ns = NamespaceOf(selector.namespace_());
  if (rules->JudgeAll(caller_, config::v1::PERMISSION_READ, ns).ok()) {
    return registry_->List(request, std::move(done));
  }
  ListRequest inner = request;
  Place place;
  if (!request.page_token().empty()) {
    const std::optional<std::string> token = OpenToken(request.page_token());
    if (!token.has_value()) {
      return std::move(done)(InvalidField("page_token", "is not a token of an earlier page"));
    }
    place = Place::Parse(*token);
    inner.set_page_token(place.token);
  }
  ListScope* const scope = inner.add_scopes();
  *scope->mutable_grants() = rules->GrantsOf(caller_, config::v1::PERMISSION_READ, ns);
  Place next;
  if (own) {
    scope->set_owner(caller_.OwnerTag());
    *scope->mutable_own_grants() = rules->GrantsOf(caller_, config::v1::PERMISSION_REGISTER, ns);
  } else {
    next.first_service = KeepPart(place.first_service, scope);
  }
  registry_->List(inner,
                  [rules, caller = caller_, own, place = std::move(place), next = std::move(next),
                   done = std::move(done)](absl::StatusOr<ListResponse> response) mutable {
                    if (response.ok()) {
                      // A registry elsewhere may be of a version that knows no scopes.
                      if (!own || response->coverage() != registry::v1::LIST_COVERAGE_WHOLE) {
                        Filter(*rules, caller, own, &*response);
                        if (own) response->set_coverage(registry::v1::LIST_COVERAGE_PART);
                      }
                      if (!response->next_page_token().empty()) {
                        next = {std::move(place.first_service), response->next_page_token()};
                      }
                      response->set_next_page_token(SealToken(next.Format()));
                    }
                    std::move(done)(std::move(response));
                  });
}

}  // namespace failback
