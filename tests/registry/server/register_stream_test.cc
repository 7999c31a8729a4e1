// RegisterStream as the server serves it, over a registry that answers as the test says.

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "registry/base/trace_context.h"
#include "registry/model/errors.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/server/register_stream_client.h"
#include "tests/registry/server/simulated_sweep.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/sanitized_build.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_OVERLOADED;
using registry::v1::ERROR_REASON_SESSION_UNKNOWN;
using registry::v1::ERROR_REASON_SHUTTING_DOWN;
using testing::HasSubstr;
using testing::Le;

// What the server has open of one stream at most (registry/server/register_stream.h).
constexpr size_t kWindow = 32;

// Told apart by their session ids. `bytes` more make it large.
RegisterRequest RequestOf(int number, size_t bytes = 0) {
  RegisterRequest request;
  request.set_session_id(absl::StrCat(number));
  ServiceInstance& instance = *request.add_registrations()->mutable_instance();
  instance = MakeInstance("a");
  if (bytes > 0) (*instance.mutable_metadata())["padding"] = std::string(bytes, 'x');
  return request;
}
constexpr size_t kLarge = 10000;

// An answer that tells which request it is for.
absl::StatusOr<RegisterResponse> Numbered(const RegisterRequest& request) {
  RegisterResponse response;
  response.add_results()->set_state(registry::v1::INTENT_STATE_ACCEPTED);
  response.set_revision(std::stoi(request.session_id()));
  return response;
}

class RegisterStreamTest : public WireTest {
 protected:
  RegisterStreamTest() { fake_.registers.AnswerWith(Numbered); }

  static absl::Status StatusOf(const std::optional<RegisterStreamClient::Response>& answer) {
    return answer.has_value() ? StatusFromProto(answer->status())
                              : absl::DataLossError("no answer came");
  }

  // Reads `count` answers: the numbers of their requests.
  static std::vector<int> ReadNumbers(RegisterStreamClient* client, int count) {
    std::vector<int> numbers;
    for (int i = 0; i < count; ++i) {
      const auto answer = client->Read();
      if (!answer.has_value()) break;
      numbers.push_back(static_cast<int>(answer->revision()));
    }
    return numbers;
  }
  static std::vector<int> Numbers(int first, int end) {
    std::vector<int> numbers;
    for (int i = first; i < end; ++i) numbers.push_back(i);
    return numbers;
  }

  int64_t Ended(CallStats::Method method, absl::StatusCode code) const {
    return server_->Stats().calls.methods[static_cast<size_t>(method)].ended[static_cast<int>(
        code)];
  }
};

TEST_F(RegisterStreamTest, AnswersComeInTheOrderOfTheRequests) {
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.Hold();
  RegisterStreamClient client(address_);
  for (int i = 0; i < 5; ++i) client.Send(RequestOf(i));
  ASSERT_TRUE(fake_.registers.WaitForRequests(5));
  for (int i = 4; i >= 0; --i) {
    ASSERT_TRUE(fake_.registers.CompleteAt(i, Numbered(RequestOf(i))));
  }
  EXPECT_EQ(ReadNumbers(&client, 5), Numbers(0, 5));
}

// Whatever large ones are about: there are threads left.
TEST_F(RegisterStreamTest, SmallMessagesOfOthersDoNotWaitBehindLargeOnes) {
  constexpr int kStreams = 5;
  StartServer(ListenOn(Transport::kUnix));
  absl::Notification go_on;
  fake_.registers.AnswerWith([&](const RegisterRequest& request) {
    if (request.ByteSizeLong() > kLarge) go_on.WaitForNotification();
    return Numbered(request);
  });
  std::vector<std::unique_ptr<RegisterStreamClient>> loaders;
  for (int s = 0; s < kStreams; ++s) {
    loaders.push_back(std::make_unique<RegisterStreamClient>(address_));
    for (int i = 0; i < 10; ++i) loaders[s]->Send(RequestOf(i, kLarge));
    ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  }
  ASSERT_TRUE(Eventually([&] { return server_->Stats().register_streams == kStreams; }));
  RegisterStreamClient neighbour(address_);
  for (int i = 0; i < 10; ++i) neighbour.Send(RequestOf(i));
  EXPECT_EQ(ReadNumbers(&neighbour, 10), Numbers(0, 10));
  const auto client = NewClient();
  EXPECT_TRUE(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("s")).ok());
  EXPECT_TRUE(CallAndWait(*client, &Registry::Register, RequestOf(1)).ok());
  go_on.Notify();
  for (const auto& loader : loaders) EXPECT_EQ(ReadNumbers(loader.get(), 10), Numbers(0, 10));
}

TEST_F(RegisterStreamTest, AMessageThatIsRefusedIsAnsweredAndTheStreamGoesOn) {
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.AnswerWith(
      [](const RegisterRequest& request) -> absl::StatusOr<RegisterResponse> {
        if (request.session_id() == "1") return SessionUnknown();
        if (request.session_id() == "2") {
          return WithRetryDelay(Refusal(ERROR_REASON_OVERLOADED, "busy"), absl::Seconds(3));
        }
        return Numbered(request);
      });
  RegisterStreamClient client(address_);
  for (int i = 0; i < 4; ++i) client.Send(RequestOf(i));
  EXPECT_TRUE(StatusOf(client.Read()).ok());
  const auto unknown = client.Read();
  EXPECT_EQ(ReasonOf(StatusOf(unknown)), ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_EQ(unknown->results_size(), 0);
  const absl::Status busy = StatusOf(client.Read());
  EXPECT_EQ(ReasonOf(busy), ERROR_REASON_OVERLOADED);
  EXPECT_EQ(RetryDelayOf(busy), absl::Seconds(3));
  EXPECT_EQ(busy.message(), "busy");
  EXPECT_EQ(ReadNumbers(&client, 1), Numbers(3, 4));
}

TEST_F(RegisterStreamTest, WhatIsNoRequestIsRefusedAndTheStreamGoesOn) {
  StartServer(ListenOn(Transport::kTcp));
  RegisterStreamClient client(address_);
  client.SendBytes("\xff\xff\xff");
  client.SendBytes(std::string(kLarge, '\xff'));
  client.SendBytes("");
  client.Send(RequestOf(7));
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = StatusOf(client.Read());
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("RegisterRequest"));
  }
  // An empty message is a request, for the registry to judge.
  fake_.registers.AnswerWith([](const RegisterRequest&) { return RegisterResponse(); });
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  EXPECT_EQ(fake_.registers.requests()[0].ByteSizeLong(), 0u);
}

TEST_F(RegisterStreamTest, ResultsOfARegistryThatHasOnlyAcceptedAreNotLeftOut) {
  StartServer(ListenOn(Transport::kTcp));
  for (const auto state :
       {registry::v1::INTENT_STATE_ACCEPTED, registry::v1::INTENT_STATE_ACKNOWLEDGED}) {
    RegisterResponse response;
    response.add_results()->set_state(state);
    response.add_results()->set_state(registry::v1::INTENT_STATE_ACCEPTED);
    fake_.registers.Answer(response);
    RegisterStreamClient client(address_);
    client.Send(RequestOf(0));
    const auto answer = client.Read();
    ASSERT_TRUE(answer.has_value());
    ASSERT_EQ(answer->results_size(), 2);
    EXPECT_EQ(answer->results(0).state(), state);
    EXPECT_EQ(answer->results(1).state(), registry::v1::INTENT_STATE_ACCEPTED);
  }
}

// The same of a real agent's registry, which has an upstream that is unavailable.
TEST_F(RegisterStreamTest, AnAgentTellsWhatItHasAccepted) {
  const auto timer = NewTimer();
  FailbackRegistry::Options core;
  core.upstream_name = "away";
  core.timer = timer.get();
  auto upstream = std::make_unique<FakeRegistry>();
  upstream->opens.AnswerWith([](const OpenSessionRequest&) { return Away(); });
  const auto agent = FailbackRegistry::Create(std::move(upstream), core);
  ASSERT_TRUE(agent.ok()) << agent.status();
  RegistryServer::Options options;
  options.listen = {ListenOn(Transport::kUnix)};
  const auto server = RegistryServer::Start(agent->get(), options);
  ASSERT_TRUE(server.ok()) << server.status();
  RegisterStreamClient client((*server)->addresses()[0]);
  RegisterRequest request = MakeRegister({MakeInstance("a"), MakeInstance("b", 70000)});
  client.Send(request);
  const auto answer = client.Read();
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->results_size(), 2) << answer->ShortDebugString();
  EXPECT_EQ(answer->results(0).state(), registry::v1::INTENT_STATE_ACCEPTED);
  EXPECT_EQ(ReasonOf(StatusFromProto(answer->results(1).status())),
            registry::v1::ERROR_REASON_INVALID_FIELD);
  EXPECT_EQ(answer->revision(), 0u);
}

TEST_F(RegisterStreamTest, NoMoreIsReadWhileTooManyMessagesAreOpen) {
  constexpr int kMessages = 100;
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.Hold();
  const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  RegisterStreamClient client(channel);
  for (int i = 0; i < kMessages; ++i) client.Send(RequestOf(i));
  // All are on their way; what comes after them on the connection is answered.
  ASSERT_TRUE(client.WaitSent());
  ASSERT_TRUE(fake_.registers.WaitForRequests(kWindow));
  for (int i = 0; i < 3; ++i) {
    RegisterStreamClient other(channel);
    other.SendNoMore();
    EXPECT_TRUE(other.Finish().ok());
  }
  EXPECT_EQ(fake_.registers.request_count(), kWindow);
  // One answer, one more.
  ASSERT_TRUE(fake_.registers.Complete(Numbered(RequestOf(0))));
  EXPECT_EQ(ReadNumbers(&client, 1), Numbers(0, 1));
  ASSERT_TRUE(fake_.registers.WaitForRequests(kWindow + 1));
  EXPECT_EQ(fake_.registers.held_count(), kWindow);
  fake_.registers.Release();
  EXPECT_EQ(ReadNumbers(&client, kMessages - 1), Numbers(1, kMessages));
}

TEST_F(RegisterStreamTest, AClientThatTakesNoAnswersIsNotReadAndCostsBoundedMemory) {
  if (!kReadsLargeMessages) GTEST_SKIP() << "40 MB";
  constexpr int kMessages = 40;
  constexpr size_t kAnswerBytes = 1 << 20;
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.AnswerWith([&](const RegisterRequest& request) {
    auto response = Numbered(request);
    response->mutable_results(0)->mutable_status()->set_message(std::string(kAnswerBytes, 'x'));
    return response;
  });
  const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  RegisterStreamClient client(channel);
  for (int i = 0; i < kMessages; ++i) client.Send(RequestOf(i));
  ASSERT_TRUE(client.WaitSent());
  // Four MiB of answers wait, and one is being written.
  ASSERT_TRUE(fake_.registers.WaitForRequests(4));
  for (int i = 0; i < 3; ++i) {
    RegisterStreamClient other(channel);
    other.SendNoMore();
    EXPECT_TRUE(other.Finish().ok());
  }
  EXPECT_THAT(fake_.registers.request_count(), Le(8u));
  EXPECT_EQ(ReadNumbers(&client, kMessages), Numbers(0, kMessages));
}

TEST_F(RegisterStreamTest, HalfCloseEndsItWhenAllIsAnswered) {
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.Hold();
  RegisterStreamClient client(address_);
  for (int i = 0; i < 3; ++i) client.Send(RequestOf(i));
  client.SendNoMore();
  ASSERT_TRUE(fake_.registers.WaitForRequests(3));
  fake_.registers.Release();
  EXPECT_EQ(ReadNumbers(&client, 10), Numbers(0, 3));
  EXPECT_EQ(client.Finish(), absl::OkStatus());
  EXPECT_EQ(Ended(CallStats::Method::kRegisterStream, absl::StatusCode::kOk), 1);
}

TEST_F(RegisterStreamTest, AClientThatGoesMidwayIsForgotten) {
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.Hold();
  {
    RegisterStreamClient client(address_);
    for (int i = 0; i < 10; ++i) client.Send(RequestOf(i, i < 5 ? 0 : kLarge));
    ASSERT_TRUE(fake_.registers.WaitForRequests(10));
    EXPECT_EQ(server_->Stats().register_streams, 1);
    EXPECT_EQ(server_->Stats().calls_in_flight, 10);
  }
  EXPECT_TRUE(Eventually([&] { return server_->Stats().register_streams == 0; }));
  EXPECT_EQ(Ended(CallStats::Method::kRegisterStream, absl::StatusCode::kCancelled), 1);
  // What the registry still answers goes nowhere, and the places are free again.
  fake_.registers.Release();
  EXPECT_TRUE(Eventually([&] { return server_->Stats().calls_in_flight == 0; }));
  EXPECT_EQ(server_->Stats().bulk_bytes, 0);
}

TEST_F(RegisterStreamTest, TheRegistryMayAnswerAfterTheServerHasGone) {
  StartServer(ListenOn(Transport::kUnix));
  fake_.registers.Hold();
  RegisterStreamClient client(address_);
  for (int i = 0; i < 3; ++i) client.Send(RequestOf(i));
  ASSERT_TRUE(fake_.registers.WaitForRequests(3));
  server_.reset();
  EXPECT_FALSE(client.Finish().ok());
  fake_.registers.Release();
}

// In these two another stream keeps the connection until all has been read: gRPC closes it with its
// last call, and what the client sends at that moment resets it.
TEST_F(RegisterStreamTest, ShutdownEndsItAfterTheAnswersUnderWay) {
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.Hold();
  const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  RegisterStreamClient keeper(channel);
  keeper.Send(RequestOf(0));
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  RegisterStreamClient idle(channel);
  RegisterStreamClient client(channel);
  for (int i = 0; i < 3; ++i) client.Send(RequestOf(i));
  ASSERT_TRUE(fake_.registers.WaitForRequests(4));
  ASSERT_TRUE(Eventually([&] { return server_->Stats().register_streams == 3; }));
  std::thread shutdown([&] { server_->Shutdown(absl::Seconds(30)); });
  EXPECT_EQ(ReasonOf(idle.Finish()), ERROR_REASON_SHUTTING_DOWN);
  // Not read any more, or refused.
  client.Send(RequestOf(3));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(fake_.registers.CompleteAt(1, Numbered(RequestOf(i))));
  }
  EXPECT_EQ(ReadNumbers(&client, 3), Numbers(0, 3));
  if (const auto last = client.Read()) {
    EXPECT_EQ(ReasonOf(StatusFromProto(last->status())), ERROR_REASON_SHUTTING_DOWN);
  }
  EXPECT_EQ(ReasonOf(client.Finish()), ERROR_REASON_SHUTTING_DOWN);
  fake_.registers.Release();
  shutdown.join();
  EXPECT_EQ(fake_.registers.request_count(), 4u);
}

TEST_F(RegisterStreamTest, ShutdownRefusesLargeMessagesThatWait) {
  constexpr int kMessages = 20;
  StartServer(ListenOn(Transport::kTcp));
  absl::Notification go_on;
  absl::Notification all_read;
  fake_.registers.AnswerWith([&](const RegisterRequest& request) {
    (request.session_id() == "100" ? all_read : go_on).WaitForNotification();
    return Numbered(request);
  });
  const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  // Stays on the thread that read it; what comes after waits for threads for bulk.
  RegisterStreamClient keeper(channel);
  keeper.Send(RequestOf(100, kLarge));
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  RegisterStreamClient client(channel);
  RegisterStreamClient idle(channel);
  for (int i = 0; i < kMessages; ++i) client.Send(RequestOf(i, kLarge));
  ASSERT_TRUE(Eventually([&] { return server_->Stats().calls_in_flight == kMessages + 1; }));
  ASSERT_TRUE(Eventually([&] { return server_->Stats().register_streams == 3; }));
  std::thread shutdown([&] { server_->Shutdown(absl::Seconds(30)); });
  EXPECT_EQ(ReasonOf(idle.Finish()), ERROR_REASON_SHUTTING_DOWN);
  go_on.Notify();
  int served = 0;
  for (int i = 0; i < kMessages; ++i) {
    const auto answer = client.Read();
    ASSERT_TRUE(answer.has_value()) << client.Finish();
    if (StatusOf(answer).ok()) {
      EXPECT_EQ(answer->revision(), static_cast<uint64_t>(i));
      ++served;
    } else {
      EXPECT_EQ(ReasonOf(StatusOf(answer)), ERROR_REASON_SHUTTING_DOWN);
    }
  }
  EXPECT_EQ(ReasonOf(client.Finish()), ERROR_REASON_SHUTTING_DOWN);
  all_read.Notify();
  shutdown.join();
  EXPECT_LT(served, kMessages);
  EXPECT_EQ(fake_.registers.request_count(), static_cast<size_t>(served + 1));
}

TEST_F(RegisterStreamTest, MessagesBeyondTheLimitOfCallsAreRefusedWithADelay) {
  RegistryServer::Options options;
  options.max_calls_in_flight = 2;
  options.overload_delay = absl::Milliseconds(700);
  StartServer(ListenOn(Transport::kTcp), options);
  fake_.registers.Hold();
  RegisterStreamClient client(address_);
  for (int i = 0; i < 3; ++i) client.Send(RequestOf(i));
  ASSERT_TRUE(Eventually([&] {
    return Ended(CallStats::Method::kRegister, absl::StatusCode::kResourceExhausted) == 1;
  }));
  EXPECT_EQ(server_->Stats().calls.refused[static_cast<size_t>(CallStats::Limit::kCalls)], 1);
  fake_.registers.Release();
  EXPECT_EQ(ReadNumbers(&client, 2), Numbers(0, 2));
  const absl::Status refused = StatusOf(client.Read());
  EXPECT_EQ(ReasonOf(refused), ERROR_REASON_OVERLOADED) << refused;
  EXPECT_EQ(RetryDelayOf(refused), absl::Milliseconds(700));
  // Those that were answered leave their places.
  EXPECT_TRUE(Eventually([&] { return server_->Stats().calls_in_flight == 0; }));
  client.Send(RequestOf(4));
  EXPECT_EQ(ReadNumbers(&client, 1), Numbers(4, 5));
}

TEST_F(RegisterStreamTest, LargeMessagesBeyondTheLimitAreRefusedWithADelay) {
  RegistryServer::Options options;
  options.max_bulk_bytes = kLarge - 1;
  StartServer(ListenOn(Transport::kTcp), options);
  RegisterStreamClient client(address_);
  client.Send(RequestOf(0, kLarge));
  client.Send(RequestOf(1));
  const absl::Status refused = StatusOf(client.Read());
  EXPECT_EQ(ReasonOf(refused), ERROR_REASON_OVERLOADED) << refused;
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(ReadNumbers(&client, 1), Numbers(1, 2));
  EXPECT_EQ(server_->Stats().calls.refused[static_cast<size_t>(CallStats::Limit::kBulkBytes)], 1);
}

TEST_F(RegisterStreamTest, EachMessageIsCountedAndTraced) {
  const std::string trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.AnswerWith(
      [&](const RegisterRequest& request) -> absl::StatusOr<RegisterResponse> {
        EXPECT_EQ(CurrentTrace(), trace);
        if (request.session_id() == "1") return absl::PermissionDeniedError("no");
        return Numbered(request);
      });
  RegisterStreamClient client(address_, {{kTraceParent, trace}});
  for (int i = 0; i < 3; ++i) client.Send(RequestOf(i, i == 2 ? kLarge : 0));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.Read().has_value());
  EXPECT_EQ(Ended(CallStats::Method::kRegister, absl::StatusCode::kOk), 2);
  EXPECT_EQ(Ended(CallStats::Method::kRegister, absl::StatusCode::kPermissionDenied), 1);
  EXPECT_EQ(server_->Stats()
                .calls.methods[static_cast<size_t>(CallStats::Method::kRegister)]
                .duration_nanos.count(),
            3);
  EXPECT_EQ(Ended(CallStats::Method::kRegisterStream, absl::StatusCode::kOk), 0);
  client.SendNoMore();
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(Ended(CallStats::Method::kRegisterStream, absl::StatusCode::kOk), 1);
}

// Throws from, or forgets, every call.
class BadRegistry : public FakeRegistry {
 public:
  void Write(Batch batch, Callback<BatchResult>) override {
    if (batch.session_id() == "1") throw std::runtime_error("no such table");
  }
};

TEST_F(RegisterStreamTest, ARegistryThatThrowsOrForgetsFailsThatMessageOnly) {
  BadRegistry bad;
  RegistryServer::Options options;
  options.listen = {"127.0.0.1:0"};
  const auto server = RegistryServer::Start(&bad, options);
  ASSERT_TRUE(server.ok()) << server.status();
  RegisterStreamClient client((*server)->addresses()[0]);
  for (int i = 0; i < 4; ++i) client.Send(RequestOf(i % 2, i < 2 ? 0 : kLarge));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(StatusOf(client.Read()).code(), absl::StatusCode::kInternal);
  }
}

TEST_F(RegisterStreamTest, AMessageThatIsTooLargeEndsTheStream) {
  RegistryServer::Options options;
  options.max_message_bytes = 5000;
  StartServer(ListenOn(Transport::kTcp), options);
  RegisterStreamClient client(address_);
  client.Send(RequestOf(0));
  EXPECT_EQ(ReadNumbers(&client, 1), Numbers(0, 1));
  client.Send(RequestOf(1, kLarge));
  EXPECT_FALSE(client.Read().has_value());
  EXPECT_EQ(client.Finish().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(fake_.registers.request_count(), 1u);
}

// Time is simulated; the streams are real.
class SweepTest : public RegisterStreamTest {
 protected:
  static constexpr absl::Duration kStalled = SimulatedSweep::kStalled;
  static constexpr absl::Duration kSilent = SimulatedSweep::kSilent;

  void SetUp() override { StartServer(ListenOn(Transport::kUnix), sweep_.options()); }
  void TearDown() override { server_.reset(); }

  SimulatedSweep sweep_;
};

TEST_F(SweepTest, ASilentStreamIsEndedAndNotOneThatWaitsForTheRegistry) {
  fake_.registers.Hold();
  RegisterStreamClient waiting(address_);
  waiting.Send(RequestOf(0));
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  RegisterStreamClient silent(address_);
  ASSERT_TRUE(Eventually([&] { return server_->Stats().register_streams == 2; }));
  sweep_.Advance(kSilent - kStalled);
  EXPECT_EQ(server_->Stats().register_streams, 2);
  sweep_.Advance(2 * kStalled);
  EXPECT_EQ(silent.Finish().code(), absl::StatusCode::kUnavailable);
  sweep_.Advance(kSilent);
  fake_.registers.Release();
  EXPECT_EQ(ReadNumbers(&waiting, 1), Numbers(0, 1));
  EXPECT_TRUE(Eventually([&] {
    sweep_.Advance(kStalled);
    return server_->Stats().register_streams == 0;
  })) << "it is silent now";
}

TEST_F(SweepTest, AStreamWhoseClientTakesNoAnswersIsCancelled) {
  fake_.registers.AnswerWith([&](const RegisterRequest& request) {
    auto response = Numbered(request);
    response->mutable_results(0)->mutable_status()->set_message(std::string(1 << 20, 'x'));
    return response;
  });
  RegisterStreamClient client(address_);
  for (int i = 0; i < 40; ++i) client.Send(RequestOf(i));
  ASSERT_TRUE(fake_.registers.WaitForRequests(4));
  sweep_.Advance(kStalled / 2);
  EXPECT_EQ(server_->Stats().register_streams, 1);
  // Some sweeps after the last write has come to a halt.
  EXPECT_TRUE(Eventually([&] {
    sweep_.Advance(kStalled / 4);
    return server_->Stats().register_streams == 0;
  }));
  EXPECT_EQ(Ended(CallStats::Method::kRegisterStream, absl::StatusCode::kCancelled), 1);
}

// Many at once, some of whom go, and a server that stops amid it: a client gets answers
// in order, or none.
TEST_F(RegisterStreamTest, ManyStreamsKeepTheirOrderUntilTheServerStops) {
  constexpr int kStreams = 8;
  constexpr int kMessages = 60;
  StartServer(ListenOn(Transport::kUnix));
  std::atomic<int> received{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kStreams; ++c) {
    clients.emplace_back([&, c] {
      RegisterStreamClient client(address_);
      for (int i = 0; i < kMessages; ++i) client.Send(RequestOf(i, (i + c) % 3 == 0 ? kLarge : 0));
      for (int i = 0; i < kMessages; ++i) {
        const auto answer = client.Read();
        if (!answer.has_value()) return;
        ++received;
        if (answer->has_status()) {
          EXPECT_EQ(ReasonOf(StatusFromProto(answer->status())), ERROR_REASON_SHUTTING_DOWN);
        } else {
          EXPECT_EQ(answer->revision(), static_cast<uint64_t>(i));
        }
        if (c % 4 == 3 && i == kMessages / 3) return;  // gone
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return received >= kStreams * kMessages / 3; }));
  server_->Shutdown(absl::Seconds(30));
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(server_->Stats().register_streams, 0);
  EXPECT_EQ(server_->Stats().calls_in_flight, 0);
}

}  // namespace
}  // namespace failback
