// A gRPC channel to a service that is discovered: it follows the instances as they come and go.
//
// Example:
//
//   auto orders = failback::DiscoveryChannel::Create(agent.get(), "orders", {});
//   if (!orders.ok()) return orders.status();
//   auto channel = (*orders)->WaitForChannel(deadline);  // the first list takes a moment
//   …
//   channel = (*orders)->channel();                      // for each call, or each few
//   if (!channel.ok()) return channel.status();          // UNAVAILABLE: no instance
//   auto stub = Orders::NewStub(*channel);
//   stub->Place(&context, request, &response);
//
// gRPC C++ 1.51 has no public interface for a resolver of one's own. What it has are targets that
// list addresses (`ipv4:10.0.0.1:80,10.0.0.2:80`) and, below its channels, one pool of connections
// for the process. So this makes a new channel when the list changes, with load balancing by
// round_robin: an instance that is in the old and the new list keeps its connection, calls under
// way on the old channel go on, and making a stub costs an allocation. Weights are honoured by
// naming an address several times: up to 16 times, and 512 addresses in all, so that a share below
// a sixteenth of the largest counts as that, and in a service of more than 256 instances all shares
// are equal. Where that is not enough, or programs are to need nothing of this, use gRPC's own xDS
// client (docs/xds.md), which takes weights as they are.
//
// Who is called: healthy instances with a weight above zero, those of Options::zone while there are
// any; when no instance is healthy, the draining ones, and then the unhealthy: rather one that may
// fail than none. Instances whose address is a host name are left out while there are others with
// IP addresses, as a target lists addresses or is one name.
//
// An instance that cannot be reached is tried again every two seconds at least, for as long as it
// is listed; gRPC's own limit is two minutes.
//
// Thread safety: all methods from any thread. May be destroyed anywhere.

#ifndef FAILBACK_AGENT_DISCOVERY_CHANNEL_H_
#define FAILBACK_AGENT_DISCOVERY_CHANNEL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "grpcpp/grpcpp.h"

namespace failback {

// The instances to call, by the rules above, in the order of the snapshot. `zone` empty: any.
std::vector<ServiceInstance> InstancesToCall(const ServiceSnapshot& snapshot,
                                             const std::string& zone);

// Each instance as often as its weight asks for, in the smallest numbers with the same shares; each
// at least once.
std::vector<ServiceInstance> RepeatedByWeight(const std::vector<ServiceInstance>& instances);

// The gRPC target of these instances, as `ipv4:10.0.0.1:80,10.0.0.2:80`; `ipv6:` when there is any
// IPv6 address among them; `dns:///name:80` when there are names only (the first). Empty for none.
std::string TargetOf(const std::vector<ServiceInstance>& instances);

class DiscoveryChannel {
 public:
  struct Options {
    // Null: plain text.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // Taken for each channel; see ArgumentsOf.
    grpc::ChannelArguments arguments;
    // Preferred while it has an instance to call; empty: no preference.
    std::string zone;
  };

  // What each channel is made with: the options' own, and of what they leave out the policy
  // `round_robin` and how soon an instance is tried again.
  static grpc::ChannelArguments ArgumentsOf(const Options& options);

  // `agent` outlives the object. INVALID_ARGUMENT names what is wrong with the service's name.
  static absl::StatusOr<std::unique_ptr<DiscoveryChannel>> Create(Agent* agent,
                                                                  const std::string& service,
                                                                  Options options);
  ~DiscoveryChannel();
  DiscoveryChannel(const DiscoveryChannel&) = delete;
  DiscoveryChannel& operator=(const DiscoveryChannel&) = delete;

  // To the instances as they are now. UNAVAILABLE when there is none: try again, or wait.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel() const;

  // Blocks until there is an instance, and returns as channel(); at most until `deadline`.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> WaitForChannel(absl::Time deadline) const;

  // What the channel is made for; empty when there is no instance.
  std::string target() const;

 private:
  class State;
  explicit DiscoveryChannel(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
  Subscription subscription_;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_DISCOVERY_CHANNEL_H_
