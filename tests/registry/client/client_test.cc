// GrpcRegistry when things go wrong: outages, deadlines, gaps, its own destruction.

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using registry::v1::RegistryService;
using testing::HasSubstr;

class ClientTest : public WireTest {
 protected:
  void SetUp() override { StartServer(ListenOn(Transport::kTcp)); }

  // Ends the server as a crash would: connections and calls break.
  void KillServer() { server_.reset(); }

  absl::Status ListStatus(Registry& client) {
    return CallAndWait(client, &Registry::List, ListRequest()).status();
  }
};

TEST_F(ClientTest, ReachesNamesAndNumbersOfBothFamilies) {
  const auto reaches = [&] {
    return CallAndWait(*NewClient(), &Registry::List, ListRequest()).status();
  };
  StartServer("127.0.0.1:0");
  EXPECT_TRUE(reaches().ok()) << reaches();
  address_.replace(0, address_.find(':'), "localhost");
  EXPECT_TRUE(reaches().ok()) << reaches();
  if (!std::filesystem::exists("/proc/net/if_inet6")) return;
  StartServer("[::1]:0");
  EXPECT_TRUE(reaches().ok()) << reaches();
}

TEST_F(ClientTest, AnUnreachableRegistryFailsAtOnceAndSaysWhy) {
  KillServer();
  GrpcRegistryOptions options;
  options.call_timeout = absl::Hours(1);  // it does not take that long
  const auto client = NewClient(options);
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = ListStatus(*client);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Connection refused"));
  }
}

// gRPC's own backoff would have the calls after such an outage fail for another second or more.
TEST_F(ClientTest, TheFirstCallAfterAnOutageSucceeds) {
  const auto client = NewClient();
  ASSERT_TRUE(ListStatus(*client).ok());
  const std::string address = address_;
  KillServer();
  const absl::Time back = absl::Now() + absl::Seconds(3);
  while (absl::Now() < back) {
    EXPECT_FALSE(ListStatus(*client).ok());
    absl::SleepFor(absl::Milliseconds(100));  // the pace of a caller that retries
  }
  StartServer(address);
  const absl::Time start = absl::Now();
  const absl::Status status = ListStatus(*client);
  EXPECT_TRUE(status.ok()) << status;
  RecordProperty("recovery_ms", static_cast<int>(absl::ToInt64Milliseconds(absl::Now() - start)));
}

TEST_F(ClientTest, ACallThatIsNotAnsweredEndsAtItsDeadline) {
  fake_.registers.Hold();
  GrpcRegistryOptions options;
  options.call_timeout = absl::Milliseconds(200);
  const auto client = NewClient(options);
  const absl::Status status = CallAndWait(*client, &Registry::Register, RegisterRequest()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_F(ClientTest, CallsAndStreamsBreakWithTheServer) {
  fake_.registers.Hold();
  fake_.keep_alives.Hold();
  const auto client = NewClient();
  auto listener = std::make_shared<RecordingListener>();
  const auto stream = client->Subscribe({}, listener);
  fake_.WaitForSubscription(0)->Push(Snapshot(1));
  ASSERT_TRUE(listener->WaitForEvents(1));
  const auto call = CallAsync(*client, &Registry::Register, RegisterRequest());
  const auto renewal = CallAsync(*client, &Registry::KeepAlive, RenewalOf("s"));
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  ASSERT_TRUE(fake_.keep_alives.WaitForRequests(1));
  KillServer();
  EXPECT_FALSE(call.Get().ok());
  EXPECT_EQ(renewal.Get().status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(listener->WaitForEnd());
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kUnavailable);
}

OpenSessionResponse OpenedAt(const std::string& store) {
  OpenSessionResponse response;
  response.set_session_id("s");
  response.set_store_id(store);
  return response;
}

// Rule 14: `grpc://a,b` is one registry with two addresses.
TEST_F(ClientTest, AnotherStoreAtAnotherAddressIsRefusedByNameAndAcceptedAfterAWhile) {
  fake_.opens.AnswerWith([](const auto&) { return OpenedAt("store-a"); });
  const std::string first = address_;
  FakeRegistry other;
  other.opens.AnswerWith([](const auto&) { return OpenedAt("store-b"); });
  RegistryServer::Options options;
  options.listen = {ListenOn(Transport::kTcp)};
  const auto second = RegistryServer::Start(&other, options).value();
  // Each client has an order of its own: one that begins at the first.
  std::unique_ptr<GrpcRegistry> begun;
  std::string store;
  for (int tries = 0; tries < 100 && store != "store-a"; ++tries) {
    begun = std::make_unique<GrpcRegistry>(std::vector<std::string>{first, second->addresses()[0]},
                                           Patient());
    store = CallAndWait(*begun, &Registry::OpenSession, OpenSessionRequest())->store_id();
  }
  ASSERT_EQ(store, "store-a");
  GrpcRegistry& client = *begun;
  // The same address may begin a new store: it was wiped.
  fake_.opens.AnswerWith([](const auto&) { return OpenedAt("store-a2"); });
  ASSERT_TRUE(CallAndWait(client, &Registry::OpenSession, OpenSessionRequest()).ok());
  KillServer();
  std::vector<absl::Status> refusals;
  bool accepted = false;
  for (int call = 0; call < 40 && !accepted; ++call) {
    const auto opened = CallAndWait(client, &Registry::OpenSession, OpenSessionRequest());
    accepted = opened.ok();
    if (!accepted && !absl::IsUnavailable(opened.status())) refusals.push_back(opened.status());
  }
  EXPECT_TRUE(accepted) << "rather the other one than none";
  ASSERT_EQ(refusals.size(), 4);
  EXPECT_EQ(refusals[0],
            absl::FailedPreconditionError(absl::StrCat(
                second->addresses()[0], " leads to store store-b, and ", first,
                " to store store-a2; several addresses of one registry must lead to one store")));
}

TEST_F(ClientTest, ABrokenIdleConnectionIsToldAtOnce) {
  fake_.opens.AnswerWith([](const auto&) { return OpenedAt("store"); });
  const auto client = NewClient();
  Mutex mu;
  CondVar changed;
  std::vector<absl::Status> told;
  client->SetDisconnectListener([&](const absl::Status& status) {
    MutexLock lock(&mu);
    told.push_back(status);
    changed.SignalAll();
  });
  ASSERT_TRUE(CallAndWait(*client, &Registry::OpenSession, OpenSessionRequest()).ok());
  // Its KeepAlive stream is open then, though nothing was renewed.
  ASSERT_TRUE(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("s")).ok());
  KillServer();
  const absl::Time deadline = absl::Now() + kProcessTimeout;
  MutexLock lock(&mu);
  while (told.empty() && absl::Now() < deadline) changed.WaitFor(&mu, absl::Seconds(1));
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].code(), absl::StatusCode::kUnavailable) << told[0];
}

// A registry that compresses its answers: as the client says that it takes them, or regardless.
class CompressingService final : public RegistryService::Service {
 public:
  grpc::Status List(grpc::ServerContext* context, const ListRequest* request,
                    ListResponse* response) override {
    if (request->page_size() == kRegardless) {
      context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    } else {
      context->set_compression_level(GRPC_COMPRESS_LEVEL_HIGH);
    }
    response->set_next_page_token(std::string(10000, 'x'));
    return grpc::Status::OK;
  }

  static constexpr int kRegardless = 7;
};

TEST_F(ClientTest, NothingCompressedIsAskedForNorTaken) {
  KillServer();
  CompressingService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
  const auto client = NewClient();
  ListRequest request;
  const auto plain = CallAndWait(*client, &Registry::List, request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->next_page_token().size(), 10000u);
  request.set_page_size(CompressingService::kRegardless);
  const auto swollen = CallAndWait(*client, &Registry::List, request);
  EXPECT_FALSE(swollen.ok()) << swollen->next_page_token().size() << " bytes";
  server->Shutdown();
}

TEST_F(ClientTest, TooLargeARequestIsRefusedHere) {
  GrpcRegistryOptions options;
  options.channel.max_message_bytes = 1000;
  const auto client = NewClient(options);
  RegisterRequest request;
  request.set_session_id(std::string(2000, 's'));
  const absl::Status status = CallAndWait(*client, &Registry::Register, request).status();
  EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_TOO_LARGE) << status;
  EXPECT_EQ(ReasonMetadata(status, "limit"), "1000");
  EXPECT_EQ(fake_.registers.request_count(), 0u);
}

TEST_F(ClientTest, WithSeveralAddressesCallsMoveToOneThatWorks) {
  const std::string dead = address_;
  KillServer();
  StartServer(ListenOn(Transport::kUnix));
  // Each client has an order of its own: one that begins at the dead one.
  std::unique_ptr<GrpcRegistry> begun;
  absl::Status first;
  for (int tries = 0; tries < 100 && first.ok(); ++tries) {
    begun = std::make_unique<GrpcRegistry>(std::vector<std::string>{dead, address_}, Patient());
    first = ListStatus(*begun);
  }
  GrpcRegistry& client = *begun;
  EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(ListStatus(client).ok());
  EXPECT_TRUE(ListStatus(client).ok()) << "and stay there";
  // And back, when that one goes and the other has come.
  KillServer();
  StartServer(dead);
  int failures = 0;
  while (!ListStatus(client).ok()) ASSERT_LT(++failures, 3);
}

TEST_F(ClientTest, RenewalsOfManySessionsAreMatchedInOrder) {
  fake_.keep_alives.Hold();
  const auto client = NewClient();
  std::vector<Answered<KeepAliveResponse>> renewals;
  for (const char* session : {"a", "b", "a"}) {
    renewals.push_back(CallAsync(*client, &Registry::KeepAlive, RenewalOf(session)));
  }
  ASSERT_TRUE(fake_.keep_alives.WaitForRequests(3));
  const auto answer = [&](size_t held, const std::string& session, uint64_t revision) {
    KeepAliveResponse response;
    response.set_session_id(session);
    response.set_revision(revision);
    ASSERT_TRUE(fake_.keep_alives.CompleteAt(held, response));
  };
  answer(1, "b", 2);
  EXPECT_EQ(renewals[1].Get()->revision(), 2u);
  EXPECT_FALSE(renewals[0].has_come());
  answer(0, "a", 1);
  answer(0, "a", 3);
  EXPECT_EQ(renewals[0].Get()->revision(), 1u);
  EXPECT_EQ(renewals[2].Get()->revision(), 3u);
}

TEST_F(ClientTest, ARenewalWithoutAnswerEndsItsStreamAndTheNextTakesAnother) {
  SimulatedClock clock;
  const auto timer = NewTimer(&clock);
  GrpcRegistryOptions options;
  options.timer = timer.get();
  fake_.keep_alives.Hold();
  auto client = NewClient(options);
  const auto stuck = CallAsync(*client, &Registry::KeepAlive, RenewalOf("a"));
  ASSERT_TRUE(fake_.keep_alives.WaitForRequests(1));
  clock.Advance(options.call_timeout - absl::Milliseconds(1));
  EXPECT_FALSE(stuck.has_come());
  clock.Advance(absl::Milliseconds(101));  // a tick later at most
  ASSERT_TRUE(stuck.has_come());
  EXPECT_EQ(stuck.Get().status().code(), absl::StatusCode::kDeadlineExceeded);
  fake_.keep_alives.Release();
  ASSERT_TRUE(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("a")).ok());
  EXPECT_EQ(timer->pending(), 0) << "an answered renewal has no deadline any more";
  fake_.keep_alives.Hold();
  const auto last = CallAsync(*client, &Registry::KeepAlive, RenewalOf("a"));
  EXPECT_EQ(timer->pending(), 1);
  client.reset();
  EXPECT_EQ(last.Get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(timer->pending(), 0);
}

TEST_F(ClientTest, ARenewalWithoutAnswerEndsWithoutATimerBeingGiven) {
  fake_.keep_alives.Hold();
  GrpcRegistryOptions options;
  options.call_timeout = absl::Milliseconds(50);
  const auto client = NewClient(options);
  const auto stuck = CallAsync(*client, &Registry::KeepAlive, RenewalOf("a"));
  EXPECT_EQ(stuck.Get().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, RenewalsGoOnAfterTheServerIsBack) {
  const auto client = NewClient();
  ASSERT_TRUE(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("a")).ok());
  const std::string address = address_;
  KillServer();
  EXPECT_FALSE(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("a")).ok());
  StartServer(address);
  EXPECT_TRUE(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("a")).ok());
}

TEST_F(ClientTest, DestructionCompletesWhatIsUnderWay) {
  fake_.registers.Hold();
  fake_.keep_alives.Hold();
  auto client = NewClient();
  std::vector<Answered<RegisterResponse>> calls;
  calls.reserve(50);
  for (int i = 0; i < 50; ++i) {
    calls.push_back(CallAsync(*client, &Registry::Register, RegisterRequest()));
  }
  const auto renewal = CallAsync(*client, &Registry::KeepAlive, RenewalOf("a"));
  auto listener = std::make_shared<RecordingListener>();
  const auto stream = client->Subscribe({}, listener);
  ASSERT_NE(fake_.WaitForSubscription(0), nullptr);
  client.reset();
  for (const auto& call : calls) {
    ASSERT_TRUE(call.has_come());
    EXPECT_EQ(call.Get().status().code(), absl::StatusCode::kCancelled);
  }
  ASSERT_TRUE(renewal.has_come());
  EXPECT_EQ(renewal.Get().status().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(listener->end().has_value());
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, DestructionFromWithinACallback) {
  auto client = NewClient();
  absl::Notification destroyed;
  client->List({}, [&](const absl::StatusOr<ListResponse>&) {
    client.reset();
    destroyed.Notify();
  });
  EXPECT_TRUE(destroyed.WaitForNotificationWithTimeout(kProcessTimeout));

  auto renewing = NewClient();
  absl::Notification renewed;
  renewing->KeepAlive(RenewalOf("a"), [&](const absl::StatusOr<KeepAliveResponse>&) {
    renewing.reset();
    renewed.Notify();
  });
  EXPECT_TRUE(renewed.WaitForNotificationWithTimeout(kProcessTimeout));

  auto subscribing = NewClient();
  std::unique_ptr<SubscribeStream> stream;
  absl::Notification notified;
  auto listener = std::make_shared<RecordingListener>([&](const auto&) {
    stream.reset();
    subscribing.reset();
    notified.Notify();
  });
  stream = subscribing->Subscribe({}, listener);
  auto subscription = fake_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  subscription->Push(Snapshot(1));
  EXPECT_TRUE(notified.WaitForNotificationWithTimeout(kProcessTimeout));
  EXPECT_TRUE(subscription->WaitForCancel());
  EXPECT_FALSE(listener->end().has_value());
}

TEST_F(ClientTest, DestructionWaitsForACallbackOfAnotherThread) {
  auto client = NewClient();
  absl::Notification entered;
  std::atomic<bool> destroying = false;
  std::atomic<bool> left = false;
  client->List({}, [&](const absl::StatusOr<ListResponse>&) {
    entered.Notify();
    while (!destroying) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    left = true;
  });
  entered.WaitForNotification();
  destroying = true;
  client.reset();
  EXPECT_TRUE(left);
}

TEST_F(ClientTest, CallsMadeInCallbacksDuringDestructionAreCancelled) {
  fake_.registers.Hold();
  auto client = NewClient();
  absl::Status inner;
  client->Register({}, [&](const absl::StatusOr<RegisterResponse>&) {
    client->List({},
                 [&](const absl::StatusOr<ListResponse>& response) { inner = response.status(); });
  });
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  // Not through the unique_ptr, which would be null in the callback already.
  client.get_deleter()(client.get());
  static_cast<void>(client.release());
  EXPECT_EQ(inner.code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, DestroyingAStreamWaitsForItsListener) {
  const auto client = NewClient();
  absl::Notification entered;
  std::atomic<bool> destroying = false;
  std::atomic<bool> left = false;
  auto stream = client->Subscribe({}, std::make_shared<RecordingListener>([&](const auto&) {
                                    entered.Notify();
                                    while (!destroying) std::this_thread::yield();
                                    left = true;
                                  }));
  fake_.WaitForSubscription(0)->Push(Snapshot(1));
  entered.WaitForNotification();
  destroying = true;
  stream.reset();
  EXPECT_TRUE(left);
}

// Tells what RegistryServer never would.
class LosingServer : public RegistryService::Service {
 public:
  grpc::Status Watch(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<WatchResponse, WatchRequest>* stream) override {
    WatchRequest request;
    stream->Read(&request);
    WatchResponse response;
    response.add_items()->set_watch_id(request.commands(0).watch_id());
    SubscribeResponse& event = *response.mutable_items(0)->mutable_event();
    event = Snapshot(7);
    stream->Write(response);
    event.clear_snapshot();
    event.set_revision(9);
    event.mutable_delta()->set_base_revision(8);
    stream->Write(response);
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::OK;
  }
};

TEST_F(ClientTest, AGapEndsTheStreamBeforeItIsHeard) {
  LosingServer losing;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&losing);
  const auto server = builder.BuildAndStart();
  GrpcRegistry client({absl::StrCat("127.0.0.1:", port)}, Patient());
  auto listener = std::make_shared<RecordingListener>();
  const auto stream = client.Subscribe({}, listener);
  ASSERT_TRUE(listener->WaitForEnd());
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(*listener->end()), registry::v1::ERROR_REASON_POSITION_LOST);
  ASSERT_EQ(listener->events().size(), 1u);
  EXPECT_EQ(listener->events()[0]->revision(), 7u);
}

}  // namespace
}  // namespace failback
