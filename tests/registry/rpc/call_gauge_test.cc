#include "registry/rpc/call_gauge.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace failback {
namespace {

TEST(GaugeTest, HasAsManyPlacesAsItsLimit) {
  Gauge gauge(2);
  std::shared_ptr<void> first = gauge.Enter();
  const std::shared_ptr<void> second = gauge.Enter();
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(gauge.Enter(), nullptr);
  EXPECT_EQ(gauge.count(), 2) << "one that is refused has none";
  first.reset();
  EXPECT_EQ(gauge.count(), 1);
  EXPECT_NE(gauge.Enter(), nullptr);
}

TEST(GaugeTest, WithoutALimitAllArePlacesAndCounted) {
  Gauge gauge(0);
  std::vector<std::shared_ptr<void>> places;
  places.reserve(100);
  for (int i = 0; i < 100; ++i) places.push_back(gauge.Enter());
  EXPECT_NE(places.back(), nullptr);
  EXPECT_EQ(gauge.count(), 100);
}

TEST(GaugeTest, APlaceMayOutliveIt) {
  auto gauge = std::make_unique<Gauge>(1);
  auto keyed = std::make_unique<KeyedGauge>(1);
  const std::shared_ptr<void> place = gauge->Enter();
  const std::shared_ptr<void> keyed_place = keyed->Enter("a");
  gauge.reset();
  keyed.reset();
  EXPECT_NE(place, nullptr);
  EXPECT_NE(keyed_place, nullptr);
}

TEST(KeyedGaugeTest, EachKeyHasItsOwnPlaces) {
  KeyedGauge gauge(1);
  std::shared_ptr<void> a = gauge.Enter("a");
  EXPECT_NE(a, nullptr);
  EXPECT_EQ(gauge.Enter("a"), nullptr);
  const std::shared_ptr<void> b = gauge.Enter("b");
  EXPECT_NE(b, nullptr);
  a.reset();
  EXPECT_EQ(gauge.Enter("b"), nullptr);
  EXPECT_NE(gauge.Enter("a"), nullptr);
}

TEST(KeyedGaugeTest, WithoutAKeyOrALimitAllArePlaces) {
  KeyedGauge gauge(1);
  KeyedGauge none(0);
  std::vector<std::shared_ptr<void>> places;
  for (int i = 0; i < 3; ++i) {
    places.push_back(gauge.Enter(""));
    places.push_back(none.Enter("a"));
  }
  for (const auto& place : places) EXPECT_NE(place, nullptr);
}

TEST(PlacesTest, AllAreHeldOrNone) {
  Gauge wide(10);
  KeyedGauge narrow(1);
  {
    const Permits held = AllOrNone({wide.Enter(), narrow.Enter("a")});
    EXPECT_FALSE(held.full.has_value());
    EXPECT_EQ(held.held.size(), 2u);
    EXPECT_EQ(wide.count(), 1);
    // Kept for as long as a refusal takes.
    const Permits refused = AllOrNone({wide.Enter(), narrow.Enter("a"), nullptr});
    EXPECT_EQ(refused.full, 1u) << "the first one that is full";
    EXPECT_TRUE(refused.held.empty());
    EXPECT_EQ(wide.count(), 1);
  }
  EXPECT_EQ(wide.count(), 0);
  EXPECT_FALSE(AllOrNone({wide.Enter(), narrow.Enter("a")}).full.has_value());
}

TEST(ConnectionOfTest, ClientsOnAUnixSocketLookAlike) {
  EXPECT_EQ(ConnectionOf("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1:4711");
  EXPECT_EQ(ConnectionOf("unix:/run/a.sock"), "");
}

}  // namespace
}  // namespace failback
