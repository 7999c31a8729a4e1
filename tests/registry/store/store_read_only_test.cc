// A StoreRegistry whose store cannot be written.

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/registry/store/harness.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kReadOnly = registry::v1::ERROR_REASON_STORE_READ_ONLY;

class ReadOnlyTest : public ::testing::Test {
 protected:
  ReadOnlyTest() {
    timer_ = NewTimer(&clock_, absl::Milliseconds(10));
    StoreRegistry::Options options;
    options.timer = timer_.get();
    registry_ = StoreRegistry::OpenOn(options, std::make_unique<FakeStorage>(&rows_)).value();
  }
  absl::StatusOr<OpenSessionResponse> OpenSession(const std::string& incarnation) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    return CallAndWait(*registry_, &Registry::OpenSession, request);
  }
  absl::Status Register(const std::string& session, const ServiceInstance& instance) {
    RegisterRequest request;
    request.set_session_id(session);
    *request.add_registrations()->mutable_instance() = instance;
    const auto response = CallAndWait(*registry_, &Registry::Register, request);
    return response.ok() ? StatusFromProto(response->results(0).status()) : response.status();
  }
  int Count() { return CallAndWait(*registry_, &Registry::List, ListRequest())->records_size(); }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRows rows_;
  std::unique_ptr<StoreRegistry> registry_;
};

TEST_F(ReadOnlyTest, WritesAreRefusedReadsGoOnAndItRecovers) {
  const std::string session = OpenSession("a")->session_id();
  ASSERT_TRUE(Register(session, MakeInstance("orders", "1")).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  SubscribeRequest subscribe;
  subscribe.mutable_selector()->set_service("orders");
  const auto stream = registry_->Subscribe(subscribe, subscriber);

  rows_.write_status = absl::UnavailableError("disk full");
  const absl::Status refused = Register(session, MakeInstance("orders", "2"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), kReadOnly);
  EXPECT_EQ(RetryDelayOf(refused), absl::Seconds(1));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("disk full"));
  EXPECT_EQ(ReasonOf(OpenSession("b").status()), kReadOnly);
  EXPECT_EQ(ReasonOf(registry_->Stats().write_status), registry::v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_FALSE(registry_->Stats().write_status.ok());
  EXPECT_EQ(Count(), 1);
  EXPECT_EQ(registry_->revision(), 1u);
  EXPECT_THAT(subscriber->events(), SizeIs(1));
  // What changes nothing needs no disk.
  EXPECT_TRUE(Register(session, MakeInstance("orders", "1")).ok());
  KeepAliveRequest renewal;
  renewal.set_session_id(session);
  EXPECT_TRUE(CallAndWait(*registry_, &Registry::KeepAlive, renewal).ok());

  rows_.write_status = absl::OkStatus();
  EXPECT_EQ(ReasonOf(Register(session, MakeInstance("orders", "2"))), kReadOnly)
      << "not tried before the delay is over";
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Register(session, MakeInstance("orders", "2")).ok());
  EXPECT_TRUE(registry_->Stats().write_status.ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1", "2"));
  EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
}

TEST_F(ReadOnlyTest, ItsReturnIsNoticedWhenNobodyWrites) {
  rows_.write_status = absl::UnavailableError("disk full");
  EXPECT_EQ(ReasonOf(OpenSession("a").status()), kReadOnly);
  clock_.Advance(absl::Seconds(60));
  EXPECT_FALSE(registry_->Stats().write_status.ok()) << "tried, and still full";
  rows_.write_status = absl::OkStatus();
  const uint64_t revision = registry_->revision();
  clock_.Advance(absl::Seconds(4));
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(registry_->Stats().write_status.ok());
  EXPECT_EQ(rows_.writes, 1) << "one commit, of nothing";
  EXPECT_EQ(registry_->revision(), revision);
  EXPECT_TRUE(rows_.sessions.empty());
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(rows_.writes, 1) << "no more than that";
  EXPECT_TRUE(OpenSession("a").ok());
  EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
}

TEST_F(ReadOnlyTest, SessionsThatCannotBeEndedLiveOnAndEndLater) {
  const std::string session = OpenSession("a")->session_id();
  ASSERT_TRUE(Register(session, MakeInstance("orders", "1")).ok());
  rows_.write_status = absl::UnavailableError("disk full");
  clock_.Advance(absl::Seconds(15));
  EXPECT_EQ(Count(), 1);
  rows_.write_status = absl::OkStatus();
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(Count(), 0);
  EXPECT_EQ(registry_->Stats().leases.pauses, 0);
}

}  // namespace
}  // namespace failback
