#include "registry/etcd/lease_renewer.h"

#include <utility>

#include "registry/base/steady_time.h"
#include "registry/etcd/error.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::LeaseKeepAliveRequest;
using etcdserverpb::LeaseKeepAliveResponse;

constexpr absl::Duration kCheckInterval = absl::Milliseconds(250);

LeaseKeepAliveRequest RequestFor(int64_t lease) {
  LeaseKeepAliveRequest request;
  request.set_id(lease);
  return request;
}

}  // namespace

void LeaseRenewer::Renew(int64_t lease, Client::Done<int64_t> done) {
  bool check = false;
  std::shared_ptr<Client::RenewalStream> opened;
  {
    MutexLock lock(&mu_);
    const SteadyTime now = client_->Now();
    Lease& entry = leases_[lease];
    entry.waiters.push_back({now + client_->timing().call_timeout, std::move(done)});
    if (entry.waiters.size() > 1) return;  // its answer serves this one too
    entry.sent = now;
    if (stream_ != nullptr) {
      stream_->Send(RequestFor(lease));
    } else if (!reopening_) {
      opened = NewStream();
    }
    check = !std::exchange(checking_, true);
  }
  if (opened != nullptr) opened->Start();
  if (check) client_->After(kCheckInterval, [this] { Check(); });
}

void LeaseRenewer::SetBreakListener(std::function<void(const absl::Status&)> on_break) {
  MutexLock lock(&mu_);
  on_break_ = std::move(on_break);
}

void LeaseRenewer::Hold() {
  std::shared_ptr<Client::RenewalStream> opened;
  {
    MutexLock lock(&mu_);
    if (stream_ == nullptr && !reopening_ && on_break_ != nullptr) opened = NewStream();
  }
  if (opened != nullptr) opened->Start();
}

std::shared_ptr<Client::RenewalStream> LeaseRenewer::NewStream() {
  stream_ =
      client_->NewRenewal({[this](const LeaseKeepAliveResponse& response) { OnAnswer(response); },
                           [this](const absl::Status& status) { OnStreamEnd(status); }});
  for (auto& [lease, entry] : leases_) {
    entry.sent = client_->Now();
    stream_->Send(RequestFor(lease));
  }
  return stream_;
}

void LeaseRenewer::Reopen() {
  std::shared_ptr<Client::RenewalStream> opened;
  {
    MutexLock lock(&mu_);
    reopening_ = false;
    if (stream_ == nullptr && !leases_.empty()) opened = NewStream();
  }
  if (opened != nullptr) opened->Start();
}

void LeaseRenewer::OnAnswer(const LeaseKeepAliveResponse& response) {
  Lease answered;
  {
    MutexLock lock(&mu_);
    const auto it = leases_.find(response.id());
    if (it == leases_.end()) return;
    answered = std::move(it->second);
    leases_.erase(it);
  }
  for (Waiter& waiter : answered.waiters) std::move(waiter.done)(response.ttl());
}

void LeaseRenewer::OnStreamEnd(const absl::Status& status) {
  // A token that was refused is replaced with the next stream, what else is refused stays refused.
  const bool again =
      (IsTransient(status) || ErrorOf(status) == Error::kInvalidToken) && !client_->closed();
  std::vector<Waiter> over;
  bool reopen;
  std::function<void(const absl::Status&)> on_break;
  {
    MutexLock lock(&mu_);
    stream_ = nullptr;
    if (leases_.empty() && !client_->closed()) on_break = on_break_;
    for (auto it = leases_.begin(); it != leases_.end();) {
      auto& waiters = it->second.waiters;
      for (auto waiter = waiters.begin(); waiter != waiters.end();) {
        if (again && client_->Now() < waiter->deadline) {
          ++waiter;
          continue;
        }
        over.push_back(std::move(*waiter));
        waiter = waiters.erase(waiter);
      }
      if (waiters.empty()) {
        leases_.erase(it++);
      } else {
        ++it;
      }
    }
    reopen = !leases_.empty() && !std::exchange(reopening_, true);
  }
  if (on_break != nullptr) on_break(status);
  for (Waiter& waiter : over) std::move(waiter.done)(status);
  if (reopen) client_->After(client_->timing().round_delay, [this] { Reopen(); });
}

// Finds a stream that is stuck.
void LeaseRenewer::Check() {
  std::shared_ptr<Client::RenewalStream> stuck;
  {
    MutexLock lock(&mu_);
    checking_ = false;
    const SteadyTime limit = client_->Now() - client_->timing().attempt_timeout;
    for (const auto& [lease, entry] : leases_) {
      if (entry.sent < limit) stuck = stream_;
    }
    checking_ = !leases_.empty() && !client_->closed();
    if (!checking_ && stuck == nullptr) return;
  }
  if (stuck != nullptr) {
    stuck->Abandon(absl::UnavailableError("the member of etcd does not answer renewals"));
  }
  client_->After(kCheckInterval, [this] { Check(); });
}

}  // namespace etcd
}  // namespace failback
