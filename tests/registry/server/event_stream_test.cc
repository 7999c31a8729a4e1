// Streams of subscriptions at the server, over both ways in: Watch, and Subscribe.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/server/registry_server.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/server/simulated_sweep.h"
#include "tests/registry/server/subscribe_client.h"
#include "tests/registry/server/wire_fixture.h"

namespace failback {
namespace {

using registry::v1::RegistryService;
using registry::v1::WatchItem;

// A Watch stream as a simple client has it.
class WatchClient {
 public:
  explicit WatchClient(const std::string& address)
      : stub_(RegistryService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + 2 * kProcessTimeout));
    stream_ = stub_->Watch(&context_);
  }
  ~WatchClient() { context_.TryCancel(); }

  bool Subscribe(uint64_t id, const SubscribeRequest& request = SubscribeRequest()) {
    WatchRequest message;
    message.add_commands()->set_watch_id(id);
    *message.mutable_commands(0)->mutable_subscribe() = request;
    return stream_->Write(message);
  }
  bool Unsubscribe(uint64_t id) {
    WatchRequest message;
    message.add_commands()->set_watch_id(id);
    message.mutable_commands(0)->mutable_unsubscribe();
    return stream_->Write(message);
  }
  void HalfClose() { stream_->WritesDone(); }

  // The next item; nullopt: the stream has ended.
  std::optional<WatchItem> Next() {
    while (items_.items().empty()) {
      if (!stream_->Read(&items_)) return std::nullopt;
    }
    WatchItem item = items_.items(0);
    items_.mutable_items()->DeleteSubrange(0, 1);
    return item;
  }
  // Reads to the end of the stream.
  absl::Status End() {
    while (Next().has_value()) {
    }
    return StatusFromGrpc(stream_->Finish());
  }

  grpc::ClientReaderWriter<WatchRequest, WatchResponse>& stream() { return *stream_; }
  void Cancel() { context_.TryCancel(); }

 private:
  const std::unique_ptr<RegistryService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<WatchRequest, WatchResponse>> stream_;
  WatchResponse items_;
};

class WatchTest : public WireTest {
 protected:
  void SetUp() override { StartServer(ListenOn(Transport::kUnix), sweep_.options()); }
  void TearDown() override { server_.reset(); }

  int64_t Ended(CallStats::Method method, absl::StatusCode code) const {
    return server_->Stats().calls.methods[static_cast<size_t>(method)].ended[static_cast<int>(
        code)];
  }

  SimulatedSweep sweep_;
};

TEST_F(WatchTest, ManySubscriptionsShareAStreamAndEachHasItsEnd) {
  WatchClient client(address_);
  SubscribeRequest request;
  request.mutable_selector()->set_service("a");
  ASSERT_TRUE(client.Subscribe(1, request));
  const auto first = fake_.WaitForSubscription(0);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->request().selector().service(), "a");
  ASSERT_TRUE(client.Subscribe(2));
  const auto second = fake_.WaitForSubscription(1);
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().subscriptions == 2; }));
  EXPECT_EQ(server_->Stats().watch_streams, 1);

  second->Push(Snapshot(7));
  auto item = client.Next();
  ASSERT_TRUE(item.has_value());
  EXPECT_EQ(item->watch_id(), 2u);
  EXPECT_EQ(item->event().revision(), 7u);
  first->End(absl::NotFoundError("no"));
  item = client.Next();
  ASSERT_TRUE(item.has_value());
  EXPECT_EQ(item->watch_id(), 1u);
  EXPECT_EQ(StatusFromProto(item->end()), absl::NotFoundError("no"));
  EXPECT_TRUE(first->WaitForCancel());
  EXPECT_EQ(Ended(CallStats::Method::kSubscribe, absl::StatusCode::kNotFound), 1);

  ASSERT_TRUE(client.Unsubscribe(2));
  item = client.Next();
  ASSERT_TRUE(item.has_value());
  ASSERT_TRUE(item->has_end());
  EXPECT_EQ(item->end().code(), 0);
  EXPECT_TRUE(second->WaitForCancel());
  EXPECT_TRUE(Eventually([&] { return server_->Stats().subscriptions == 0; }));
  client.HalfClose();
  EXPECT_TRUE(client.End().ok());
  EXPECT_EQ(Ended(CallStats::Method::kWatch, absl::StatusCode::kOk), 1);
}

TEST_F(WatchTest, AClientThatSendsNoMoreStillReceives) {
  WatchClient client(address_);
  ASSERT_TRUE(client.Subscribe(1));
  client.HalfClose();
  const auto source = fake_.WaitForSubscription(0);
  ASSERT_NE(source, nullptr);
  source->Push(Snapshot(7));
  ASSERT_TRUE(client.Next().has_value());
  source->End(absl::OkStatus());
  EXPECT_TRUE(client.End().ok());
}

TEST_F(WatchTest, AMessageThatIsNoneEndsTheStreamAndSaysWhatWasExpected) {
  WatchClient client(address_);
  ASSERT_TRUE(client.Subscribe(3));
  const auto source = fake_.WaitForSubscription(0);
  ASSERT_NE(source, nullptr);
  client.Subscribe(3);
  EXPECT_EQ(client.End(),
            InvalidField("commands[0].watch_id", "3 is not above 3, the last one of this stream"));
  EXPECT_TRUE(source->WaitForCancel());
}

// Nothing is written while simulated time passes: a write that is under way would be a stalled one.
TEST_F(WatchTest, AStreamWithoutASubscriptionEndsAfterAWhile) {
  WatchClient client(address_);
  ASSERT_TRUE(Eventually([&] { return server_->Stats().watch_streams == 1; }));
  sweep_.Advance(2 * SimulatedSweep::kSilent);
  EXPECT_EQ(ReasonOf(client.End()), registry::v1::ERROR_REASON_IDLE);
}

TEST_F(WatchTest, AStreamWithASubscriptionStays) {
  WatchClient client(address_);
  ASSERT_TRUE(client.Subscribe(1));
  const auto source = fake_.WaitForSubscription(0);
  ASSERT_NE(source, nullptr);
  sweep_.Advance(2 * SimulatedSweep::kSilent);
  EXPECT_EQ(server_->Stats().watch_streams, 1);
  source->Push(Snapshot(7));
  EXPECT_TRUE(client.Next().has_value());
}

// 100,000 subscribes of a client that reads nothing: a few are carried out.
TEST_F(WatchTest, AClientThatReadsNothingIsServedLittle) {
  constexpr int kSubscribes = 100000;
  constexpr int kPerMessage = 100;
  std::atomic<int> sent{0};
  WatchClient client(address_);
  // Each subscription brings 100 KB.
  SubscribeResponse event = Snapshot(1);
  (*event.mutable_snapshot()->add_instances()->mutable_metadata())["k"] =
      std::string(100 << 10, 'v');
  fake_.BeginSubscriptionsWith(event);
  std::thread writer([&] {
    for (int i = 0; i < kSubscribes; i += kPerMessage) {
      WatchRequest message;
      for (int j = 1; j <= kPerMessage; ++j) {
        message.add_commands()->set_watch_id(i + j);
        message.mutable_commands(j - 1)->mutable_subscribe();
      }
      if (!client.stream().Write(message)) return;
      sent += kPerMessage;
    }
  });
  // It comes to a stop, and is cut off. A message may be sent before the server has the stream.
  EXPECT_TRUE(Eventually([&] { return server_->Stats().watch_streams == 1; }));
  EXPECT_TRUE(Eventually([&] {
    sweep_.Advance(SimulatedSweep::kStalled / 4);
    return sent > 0 && server_->Stats().watch_streams == 0;
  }));
  EXPECT_LT(fake_.subscriptions().size(), 1000u);
  while (client.Next().has_value()) {
  }
  writer.join();
  EXPECT_EQ(client.End().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().subscriptions == 0; }));
}

TEST_F(WatchTest, PermitsAreThoseOfSubscribe) {
  server_.reset();
  RegistryServer::Options options = sweep_.options();
  options.max_subscriptions = 2;
  StartServer(ListenOn(Transport::kUnix), options);
  WatchClient client(address_);
  ASSERT_TRUE(client.Subscribe(1));
  ASSERT_NE(fake_.WaitForSubscription(0), nullptr);
  ASSERT_TRUE(client.Subscribe(2));
  ASSERT_NE(fake_.WaitForSubscription(1), nullptr);
  ASSERT_TRUE(client.Subscribe(3));
  auto item = client.Next();
  ASSERT_TRUE(item.has_value());
  EXPECT_EQ(item->watch_id(), 3u);
  EXPECT_EQ(ReasonOf(StatusFromProto(item->end())), registry::v1::ERROR_REASON_OVERLOADED);
  const auto refused = std::make_shared<RecordingListener>();
  const auto subscribe = SubscribeByItself(address_, {}, refused);
  ASSERT_TRUE(refused->WaitForEnd());
  EXPECT_EQ(ReasonOf(*refused->end()), registry::v1::ERROR_REASON_OVERLOADED);

  fake_.subscriptions()[0]->End(absl::OkStatus());
  ASSERT_TRUE(client.Next().has_value());
  ASSERT_TRUE(Eventually([&] { return server_->Stats().subscriptions == 1; }));
  ASSERT_TRUE(client.Subscribe(4));
  EXPECT_NE(fake_.WaitForSubscription(2), nullptr);
  client.Cancel();
  EXPECT_TRUE(Eventually([&] { return server_->Stats().subscriptions == 0; }));
}

TEST_F(WatchTest, ARefusedSubscriptionLeavesTheOthers) {
  fake_.EndSubscriptionsWith(absl::InternalError("broken"));
  WatchClient client(address_);
  ASSERT_TRUE(client.Subscribe(1));
  auto item = client.Next();
  ASSERT_TRUE(item.has_value());
  EXPECT_EQ(StatusFromProto(item->end()), absl::InternalError("broken"));
  fake_.EndSubscriptionsWith(std::nullopt);
  ASSERT_TRUE(client.Subscribe(2));
  EXPECT_TRUE(Eventually([&] { return server_->Stats().subscriptions == 1; }));
}

// Streams open while the server stops, in whatever order it comes.
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
          streams[i] = i % 2 == 0 ? clients[client]->Subscribe(SubscribeRequest(), listeners[i])
                                  : SubscribeByItself(address_, SubscribeRequest(), listeners[i]);
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
