#include "tests/soak/viewer.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/registry/message_listener.h"

namespace failback {
namespace {

// The version that a payload carries.
size_t VersionOf(const ServiceInstance& instance) {
  const auto it = instance.metadata().find("version");
  return it == instance.metadata().end() ? 0 : std::strtoull(it->second.c_str(), nullptr, 10);
}

}  // namespace

class Viewer::Listener : public MessageListener {
 public:
  explicit Listener(Viewer* viewer) : viewer_(viewer) {}
  void OnMessage(const MessagePtr& event) override { viewer_->OnMessage(*event); }
  void OnEnd(const absl::Status& status) override { viewer_->OnEnd(); }

 private:
  Viewer* const viewer_;
};

Viewer::Viewer(std::string name, const std::string& address, std::string service,
               const Ledger* ledger)
    : name_(std::move(name)),
      service_(std::move(service)),
      registry_({address}, GrpcRegistryOptions()),
      view_(ledger) {
  EnsureOpen();
}

Viewer::~Viewer() { stream_.reset(); }

void Viewer::EnsureOpen() {
  SubscribeRequest request;
  {
    MutexLock lock(&mu_);
    if (open_) return;
    open_ = true;
    first_ = true;
    in_parts_ = false;
    ++streams_;
    request.set_epoch(epoch_);
    request.set_revision(revision_);
  }
  request.mutable_selector()->set_service(service_);
  stream_.reset();
  stream_ = registry_.Subscribe(request, std::make_shared<Listener>(this));
}

void Viewer::OnMessage(const SubscribeResponse& event) {
  MutexLock lock(&mu_);
  ++messages_;
  absl::Status status = Apply(event);
  if (!status.ok() && violation_.ok()) {
    violation_ = absl::InternalError(absl::StrCat(name_, ": ", status.message(), "\nin\n",
                                                  event.ShortDebugString().substr(0, 2000)));
  }
}

void Viewer::OnEnd() {
  MutexLock lock(&mu_);
  open_ = false;
}

absl::Status Viewer::Apply(const SubscribeResponse& event) {
  std::map<std::string, size_t> next = versions_;
  if (event.has_snapshot()) {
    if (!in_parts_) parts_.clear();
    in_parts_ = event.snapshot().more();
    for (const auto& instance : event.snapshot().instances()) {
      parts_[instance.key().instance_id()] = VersionOf(instance);
    }
    if (in_parts_) return absl::OkStatus();
    next = std::move(parts_);
  } else if (event.has_delta()) {
    if (event.epoch() != epoch_ || event.delta().base_revision() != revision_) {
      return absl::InternalError(absl::StrCat("a delta for ", event.delta().base_revision(),
                                              " follows revision ", revision_));
    }
    for (const auto& instance : event.delta().upserts()) {
      next[instance.key().instance_id()] = VersionOf(instance);
    }
    for (const auto& key : event.delta().removals()) next.erase(key.instance_id());
  }
  absl::Status status;
  const auto note = [&](const absl::Status& found) {
    if (status.ok()) status = found;
  };
  if (event.epoch() == epoch_ && event.revision() < revision_) {
    note(absl::InternalError(absl::StrCat("revision ", event.revision(), " after ", revision_)));
  }
  if (!first_ && event.epoch() == epoch_ && next == versions_ && event.stale() == stale_) {
    note(absl::InternalError("the same state twice in a row"));
  }
  for (const auto& [key, version] : next) {
    const auto before = versions_.find(key);
    if (before == versions_.end() || before->second != version) {
      note(view_.SeePresent(key, version));
    }
  }
  for (const auto& [key, version] : versions_) {
    if (next.find(key) == next.end()) note(view_.SeeGone(key));
  }
  versions_ = std::move(next);
  first_ = false;
  stale_ = event.stale();
  epoch_ = event.epoch();
  revision_ = event.revision();
  return status;
}

absl::Status Viewer::violation() const {
  MutexLock lock(&mu_);
  return violation_;
}

bool Viewer::Sees(const std::map<std::string, size_t>& versions) const {
  MutexLock lock(&mu_);
  return open_ && !stale_ && versions_ == versions;
}

int64_t Viewer::messages() const {
  MutexLock lock(&mu_);
  return messages_;
}

int64_t Viewer::streams() const {
  MutexLock lock(&mu_);
  return streams_;
}

}  // namespace failback
