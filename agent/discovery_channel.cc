#include "agent/discovery_channel.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "registry/base/address.h"
#include "registry/rpc/reconnect_backoff.h"
#include "retry/mutex.h"

namespace failback {
namespace {

// Copies of one instance, and addresses in a target: what a load balancer keeps for each costs
// memory, and shares that differ by more are not distinguished by few calls anyway.
constexpr uint32_t kMaxCopies = 16;
constexpr size_t kMaxAddresses = 512;

// Of instances: one that has gone is listed for some time, and one that comes back at its address
// gets calls soon.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
constexpr absl::Duration kLongestBackoff = absl::Seconds(2);

uint32_t WeightOf(const ServiceInstance& instance) {
  return instance.has_weight() ? instance.weight() : 100;
}

bool Takes(const ServiceInstance& instance) {
  return !instance.has_offline() && (!instance.has_weight() || instance.weight() > 0);
}

// HEALTHY and unspecified are one.
registry::v1::HealthStatus StatusOf(const ServiceInstance& instance) {
  return instance.status() == registry::v1::HEALTH_STATUS_UNSPECIFIED
             ? registry::v1::HEALTH_STATUS_HEALTHY
             : instance.status();
}

}  // namespace

std::vector<ServiceInstance> InstancesToCall(const ServiceSnapshot& snapshot,
                                             const std::string& zone) {
  std::vector<ServiceInstance> best;
  std::vector<ServiceInstance> near;
  for (const ServiceInstance& instance : snapshot.instances) {
    if (!Takes(instance)) continue;
    // They come by status, the best first.
    if (!best.empty() && StatusOf(best[0]) != StatusOf(instance)) break;
    best.push_back(instance);
    if (!zone.empty() && instance.zone() == zone) near.push_back(instance);
  }
  return near.empty() ? best : near;
}

std::vector<ServiceInstance> RepeatedByWeight(const std::vector<ServiceInstance>& instances) {
  uint32_t largest = 1;
  uint32_t common = 0;
  for (const ServiceInstance& instance : instances) {
    largest = std::max(largest, WeightOf(instance));
    common = std::gcd(common, WeightOf(instance));
  }
  common = std::max(common, 1u);
  const size_t room = kMaxAddresses / std::max<size_t>(instances.size(), 1);
  const auto most = static_cast<uint32_t>(std::clamp<size_t>(room, 1, kMaxCopies));
  const auto copies = [&](const ServiceInstance& instance) {
    if (largest / common <= most) return WeightOf(instance) / common;
    const uint64_t share = uint64_t{WeightOf(instance)} * most + largest / 2;
    return std::max(1u, static_cast<uint32_t>(share / largest));
  };
  std::vector<ServiceInstance> repeated;
  // In rounds, so that copies of one instance do not follow each other where others can be between.
  for (uint32_t round = 0; round < most; ++round) {
    for (const ServiceInstance& instance : instances) {
      if (round < copies(instance)) repeated.push_back(instance);
    }
  }
  return repeated;
}

std::string TargetOf(const std::vector<ServiceInstance>& instances) {
  std::vector<std::string> ipv4;
  std::vector<std::string> ipv6;
  std::string name;
  for (const ServiceInstance& instance : instances) {
    switch (HostKindOf(instance.address())) {
      case HostKind::kIpv4:
        ipv4.push_back(absl::StrCat(instance.address(), ":", instance.port()));
        break;
      case HostKind::kIpv6:
        ipv6.push_back(absl::StrCat("[", instance.address(), "]:", instance.port()));
        break;
      case HostKind::kName:
        if (name.empty()) name = absl::StrCat("dns:///", instance.address(), ":", instance.port());
        break;
    }
  }
  if (ipv6.empty()) return ipv4.empty() ? name : absl::StrCat("ipv4:", absl::StrJoin(ipv4, ","));
  // A target is of one family: IPv4 addresses go as IPv6 ones that mean the same.
  for (const std::string& address : ipv4) {
    const size_t colon = address.find(':');
    ipv6.push_back(absl::StrCat("[::ffff:", address.substr(0, colon), "]", address.substr(colon)));
  }
  return absl::StrCat("ipv6:", absl::StrJoin(ipv6, ","));
}

class DiscoveryChannel::State {
 public:
  State(std::string service, Options options)
      : service_(std::move(service)), options_(std::move(options)) {
    if (options_.credentials == nullptr) options_.credentials = grpc::InsecureChannelCredentials();
    options_.arguments = ArgumentsOf(options_);
  }

  void Update(const ServiceSnapshot& snapshot) {
    std::string target = TargetOf(RepeatedByWeight(InstancesToCall(snapshot, options_.zone)));
    MutexLock lock(&mu_);
    if (target == target_) return;
    target_ = std::move(target);
    channel_ = target_.empty()
                   ? nullptr
                   : grpc::CreateCustomChannel(target_, options_.credentials, options_.arguments);
    changed_.SignalAll();
  }

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Get(absl::Time deadline) const {
    MutexLock lock(&mu_);
    while (channel_ == nullptr) {
      const absl::Time now = absl::Now();
      if (now >= deadline) {
        return absl::UnavailableError(
            absl::StrCat("no instance of '", service_, "' that takes calls is known"));
      }
      changed_.WaitFor(&mu_, deadline - now);
    }
    return channel_;
  }

  std::string target() const {
    MutexLock lock(&mu_);
    return target_;
  }

 private:
  const std::string service_;
  Options options_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  std::string target_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
};

grpc::ChannelArguments DiscoveryChannel::ArgumentsOf(const Options& options) {
  bool policy = false;
  bool backoff = false;
  const grpc_channel_args given = options.arguments.c_channel_args();
  for (size_t i = 0; i < given.num_args; ++i) {
    const absl::string_view key = given.args[i].key;
    policy = policy || key == GRPC_ARG_LB_POLICY_NAME;
    backoff = backoff || key == GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS ||
              key == GRPC_ARG_MIN_RECONNECT_BACKOFF_MS || key == GRPC_ARG_MAX_RECONNECT_BACKOFF_MS;
  }
  grpc::ChannelArguments arguments = options.arguments;
  if (!policy) arguments.SetLoadBalancingPolicyName("round_robin");
  if (!backoff) SetReconnectBackoff(kConnectTimeout, kLongestBackoff, &arguments);
  return arguments;
}

absl::StatusOr<std::unique_ptr<DiscoveryChannel>> DiscoveryChannel::Create(
    Agent* agent, const std::string& service, Options options) {
  auto state = std::make_shared<State>(service, std::move(options));
  absl::StatusOr<Subscription> subscription = agent->Discover(
      service, [state](const ServiceSnapshot& snapshot) { state->Update(snapshot); });
  if (!subscription.ok()) return subscription.status();
  auto channel = std::unique_ptr<DiscoveryChannel>(new DiscoveryChannel(std::move(state)));
  channel->subscription_ = *std::move(subscription);
  return channel;
}

DiscoveryChannel::DiscoveryChannel(std::shared_ptr<State> state) : state_(std::move(state)) {}

DiscoveryChannel::~DiscoveryChannel() = default;

absl::StatusOr<std::shared_ptr<grpc::Channel>> DiscoveryChannel::channel() const {
  return state_->Get(absl::InfinitePast());
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> DiscoveryChannel::WaitForChannel(
    absl::Time deadline) const {
  return state_->Get(deadline);
}

std::string DiscoveryChannel::target() const { return state_->target(); }

}  // namespace failback
