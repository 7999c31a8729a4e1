// Answers that clients do not read: the memory that they may take, and for how long. Time is
// simulated; the calls are real.

#include <memory>
#include <string>
#include <vector>

#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/server/call_stats.h"
#include "registry/server/registry_server.h"
#include "tests/registry/server/simulated_sweep.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/sanitized_build.h"

namespace failback {
namespace {

using registry::v1::RegistryService;

constexpr size_t kAnswer = 12000000;  // more than a client's transport takes unasked

// A connection of its own, that sends Lists and reads their answers when it is asked to.
class SlowReader {
 public:
  explicit SlowReader(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = RegistryService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }
  ~SlowReader() {
    for (const auto& call : calls_) call->context.TryCancel();
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (!calls_[i]->finished) Read(i).IgnoreError();
    }
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // Sends a List, and waits for the head of its answer.
  void Send() {
    calls_.push_back(std::make_unique<Call>());
    Call& call = *calls_.back();
    call.context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    call.reader = stub_->PrepareAsyncList(&call.context, ListRequest(), &queue_);
    call.reader->StartCall();
    call.reader->ReadInitialMetadata(&call);
    Wait();
  }

  // What became of a List.
  absl::Status Read(size_t i) {
    Call& call = *calls_[i];
    call.finished = true;
    call.reader->Finish(&call.response, &call.status, &call);
    Wait();
    return StatusFromGrpc(call.status);
  }

 private:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<ListResponse>> reader;
    ListResponse response;
    grpc::Status status;
    bool finished = false;
  };

  void Wait() {
    void* tag;
    bool ok;
    ASSERT_TRUE(queue_.Next(&tag, &ok));
  }

  std::unique_ptr<RegistryService::Stub> stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;
};

class UnreadAnswersTest : public WireTest {
 protected:
  void SetUp() override {
    if (!kReadsLargeMessages) GTEST_SKIP() << "answers larger than gRPC's windows";
    RegistryServer::Options options = sweep_.options();
    options.max_unread_bytes = 2 * kAnswer + kAnswer / 2;
    StartServer(ListenOn(Transport::kTcp), options);
    fake_.lists.AnswerWith([](const auto&) {
      ListResponse response;
      response.set_next_page_token(std::string(kAnswer, 'x'));
      return response;
    });
  }
  void TearDown() override { server_.reset(); }

  int64_t refused() const {
    return server_->Stats().calls.refused[static_cast<size_t>(CallStats::Limit::kUnreadBytes)];
  }

  SimulatedSweep sweep_;
};

TEST_F(UnreadAnswersTest, OneCallerHasHalf_AndWhatItDoesNotReadIsCancelled) {
  SlowReader slow(address_);
  slow.Send();
  slow.Send();
  ASSERT_TRUE(Eventually([&] { return refused() == 1; }));
  const absl::Status refusal = slow.Read(1);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refusal), registry::v1::ERROR_REASON_OVERLOADED);
  // Another caller has its answers all the same, one after the other.
  SlowReader other(address_);
  for (size_t i = 0; i < 5; ++i) {
    other.Send();
    EXPECT_EQ(other.Read(i), absl::OkStatus());
  }
  sweep_.Advance(SimulatedSweep::kStalled * 2);
  EXPECT_EQ(slow.Read(0).code(), absl::StatusCode::kCancelled);
  slow.Send();
  EXPECT_EQ(slow.Read(2), absl::OkStatus());
}

TEST_F(UnreadAnswersTest, AllCallersTogetherHaveTheWhole) {
  SlowReader a(address_), b(address_), c(address_);
  a.Send();
  b.Send();
  c.Send();
  EXPECT_EQ(ReasonOf(c.Read(0)), registry::v1::ERROR_REASON_OVERLOADED);
  EXPECT_EQ(a.Read(0), absl::OkStatus());
  ASSERT_TRUE(Eventually([&] {
    SlowReader d(address_);
    d.Send();
    return d.Read(0).ok();
  }));
  EXPECT_EQ(b.Read(0), absl::OkStatus());
}

}  // namespace
}  // namespace failback
