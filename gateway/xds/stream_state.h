// One discovery stream: what its client has subscribed to, what it was sent, what it said of that.
//
// A pure state machine: requests and changes go in, responses come out, one at a time; who owns it
// writes them and asks again when a write is done. So a client that reads slowly has one write
// under way, and what changes meanwhile is noted by name only and taken, in its newest state, by
// the next response.
//
// The protocol (state of the world) in short:
//  * A request names all that the client wants of a type from now on. A name that is new in it is
//    sent as soon as it is known; what it no longer names is forgotten, and sent again if it comes
//    back.
//  * A request with the nonce of the newest response of its type acknowledges it, or, with
//    error_detail, refuses it. What was refused is not sent again until it changes. One with an
//    older nonce is ignored: the client answers the newer response too, with everything it wants.
//  * Listener and Cluster responses have all that the client wants of the type; of the other two
//    kinds only what has changed is sent.
//  * No names at all is an unsubscription, and in the first request of a Listener or Cluster
//    subscription the wildcard of old: it is answered with no resources, as is the name `*`.
//    Failback does not answer a request for nothing with everything.
//
// Endpoints that are not known yet are left out until they are. The source may offer a placeholder,
// "none", when that takes long; it goes to clients that ask for the first time, and not to one that
// comes back from an earlier stream, as its request's version shows, and had better keep what it
// has.
//
// Thread safety: none of its own.

#ifndef FAILBACK_GATEWAY_XDS_STREAM_STATE_H_
#define FAILBACK_GATEWAY_XDS_STREAM_STATE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "failback/xds/discovery.pb.h"
#include "gateway/xds/resources.h"

namespace failback::xds {

class StreamState {
 public:
  using DiscoveryRequest = envoy::service::discovery::v3::DiscoveryRequest;

  // What a request was.
  enum class Kind {
    kSubscribe,  // the first of its type, or one that came before the first response
    kAck,
    kNack,
    kStale,    // of an older response
    kIgnored,  // of a type that is not served
  };

  struct Step {
    Kind kind = Kind::kIgnored;
    // Services that the stream now follows, or no longer follows.
    std::vector<std::string> follow;
    std::vector<std::string> unfollow;
    // Not OK: the stream is to end so.
    absl::Status error;
  };

  // A resource as it is now.
  struct Found {
    // Null: not known yet; the owner is to say Changed() when it is.
    ResourcePtr resource;
    // In place of what is not known.
    bool placeholder = false;
  };
  using Source = std::function<Found(ResourceType type, const std::string& name)>;

  struct Response {
    ResourceType type = ResourceType::kListener;
    std::string version;
    std::string nonce;
    std::vector<ResourcePtr> resources;
  };

  // `version_prefix` distinguishes versions of one process from another's.
  explicit StreamState(std::string version_prefix);

  Step OnRequest(const DiscoveryRequest& request);

  // The endpoints of `name` have changed, or are known now.
  void Changed(const std::string& name);

  // The next response, if there is something to send.
  std::optional<Response> Next(const Source& source);

  // From the first request; empty before.
  const std::string& node_id() const { return node_id_; }
  const std::string& user_agent() const { return user_agent_; }
  const std::string& zone() const { return zone_; }

  // Names that a stream may subscribe to, of one type, and bytes of one name.
  static constexpr size_t kMaxNames = 1000;
  static constexpr size_t kMaxNameBytes = 1024;
  // A partial response is ended when it has this many bytes; the rest follows in the next. gRPC
  // clients take 4 MiB.
  static constexpr size_t kResponseBytes = 1 << 20;

 private:
  struct Subscription {
    bool requested = false;
    // Of the newest response.
    std::string nonce;
    // What the client wants, and the version of each that it was sent; 0: none.
    std::map<std::string, uint64_t> names;
    // Those of `names` that may have something to be sent.
    std::set<std::string> changed;
    // Those that the client may have from an earlier stream.
    std::set<std::string> kept;
    // A response is due even without resources.
    bool answer_wildcard = false;
  };

  Subscription& Of(ResourceType type) { return subscriptions_[static_cast<size_t>(type)]; }
  void NoteNode(const DiscoveryRequest& request);
  // Takes the names of a request, in place of those before.
  void Subscribe(ResourceType type, const DiscoveryRequest& request, Step* step);
  void Hold(const std::string& name, std::vector<std::string>* follow);
  void Release(const std::string& name, std::vector<std::string>* unfollow);
  // Appends what is to be sent of the type; whether there is anything.
  bool TakeWhole(ResourceType type, const Source& source, Response* response);
  bool TakeChanged(ResourceType type, const Source& source, Response* response);

  const std::string version_prefix_;
  std::array<Subscription, kResourceTypes.size()> subscriptions_;
  // How many types want the name.
  std::map<std::string, int> followed_;
  uint64_t last_nonce_ = 0;
  bool node_known_ = false;
  std::string node_id_;
  std::string user_agent_;
  std::string zone_;
};

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_STREAM_STATE_H_
