#include "registry/etcd/pulse.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace failback {
namespace etcd {
namespace {

// The pause between two questions.
constexpr absl::Duration kInterval = absl::Seconds(2);
// How often it is looked whether the last answer is too old.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);

}  // namespace

void Pulse::Start(std::function<void(bool answers)> listener) {
  {
    MutexLock lock(&listener_mu_);
    listener_ = std::move(listener);
  }
  {
    MutexLock lock(&mu_);
    if (std::exchange(started_, true)) return;
    begun_ = client_->Now();
  }
  Beat();
  Watch();
}

void Pulse::Silence() {
  MutexLock lock(&listener_mu_);
  listener_ = nullptr;
}

void Pulse::Beat() {
  const SteadyTime asked = client_->Now();
  identity_->Ensure([this, asked](const absl::StatusOr<Store>& store) {
    if (client_->closed()) return;
    {
      MutexLock lock(&mu_);
      if (store.ok()) last_answer_ = std::max(last_answer_, asked);
      last_error_ = store.status();
    }
    client_->After(kInterval, [this] {
      if (!client_->closed()) Beat();
    });
    Notify();
  });
}

void Pulse::Watch() {
  if (client_->closed()) return;
  Notify();
  client_->After(kWatchInterval, [this] { Watch(); });
}

// Notifies the listener of a change.
void Pulse::Notify() {
  MutexLock lock(&listener_mu_);
  const bool answers = Look().ok();
  if (listener_ == nullptr || answers == notified_) return;
  notified_ = answers;
  listener_(answers);
}

absl::Status Pulse::Look() const {
  MutexLock lock(&mu_);
  if (!started_) return absl::OkStatus();
  const bool never = last_answer_ == SteadyPast();
  const absl::Duration silent = client_->Now() - (never ? begun_ : last_answer_);
  if (!never && silent <= outage_limit_) return absl::OkStatus();
  const std::string why =
      last_error_.ok() ? std::string() : absl::StrCat(": ", std::string(last_error_.message()));
  return absl::UnavailableError(
      absl::StrCat("etcd has not answered for ",
                   absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1))), why));
}

}  // namespace etcd
}  // namespace failback
