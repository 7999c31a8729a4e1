// Sets of megabytes through an agent, to a stock gRPC client that takes messages of 4 MiB, on every
// way on which an agent tells one.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/failback/failback_group.h"
#include "registry/model/canonical.h"
#include "registry/model/event_order.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/message_listener.h"
#include "tests/registry/registry_calls.h"
#include "tests/util/forwarding_registry.h"
#include "tests/util/process.h"
#include "tests/util/sanitized_build.h"

namespace failback {
namespace {

using registry::v1::RegistryService;

constexpr int kInstances = 1000;

ServiceInstance Large(int i, uint32_t port) {
  ServiceInstance instance;
  instance.mutable_key()->set_namespace_("default");
  instance.mutable_key()->set_service("orders");
  instance.mutable_key()->set_instance_id(absl::StrCat("i", i));
  instance.set_address("10.0.0.1");
  instance.set_port(port);
  for (int n = 0; n < 8; ++n) {
    (*instance.mutable_metadata())[absl::StrCat("m", n)] = std::string(1000, 'x');
  }
  return instance;
}

class LargeSetsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kReadsLargeMessages) GTEST_SKIP() << "tens of megabytes";
  }

  LargeSetsTest() : timer_(HashedWheelTimer::Create(HashedWheelTimer::Options()).value()) {}

  // Lives longer than the agent.
  StoreRegistry* NewStore() {
    StoreRegistry::Options options;
    options.timer = timer_.get();
    return stores_.emplace_back(StoreRegistry::Open(std::move(options)).value()).get();
  }

  // As an operator would: instances without an owner.
  void Fill(Registry* store, uint32_t port) {
    for (int begin = 0; begin < kInstances; begin += 100) {
      RegisterRequest request;
      for (int i = begin; i < begin + 100; ++i) {
        *request.add_registrations()->mutable_instance() = Large(i, port);
      }
      const auto answer = CallAndWait(*store, &Registry::Register, request);
      ASSERT_TRUE(answer.ok()) << answer.status();
      ASSERT_EQ(answer->results(0).status().code(), 0) << answer->results(0).status().message();
    }
  }

  // An agent of these registries, served; null: an upstream that is unavailable.
  void StartAgent(const std::map<std::string, Registry*>& registries) {
    server_.reset();
    group_.reset();
    std::vector<FailbackGroup::Upstream> upstreams;
    for (const auto& [name, registry] : registries) {
      std::unique_ptr<Registry> upstream;
      if (registry != nullptr) {
        upstream = std::make_unique<ForwardingRegistry>(registry);
      } else {
        auto fake = std::make_unique<FakeRegistry>();
        fake->opens.AnswerWith([](const auto&) { return absl::UnavailableError("refused"); });
        fake->lists.AnswerWith([](const auto&) { return absl::UnavailableError("refused"); });
        fake->EndSubscriptionsWith(absl::UnavailableError("refused"));
        upstream = std::move(fake);
      }
      upstreams.push_back({name, absl::StrCat("grpc://", name), std::move(upstream)});
    }
    FailbackRegistry::Options options;
    options.timer = timer_.get();
    options.state_dir = folder_.File("state");
    auto group = FailbackGroup::Create(std::move(upstreams), options);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    RegistryServer::Options server_options;
    server_options.listen = {"127.0.0.1:0"};
    auto server = RegistryServer::Start(group_.get(), server_options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    // As any program would, which sets no limits.
    stub_ = RegistryService::NewStub(
        grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
  }

  // One Subscribe of the stock client.
  class Reader {
   public:
    explicit Reader(RegistryService::Stub* stub) : stub_(stub) { Subscribe(); }
    ~Reader() {
      if (stream_ == nullptr) return;
      context_->TryCancel();
      End();
    }

    // Reads until every instance has this port and the set is stale or not.
    void ReadUntil(uint32_t port, bool stale) {
      const auto all = [&] {
        if (instances_.size() != kInstances || stale_ != stale || in_parts_) return false;
        for (const auto& [key, found] : instances_) {
          if (found != port) return false;
        }
        return true;
      };
      while (!all()) {
        SubscribeResponse message;
        if (!stream_->Read(&message)) {
          const grpc::Status status = End();
          ASSERT_EQ(status.error_code(), grpc::StatusCode::ABORTED)
              << status.error_message() << ", with " << instances_.size() << " instances";
          Subscribe();  // it has not read in time
          continue;
        }
        const absl::Status order = CheckOrder(&order_, message);
        ASSERT_TRUE(order.ok()) << order;
        largest_ = std::max(largest_, message.ByteSizeLong());
        if (message.has_snapshot() && !std::exchange(in_parts_, message.snapshot().more())) {
          instances_.clear();
        }
        const auto put = [&](const ServiceInstance& instance) {
          instances_[CanonicalKey(instance.key())] = instance.port();
        };
        for (const auto& instance : message.snapshot().instances()) put(instance);
        for (const auto& instance : message.delta().upserts()) put(instance);
        stale_ = message.stale();
      }
    }
    size_t largest() const { return largest_; }

   private:
    // From the position of the last message, if there is one.
    void Subscribe() {
      context_ = std::make_unique<grpc::ClientContext>();
      context_->set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
      SubscribeRequest request;
      request.mutable_selector()->set_service("orders");
      if (!in_parts_) {
        request.set_epoch(order_.epoch());
        request.set_revision(order_.revision());
      }
      order_ = EventOrder(request.epoch(), request.revision());
      in_parts_ = false;
      stream_ = stub_->Subscribe(context_.get(), request);
    }
    grpc::Status End() {
      SubscribeResponse rest;
      while (stream_->Read(&rest)) {
      }
      return std::exchange(stream_, nullptr)->Finish();
    }

    RegistryService::Stub* const stub_;
    std::unique_ptr<grpc::ClientContext> context_;
    std::unique_ptr<grpc::ClientReader<SubscribeResponse>> stream_;
    EventOrder order_;
    std::map<std::string, uint32_t> instances_;
    bool in_parts_ = false;
    bool stale_ = false;
    size_t largest_ = 0;
  };

  void ExpectListed(int expected) {
    std::map<std::string, int> keys;
    ListRequest request;
    request.mutable_selector()->set_service("orders");
    do {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
      ListResponse page;
      const grpc::Status status = stub_->List(&context, request, &page);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_LT(page.ByteSizeLong(), 4 << 20);
      for (const auto& record : page.records()) ++keys[CanonicalKey(record.instance().key())];
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    EXPECT_EQ(keys.size(), expected);
  }

  const TempDir folder_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::vector<std::unique_ptr<StoreRegistry>> stores_;
  std::unique_ptr<FailbackGroup> group_;
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<RegistryService::Stub> stub_;
};

TEST_F(LargeSetsTest, OneUpstreamAndThenNoneAfterARestart) {
  StoreRegistry* const store = NewStore();
  Fill(store, 1);
  StartAgent({{"only", store}});
  {
    Reader reader(stub_.get());
    reader.ReadUntil(1, /*stale=*/false);
    EXPECT_LT(reader.largest(), 512 << 10);
    Reader late(stub_.get());
    late.ReadUntil(1, /*stale=*/false);
    Fill(store, 2);
    reader.ReadUntil(2, /*stale=*/false);
    late.ReadUntil(2, /*stale=*/false);
    EXPECT_LT(reader.largest(), 2 << 20);
    ExpectListed(kInstances);
  }
  // What was known is on disk.
  StartAgent({{"only", nullptr}});
  Reader restored(stub_.get());
  restored.ReadUntil(2, /*stale=*/true);
  EXPECT_LT(restored.largest(), 512 << 10);
  ExpectListed(kInstances);
}

TEST_F(LargeSetsTest, TwoUpstreamsMerged) {
  StoreRegistry *const one = NewStore(), *const two = NewStore();
  Fill(one, 1);
  Fill(two, 1);
  StartAgent({{"one", one}, {"two", two}});
  Reader reader(stub_.get());
  reader.ReadUntil(1, /*stale=*/false);
  Fill(one, 2);
  Fill(two, 2);
  reader.ReadUntil(2, /*stale=*/false);
  EXPECT_LT(reader.largest(), 2 << 20);
  ExpectListed(kInstances);
}

}  // namespace
}  // namespace failback
