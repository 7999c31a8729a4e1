#include "tests/bench/xds/many_streams.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "failback/xds/discovery.pb.h"
#include "registry/model/wire_reader.h"
#include "registry/model/wire_writer.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/subject.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using envoy::service::discovery::v3::DiscoveryRequest;
using registry::v1::OpenSessionRequest;
using registry::v1::OpenSessionResponse;
using registry::v1::RegisterRequest;
using registry::v1::ServiceInstance;
using registry::v1::WatchRequest;

constexpr char kWorkload[] = "xds-40000";
constexpr char kPopularWorkload[] = "xds-40000-popular";
constexpr char kXds[] = "failback-xds";
constexpr char kWatchMethod[] = "/failback.registry.v1.RegistryService/Watch";
constexpr char kXdsMethod[] =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
constexpr char kEndpointsUrl[] =
    "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
constexpr absl::Duration kLongest = absl::Seconds(120);
constexpr int kFollowed = 5;  // services of a stream
// Of every instance at first, and of the first one after the first change: above the sum of a
// service's others, of which xDS tells the sum.
constexpr uint32_t kBaseWeight = 1;
constexpr uint32_t kFirstWeight = 1000;

std::string ServiceName(int number) { return absl::StrCat("service-", 10000 + number); }

// Which service a stream follows in its place, the popular one first.
int ServiceOf(const ManyStreams& scale, int stream, int place) {
  if (place == 0) return stream % scale.popular;
  const int others = scale.services - scale.popular;
  return scale.popular + (stream * (kFollowed - 1) + place - 1) % others;
}

ServiceInstance InstanceOf(int service, int number, uint32_t weight) {
  ServiceInstance instance = NumberedInstance("xds", number);
  instance.mutable_key()->set_service(ServiceName(service));
  instance.set_address(absl::StrCat("10.0.", service % 250, ".", number + 1));
  instance.set_weight(weight);
  return instance;
}

// What changes: one instance of each request, whose weight is the number of the change.
struct Changes {
  std::vector<grpc::ByteBuffer> requests;
  std::vector<int> services;
};

uint32_t WeightOf(size_t change, size_t before) {
  return kFirstWeight + static_cast<uint32_t>(before + change);
}

// A session at a registry, and the numbers of its statements.
class Writer {
 public:
  // `pad`: bytes of metadata that each instance of a change has more.
  Writer(const std::string& address, size_t pad) : channel_(NewChannel(address)), pad_(pad) {
    OpenSessionRequest request;
    request.set_incarnation("bench");
    request.mutable_ttl()->set_seconds(600);
    OpenSessionResponse response;
    if (!Decode(CallOnce(channel_, kOpenSessionMethod, Encode(request)), &response)) {
      Die("OpenSession: garbled");
    }
    session_ = response.session_id();
  }

  void RegisterAll(const ManyStreams& scale, int instances) {
    for (int service = 0; service < scale.services; ++service) {
      RegisterRequest request = NewRequest();
      for (int i = 0; i < instances; ++i) Add(InstanceOf(service, i, kBaseWeight), &request);
      CallOnce(channel_, kRegisterMethod, Encode(request));
    }
  }

  Changes Make(size_t count, size_t before, const std::function<int(size_t)>& service) {
    Changes changes;
    for (size_t i = 0; i < count; ++i) {
      RegisterRequest request = NewRequest();
      Add(InstanceOf(service(i), 0, WeightOf(i, before)), &request);
      changes.requests.push_back(Encode(request));
      changes.services.push_back(service(i));
    }
    return changes;
  }

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  RegisterRequest NewRequest() const {
    RegisterRequest request;
    request.set_session_id(session_);
    return request;
  }
  void Add(ServiceInstance instance, RegisterRequest* request) {
    if (pad_ > 0) (*instance.mutable_metadata())["pad"] = std::string(pad_, 'x');
    auto& registration = *request->add_registrations();
    *registration.mutable_instance() = std::move(instance);
    registration.set_generation(++generation_);
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const size_t pad_;
  std::string session_;
  uint64_t generation_ = 0;
};

std::string_view BytesOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

grpc::Slice SliceOf(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  if (!message.TrySingleSlice(&slice).ok() && !message.DumpToSingleSlice(&slice).ok()) {
    Die("a message that cannot be read");
  }
  return slice;
}

// What a message says: a service and a weight, which is that of the newest change.
struct Shown {
  int service;
  uint32_t weight;
};

int ServiceNumber(std::string_view name) {
  const size_t dash = name.rfind('-');
  int number = 0;
  for (size_t i = dash + 1; i < name.size(); ++i) number = number * 10 + (name[i] - '0');
  return number - 10000;
}

// The largest weight: instances of one weight are a locality, which has their sum.
Shown ReadAssignment(std::string_view assignment) {
  Shown shown{-1, 0};
  wire::Reader fields(assignment);
  for (wire::Field field; fields.Next(&field);) {
    if (field.Is(1, wire::kBytes)) shown.service = ServiceNumber(field.bytes);
    if (!field.Is(2, wire::kBytes)) continue;
    wire::Reader locality(field.bytes);
    for (wire::Field part; locality.Next(&part);) {
      if (!part.Is(3, wire::kBytes)) continue;
      wire::Reader weight(part.bytes);
      for (wire::Field value; weight.Next(&value);) {
        shown.weight = std::max(shown.weight, static_cast<uint32_t>(value.value));
      }
    }
  }
  return shown;
}

// Instances of a snapshot or a delta.
void ReadInstances(std::string_view set, int field_number, std::vector<Shown>* shown) {
  wire::Reader fields(set);
  for (wire::Field field; fields.Next(&field);) {
    if (!field.Is(field_number, wire::kBytes)) continue;
    Shown one{-1, 0};
    wire::Reader parts(field.bytes);
    for (wire::Field part; parts.Next(&part);) {
      if (part.Is(ServiceInstance::kKeyFieldNumber, wire::kBytes)) {
        wire::Reader key(part.bytes);
        for (wire::Field name; key.Next(&name);) {
          if (name.Is(registry::v1::InstanceKey::kServiceFieldNumber, wire::kBytes)) {
            one.service = ServiceNumber(name.bytes);
          }
        }
      } else if (part.Is(ServiceInstance::kWeightFieldNumber, wire::kVarint)) {
        one.weight = static_cast<uint32_t>(part.value);
      }
    }
    shown->push_back(one);
  }
}

void ReadWatch(std::string_view message, std::vector<Shown>* shown) {
  wire::Reader items(message);
  for (wire::Field item; items.Next(&item);) {
    wire::Reader fields(item.bytes);
    for (wire::Field field; fields.Next(&field);) {
      if (!field.Is(registry::v1::WatchItem::kEventFieldNumber, wire::kBytes)) continue;
      wire::Reader event(field.bytes);
      for (wire::Field part; event.Next(&part);) {
        using registry::v1::SubscribeResponse;
        if (part.Is(SubscribeResponse::kSnapshotFieldNumber, wire::kBytes)) {
          ReadInstances(part.bytes, registry::v1::Snapshot::kInstancesFieldNumber, shown);
        } else if (part.Is(SubscribeResponse::kDeltaFieldNumber, wire::kBytes)) {
          ReadInstances(part.bytes, registry::v1::Delta::kUpsertsFieldNumber, shown);
        }
      }
    }
  }
}

// The streams, and what each was shown.
class Clients {
 public:
  // Of a message what it shows, and the answer to it, if any.
  using Read = std::function<void(int stream, const grpc::ByteBuffer& message,
                                  std::vector<Shown>* shown, grpc::ByteBuffer* answer)>;

  Clients(const ManyStreams& scale, const std::string& address, const char* method,
          const std::function<grpc::ByteBuffer(int stream)>& first, Read read)
      : scale_(scale),
        read_(std::move(read)),
        weights_(static_cast<size_t>(scale.streams) * kFollowed, 0),
        streams_(address, method, scale.streams, scale.connections, first,
                 [this](int stream, const grpc::ByteBuffer& message) { On(stream, message); }) {}

  void WaitForFirst() {
    if (!streams_.RunUntil([&] { return known_ == weights_.size(); }, kLongest)) {
      Die(absl::StrCat("only ", known_, " of ", weights_.size(), " services are shown"));
    }
  }

  // Makes the changes while it reads, and waits until each stream has the last of each of its services.
  void Play(const std::shared_ptr<grpc::Channel>& channel, const Changes& changes,
            double per_second, size_t before) {
    const size_t count = changes.requests.size();
    before_ = before;
    changes_ = &changes;
    sent_ = std::make_unique<std::atomic<double>[]>(count);
    last_.assign(count, 0);
    behind_ms_.clear();
    pushes_ = 0;
    following_.assign(static_cast<size_t>(scale_.services), {});
    for (size_t i = 0; i < count; ++i) following_[changes.services[i]].push_back(i);
    size_t current = 0;
    for (int stream = 0; stream < scale_.streams; ++stream) {
      for (int place = 0; place < kFollowed; ++place) {
        current += IsNewest(stream, place) ? 1 : 0;
      }
    }
    newest_ = current;
    std::atomic<bool> all_sent{false};
    std::thread writer([&] {
      RunPaced(channel, kRegisterMethod, changes.requests, per_second,
               [&](size_t i) { sent_[i] = NowSeconds(); });
      all_sent = true;
    });
    // The writer's end is no event of the streams: looked at between short waits.
    const auto done = [&] { return newest_ == weights_.size() && all_sent; };
    const double deadline = NowSeconds() + absl::ToDoubleSeconds(kLongest) + scale_.seconds;
    while (!done() && NowSeconds() < deadline) streams_.RunUntil(done, absl::Milliseconds(10));
    const bool reached = done();
    writer.join();
    changes_ = nullptr;
    if (!reached) Die("not every stream was shown the newest of what it follows");
  }

  // From a change to the last stream that was told it, or a newer one; of those that any was told.
  std::vector<double> LastMs() const {
    std::vector<double> all;
    for (size_t i = 0; i < last_.size(); ++i) {
      if (last_[i] > 0) all.push_back((last_[i] - sent_[i]) * 1e3);
    }
    return all;
  }
  // From the first change that a stream did not have until it was shown it or a newer one.
  const std::vector<double>& BehindMs() const { return behind_ms_; }
  int64_t pushes() const { return pushes_; }

 private:
  // The last change of what it follows in this place, or 0.
  uint32_t NewestOf(int service) const {
    const auto& all = following_[static_cast<size_t>(service)];
    return all.empty() ? 0 : WeightOf(all.back(), before_);
  }
  bool IsNewest(int stream, int place) const {
    const uint32_t newest = NewestOf(ServiceOf(scale_, stream, place));
    return newest == 0 || weights_[static_cast<size_t>(stream) * kFollowed + place] >= newest;
  }

  void On(int stream, const grpc::ByteBuffer& message) {
    shown_.clear();
    grpc::ByteBuffer answer;
    read_(stream, message, &shown_, &answer);
    if (answer.Valid()) streams_.Send(stream, std::move(answer));
    ++pushes_;
    const double now = changes_ == nullptr ? 0 : NowSeconds();
    for (const Shown& shown : shown_) {
      int place = 0;
      while (place < kFollowed && ServiceOf(scale_, stream, place) != shown.service) ++place;
      if (place == kFollowed) Die("a stream was told what it does not follow");
      uint32_t& weight = weights_[static_cast<size_t>(stream) * kFollowed + place];
      // Nothing yet, as of a service that is not known soon enough, is no news.
      if (shown.weight <= weight) continue;
      if (weight == 0) ++known_;
      const uint32_t had = std::exchange(weight, shown.weight);
      if (changes_ != nullptr) Told(shown, had, now);
    }
  }

  void Told(const Shown& shown, uint32_t had, double now) {
    const auto& all = following_[static_cast<size_t>(shown.service)];
    const auto number = [this](uint32_t weight) -> size_t {
      return weight < WeightOf(0, before_) ? 0 : weight - WeightOf(0, before_);
    };
    auto first = had < WeightOf(0, before_) ? all.begin()
                                            : std::upper_bound(all.begin(), all.end(), number(had));
    if (first == all.end()) return;
    behind_ms_.push_back((now - sent_[*first]) * 1e3);
    for (; first != all.end() && *first <= number(shown.weight); ++first) last_[*first] = now;
    if (shown.weight == NewestOf(shown.service)) ++newest_;
  }

  const ManyStreams scale_;
  const Read read_;
  std::vector<uint32_t> weights_;  // by stream and place; 0: not known yet
  size_t known_ = 0;
  std::vector<Shown> shown_;
  const Changes* changes_ = nullptr;
  size_t before_ = 0;
  std::unique_ptr<std::atomic<double>[]> sent_;
  std::vector<double> last_;
  std::vector<double> behind_ms_;
  std::vector<std::vector<size_t>> following_;  // changes, by service
  size_t newest_ = 0;  // pairs of a stream and a service that are up to date
  int64_t pushes_ = 0;
  Streams streams_;
};

// Spread over all services, in an order that repeats.
int AnyService(const ManyStreams& scale, size_t change) {
  constexpr uint64_t kGolden = 11400714819323198485U;
  return static_cast<int>((change * kGolden >> 32) % static_cast<uint64_t>(scale.services));
}

size_t ChangesOverAll(const ManyStreams& scale) {
  return static_cast<size_t>(std::lround(scale.seconds * scale.changes_per_s));
}

// Plays `changes`, which come after `before` others, and says how long they took and what they cost.
void PlayAll(const char* workload, const char* subject, pid_t pid, const Writer& writer,
             const Changes& changes, double per_second, size_t before, Clients* clients,
             Report* report) {
  const double cpu = CpuSecondsOf(pid);
  clients->Play(writer.channel(), changes, per_second, before);
  report->Add(workload, subject, "cpu_us_per_push",
              (CpuSecondsOf(pid) - cpu) * 1e6 / static_cast<double>(clients->pushes()), "us");
  report->Add(workload, subject, "last_p50", Percentile(clients->LastMs(), 0.5), "ms");
  report->Add(workload, subject, "last_p99", Percentile(clients->LastMs(), 0.99), "ms");
  report->Add(workload, subject, "behind_p99", Percentile(clients->BehindMs(), 0.99), "ms");
  report->Add(workload, subject, "behind_most", Percentile(clients->BehindMs(), 1), "ms");
}

// Follows at `address`, where the process `pid` serves, and measures the changes over all services.
std::unique_ptr<Clients> Measure(const ManyStreams& scale, const char* subject,
                                 const std::string& address, pid_t pid, const char* method,
                                 const std::function<grpc::ByteBuffer(int stream)>& first,
                                 Clients::Read read, Writer* writer, Report* report) {
  const int64_t before = AnonymousBytesOf(pid);
  const double began = NowSeconds();
  auto clients = std::make_unique<Clients>(scale, address, method, first, std::move(read));
  clients->WaitForFirst();
  report->Add(kWorkload, subject, "first_seconds", NowSeconds() - began, "s");
  report->Add(kWorkload, subject, "bytes_per_stream",
              static_cast<double>(AnonymousBytesOf(pid) - before) / scale.streams, "B");
  const Changes changes =
      writer->Make(ChangesOverAll(scale), 0, [&](size_t i) { return AnyService(scale, i); });
  PlayAll(kWorkload, subject, pid, *writer, changes, scale.changes_per_s, 0, clients.get(), report);
  return clients;
}

}  // namespace

double FollowXds(const ManyStreams& scale, Report* report) {
  Daemon registry = Daemon::Registry({"--store", "memory:", "--log-level", "error"});
  Daemon agent = Daemon::Agent(
      registry.address(), {"--listen", "127.0.0.1:0", "--log-level", "error", "--xds-max-streams",
                           absl::StrCat(scale.streams + 1000), "--limits-subscriptions",
                           absl::StrCat(scale.streams * kFollowed * 8)});
  Writer writer(registry.address(), 0);
  writer.RegisterAll(scale, scale.instances);

  size_t bytes = 0;
  DiscoveryRequest request;
  const auto read = [&](int stream, const grpc::ByteBuffer& message, std::vector<Shown>* shown,
                        grpc::ByteBuffer* answer) {
    bytes = message.Length();
    const grpc::Slice slice = SliceOf(message);
    request.Clear();
    request.set_type_url(kEndpointsUrl);
    for (int i = 0; i < kFollowed; ++i) {
      request.add_resource_names(ServiceName(ServiceOf(scale, stream, i)));
    }
    wire::Reader fields(BytesOf(slice));
    for (wire::Field field; fields.Next(&field);) {
      if (field.Is(1, wire::kBytes)) request.set_version_info(std::string(field.bytes));
      if (field.Is(5, wire::kBytes)) request.set_response_nonce(std::string(field.bytes));
      if (!field.Is(2, wire::kBytes)) continue;
      wire::Reader any(field.bytes);
      for (wire::Field part; any.Next(&part);) {
        if (part.Is(2, wire::kBytes)) shown->push_back(ReadAssignment(part.bytes));
      }
    }
    *answer = Encode(request);
  };
  const auto first = [&](int stream) {
    DiscoveryRequest follow;
    follow.set_type_url(kEndpointsUrl);
    follow.mutable_node()->set_id(absl::StrCat("client-", stream));
    for (int k = 0; k < kFollowed; ++k) {
      follow.add_resource_names(ServiceName(ServiceOf(scale, stream, k)));
    }
    return Encode(follow);
  };
  const pid_t pid = agent.process().pid();
  const std::unique_ptr<Clients> clients =
      Measure(scale, kXds, agent.address(), pid, kXdsMethod, first, read, &writer, report);
  const auto message_bytes = static_cast<double>(bytes);
  report->Add(kWorkload, kXds, "message_bytes", message_bytes, "B");

  const size_t before = ChangesOverAll(scale);
  const auto popular = static_cast<size_t>(std::lround(scale.seconds * scale.popular_per_s));
  const Changes hot = writer.Make(popular, before, [&](size_t i) {
    return static_cast<int>(i % static_cast<size_t>(scale.popular));
  });
  PlayAll(kPopularWorkload, kXds, pid, writer, hot, scale.popular_per_s, before, clients.get(),
          report);
  const double due = static_cast<double>(popular) * scale.streams / scale.popular;
  report->Add(kPopularWorkload, kXds, "pushes_of_all", static_cast<double>(clients->pushes()) / due,
              "");
  return message_bytes;
}

void FollowBare(const ManyStreams& scale, double message_bytes, Report* report) {
  // What an event of an instance without padding takes.
  constexpr double kPlainBytes = 260;
  const auto pad = static_cast<size_t>(std::max(0.0, message_bytes - kPlainBytes));
  Subject server(kBareGrpc, {});
  Writer writer(server.address(), pad);
  writer.RegisterAll(scale, 1);
  // An answer as large as an acknowledgement of xDS, in a field that the server does not know.
  DiscoveryRequest acknowledgement;
  acknowledgement.set_type_url(kEndpointsUrl);
  for (int i = 0; i < kFollowed; ++i) acknowledgement.add_resource_names(ServiceName(i));
  acknowledgement.set_response_nonce("12345678");
  acknowledgement.set_version_info("12345678-12345678");
  std::string answer_bytes;
  wire::AppendBytes(15, std::string(acknowledgement.ByteSizeLong(), 'x'), &answer_bytes);
  const grpc::Slice answer_slice(answer_bytes);
  const grpc::ByteBuffer same(&answer_slice, 1);
  size_t bytes = 0;
  const auto read = [&](int, const grpc::ByteBuffer& message, std::vector<Shown>* shown,
                        grpc::ByteBuffer* answer) {
    bytes = message.Length();
    const grpc::Slice slice = SliceOf(message);
    ReadWatch(BytesOf(slice), shown);
    *answer = same;
  };
  const auto first = [&](int stream) {
    WatchRequest request;
    for (int k = 0; k < kFollowed; ++k) {
      auto& command = *request.add_commands();
      command.set_watch_id(static_cast<uint64_t>(k) + 1);
      command.mutable_subscribe()->mutable_selector()->set_service(
          ServiceName(ServiceOf(scale, stream, k)));
    }
    return Encode(request);
  };
  Measure(scale, kBareGrpc, server.address(), server.process().pid(), kWatchMethod, first, read,
          &writer, report);
  report->Add(kWorkload, kBareGrpc, "message_bytes", static_cast<double>(bytes), "B");
}

}  // namespace failback
