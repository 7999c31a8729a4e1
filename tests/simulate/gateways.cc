#include "tests/simulate/gateways.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "failback/xds/discovery.pb.h"
#include "failback/xds/endpoint.pb.h"
#include "gateway/catalog/catalog.h"
#include "gateway/dns/message.h"
#include "gateway/dns/names.h"
#include "gateway/dns/service_table.h"
#include "gateway/dns/zone.h"
#include "gateway/xds/resources.h"
#include "gateway/xds/service_cache.h"
#include "gateway/xds/stream_state.h"
#include "registry/model/instance_view.h"
#include "registry/model/with_view.h"

namespace failback::simulate {

// --- DNS.

namespace {

uint16_t Number16(std::string_view bytes, size_t at) {
  return static_cast<uint16_t>(static_cast<uint8_t>(bytes[at]) << 8 |
                               static_cast<uint8_t>(bytes[at + 1]));
}

// A query by TCP for SRV records.
std::string QueryFor(const std::string& service) {
  std::string packet("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00", dns::kHeaderBytes);
  packet += dns::ToWire(absl::StrCat(service, ".service.failback")).value();
  packet += std::string("\x00\x21\x00\x01", 4);
  return packet;
}

// Where what follows a name begins; 0: there is none.
size_t SkipName(std::string_view packet, size_t at) {
  while (at < packet.size()) {
    const auto length = static_cast<uint8_t>(packet[at]);
    if (length == 0) return at + 1;
    if (length >= 0xc0) return at + 2;
    at += length + size_t{1};
  }
  return 0;
}

Gateways::Answer ReadAnswer(std::string_view packet) {
  Gateways::Answer answer;
  const auto wrong = [&answer](const char* what) {
    answer.error = what;
    return answer;
  };
  if (packet.size() < dns::kHeaderBytes || Number16(packet, 0) != 0x1234) return wrong("no answer");
  const auto rcode = static_cast<dns::Rcode>(packet[3] & 15);
  if ((Number16(packet, 2) & 0x0200) != 0) return wrong("truncated by TCP");
  // Nothing is known, or it may not be read.
  if (rcode == dns::Rcode::kServFail || rcode == dns::Rcode::kRefused) return answer;
  if (rcode != dns::Rcode::kNoError && rcode != dns::Rcode::kNxDomain)
    return wrong("another rcode");
  const bool absent = rcode == dns::Rcode::kNxDomain;
  answer.state = absent ? Gateways::Answer::State::kAbsent : Gateways::Answer::State::kPresent;
  size_t at = SkipName(packet, dns::kHeaderBytes) + 4;
  const uint16_t records = Number16(packet, 6);
  for (uint16_t i = 0; i < records; ++i) {
    at = SkipName(packet, at);
    if (at == 0 || at + 16 > packet.size()) return wrong("a record beyond the packet");
    if (Number16(packet, at) != dns::type::kSrv) return wrong("a record of another type");
    answer.ports.insert(Number16(packet, at + 14));  // after TTL, length, priority and weight
    at += size_t{10} + Number16(packet, at + 8);
  }
  if (answer.ports.size() != records) return wrong("a record twice");
  if (absent && records > 0) return wrong("records of what does not exist");
  return answer;
}

}  // namespace

class Gateways::Dns {
 public:
  Dns(Registry* registry, Process* process)
      : zone_{dns::Domain::Parse("failback").value()},
        table_(registry, OptionsOf(process), [] {}),
        shuffle_(1) {}

  Answer Ask(const std::string& service) {
    const std::string packet = QueryFor(service);
    dns::Query query;
    const dns::Reading reading = dns::ReadQuery(packet, &query);
    if (!reading.answer || reading.rcode != dns::Rcode::kNoError) {
      Answer answer;
      answer.error = "the query is refused";
      return answer;
    }
    const dns::Meaning meaning = zone_.domain.MeaningOf(query.name);
    const dns::ServiceTable::Found found = table_.Look(meaning.name_space, meaning.service, {});
    table_.Sweep();
    dns::Delivery delivery;
    delivery.tcp = delivery.trusted = true;
    buffer_.resize(dns::kMaxMessageBytes);
    const dns::Reply reply =
        dns::WriteReply(zone_, query, meaning, found.known, delivery, &shuffle_, buffer_.data());
    return ReadAnswer(std::string_view(buffer_.data(), reply.size));
  }

 private:
  static dns::ServiceTable::Options OptionsOf(Process* process) {
    dns::ServiceTable::Options options;
    options.timer = process->timer();
    options.key = {1, 2};
    return options;
  }

  const dns::Zone zone_;
  dns::ServiceTable table_;
  dns::Shuffle shuffle_;
  std::vector<char> buffer_;
};

// --- HTTP.

// A client for each service that waits for the next change, as a long poll does: what it is answered
// is what it had when it was woken last.
class Gateways::Http {
 public:
  Http(Registry* registry, Process* process, int services)
      : process_(process), catalog_(registry, OptionsOf(process)) {
    for (int i = 0; i < services; ++i) Poll(Truth::Service(i));
  }

  Answer Ask(const std::string& service) {
    catalog_.Service("default", service);  // so that it stays followed
    const catalog::ServiceView& view = clients_.at(service).view;
    Answer answer;
    if (view.knowledge != catalog::Knowledge::kKnown) return answer;
    view.instances->ForEach([&](const Blob& instance) {
      WithView(instance, [&](const InstanceView& shown) { answer.ports.insert(shown.port); });
    });
    answer.state = answer.ports.empty() ? Answer::State::kAbsent : Answer::State::kPresent;
    return answer;
  }

 private:
  struct Client {
    catalog::ServiceView view;
    catalog::Wait wait;
  };

  static catalog::Catalog::Options OptionsOf(Process* process) {
    catalog::Catalog::Options options;
    options.timer = process->timer();
    options.now = [process] { return process->clock().WallNow(); };
    return options;
  }

  void Poll(const std::string& service) {
    Client& client = clients_[service];
    client.view = catalog_.Service("default", service);
    // Not while the catalog says so.
    client.wait = catalog_.WaitForService("default", service, client.view.version, [this, service] {
      process_->After(absl::ZeroDuration(), [this, service] { Poll(service); });
    });
  }

  Process* const process_;
  catalog::Catalog catalog_;
  std::map<std::string, Client> clients_;
};

// --- xDS.

// A stream that asks for the endpoints of all services, and what its client has of them.
class Gateways::Xds {
 public:
  Xds(Registry* registry, Process* process, int services)
      : cache_(registry, OptionsOf(process)), stream_(std::make_shared<Stream>(&cache_, process)) {
    for (int i = 0; i < services; ++i) names_.push_back(Truth::Service(i));
    stream_->Request(names_);
  }
  ~Xds() {
    for (const std::string& name : names_) cache_.Unfollow(name, stream_);
    stream_->Close();
  }

  Answer Ask(const std::string& service) {
    Answer answer;
    answer.error = stream_->error;
    const auto it = stream_->endpoints.find(service);
    if (it == stream_->endpoints.end()) return answer;
    answer.ports = it->second;
    answer.state = answer.ports.empty() ? Answer::State::kAbsent : Answer::State::kPresent;
    return answer;
  }

 private:
  struct Stream final : xds::ServiceCache::Follower, std::enable_shared_from_this<Stream> {
    Stream(xds::ServiceCache* cache, Process* process)
        : cache(cache), process(process), state("1") {}

    void Request(const std::vector<std::string>& names) {
      request.set_type_url(xds::TypeUrl(xds::ResourceType::kEndpoints));
      for (const std::string& name : names) request.add_resource_names(name);
      const xds::StreamState::Step step = state.OnRequest(request);
      if (!step.error.ok()) error = step.error.ToString();
      for (const std::string& name : step.follow) {
        if (const absl::Status status = cache->Follow(name, shared_from_this()); !status.ok()) {
          error = status.ToString();
        }
      }
      Later();
    }

    void OnServiceChanged(const std::string& name) override {
      state.Changed(name);
      Later();
    }

    // A write takes its time: what changes meanwhile goes with the next.
    void Later() {
      if (cache == nullptr || writing) return;
      writing = true;
      process->After(absl::Milliseconds(1), [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self == nullptr || self->cache == nullptr) return;
        self->writing = false;
        self->Write();
      });
    }

    void Write() {
      const auto response = state.Next([this](xds::ResourceType type, const std::string& name) {
        return cache->Find(type, name, "");
      });
      if (!response.has_value()) return;
      for (const xds::ResourcePtr& resource : response->resources) Take(resource->encoded);
      request.set_version_info(response->version);
      request.set_response_nonce(response->nonce);
      if (state.OnRequest(request).kind != xds::StreamState::Kind::kAck) error = "no ACK";
      Later();
    }

    void Take(const std::string& encoded) {
      envoy::service::discovery::v3::DiscoveryResponse message;
      envoy::config::endpoint::v3::ClusterLoadAssignment assignment;
      if (!message.ParseFromString(encoded) || message.resources_size() != 1 ||
          !assignment.ParseFromString(message.resources(0).value())) {
        error = "not a ClusterLoadAssignment";
        return;
      }
      std::set<uint32_t>& ports = endpoints[assignment.cluster_name()];
      ports.clear();
      for (const auto& locality : assignment.endpoints()) {
        for (const auto& endpoint : locality.lb_endpoints()) {
          ports.insert(endpoint.endpoint().address().socket_address().port_value());
        }
      }
    }

    void Close() { cache = nullptr; }

    xds::ServiceCache* cache;
    Process* const process;
    xds::StreamState state;
    xds::StreamState::DiscoveryRequest request;
    std::map<std::string, std::set<uint32_t>> endpoints;
    std::string error;
    bool writing = false;
  };

  static xds::ServiceCache::Options OptionsOf(Process* process) {
    xds::ServiceCache::Options options;
    options.timer = process->timer();
    return options;
  }

  xds::ServiceCache cache_;
  const std::shared_ptr<Stream> stream_;
  std::vector<std::string> names_;
};

// --- All.

Gateways::Gateways(Registry* registry, Process* process, int services)
    : dns_(std::make_unique<Dns>(registry, process)),
      http_(std::make_unique<Http>(registry, process, services)),
      xds_(std::make_unique<Xds>(registry, process, services)) {}

Gateways::~Gateways() = default;

const char* Gateways::NameOf(Way way) {
  return std::array<const char*, 3>{"DNS", "HTTP", "xDS"}[static_cast<size_t>(way)];
}

Gateways::Answer Gateways::Ask(Way way, const std::string& service) {
  switch (way) {
    case Way::kDns:
      return dns_->Ask(service);
    case Way::kHttp:
      return http_->Ask(service);
    case Way::kXds:
      break;
  }
  return xds_->Ask(service);
}

// An operator's mark: DNS gives such an instance when there is no other, xDS never, and HTTP says so
// of it.
std::set<uint32_t> Gateways::PortsOf(Way way, const Set& set) {
  std::set<uint32_t> all, serving;
  for (const Shown* shown : set) {
    all.insert(shown->port);
    if (!shown->offline) serving.insert(shown->port);
  }
  if (way == Way::kHttp || (way == Way::kDns && serving.empty())) return all;
  return serving;
}

}  // namespace failback::simulate
