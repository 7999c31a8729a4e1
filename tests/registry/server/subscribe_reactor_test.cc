// A subscription that a stopping server ends before it has begun: gRPC keeps the reactor until its
// Start is done, so that Start finds it.

#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/server/call_stats.h"
#include "registry/server/event_cache.h"
#include "registry/server/server_reactors.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/server/wire_fixture.h"

namespace failback {
namespace {

using registry::v1::RegistryService;
using ::testing::IsEmpty;

// What a server that stops ends its streams with.
absl::Status Stopping() { return absl::UnavailableError("the server stops"); }

// Lets the test see a Subscribe before the registry does.
class SeenRegistry : public FakeRegistry {
 public:
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override {
    if (on_subscribe) on_subscribe();
    return FakeRegistry::Subscribe(request, std::move(listener));
  }

  std::function<void()> on_subscribe;
};

// Makes reactors as RegistryServer does, and leaves their Start to the test.
class SubscribeService
    : public RegistryService::WithRawCallbackMethod_Subscribe<RegistryService::Service> {
 public:
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Subscribe(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer*) override {
    auto* reactor = new SubscribeReactor(
        context, SubscribeRequest(), std::make_shared<EventCache>(), &stats_, [] { return false; },
        [this](const auto&) { done_.set_value(); });
    made_.set_value(reactor);
    return reactor;
  }

  // Waits for the stream to come.
  SubscribeReactor* made() { return made_.get_future().get(); }
  // Waits for gRPC to have done with it.
  void WaitForDone() { done_.get_future().wait(); }
  // How many streams were finished, which is what gRPC waits for.
  int64_t finished() const {
    int64_t count = 0;
    for (const auto& method : stats_.Take().methods) {
      for (const int64_t ended : method.ended) count += ended;
    }
    return count;
  }

 private:
  CallStats stats_;
  std::promise<SubscribeReactor*> made_;
  std::promise<void> done_;
};

class SubscribeReactorTest : public ::testing::Test {
 protected:
  SubscribeReactorTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = RegistryService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
    stream_ = stub_->Subscribe(&context_, SubscribeRequest());
  }

  // How the client's stream ends.
  absl::Status End() {
    SubscribeResponse message;
    while (stream_->Read(&message)) {
    }
    return StatusFromGrpc(stream_->Finish());
  }

  SeenRegistry registry_;
  SubscribeService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<RegistryService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<SubscribeResponse>> stream_;
};

TEST_F(SubscribeReactorTest, WhatIsEndedBeforeItsStartStaysForIt) {
  SubscribeReactor* const reactor = service_.made();
  reactor->state()->Abort(Stopping());
  ASSERT_EQ(service_.finished(), 0) << "gRPC may delete the reactor, and Start is to come";
  reactor->Start(&registry_, SubscribeRequest());
  EXPECT_EQ(End(), Stopping());
  service_.WaitForDone();
  EXPECT_EQ(service_.finished(), 1);
  EXPECT_THAT(registry_.subscriptions(), IsEmpty()) << "there is no subscriber any more";
}

TEST_F(SubscribeReactorTest, WhatIsEndedDuringItsStartStaysUntilThatIsDone) {
  SubscribeReactor* const reactor = service_.made();
  registry_.on_subscribe = [&] {
    reactor->state()->Abort(Stopping());
    EXPECT_EQ(service_.finished(), 0) << "Start goes on in the reactor";
  };
  reactor->Start(&registry_, SubscribeRequest());
  EXPECT_EQ(End(), Stopping());
  service_.WaitForDone();
  EXPECT_EQ(service_.finished(), 1);
  ASSERT_EQ(registry_.subscriptions().size(), 1u);
  EXPECT_TRUE(registry_.subscriptions()[0]->cancelled());
}

TEST_F(SubscribeReactorTest, WhatNeverStartsEndsWithTheReason) {
  SubscribeReactor* const reactor = service_.made();
  reactor->state()->Started(Stopping());
  EXPECT_EQ(End(), Stopping());
  service_.WaitForDone();
  EXPECT_EQ(service_.finished(), 1);
}

// The same on a whole server, in whatever order it comes.
TEST_F(WireTest, SubscriptionsThatOpenWhileTheServerStopsEnd) {
  constexpr int kRounds = 10;
  constexpr int kClients = 4;
  constexpr int kStreams = 50;
  for (int round = 0; round < kRounds; ++round) {
    StartServer(ListenOn(Transport::kUnix));
    const size_t before = fake_.subscriptions().size();
    std::vector<std::shared_ptr<RecordingListener>> listeners;
    for (int i = 0; i < kClients * kStreams; ++i) {
      listeners.push_back(std::make_shared<RecordingListener>());
    }
    std::vector<std::unique_ptr<GrpcRegistry>> clients;
    for (int i = 0; i < kClients; ++i) clients.push_back(NewClient());
    std::vector<std::unique_ptr<SubscribeStream>> streams(listeners.size());
    std::vector<std::thread> threads;
    for (int client = 0; client < kClients; ++client) {
      threads.emplace_back([&, client] {
        for (int i = client * kStreams; i < (client + 1) * kStreams; ++i) {
          streams[i] = clients[client]->Subscribe(SubscribeRequest(), listeners[i]);
        }
      });
    }
    EXPECT_NE(fake_.WaitForSubscription(before + round * kStreams / kRounds), nullptr);
    server_->Shutdown(absl::Seconds(30));
    for (std::thread& thread : threads) thread.join();
    for (const auto& listener : listeners) {
      ASSERT_TRUE(listener->WaitForEnd());
      EXPECT_FALSE(listener->end()->ok());
    }
    for (const auto& subscription : fake_.subscriptions()) EXPECT_TRUE(subscription->cancelled());
    server_.reset();
  }
}

}  // namespace
}  // namespace failback
