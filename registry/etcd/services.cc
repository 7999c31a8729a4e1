#include "registry/etcd/services.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/etcd/service.h"

namespace failback {
namespace etcd {
namespace {

absl::Status NewEpoch() { return absl::UnavailableError("etcd has begun a new epoch"); }

}  // namespace

Services::Services(Client* client, const Keys* keys, Identity* identity, Fences* fences,
                   Options options)
    : client_(client),
      keys_(keys),
      identity_(identity),
      fences_(fences),
      options_(options),
      watcher_(client, options.outage_limit) {}

Services::~Services() = default;

std::shared_ptr<Services::Stream> Services::NewStream(const SubscribeRequest& request,
                                                      std::shared_ptr<NotifyListener> listener) {
  return std::make_shared<Stream>(request, std::move(listener));
}

std::unique_ptr<SubscribeStream> Services::NewHandle(std::shared_ptr<Stream> stream) {
  class Handle : public SubscribeStream {
   public:
    explicit Handle(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
    ~Handle() override { stream_->Close(); }

   private:
    const std::shared_ptr<Stream> stream_;
  };
  return std::make_unique<Handle>(std::move(stream));
}

void Services::Refuse(const std::shared_ptr<Stream>& stream, const absl::Status& status) {
  SubscriptionHub::Deliveries deliveries;
  stream->Attach(SubscriptionHub::Refuse(stream->listener(), status, &deliveries));
  SubscriptionHub::Deliver(deliveries);
}

void Services::Follow(const std::shared_ptr<Stream>& stream) {
  const Selector& selector = stream->request().selector();
  const std::string key =
      absl::StrCat(selector.namespace_(), std::string(1, '\0'), selector.service());
  SubscriptionHub::Deliveries deliveries;
  std::shared_ptr<Service> created;
  bool stopped = false;
  {
    MutexLock lock(&mu_);
    stopped = stopped_;
    if (!stopped) {
      auto& service = services_[key];
      if (service == nullptr || !service->Add(stream, &deliveries)) {
        service = created = std::make_shared<Service>(this, key);
        service->Add(stream, &deliveries);
      }
    }
  }
  if (stopped) return Refuse(stream, absl::CancelledError("the registry is being destroyed"));
  if (created != nullptr) created->Load();
  SubscriptionHub::Deliver(deliveries);
}

absl::Status Services::Unsubscribe(const UnsubscribeRequest& request) {
  const uint64_t epoch = identity_->Get().epoch;
  const std::shared_ptr<SubscriptionHub> hub = epoch == 0 ? nullptr : Hub(epoch);
  if (hub == nullptr) return absl::OkStatus();
  SubscriptionHub::Deliveries deliveries;
  absl::Status status = hub->Unsubscribe(request, &deliveries);
  SubscriptionHub::Deliver(deliveries);
  return status;
}

void Services::EndSession(const std::string& session_id) {
  std::shared_ptr<SubscriptionHub> hub;
  {
    MutexLock lock(&mu_);
    hub = hub_;
  }
  if (hub == nullptr) return;
  SubscriptionHub::Deliveries deliveries;
  hub->ForgetSession(session_id, &deliveries);
  SubscriptionHub::Deliver(deliveries);
}

std::vector<std::string> Services::Sessions() const {
  MutexLock lock(&mu_);
  return hub_ == nullptr ? std::vector<std::string>() : hub_->Sessions();
}

// The hub of an epoch, made if there is none; null when the epoch is another.
std::shared_ptr<SubscriptionHub> Services::Hub(uint64_t epoch) {
  MutexLock lock(&mu_);
  if (hub_ == nullptr && !stopped_) {
    SubscriptionHub::Options hub = options_.hub;
    hub.derive_namespaces = false;
    // Nothing is known of topics that are not begun.
    hub_ = SubscriptionHub::Create(hub, epoch, std::numeric_limits<uint64_t>::max());
    epoch_ = epoch;
  }
  return epoch_ == epoch ? hub_ : nullptr;
}

void Services::EndEpoch() {
  absl::flat_hash_map<std::string, std::shared_ptr<Service>> services;
  std::shared_ptr<SubscriptionHub> hub;
  {
    MutexLock lock(&mu_);
    services.swap(services_);
    hub = std::move(hub_);
    hub_ = nullptr;
  }
  for (const auto& [key, service] : services) service->Drop(NewEpoch());
}

void Services::Drop(const std::shared_ptr<Service>& service) {
  MutexLock lock(&mu_);
  const auto it = services_.find(service->key());
  if (it != services_.end() && it->second == service) services_.erase(it);
}

std::vector<std::string> Services::StaleMarks(absl::Duration memory) {
  std::vector<std::shared_ptr<Service>> services;
  {
    MutexLock lock(&mu_);
    services.reserve(services_.size());
    for (const auto& [key, service] : services_) services.push_back(service);
  }
  const SteadyTime since = client_->Now() - memory;
  std::vector<std::string> stale;
  for (const auto& service : services) {
    for (std::string& key : service->StaleMarks(since)) stale.push_back(std::move(key));
  }
  return stale;
}

void Services::Sweep() {
  MutexLock lock(&mu_);
  absl::erase_if(services_, [](const auto& entry) { return entry.second->DropIfIdle(); });
}

void Services::Stop(const absl::Status& status) {
  absl::flat_hash_map<std::string, std::shared_ptr<Service>> services;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    services.swap(services_);
  }
  for (const auto& [key, service] : services) service->Drop(status);
}

int64_t Services::watched() const {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(services_.size());
}

}  // namespace etcd
}  // namespace failback
