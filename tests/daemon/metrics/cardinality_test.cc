// What is registered does not make more series: the labels are of fixed sets.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/failback_metrics.h"
#include "daemon/metrics/metrics_page.h"
#include "daemon/metrics/server_metrics.h"
#include "gtest/gtest.h"
#include "registry/failback/failback_registry.h"
#include "registry/store/store_registry.h"
#include "registry/store_metrics.h"
#include "retry/simulated_clock.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

class CardinalityTest : public testing::Test {
 protected:
  CardinalityTest() {
    timer_ = NewTimer(&clock_);
    StoreRegistry::Options store_options;
    store_options.timer = timer_.get();
    auto store = StoreRegistry::Open(store_options).value();
    store_ = store.get();
    FailbackRegistry::Options options;
    options.upstream_name = "upstream";
    options.timer = timer_.get();
    agent_ = FailbackRegistry::Create(std::move(store), std::move(options)).value();
    page_.Add([this](MetricFamilies* out) {
      CollectWheel(timer_->Stats(), out);
      CollectStore(store_->Stats(), out);
      CollectFailback(agent_->Stats(), out);
    });
  }

  // Instances, each of a service of its own that a subscriber follows.
  void Register(int from, int to) {
    RegisterRequest request;
    for (int i = from; i < to; ++i) {
      ServiceInstance& instance = *request.add_registrations()->mutable_instance();
      instance = MakeInstance(absl::StrCat("service-", i), absl::StrCat("instance-", i));
      instance.mutable_key()->set_namespace_(absl::StrCat("namespace-", i % 50));
      SubscribeRequest subscribe;
      *subscribe.mutable_selector()->mutable_namespace_() = instance.key().namespace_();
      subscribe.mutable_selector()->set_service(instance.key().service());
      streams_.push_back(agent_->Subscribe(subscribe, std::make_shared<RecordingListener>()));
    }
    agent_->Register(request, [](const absl::StatusOr<RegisterResponse>& response) {
      ASSERT_TRUE(response.ok()) << response.status();
    });
    clock_.Advance(absl::Seconds(1));
  }

  size_t Series() const {
    size_t series = 0;
    for (const auto& family : page_.Collect()) series += family.metric.size();
    return series;
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  const StoreRegistry* store_ = nullptr;
  std::unique_ptr<FailbackRegistry> agent_;
  std::vector<std::unique_ptr<SubscribeStream>> streams_;
  MetricsPage page_;
};

TEST_F(CardinalityTest, AThousandServicesHaveAsManySeriesAsTen) {
  Register(0, 10);
  ASSERT_EQ(store_->Stats().services, 10);
  const size_t with_ten = Series();
  EXPECT_GT(with_ten, 50u);
  Register(10, 1000);
  ASSERT_EQ(store_->Stats().services, 1000);
  ASSERT_EQ(store_->Stats().subscribers, 1000);
  EXPECT_EQ(Series(), with_ten);
}

}  // namespace
}  // namespace failback
