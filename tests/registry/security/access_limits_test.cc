// What no caller takes from others, over the wire: subscriptions, calls, lines of the log.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "registry/security/access_control.h"
#include "registry/server/registry_server.h"
#include "retry/mutex.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/security/access_fixture.h"
#include "tests/util/eventually.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_ACCESS_DENIED;
using registry::v1::RegistryService;

TEST_F(AccessTest, NoCallerTakesAllSubscriptions) {
  max_subscriptions_ = 4;
  Start("memory:");
  std::vector<Subscription> open;
  for (int i = 0; i < 2; ++i) {
    open.push_back(Subscribe("reader", "orders"));
    ASSERT_TRUE(open.back().Read());
  }
  const absl::Status refused = Subscribe("reader", "other").End();
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED) << refused;
  EXPECT_EQ(ReasonMetadata(refused, "limit"), "2");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("the share of one owner, of 4"));
  open.push_back(Subscribe("other", "other"));
  ASSERT_TRUE(open.back().Read());
  for (Subscription& subscription : open) {
    subscription.context->TryCancel();
    EXPECT_EQ(subscription.End().code(), absl::StatusCode::kCancelled);
  }
}

// A registry in which listing `orders` takes as long as the test wants.
class SlowReads {
 public:
  SlowReads(const std::string& address, std::shared_ptr<AccessControl> access,
            int max_calls_in_flight) {
    fake_.lists.AnswerWith([this](const ListRequest& request) {
      if (request.selector().service() == "orders") {
        MutexLock lock(&mu_);
        while (permits_ == 0) changed_.Wait(&mu_);
        --permits_;
      }
      return ListResponse();
    });
    RegistryServer::Options options;
    options.listen = {address};
    options.access = std::move(access);
    options.max_calls_in_flight = max_calls_in_flight;
    auto server = RegistryServer::Start(&fake_, options);
    if (!server.ok()) Fatal(server.status().ToString());
    server_ = *std::move(server);
    stub_ = RegistryService::NewStub(
        grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
  }
  ~SlowReads() {
    Permit(static_cast<int>(calls_.size()));
    for (Call& call : calls_) {
      if (call.end.valid()) call.end.wait();
    }
  }

  // Begins one.
  void List(std::unique_ptr<grpc::ClientContext> context, const std::string& service) {
    Call& call = calls_.emplace_back();
    call.context = std::move(context);
    call.request.mutable_selector()->set_service(service);
    stub_->async()->List(
        call.context.get(), &call.request, &call.response,
        [&call](const grpc::Status& status) { call.status.set_value(StatusFromGrpc(status)); });
  }
  // How the `index`-th ended.
  absl::Status End(size_t index) { return calls_[index].end.get(); }

  // Whether so many come to be at the server at once.
  bool WaitForCalls(int64_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (server_->Stats().calls_in_flight != count) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // Whether so many come to wait for their turn.
  bool WaitForWaiting(int64_t count) {
    return Eventually([&] { return server_->Stats().reads_waiting == count; });
  }

  // So many slow ones may end.
  void Permit(int count) {
    MutexLock lock(&mu_);
    permits_ += count;
    changed_.SignalAll();
  }
  FakeRegistry& fake() { return fake_; }

 private:
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    ListRequest request;
    ListResponse response;
    std::promise<absl::Status> status;
    std::future<absl::Status> end = status.get_future();
  };

  Mutex mu_;
  CondVar changed_;
  int permits_ ABSL_GUARDED_BY(mu_) = 0;
  FakeRegistry fake_;
  std::deque<Call> calls_;
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<RegistryService::Stub> stub_;
};

TEST_F(AccessTest, NoCallersSlowReadsHoldUpThoseOfOthers) {
  constexpr int kReads = 1000;
  SlowReads slow(absl::StrCat("unix:", folder_.File("reads")), access_, 10 * kReads);
  for (int i = 0; i < kReads; ++i) slow.List(As("orders"), "orders");
  ASSERT_TRUE(slow.WaitForCalls(kReads));
  // On all threads for reads.
  const size_t begun = std::max<size_t>(std::thread::hardware_concurrency() / 2, 1);
  ASSERT_TRUE(slow.fake().lists.WaitForRequests(begun));
  slow.List(As("reader"), "other");
  ASSERT_TRUE(slow.WaitForWaiting(static_cast<int64_t>(kReads - begun + 1)));
  // As soon as one thread becomes free, its turn comes.
  slow.Permit(1);
  ASSERT_TRUE(slow.fake().lists.WaitForRequests(begun + 1));
  EXPECT_EQ(slow.fake().lists.requests()[begun].selector().service(), "other");
  EXPECT_EQ(slow.End(kReads), absl::OkStatus());
  slow.Permit(kReads);
  for (int i = 0; i < kReads; ++i) EXPECT_EQ(slow.End(i), absl::OkStatus());
}

TEST_F(AccessTest, NoCallersListsTakeAllCalls) {
  SlowReads slow(absl::StrCat("unix:", folder_.File("reads")), access_, 4);
  for (int i = 0; i < 2; ++i) slow.List(As("orders"), "orders");
  ASSERT_TRUE(slow.WaitForCalls(2));
  slow.List(As("orders"), "orders");
  const absl::Status refused = slow.End(2);
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED) << refused;
  EXPECT_EQ(ReasonMetadata(refused, "limit"), "2");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("its share of 4 calls"));
  slow.List(As("reader"), "other");
  slow.Permit(2);
  EXPECT_EQ(slow.End(0), absl::OkStatus());
  EXPECT_EQ(slow.End(1), absl::OkStatus());
  EXPECT_EQ(slow.End(3), absl::OkStatus());
  ASSERT_TRUE(slow.WaitForCalls(0));
  slow.Permit(1);
  slow.List(As("orders"), "orders");
  EXPECT_EQ(slow.End(4), absl::OkStatus()) << "there is room again";
}

TEST_F(AccessTest, DenialsAreLoggedInMeasure) {
  std::atomic<int> lines{0};
  SetLogSink(LogLevel::kWarning, [&](LogLevel, const std::string& event, const LogFields& fields) {
    if (event != "denied") return;
    ++lines;
    for (const auto& [name, value] : fields) {
      if (name == "caller") {
        EXPECT_EQ(value, "token other");
      }
      if (name == "peer") {
        EXPECT_NE(value, "") << "where it came from";
      }
      EXPECT_EQ(value.find("Bearer"), std::string::npos);
    }
  });
  const absl::Time begin = absl::Now();
  constexpr int kCalls = 300;
  for (int i = 0; i < kCalls; ++i) {
    ExpectReason(List("other", "orders"), ERROR_REASON_ACCESS_DENIED, "List");
  }
  const auto seconds = absl::ToInt64Seconds(absl::Now() - begin) + 2;
  EXPECT_EQ(access_->counters().denied_read, kCalls);
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 10 * seconds);
}

}  // namespace
}  // namespace failback
