// Registers of GrpcRegistry that go on a RegisterStream: which, how they are answered, and when
// things go wrong.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "registry/base/trace_context.h"
#include "registry/model/errors.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using Method = CallStats::Method;
using registry::v1::RegistryService;
using testing::HasSubstr;

constexpr size_t kLarge = 8192;

// An instance whose port is `number`, in a request of more than `bytes`.
RegisterRequest RequestOf(int number, size_t bytes = kLarge) {
  RegisterRequest request;
  request.set_session_id("s");
  auto* const instance = request.add_registrations()->mutable_instance();
  instance->mutable_key()->set_service("orders");
  instance->set_port(static_cast<uint32_t>(number));
  (*instance->mutable_metadata())["filling"] = std::string(bytes, 'x');
  return request;
}

// Tells the request's number as the revision.
absl::StatusOr<RegisterResponse> Numbered(const RegisterRequest& request) {
  RegisterResponse response;
  for (const auto& registration : request.registrations()) {
    response.set_revision(registration.instance().port());
    response.add_results()->set_generation(registration.generation());
  }
  return response;
}

class RegisterClientTest : public WireTest {
 protected:
  RegisterClientTest() { fake_.registers.AnswerWith(Numbered); }
  void SetUp() override { StartServer(ListenOn(Transport::kUnix)); }

  static Answered<RegisterResponse> Send(GrpcRegistry& client, const RegisterRequest& request) {
    return CallAsync(client, &Registry::Register, request);
  }

  // Holds the registry and sends a large one, which is a call: those after it go on a stream.
  Answered<RegisterResponse> Occupy(GrpcRegistry& client) {
    const size_t before = fake_.registers.request_count();
    fake_.registers.Hold();
    auto first = Send(client, RequestOf(1000));
    EXPECT_TRUE(fake_.registers.WaitForRequests(before + 1));
    return first;
  }

  int64_t Ended(Method method, absl::StatusCode code = absl::StatusCode::kOk) const {
    return server_->Stats().calls.methods[static_cast<size_t>(method)].ended[static_cast<int>(
        code)];
  }
  bool StreamsEnd(int64_t count) {
    return Eventually([&] {
      return Ended(Method::kRegisterStream) == count && server_->Stats().register_streams == 0;
    });
  }
};

TEST_F(RegisterClientTest, LargeOnesGoOnOneStreamThatEndsWithTheLastAnswer) {
  const auto client = NewClient();
  const auto first = Occupy(*client);
  EXPECT_EQ(server_->Stats().register_streams, 0) << "one that is alone is a call";
  std::vector<Answered<RegisterResponse>> answers;
  for (int i = 0; i < 20; ++i) answers.push_back(Send(*client, RequestOf(i)));
  ASSERT_TRUE(fake_.registers.WaitForRequests(21));
  EXPECT_EQ(server_->Stats().register_streams, 1);
  // The store may have done with them in another order.
  for (int i = 19; i >= 0; --i) fake_.registers.CompleteAt(i + 1, Numbered(RequestOf(i)));
  for (int i = 0; i < 20; ++i) {
    const auto answer = answers[i].Get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->revision(), i);
  }
  EXPECT_TRUE(StreamsEnd(1));
  EXPECT_FALSE(first.has_come());
  const auto next = Send(*client, RequestOf(7));
  ASSERT_TRUE(fake_.registers.WaitForRequests(22));
  fake_.registers.Release();
  EXPECT_EQ(next.Get()->revision(), 7);
  EXPECT_EQ(first.Get()->revision(), 1000);
  EXPECT_TRUE(StreamsEnd(2));
  EXPECT_EQ(Send(*client, RequestOf(8)).Get()->revision(), 8);
  EXPECT_TRUE(StreamsEnd(2)) << "it is alone again";
}

TEST_F(RegisterClientTest, OthersAreCalls) {
  const auto client = NewClient();
  const auto first = Occupy(*client);
  std::vector<Answered<RegisterResponse>> answers;
  answers.push_back(Send(*client, RequestOf(0, /*bytes=*/100)));
  // Those that may be answered late would hold up others.
  RegisterRequest waits = RequestOf(1);
  waits.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  answers.push_back(Send(*client, waits));
  RegisterRequest checked = RequestOf(2);
  checked.set_check(true);
  answers.push_back(Send(*client, checked));
  {
    const ScopedTrace trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    answers.push_back(Send(*client, RequestOf(3)));
  }
  EXPECT_EQ(Send(*client, RequestOf(4, size_t{20} << 20)).Get().status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(fake_.registers.WaitForRequests(5));
  fake_.registers.Release();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answers[i].Get()->revision(), i);
  ASSERT_TRUE(first.Get().ok());
  EXPECT_TRUE(Eventually([&] { return Ended(Method::kRegister) == 5; }));
  EXPECT_EQ(Ended(Method::kRegisterStream), 0);
}

TEST_F(RegisterClientTest, WhatIsNotAsAskedIsTold) {
  const auto client = NewClient();
  const auto first = Occupy(*client);
  fake_.registers.AnswerWith([](const RegisterRequest&) {
    RegisterResponse response;
    response.set_epoch(3);
    response.set_revision(4);
    response.add_results()->set_generation(17);
    *response.add_results()->mutable_status() =
        StatusToProto(Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "later"));
    return response;
  });
  const auto asked = Send(*client, RequestOf(1));
  ASSERT_TRUE(fake_.registers.WaitForRequests(2));
  fake_.registers.Release();
  const auto answer = asked.Get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(StreamsEnd(1));
  EXPECT_EQ(answer->epoch(), 3);
  EXPECT_EQ(answer->revision(), 4);
  ASSERT_EQ(answer->results_size(), 2);
  EXPECT_EQ(answer->results(0).generation(), 17);
  EXPECT_EQ(ReasonOf(StatusFromProto(answer->results(1).status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
}

TEST_F(RegisterClientTest, OneThatIsRefusedIsToldSoAndTheStreamGoesOn) {
  const auto client = NewClient();
  const auto first = Occupy(*client);
  std::vector<Answered<RegisterResponse>> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(Send(*client, RequestOf(i)));
  ASSERT_TRUE(fake_.registers.WaitForRequests(4));
  fake_.registers.Complete(Numbered(RequestOf(1000)));
  const absl::Status refusal = WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"), absl::Milliseconds(70));
  fake_.registers.Complete(Numbered(RequestOf(0)));
  fake_.registers.Complete(refusal);
  fake_.registers.Complete(Numbered(RequestOf(2)));
  EXPECT_EQ(answers[0].Get()->revision(), 0);
  const absl::Status told = answers[1].Get().status();
  EXPECT_EQ(ReasonOf(told), registry::v1::ERROR_REASON_OVERLOADED);
  EXPECT_EQ(RetryDelayOf(told), absl::Milliseconds(70));
  EXPECT_EQ(answers[2].Get()->revision(), 2);
  EXPECT_TRUE(StreamsEnd(1));
}

// A token that was rotated: what comes next shows the new one.
TEST_F(RegisterClientTest, AStreamWhoseCredentialsAreNotAcceptedTakesNoMore) {
  const auto client = NewClient();
  const auto first = Occupy(*client);
  const auto refused = Send(*client, RequestOf(0));
  const auto waiting = Send(*client, RequestOf(1));
  ASSERT_TRUE(fake_.registers.WaitForRequests(3));
  fake_.registers.CompleteAt(1, absl::UnauthenticatedError("the token is no longer accepted"));
  EXPECT_EQ(refused.Get().status().code(), absl::StatusCode::kUnauthenticated);
  const auto next = Send(*client, RequestOf(2));
  ASSERT_TRUE(fake_.registers.WaitForRequests(4));
  EXPECT_EQ(server_->Stats().register_streams, 2);
  fake_.registers.Release();
  EXPECT_EQ(waiting.Get()->revision(), 1);
  EXPECT_EQ(next.Get()->revision(), 2);
  EXPECT_TRUE(StreamsEnd(2));
}

TEST_F(RegisterClientTest, OneWithoutAnswerEndsItsStreamAndTheNextTakesAnother) {
  SimulatedClock clock;
  const auto timer = NewTimer(&clock);
  GrpcRegistryOptions options;
  options.timer = timer.get();
  options.call_timeout = absl::Hours(1);  // on that clock; calls have the real one
  auto client = NewClient(options);
  const auto first = Occupy(*client);
  const auto stuck = Send(*client, RequestOf(0));
  ASSERT_TRUE(fake_.registers.WaitForRequests(2));
  clock.Advance(options.call_timeout / 2);
  const auto behind = Send(*client, RequestOf(1));
  ASSERT_TRUE(fake_.registers.WaitForRequests(3));
  clock.Advance(options.call_timeout / 2 + absl::Milliseconds(101));  // a tick later at most
  ASSERT_TRUE(stuck.has_come());
  EXPECT_EQ(stuck.Get().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(stuck.Get().status().message()), HasSubstr("Register"));
  EXPECT_EQ(behind.Get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(first.has_come()) << "a call has a deadline of its own";
  const auto next = Send(*client, RequestOf(2));
  ASSERT_TRUE(fake_.registers.WaitForRequests(4));
  EXPECT_EQ(timer->pending(), 1);
  fake_.registers.Release();
  EXPECT_EQ(next.Get()->revision(), 2);
  EXPECT_EQ(timer->pending(), 0) << "what is answered has no deadline any more";
}

TEST_F(RegisterClientTest, ABrokenStreamFailsWhatWaitsAndTheNextIsAnother) {
  const auto client = NewClient();
  fake_.registers.Hold();
  std::vector<Answered<RegisterResponse>> answers;
  for (int i = 0; i < 5; ++i) answers.push_back(Send(*client, RequestOf(i)));
  ASSERT_TRUE(fake_.registers.WaitForRequests(5));
  server_.reset();
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.Get().status().code(), absl::StatusCode::kUnavailable)
        << answer.Get().status();
  }
  fake_.registers.Release();
  StartServer(address_);
  EXPECT_EQ(Send(*client, RequestOf(9)).Get()->revision(), 9);
}

// A registry of an earlier version, or something on the way there.
TEST_F(RegisterClientTest, ARegistryWithoutSuchAStreamGetsCalls) {
  class Earlier final : public RegistryService::Service {
   public:
    grpc::Status Register(grpc::ServerContext*, const RegisterRequest* request,
                          RegisterResponse* response) override {
      go_on.WaitForNotification();
      *response = *Numbered(*request);
      return grpc::Status::OK;
    }
    grpc::Status RegisterStream(
        grpc::ServerContext*,
        grpc::ServerReaderWriter<registry::v1::RegisterStreamResponse, RegisterRequest>*) override {
      ++streams;
      return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    }
    std::atomic<int> streams{0};
    absl::Notification go_on;
  };
  server_.reset();
  Earlier service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto client = NewClient();
  std::vector<Answered<RegisterResponse>> answers;
  for (int i = 0; i < 10; ++i) answers.push_back(Send(*client, RequestOf(i)));
  EXPECT_TRUE(Eventually([&] { return service.streams > 0; }));
  service.go_on.Notify();
  for (int i = 0; i < 10; ++i) {
    const auto answer = answers[i].Get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->revision(), i);
  }
  const int streams = service.streams;
  answers.clear();
  for (int i = 0; i < 10; ++i) answers.push_back(Send(*client, RequestOf(i)));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(answers[i].Get()->revision(), i);
  EXPECT_EQ(service.streams, streams) << "it is asked again and again";
}

// A call's answer is to have its results: one that has none says nothing.
TEST_F(RegisterClientTest, AnAnswerToACallWithoutResultsIsNotTakenForSuccess) {
  class Silent final : public RegistryService::Service {
   public:
    grpc::Status Register(grpc::ServerContext*, const RegisterRequest*,
                          RegisterResponse*) override {
      return grpc::Status::OK;
    }
    grpc::Status Unregister(grpc::ServerContext*, const UnregisterRequest*,
                            UnregisterResponse*) override {
      return grpc::Status::OK;
    }
  };
  server_.reset();
  Silent service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto client = NewClient();
  EXPECT_EQ(Send(*client, RequestOf(1, /*bytes=*/100)).Get().status().code(),
            absl::StatusCode::kInternal);
  UnregisterRequest removal;
  *removal.add_deregistrations()->mutable_key() = RequestOf(1).registrations(0).instance().key();
  EXPECT_EQ(CallAndWait(*client, &Registry::Unregister, removal).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(RegisterClientTest, DestructionCompletesWhatIsUnderWay) {
  fake_.registers.Hold();
  auto client = NewClient();
  std::vector<Answered<RegisterResponse>> answers;
  for (int i = 0; i < 50; ++i) answers.push_back(Send(*client, RequestOf(i)));
  client.reset();
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.has_come());
    EXPECT_EQ(answer.Get().status().code(), absl::StatusCode::kCancelled);
  }

  fake_.registers.Release();
  client = NewClient();
  absl::Notification destroyed;
  Callback<RegisterResponse> done = [&](const absl::StatusOr<RegisterResponse>&) {
    client.reset();
    destroyed.Notify();
  };
  client->Register(RequestOf(1), std::move(done));
  EXPECT_TRUE(destroyed.WaitForNotificationWithTimeout(kProcessTimeout));
  EXPECT_TRUE(Eventually([&] { return server_->Stats().register_streams == 0; }));
}

// Streams that end while others begin.
TEST_F(RegisterClientTest, ThreadsThatSendAtOnceGetTheirOwnAnswers) {
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  const auto client = NewClient();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<int, Answered<RegisterResponse>>> answers;
      for (int i = 0; i < kEach; ++i) {
        const int number = t * kEach + i;
        answers.emplace_back(number, Send(*client, RequestOf(number)));
        // Nothing of this thread waits now and then.
        if (i % 3 != 0 && i + 1 < kEach) continue;
        for (const auto& [sent, answer] : answers) {
          const auto told = answer.Get();
          ASSERT_TRUE(told.ok()) << told.status();
          EXPECT_EQ(told->revision(), sent);
        }
        answers.clear();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(fake_.registers.request_count(), kThreads * kEach);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().register_streams == 0; }));
}

}  // namespace
}  // namespace failback
