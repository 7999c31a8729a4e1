#include "registry/server/admission.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/model/shared_limit.h"
#include "registry/security/guarded_registry.h"
#include "registry/server/refusals.h"

namespace failback {
namespace {

// What one owner has of a limit.
int ShareOf(const char* what, const char* name, int limit) {
  return static_cast<int>(SharedLimit{what, name, limit}.share());
}

}  // namespace

Admission::Admission(Registry* registry, const Options& options, CallStats* stats)
    : registry_(std::shared_ptr<void>(), registry),
      access_(options.access),
      overload_delay_(options.overload_delay),
      stats_(stats),
      calls_(options.max_calls_in_flight),
      lists_of_readers_(
          ShareOf("calls", "limits.max_calls_in_flight", options.max_calls_in_flight)),
      subscriptions_(options.max_subscriptions),
      subscriptions_of_owners_(
          ShareOf("subscriptions", "limits.max_subscriptions", options.max_subscriptions)),
      subscriptions_per_connection_(options.max_subscriptions_per_connection) {}

void Admission::Identify(const grpc::ServerContextBase& context, Method method,
                         Permit* permit) const {
  permit->registry = registry_;
  if (!permit->refusal.ok() || access_ == nullptr) return;
  absl::StatusOr<Identity> caller = access_->Identify(context, CallStats::MethodName(method));
  permit->refusal = caller.status();
  if (!caller.ok()) return;
  permit->owner = caller->OwnerTag();
  permit->registry =
      std::make_shared<GuardedRegistry>(registry_.get(), access_, *std::move(caller));
}

Permit Admission::AdmitMessage() {
  Permit permit;
  permit.slot = calls_.Enter();
  if (permit.slot == nullptr) permit.refusal = Overloaded(Limit::kCalls, calls_.limit());
  if (stopping_) permit.refusal = ShuttingDown();
  return permit;
}

Permit Admission::AdmitCall(const grpc::ServerContextBase& context, Method method) {
  Permit permit = AdmitMessage();
  Identify(context, method, &permit);
  return permit;
}

Permit Admission::AdmitStream(const grpc::ServerContextBase& context, Method method) {
  Permit permit;
  permit.slot = silent_streams_.Enter(ConnectionOf(context.peer()));
  if (permit.slot == nullptr) {
    permit.refusal = Overloaded(Limit::kSilentStreams, silent_streams_.limit());
  } else if (access_ != nullptr) {
    permit.refusal = access_->CheckAny(context, CallStats::MethodName(method));
  }
  Identify(context, method, &permit);
  return permit;
}

std::shared_ptr<void> Admission::AdmitList(const std::string& reader, Permit* permit) {
  if (!permit->refusal.ok()) return nullptr;
  std::shared_ptr<void> slot = lists_of_readers_.Enter(reader);
  if (slot != nullptr) return slot;
  permit->slot.reset();  // while the refusal is on its way, however long
  permit->refusal =
      Overloaded(Limit::kCalls, lists_of_readers_.limit(),
                 absl::StrCat(" (Lists of one ", permit->owner.empty() ? "connection" : "owner",
                              ", its share of ", calls_.limit(), " calls)"));
  return nullptr;
}

std::shared_ptr<SubscriptionPermits> Admission::AdmitSubscriptions(
    const grpc::ServerContextBase& context, Permit* permit) {
  if (!permit->refusal.ok()) return nullptr;
  auto permits =
      std::make_shared<SubscriptionPermits>(this, permit->owner, ConnectionOf(context.peer()));
  permit->refusal = permits->Open();
  return permit->refusal.ok() ? permits : nullptr;
}

absl::Status SubscriptionPermits::Begin() {
  if (open_ == held_) {
    if (absl::Status full = Take(); !full.ok()) return full;
  }
  ++open_;
  return absl::OkStatus();
}

void SubscriptionPermits::End(int subscriptions) {
  open_ -= subscriptions;
  Give(held_ - std::max(open_, 1));
}

// All or none.
absl::Status SubscriptionPermits::Take() {
  Admission& of = *admission_;
  if (!of.subscriptions_.Take()) {
    return of.Overloaded(CallStats::Limit::kSubscriptions, of.subscriptions_.limit());
  }
  if (!of.subscriptions_of_owners_.Take(owner_)) {
    of.subscriptions_.Give(1);
    return of.Overloaded(
        CallStats::Limit::kSubscriptions, of.subscriptions_of_owners_.limit(),
        absl::StrCat(" (the share of one owner, of ", of.subscriptions_.limit(), ")"));
  }
  if (!of.subscriptions_per_connection_.Take(connection_)) {
    of.subscriptions_.Give(1);
    of.subscriptions_of_owners_.Give(owner_, 1);
    return of.Overloaded(CallStats::Limit::kSubscriptionsPerConnection,
                         of.subscriptions_per_connection_.limit());
  }
  ++held_;
  return absl::OkStatus();
}

void SubscriptionPermits::Give(int permits) {
  if (permits <= 0) return;
  held_ -= permits;
  admission_->subscriptions_.Give(permits);
  admission_->subscriptions_of_owners_.Give(owner_, permits);
  admission_->subscriptions_per_connection_.Give(connection_, permits);
}

absl::Status Admission::Overloaded(Limit limit, int64_t most, const std::string& of_what) const {
  stats_->Refused(limit);
  return WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_OVERLOADED,
              absl::StrCat("too many ", CallStats::LimitText(limit), " at once, at most ", most,
                           of_what, " are allowed; try again in ",
                           absl::FormatDuration(overload_delay_)),
              {{"limit", absl::StrCat(most)}}),
      overload_delay_);
}

std::string ReaderOf(const grpc::ServerContextBase& context, const std::string& owner) {
  return owner.empty() ? ConnectionOf(context.peer()) : owner;
}

}  // namespace failback
