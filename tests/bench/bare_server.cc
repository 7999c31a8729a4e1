// What gRPC alone can do: a server that answers the registry's calls with messages of the same size
// and does nothing of what a registry is for. No checks, no fences, no sessions, no commits.
//
// Register puts each instance in a map (or not even that, with --no-map), and writes it, encoded
// once, to every open Subscribe stream, and to each subscription of its service on Watch streams, in a
// message of its own with a head and a slice that all share; List answers with one page that is encoded
// already; with --sync it first writes a page to a file and syncs it,
// on the thread that has read the call. Each method is served in the way that is fastest with this
// library, the callback API.
//
//   bare_server --listen 127.0.0.1:0 [--no-map] [--sync FILE]
//
// Ends with SIGTERM.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "bare.grpc.pb.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/wire_writer.h"
#include "retry/mutex.h"
#include "tests/bench/instances.h"
#include "tests/bench/synced_file.h"

namespace failback {
namespace {

using bench::CarryRequest;
using bench::CarryResponse;
using grpc::CallbackServerContext;
using registry::v1::KeepAliveRequest;
using registry::v1::KeepAliveResponse;
using registry::v1::ListResponse;
using registry::v1::OpenSessionRequest;
using registry::v1::OpenSessionResponse;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::RegistryService;
using registry::v1::SubscribeResponse;
using registry::v1::WatchItem;
using registry::v1::WatchRequest;
using registry::v1::WatchResponse;

class Map {
 public:
  explicit Map(bool on) : on_(on) {}

  void Put(std::string key, std::string value) {
    if (!on_) return;
    MutexLock lock(&mu_);
    map_.insert_or_assign(std::move(key), std::move(value));
  }

 private:
  const bool on_;
  Mutex mu_;
  absl::flat_hash_map<std::string, std::string> map_ ABSL_GUARDED_BY(mu_);
};

// Writes what it is given, in order.
class Follower final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit Follower(std::function<void(Follower*)> on_done) : on_done_(std::move(on_done)) {}

  void Write(const grpc::ByteBuffer& message) {
    MutexLock lock(&mu_);
    if (finished_) return;
    waiting_.push_back(message);
    if (waiting_.size() == 1) StartWrite(&waiting_.front());
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    waiting_.pop_front();
    if (ok && !finished_ && !waiting_.empty()) StartWrite(&waiting_.front());
  }

  // Nothing may be started after Finish.
  void OnCancel() override {
    {
      MutexLock lock(&mu_);
      finished_ = true;
    }
    Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    on_done_(this);
    delete this;
  }

 private:
  const std::function<void(Follower*)> on_done_;
  Mutex mu_;
  std::deque<grpc::ByteBuffer> waiting_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

// Subscriptions of many services, by their numbers.
class Watcher final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using OnSubscribe = std::function<void(Watcher*, uint64_t id, const std::string& service)>;

  Watcher(OnSubscribe on_subscribe, std::function<void(Watcher*)> on_done)
      : on_subscribe_(std::move(on_subscribe)), on_done_(std::move(on_done)) {
    StartRead(&request_);
  }

  // `event` is a SubscribeResponse.
  void Write(uint64_t id, const grpc::Slice& event) {
    std::string head;
    wire::AppendHead(WatchResponse::kItemsFieldNumber,
                     wire::NumberSize(id) + wire::BytesSize(event.size()), &head);
    wire::AppendNumber(WatchItem::kWatchIdFieldNumber, id, &head);
    wire::AppendHead(WatchItem::kEventFieldNumber, event.size(), &head);
    const grpc::Slice slices[] = {grpc::Slice(head), event};
    MutexLock lock(&mu_);
    if (finished_) return;
    waiting_.emplace_back(slices, 2);
    if (waiting_.size() == 1) StartWrite(&waiting_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    WatchRequest request;
    if (!grpc::SerializationTraits<WatchRequest>::Deserialize(&request_, &request).ok()) return;
    for (const auto& command : request.commands()) {
      on_subscribe_(this, command.watch_id(), command.subscribe().selector().service());
    }
    MutexLock lock(&mu_);
    if (!finished_) StartRead(&request_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    waiting_.pop_front();
    if (ok && !finished_ && !waiting_.empty()) StartWrite(&waiting_.front());
  }

  // Nothing may be started after Finish.
  void OnCancel() override {
    {
      MutexLock lock(&mu_);
      finished_ = true;
    }
    Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    on_done_(this);
    delete this;
  }

 private:
  const OnSubscribe on_subscribe_;
  const std::function<void(Watcher*)> on_done_;
  grpc::ByteBuffer request_;
  Mutex mu_;
  std::deque<grpc::ByteBuffer> waiting_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

// Answers each message with one.
template <typename Request, typename Response>
class Echo final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  using Answer = std::function<void(const Request&, Response*)>;

  explicit Echo(Answer answer) : answer_(std::move(answer)) { this->StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    response_.Clear();
    answer_(request_, &response_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    this->StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const Answer answer_;
  Request request_;
  Response response_;
};

using ServiceBase =
    RegistryService::WithCallbackMethod_OpenSession<RegistryService::WithCallbackMethod_Register<
        RegistryService::WithRawCallbackMethod_List<RegistryService::WithCallbackMethod_KeepAlive<
            RegistryService::WithRawCallbackMethod_Subscribe<
                RegistryService::WithRawCallbackMethod_Watch<RegistryService::Service>>>>>>;

class BareRegistry final : public ServiceBase {
 public:
  // `synced` may be null.
  BareRegistry(Map* map, SyncedFile* synced) : map_(map), synced_(synced) {}

  grpc::ServerUnaryReactor* OpenSession(CallbackServerContext* context, const OpenSessionRequest*,
                                        OpenSessionResponse* response) override {
    response->set_session_id(absl::StrCat("0123456789abcdef0123", 100000000000 + ++revision_));
    response->mutable_ttl()->set_seconds(10);
    response->set_rank(revision_);
    response->set_store_id("0123456789abcdef0123456789abcdef");
    response->set_epoch(kEpoch);
    return Ok(context);
  }

  grpc::ServerUnaryReactor* Register(CallbackServerContext* context, const RegisterRequest* request,
                                     RegisterResponse* response) override {
    const uint64_t revision = ++revision_;
    for (const registry::v1::Registration& registration : request->registrations()) {
      const registry::v1::InstanceKey& key = registration.instance().key();
      map_->Put(absl::StrCat(key.namespace_(), "/", key.service(), "/", key.instance_id()),
                registration.instance().SerializeAsString());
      registry::v1::IntentResult& result = *response->add_results();
      result.set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
      result.set_generation(registration.generation());
    }
    response->set_epoch(kEpoch);
    response->set_revision(revision);
    if (synced_ != nullptr && !Sync()) {
      grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the file cannot be written"));
      return reactor;
    }
    FanOut(*request, revision);
    return Ok(context);
  }

  grpc::ServerUnaryReactor* List(CallbackServerContext* context, const grpc::ByteBuffer*,
                                 grpc::ByteBuffer* response) override {
    *response = page_;
    return Ok(context);
  }

  grpc::ServerBidiReactor<KeepAliveRequest, KeepAliveResponse>* KeepAlive(
      CallbackServerContext*) override {
    return new Echo<KeepAliveRequest, KeepAliveResponse>(
        [this](const KeepAliveRequest& request, KeepAliveResponse* response) {
          response->set_session_id(request.session_id());
          response->mutable_ttl()->set_seconds(10);
          response->set_epoch(kEpoch);
          response->set_revision(revision_);
        });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Subscribe(CallbackServerContext*,
                                                        const grpc::ByteBuffer*) override {
    auto* const follower = new Follower([this](Follower* ended) {
      MutexLock lock(&mu_);
      followers_.erase(ended);
    });
    SubscribeResponse snapshot;
    snapshot.set_epoch(kEpoch);
    snapshot.set_revision(revision_);
    *snapshot.mutable_snapshot()->add_instances() = NumberedInstance("fanout", 0);
    follower->Write(Encode(snapshot));
    MutexLock lock(&mu_);
    followers_.insert(follower);
    return follower;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Watch(
      CallbackServerContext*) override {
    return new Watcher(
        [this](Watcher* watcher, uint64_t id, const std::string& service) {
          MutexLock lock(&mu_);
          Followed& followed = followed_[service];
          watcher->Write(id, followed.snapshot);
          followed.by.emplace_back(watcher, id);
        },
        [this](Watcher* ended) {
          MutexLock lock(&mu_);
          for (auto& [service, followed] : followed_) {
            auto& by = followed.by;
            by.erase(std::remove_if(by.begin(), by.end(),
                                    [ended](const auto& one) { return one.first == ended; }),
                     by.end());
          }
        });
  }

 private:
  // What Watch streams follow.
  struct Followed {
    SubscribeResponse set;
    grpc::Slice snapshot;  // of it
    std::vector<std::pair<Watcher*, uint64_t>> by;
  };

  static constexpr uint64_t kEpoch = 0x1234567812345678;

  static grpc::ServerUnaryReactor* Ok(CallbackServerContext* context) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  // As large as a registry's answer with ten instances.
  static grpc::ByteBuffer Page() {
    ListResponse page;
    for (int i = 0; i < 10; ++i) {
      registry::v1::InstanceRecord& record = *page.add_records();
      *record.mutable_instance() = NumberedInstance("orders", i);
      record.set_incarnation("bench");
      record.set_rank(1);
      record.set_generation(1);
      record.set_create_revision(1000 + i);
      record.set_modify_revision(1000 + i);
      record.mutable_create_time()->set_seconds(1700000000);
      record.mutable_create_time()->set_nanos(123456789);
      *record.mutable_modify_time() = record.create_time();
    }
    page.set_epoch(kEpoch);
    page.set_revision(1000);
    return Encode(page);
  }

  bool Sync() {
    MutexLock lock(&mu_);
    return synced_->Write();
  }

  void FanOut(const RegisterRequest& request, uint64_t revision) {
    MutexLock lock(&mu_);
    WriteToWatchers(request, revision);
    if (followers_.empty()) return;
    const grpc::ByteBuffer encoded = Encode(DeltaOf(request, revision));
    for (Follower* follower : followers_) follower->Write(encoded);
  }

  static SubscribeResponse DeltaOf(const RegisterRequest& request, uint64_t revision) {
    SubscribeResponse event;
    event.set_epoch(kEpoch);
    event.set_revision(revision);
    event.mutable_delta()->set_base_revision(revision - 1);
    for (const registry::v1::Registration& registration : request.registrations()) {
      *event.mutable_delta()->add_upserts() = registration.instance();
    }
    return event;
  }

  // All instances of a request are of one service, or their services are not followed yet.
  void WriteToWatchers(const RegisterRequest& request, uint64_t revision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::unordered_set<Followed*> changed;
    for (const registry::v1::Registration& registration : request.registrations()) {
      const registry::v1::ServiceInstance& instance = registration.instance();
      Followed& followed = followed_[instance.key().service()];
      auto& set = *followed.set.mutable_snapshot()->mutable_instances();
      const auto known = std::find_if(set.begin(), set.end(), [&](const auto& one) {
        return one.key().instance_id() == instance.key().instance_id();
      });
      (known == set.end() ? *set.Add() : *known) = instance;
      changed.insert(&followed);
    }
    for (Followed* followed : changed) {
      followed->set.set_epoch(kEpoch);
      followed->set.set_revision(revision);
      followed->snapshot = grpc::Slice(followed->set.SerializeAsString());
      if (followed->by.empty()) continue;
      const grpc::Slice event(DeltaOf(request, revision).SerializeAsString());
      for (const auto& [watcher, id] : followed->by) watcher->Write(id, event);
    }
  }

  Map* const map_;
  SyncedFile* const synced_ ABSL_PT_GUARDED_BY(mu_);
  const grpc::ByteBuffer page_ = Page();
  std::atomic<uint64_t> revision_{0};
  Mutex mu_;
  std::unordered_set<Follower*> followers_ ABSL_GUARDED_BY(mu_);
  absl::node_hash_map<std::string, Followed> followed_ ABSL_GUARDED_BY(mu_);
};

class BareStream final : public bench::BareService::CallbackService {
 public:
  explicit BareStream(Map* map) : map_(map) {}

  grpc::ServerBidiReactor<CarryRequest, CarryResponse>* Carry(CallbackServerContext*) override {
    return new Echo<CarryRequest, CarryResponse>(
        [this](const CarryRequest& request, CarryResponse* response) {
          for (const bench::Item& item : request.items()) map_->Put(item.key(), item.value());
          constexpr int kBytesPerResult = 6;
          response->mutable_results()->resize(request.items_size() * kBytesPerResult);
        });
  }

 private:
  Map* const map_;
};

int Main(int argc, char** argv) {
  // As the daemons.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  std::string listen = "127.0.0.1:0";
  bool with_map = true;
  std::unique_ptr<SyncedFile> synced;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--no-map") == 0) {
      with_map = false;
    } else if (std::strcmp(argv[i], "--listen") == 0 && i + 1 < argc) {
      listen = argv[++i];
    } else if (std::strcmp(argv[i], "--sync") == 0 && i + 1 < argc) {
      synced = std::make_unique<SyncedFile>(argv[++i], SyncedFile::Sync::kInPlace);
    } else {
      std::fprintf(stderr, "usage: bare_server [--listen ADDRESS] [--no-map] [--sync FILE]\n");
      return 2;
    }
  }
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  Map map(with_map);
  BareRegistry registry(&map, synced.get());
  BareStream stream(&map);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&registry);
  builder.RegisterService(&stream);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "cannot listen on %s\n", listen.c_str());
    return 1;
  }
  const size_t colon = listen.rfind(':');
  std::printf("bare_server listening on %s:%d\n", listen.substr(0, colon).c_str(), port);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&stop, &signal);
  _exit(0);
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
