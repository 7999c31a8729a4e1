// What the server does about streams whose clients have stopped, or do what they may not. Time is
// simulated; the streams are real.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "registry/model/errors.h"
#include "registry/server/registry_server.h"
#include "tests/registry/server/simulated_sweep.h"
#include "tests/registry/server/wire_fixture.h"

namespace failback {
namespace {

using registry::v1::RegistryService;

constexpr absl::Duration kStalled = SimulatedSweep::kStalled;
constexpr absl::Duration kSilent = SimulatedSweep::kSilent;
const absl::Duration kPeriod = kStalled / 4;

class StreamsTest : public WireTest {
 protected:
  using Renewals = grpc::ClientReaderWriter<KeepAliveRequest, KeepAliveResponse>;
  // So that a stream that should end, and does not, fails a test.
  struct Context : grpc::ClientContext {
    Context() { set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30))); }
  };

  void SetUp() override {
    StartServer(ListenOn(Transport::kUnix), sweep_.options());
    stub_ =
        RegistryService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  void TearDown() override { server_.reset(); }

  // A session that ends with the stream on which it is renewed.
  std::string OpenBound(const std::string& incarnation) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.set_ends_with_stream(true);
    Context context;
    OpenSessionResponse response;
    EXPECT_TRUE(stub_->OpenSession(&context, request, &response).ok());
    return response.session_id();
  }

  // Whether a renewal is answered, well or not.
  static bool Renew(Renewals& stream, const std::string& session, KeepAliveResponse* response) {
    return stream.Write(RenewalOf(session)) && stream.Read(response);
  }
  static bool Renew(Renewals& stream, const std::string& session) {
    KeepAliveResponse response;
    return Renew(stream, session, &response) && response.status().code() == 0;
  }

  // Waits for the server to have seen that streams ended.
  bool WaitForRenewalStreams(int64_t count) {
    return Eventually([&] { return server_->Stats().renewal_streams == count; });
  }
  // Whatever the server had begun before is done after some calls there and back.
  void SomeCalls() {
    for (int i = 0; i < 20; ++i) {
      Context context;
      ListResponse response;
      EXPECT_TRUE(stub_->List(&context, ListRequest(), &response).ok());
    }
  }

  SimulatedSweep sweep_;
  std::unique_ptr<RegistryService::Stub> stub_;
};

TEST_F(StreamsTest, ASubscriberThatTakesNothingIsCancelledAndAnIdleOneIsNot) {
  const auto client = NewClient();
  const auto idle = std::make_shared<RecordingListener>();
  const auto idle_stream = client->Subscribe({}, idle);
  const auto idle_source = fake_.WaitForSubscription(0);
  ASSERT_NE(idle_source, nullptr);
  idle_source->Push(Snapshot(1));
  ASSERT_TRUE(idle->WaitForEvents(1));

  Context context;
  const auto stopped = stub_->Subscribe(&context, SubscribeRequest());
  const auto source = fake_.WaitForSubscription(1);
  ASSERT_NE(source, nullptr);
  // More than flow control lets pass.
  SubscribeResponse large = Snapshot(1);
  (*large.mutable_snapshot()->add_instances()->mutable_metadata())["k"] =
      std::string(32 << 20, 'v');
  source->Push(large);
  sweep_.Advance(kStalled - kPeriod);
  EXPECT_EQ(server_->Stats().subscriptions, 2);
  sweep_.Advance(2 * kPeriod);
  // Nobody reads: the server lets go by itself.
  EXPECT_TRUE(Eventually([&] { return server_->Stats().subscriptions == 1; }));
  SubscribeResponse message;
  while (stopped->Read(&message)) {
  }
  EXPECT_EQ(stopped->Finish().error_code(), grpc::StatusCode::CANCELLED);
  sweep_.Advance(kSilent);
  EXPECT_EQ(server_->Stats().subscriptions, 1);
  EXPECT_FALSE(idle->end().has_value());
}

TEST_F(StreamsTest, WhatIsNoRenewalEndsItsStreamAndSaysWhatWasExpected) {
  const std::string session = OpenBound("confused");
  Context context;
  grpc::GenericStub stub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  const auto stream =
      stub.PrepareCall(&context, "/failback.registry.v1.RegistryService/KeepAlive", &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  ASSERT_TRUE(done());
  for (const std::string& bytes : {RenewalOf(session).SerializeAsString(), std::string("\xff")}) {
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    ASSERT_TRUE(done());
    grpc::ByteBuffer answer;
    stream->Read(&answer, nullptr);
    ASSERT_EQ(done(), bytes != "\xff");
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(done());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "the request is no KeepAliveRequest");
  ASSERT_TRUE(fake_.closes.WaitForRequests(1)) << "the session ends with its stream";
}

TEST_F(StreamsTest, ASilentRenewalStreamIsEndedAndItsSessionsAreNot) {
  const std::string silent_session = OpenBound("silent");
  Context context;
  const auto silent = stub_->KeepAlive(&context);
  ASSERT_TRUE(Renew(*silent, silent_session));
  sweep_.Advance(kSilent - kPeriod);
  EXPECT_EQ(server_->Stats().renewal_streams, 1);
  sweep_.Advance(2 * kPeriod);
  KeepAliveResponse response;
  EXPECT_FALSE(silent->Read(&response));
  EXPECT_EQ(ReasonOf(StatusFromGrpc(silent->Finish())), registry::v1::ERROR_REASON_IDLE);
  ASSERT_TRUE(WaitForRenewalStreams(0));
  SomeCalls();
  EXPECT_EQ(fake_.closes.request_count(), 0u);

  // One that breaks takes its session along.
  const std::string broken_session = OpenBound("broken");
  Context second;
  const auto broken = stub_->KeepAlive(&second);
  ASSERT_TRUE(Renew(*broken, broken_session));
  second.TryCancel();
  ASSERT_TRUE(fake_.closes.WaitForRequests(1));
  EXPECT_EQ(fake_.closes.last_request().session_id(), broken_session);
}

// Where TLS is on. Their clients come again on a new connection, and have lost nothing.
TEST_F(StreamsTest, AnOldStreamEndsAndItsSessionsDoNot) {
  server_.reset();
  RegistryServer::Options options = sweep_.options();
  options.credentials = grpc::InsecureServerCredentials();  // the socket has none in any case
  options.longest_connection_age = absl::Hours(1);
  StartServer(ListenOn(Transport::kUnix), options);
  stub_ =
      RegistryService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  const std::string session = OpenBound("a");
  Context renewal;
  const auto renewals = stub_->KeepAlive(&renewal);
  Context subscription;
  const auto subscriber = stub_->Subscribe(&subscription, SubscribeRequest());
  const auto source = fake_.WaitForSubscription(0);
  ASSERT_NE(source, nullptr);
  source->Push(Snapshot(7));
  SubscribeResponse told;
  EXPECT_TRUE(subscriber->Read(&told));
  // For 20 minutes nothing ends; in less than half of the longest age everything does. A renewal
  // between two sweeps: the server writes it when its write before has ended, so none looks stalled.
  absl::Duration age;
  for (; age < absl::Minutes(20); age += kPeriod) {
    ASSERT_TRUE(Renew(*renewals, session)) << age;
    sweep_.Advance(kPeriod);
  }
  while (age < absl::Minutes(29) && Renew(*renewals, session)) {
    sweep_.Advance(kPeriod);
    age += kPeriod;
  }
  ASSERT_LT(age, absl::Minutes(29));
  sweep_.Advance(absl::Minutes(29) - age);
  KeepAliveResponse response;
  EXPECT_FALSE(renewals->Read(&response));
  EXPECT_FALSE(subscriber->Read(&told));
  for (const grpc::Status& end : {renewals->Finish(), subscriber->Finish()}) {
    EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(StatusFromGrpc(end)), registry::v1::ERROR_REASON_IDLE);
  }
  ASSERT_TRUE(WaitForRenewalStreams(0));
  SomeCalls();
  EXPECT_EQ(fake_.closes.request_count(), 0u);
}

TEST_F(StreamsTest, StreamsThatSayNothingAreFewOnOneConnection) {
  constexpr size_t kMost = 64;
  server_.reset();
  StartServer(ListenOn(Transport::kTcp), sweep_.options());  // of a Unix socket none can be told
  const auto connect = [&] {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return RegistryService::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  };
  stub_ = connect();
  const std::string session = OpenBound("a");
  std::vector<std::unique_ptr<Context>> contexts;
  const auto open = [&](RegistryService::Stub& stub) {
    contexts.push_back(std::make_unique<Context>());
    return stub.KeepAlive(contexts.back().get());
  };
  std::vector<std::unique_ptr<Renewals>> silent;
  while (silent.size() < kMost) silent.push_back(open(*stub_));
  ASSERT_TRUE(WaitForRenewalStreams(kMost));
  const auto refused = [&] {
    const auto one_more = open(*stub_);
    KeepAliveResponse response;
    EXPECT_FALSE(one_more->Read(&response));
    return StatusFromGrpc(one_more->Finish());
  };
  EXPECT_EQ(ReasonOf(refused()), registry::v1::ERROR_REASON_OVERLOADED);
  EXPECT_EQ(server_->Stats().calls.refused[static_cast<size_t>(CallStats::Limit::kSilentStreams)],
            1);
  // No other client is disturbed, and who is of use is not counted.
  const auto other = connect();
  EXPECT_TRUE(Renew(*open(*other), session));
  EXPECT_TRUE(Renew(*silent[0], session));
  EXPECT_TRUE(Renew(*open(*stub_), session));
  for (const auto& context : contexts) context->TryCancel();
}

TEST_F(StreamsTest, RenewalsKeepTheirStreamOpen) {
  const std::string session = OpenBound("a");
  Context context;
  const auto stream = stub_->KeepAlive(&context);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Renew(*stream, session)) << i;
    sweep_.Advance(kSilent * 3 / 4);
  }
  EXPECT_TRUE(Renew(*stream, session));
  EXPECT_EQ(server_->Stats().renewal_streams, 1);
}

TEST_F(StreamsTest, ARenewalThatIsRefusedDoesNotTakeTheSessionOver) {
  const std::string session = OpenBound("a");
  Context owners;
  const auto owner = stub_->KeepAlive(&owners);
  ASSERT_TRUE(Renew(*owner, session));
  fake_.keep_alives.Answer(absl::PermissionDeniedError("not yours"));
  Context others;
  const auto other = stub_->KeepAlive(&others);
  KeepAliveResponse refused;
  ASSERT_TRUE(Renew(*other, session, &refused));
  EXPECT_EQ(refused.status().code(), static_cast<int>(absl::StatusCode::kPermissionDenied));
  others.TryCancel();
  ASSERT_TRUE(WaitForRenewalStreams(1));
  SomeCalls();
  EXPECT_EQ(fake_.closes.request_count(), 0u) << "it is not the other's to end";
  owners.TryCancel();
  ASSERT_TRUE(fake_.closes.WaitForRequests(1));
  EXPECT_EQ(fake_.closes.last_request().session_id(), session);
}

TEST_F(StreamsTest, RenewalsWithoutAnswersAreNotReadWithoutEnd) {
  constexpr size_t kOpen = 1024;
  constexpr size_t kMore = 100;
  fake_.keep_alives.Hold();
  Context context;
  const auto stream = stub_->KeepAlive(&context);
  for (size_t i = 0; i < kOpen + kMore; ++i) ASSERT_TRUE(stream->Write(RenewalOf("a")));
  ASSERT_TRUE(fake_.keep_alives.WaitForRequests(kOpen));
  SomeCalls();
  EXPECT_EQ(fake_.keep_alives.request_count(), kOpen);
  fake_.keep_alives.Release();
  KeepAliveResponse response;
  for (size_t i = 0; i < kOpen + kMore; ++i) ASSERT_TRUE(stream->Read(&response)) << i;
}

}  // namespace
}  // namespace failback
