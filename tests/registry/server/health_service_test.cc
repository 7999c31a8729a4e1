#include "registry/server/health_service.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

// So that what should end, and does not, fails a test.
struct Context : grpc::ClientContext {
  Context() { set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30))); }
};

// One Watch, on a connection of its own or on another's.
struct Watching {
  explicit Watching(std::shared_ptr<grpc::Channel> on, const std::string& service = "")
      : channel(std::move(on)), stub(Health::NewStub(channel)) {
    HealthCheckRequest request;
    request.set_service(service);
    stream = stub->Watch(&context, request);
  }
  ~Watching() {
    context.TryCancel();
    HealthCheckResponse response;
    while (stream->Read(&response)) {
    }
  }

  // The next state; -1 at the end.
  int Next() {
    HealthCheckResponse response;
    return stream->Read(&response) ? response.status() : -1;
  }
  absl::Status End() {
    while (Next() >= 0) {
    }
    return StatusFromGrpc(stream->Finish());
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Health::Stub> stub;
  Context context;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> stream;
};

class HealthServiceTest : public ::testing::Test {
 protected:
  HealthServiceTest() : health_(Few()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    health_.Set("", true);
  }
  ~HealthServiceTest() override { server_->Shutdown(); }

  static HealthService::Options Few() {
    HealthService::Options options;
    options.max_watches = 100;
    options.max_watches_per_address = 5;
    options.max_watches_per_connection = 2;
    return options;
  }

  std::shared_ptr<grpc::Channel> Connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  absl::StatusOr<int> Check(const std::string& service) const {
    Context context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = Health::NewStub(Connect())->Check(&context, request, &response);
    if (!status.ok()) return StatusFromGrpc(status);
    return response.status();
  }

  HealthService health_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(HealthServiceTest, WatchesAreToldOfEachChangeAndOfTheEnd) {
  Watching all(Connect());
  Watching late(Connect(), "late");
  EXPECT_EQ(all.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(late.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  health_.Set("late", true);
  EXPECT_EQ(late.Next(), HealthCheckResponse::SERVING);
  health_.Set("late", false);
  EXPECT_EQ(late.Next(), HealthCheckResponse::NOT_SERVING);
  health_.Set("late", true);
  EXPECT_EQ(late.Next(), HealthCheckResponse::SERVING);
  health_.Stop();
  for (Watching* watching : {&all, &late}) {
    EXPECT_EQ(watching->Next(), HealthCheckResponse::NOT_SERVING);
    EXPECT_EQ(ReasonOf(watching->End()), registry::v1::ERROR_REASON_SHUTTING_DOWN);
  }
  Watching after(Connect());
  EXPECT_EQ(after.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(ReasonOf(after.End()), registry::v1::ERROR_REASON_SHUTTING_DOWN);
}

TEST_F(HealthServiceTest, ChecksAreAnswered) {
  EXPECT_EQ(Check("").value(), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("unknown").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Check(std::string(300, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
  health_.Set("", false);
  EXPECT_EQ(Check("").value(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthServiceTest, WatchesAreFewOnOneConnectionAndFromOneAddress) {
  std::vector<std::unique_ptr<Watching>> open;
  const auto watch = [&](const std::shared_ptr<grpc::Channel>& on) {
    auto watching = std::make_unique<Watching>(on);
    if (watching->Next() < 0) return watching->End();
    open.push_back(std::move(watching));
    return absl::OkStatus();
  };
  const auto first = Connect();
  EXPECT_TRUE(watch(first).ok());
  EXPECT_TRUE(watch(first).ok());
  absl::Status refused = watch(first);
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("on one connection, at most 2"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(watch(Connect()).ok()) << i;
  refused = watch(Connect());
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("from one address, at most 5"));
  EXPECT_EQ(Check("").value(), HealthCheckResponse::SERVING) << "checks are answered all the same";
  // Places are free again when their clients have gone.
  open.clear();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!watch(Connect()).ok() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(open.size(), 1u);
}

// A client that does not take its refusal: until it does, the call is not over.
TEST_F(HealthServiceTest, RefusedWatchesHoldNoPlaces) {
  HealthCheckRequest request;
  request.set_service(std::string(300, 'x'));
  grpc::ByteBuffer bytes;
  bool own_buffer;
  ASSERT_TRUE(
      grpc::SerializationTraits<HealthCheckRequest>::Serialize(request, &bytes, &own_buffer).ok());
  // Of no connection, so that only the number of all is counted, and nothing ends them.
  grpc::CallbackServerContext context;
  std::vector<grpc::ServerWriteReactor<grpc::ByteBuffer>*> refused;
  for (int i = 0; i < Few().max_watches; ++i) refused.push_back(health_.Watch(&context, &bytes));
  Watching watching(Connect());
  EXPECT_EQ(watching.Next(), HealthCheckResponse::SERVING);
  for (auto* watch : refused) watch->OnDone();
}

}  // namespace
}  // namespace failback
