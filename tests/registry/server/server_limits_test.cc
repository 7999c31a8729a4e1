// What RegistryServer refuses when it has much to do, and whom it keeps from waiting.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "registry/model/errors.h"
#include "registry/server/registry_server.h"
#include "tests/registry/server/server_fixture.h"
#include "tests/registry/server/subscribe_client.h"
#include "tests/registry/server/wire_fixture.h"

namespace failback {
namespace {

using testing::HasSubstr;

// However many reads there are and however long they take: whose sessions are not renewed meanwhile
// would expire.
TEST_F(ServerTest, ReadsDoNotHoldUpRenewals) {
  constexpr int kReads = 40;  // more than the threads that serve connections
  absl::Notification release;
  fake_.lists.AnswerWith([&](const ListRequest&) {
    release.WaitForNotification();
    return ListResponse();
  });
  StartServer(ListenOn(Transport::kTcp), RegistryServer::Options());
  const auto client = NewClient();
  std::vector<Answered<ListResponse>> reads;
  for (int i = 0; i < kReads; ++i) {
    reads.push_back(CallAsync(*client, &Registry::List, ListRequest()));
  }
  EXPECT_TRUE(fake_.lists.WaitForRequests(1));
  KeepAliveRequest renewal;
  renewal.set_session_id("session-1");
  EXPECT_TRUE(CallAndWait(*client, &Registry::KeepAlive, renewal).ok());
  release.Notify();
  for (const auto& read : reads) EXPECT_TRUE(read.Get().ok());
}

// Whether the client has cancelled, has closed its connection, or its deadline has passed.
TEST_F(ServerTest, AReadWhoseClientHasGoneIsNotCarriedOut) {
  // As many as the server's threads for reads.
  const size_t begun = std::max<size_t>(std::thread::hardware_concurrency() / 2, 1);
  constexpr int kReads = 100;
  absl::Notification release;
  fake_.lists.AnswerWith([&](const ListRequest&) {
    release.WaitForNotification();
    return ListResponse();
  });
  StartServer(ListenOn(Transport::kTcp));
  const auto wait_for = [&](size_t calls, int64_t subscriptions) {
    return Eventually([&] {
      const RegistryServer::Statistics stats = server_->Stats();
      return stats.calls_in_flight == static_cast<int>(calls) &&
             stats.subscriptions == subscriptions;
    });
  };
  const auto stays = NewClient();
  std::vector<Answered<ListResponse>> answers;
  for (size_t i = 0; i < begun; ++i) {
    answers.push_back(CallAsync(*stays, &Registry::List, ListRequest()));
  }
  ASSERT_TRUE(fake_.lists.WaitForRequests(begun));
  auto goes = NewClient();
  std::vector<Answered<ListResponse>> gone;
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (int i = 0; i < kReads; ++i) {
    gone.push_back(CallAsync(*goes, &Registry::List, ListRequest()));
    // Of one Watch only the next begins.
    streams.push_back(SubscribeByItself(address_, {}, std::make_shared<RecordingListener>()));
  }
  EXPECT_TRUE(wait_for(begun + kReads, kReads));
  EXPECT_TRUE(Eventually([&] { return server_->Stats().reads_waiting == 2 * kReads; }));
  streams.clear();
  goes.reset();
  // All threads are still with the first ones.
  EXPECT_TRUE(wait_for(begun, 0)) << "those that wait have given up their places";
  EXPECT_EQ(server_->Stats().reads_waiting, 0);
  for (const auto& answer : gone) EXPECT_FALSE(answer.Get().ok());
  GrpcRegistryOptions hasty;
  hasty.call_timeout = absl::Milliseconds(500);
  const auto impatient = NewClient(hasty);
  for (int i = 0; i < kReads; ++i) {
    gone.push_back(CallAsync(*impatient, &Registry::List, ListRequest()));
  }
  for (const auto& answer : gone) EXPECT_FALSE(answer.Get().ok());
  EXPECT_TRUE(wait_for(begun, 0));
  answers.push_back(CallAsync(*stays, &Registry::List, ListRequest()));
  EXPECT_TRUE(wait_for(begun + 1, 0));
  release.Notify();
  for (const auto& answer : answers) EXPECT_TRUE(answer.Get().ok());
  EXPECT_EQ(fake_.lists.request_count(), begun + 1);
  EXPECT_TRUE(fake_.subscriptions().empty());
}

// Where callers have no names.
TEST_F(ServerTest, NoConnectionsListsTakeAllCalls) {
  RegistryServer::Options options;
  options.max_calls_in_flight = 4;
  StartServer(ListenOn(Transport::kTcp), options);
  fake_.lists.Hold();
  const auto client = NewClient();
  std::vector<Answered<ListResponse>> lists;
  for (int i = 0; i < 2; ++i) {
    lists.push_back(CallAsync(*client, &Registry::List, ListRequest()));
  }
  ASSERT_TRUE(fake_.lists.WaitForRequests(2));
  const absl::Status refused = List(*client).status();
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED) << refused;
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("at most 2 (Lists of one connection, its share of 4 calls) are allowed"));
  const auto neighbour = NewClient();
  lists.push_back(CallAsync(*neighbour, &Registry::List, ListRequest()));
  EXPECT_TRUE(fake_.lists.WaitForRequests(3));
  fake_.lists.Release();
  for (const auto& list : lists) EXPECT_TRUE(list.Get().ok());
  EXPECT_TRUE(List(*client).ok()) << "there is room again";
}

TEST_F(ServerTest, CallsBeyondTheLimitAreRefusedWithADelay) {
  RegistryServer::Options options;
  options.max_calls_in_flight = 2;
  options.overload_delay = absl::Milliseconds(700);
  StartServer(ListenOn(Transport::kTcp), options);
  fake_.registers.Hold();
  const auto client = NewClient();
  const auto first = CallAsync(*client, &Registry::Register, RegisterRequest());
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  const auto second = CallAsync(*client, &Registry::Register, RegisterRequest());
  ASSERT_TRUE(fake_.registers.WaitForRequests(2));
  const absl::Status refused = List(*client).status();
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED) << refused;
  EXPECT_EQ(RetryDelayOf(refused), absl::Milliseconds(700));
  EXPECT_EQ(fake_.lists.request_count(), 0u);
  const RegistryServer::Statistics stats = server_->Stats();
  EXPECT_EQ(stats.calls_in_flight, 2);
  EXPECT_EQ(stats.calls.refused[static_cast<size_t>(CallStats::Limit::kCalls)], 1);
  EXPECT_EQ(Ended(CallStats::Method::kList, absl::StatusCode::kResourceExhausted), 1);
  fake_.registers.Complete(RegisterResponse());
  ASSERT_TRUE(first.Get().ok());
  EXPECT_TRUE(List(*client).ok());
}

// A call of `count` instances, each of some 200 bytes.
RegisterRequest BatchOf(int count) {
  RegisterRequest request;
  for (int i = 0; i < count; ++i) {
    ServiceInstance& instance = *request.add_registrations()->mutable_instance();
    instance.mutable_key()->set_instance_id(std::string(200, 'x'));
  }
  return request;
}

TEST_F(ServerTest, SmallCallsDoNotWaitBehindLargeOnes) {
  StartServer(ListenOn(Transport::kTcp));
  absl::Notification go_on;
  fake_.registers.AnswerWith([&](const RegisterRequest& request) {
    if (request.registrations_size() > 1) go_on.WaitForNotification();
    return RegisterResponse();
  });
  const auto client = NewClient();
  // More than there may be threads.
  std::vector<Answered<RegisterResponse>> large;
  large.reserve(100);
  for (int i = 0; i < 100; ++i) {
    large.push_back(CallAsync(*client, &Registry::Register, BatchOf(100)));
  }
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  const auto neighbour = NewClient();
  EXPECT_TRUE(CallAndWait(*neighbour, &Registry::Register, BatchOf(1)).ok());
  EXPECT_TRUE(CallAndWait(*client, &Registry::Register, BatchOf(1)).ok());
  EXPECT_TRUE(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("s")).ok());
  EXPECT_FALSE(large[0].has_come());
  go_on.Notify();
  for (const auto& answer : large) EXPECT_TRUE(answer.Get().ok());
}

TEST_F(ServerTest, LargeCallsBeyondTheLimitAreRefusedWithADelay) {
  RegistryServer::Options options;
  options.max_bulk_bytes = 50000;
  StartServer(ListenOn(Transport::kTcp), options);
  absl::Notification go_on;
  fake_.registers.AnswerWith([&](const RegisterRequest& request) {
    if (request.registrations_size() > 1) go_on.WaitForNotification();
    return RegisterResponse();
  });
  const auto client = NewClient();
  // One that is checked goes as a call of its own: on a stream it would wait for the one before.
  RegisterRequest large = BatchOf(100);
  large.set_check(true);
  std::vector<Answered<RegisterResponse>> answers;
  answers.reserve(20);
  for (int i = 0; i < 20; ++i) {
    answers.push_back(CallAsync(*client, &Registry::Register, large));
  }
  // Whoever waits keeps it from the rest, which are answered at once.
  ASSERT_TRUE(Eventually([&] {
    return std::any_of(answers.begin(), answers.end(),
                       [](const auto& answer) { return answer.has_come(); });
  })) << "nothing was refused";
  EXPECT_TRUE(CallAndWait(*client, &Registry::Register, BatchOf(1)).ok());
  go_on.Notify();
  int served = 0;
  for (const auto& answer : answers) {
    const absl::Status status = answer.Get().status();
    served += status.ok() ? 1 : 0;
    if (status.ok()) continue;
    EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_OVERLOADED) << status;
    EXPECT_TRUE(RetryDelayOf(status).has_value());
  }
  EXPECT_GE(served, 2) << "as many as fit";
  EXPECT_TRUE(CallAndWait(*client, &Registry::Register, large).ok());
}

TEST_F(ServerTest, ShutdownDropsLargeCallsThatWait) {
  StartServer(ListenOn(Transport::kTcp));
  absl::Notification go_on;
  fake_.registers.AnswerWith([&](const RegisterRequest&) {
    go_on.WaitForNotification();
    return RegisterResponse();
  });
  const auto client = NewClient();
  std::vector<Answered<RegisterResponse>> answers;
  answers.reserve(50);
  for (int i = 0; i < 50; ++i) {
    answers.push_back(CallAsync(*client, &Registry::Register, BatchOf(100)));
  }
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  std::thread shutdown([&] { server_->Shutdown(absl::ZeroDuration()); });
  for (const auto& answer : answers) EXPECT_FALSE(answer.Get().ok());
  go_on.Notify();
  shutdown.join();
  const size_t served = fake_.registers.request_count();
  EXPECT_LT(served, answers.size());
}

TEST_F(ServerTest, SubscriptionsBeyondTheLimitAreRefusedWithADelay) {
  RegistryServer::Options options;
  options.max_subscriptions = 1;
  StartServer(ListenOn(Transport::kTcp), options);
  const auto client = NewClient();
  auto stream = client->Subscribe({}, std::make_shared<RecordingListener>());
  ASSERT_NE(fake_.WaitForSubscription(0), nullptr);
  auto refused = std::make_shared<RecordingListener>();
  const auto second = client->Subscribe({}, refused);
  ASSERT_TRUE(refused->WaitForEnd());
  EXPECT_EQ(ReasonOf(*refused->end()), registry::v1::ERROR_REASON_OVERLOADED);
  EXPECT_TRUE(RetryDelayOf(*refused->end()).has_value());
  stream.reset();
  ASSERT_TRUE(fake_.WaitForSubscription(0)->WaitForCancel());
  // The place is free when the server has seen the stream go.
  const absl::Time deadline = absl::Now() + kProcessTimeout;
  while (fake_.subscriptions().size() == 1) {
    ASSERT_LT(absl::Now(), deadline);
    auto again = std::make_shared<RecordingListener>();
    stream = client->Subscribe({}, again);
    while (fake_.subscriptions().size() == 1 && !again->end().has_value()) {
      std::this_thread::yield();
    }
  }
}

}  // namespace
}  // namespace failback
