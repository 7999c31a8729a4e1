#include "registry/model/event_order.h"

#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "tests/registry/message_listener.h"

namespace failback {
namespace {

using registry::v1::SubscribeResponse;

SubscribeResponse Snapshot(uint64_t epoch, uint64_t revision, bool more = false) {
  SubscribeResponse message;
  message.set_epoch(epoch);
  message.set_revision(revision);
  message.mutable_snapshot()->set_more(more);
  return message;
}

SubscribeResponse Delta(uint64_t epoch, uint64_t base, uint64_t revision) {
  SubscribeResponse message;
  message.set_epoch(epoch);
  message.set_revision(revision);
  message.mutable_delta()->set_base_revision(base);
  return message;
}

SubscribeResponse Stale() {
  SubscribeResponse message;
  message.set_stale(true);
  return message;
}

void ExpectGap(EventOrder& order, const SubscribeResponse& message) {
  const uint64_t revision = order.revision();
  EXPECT_EQ(ReasonOf(CheckOrder(&order, message)), registry::v1::ERROR_REASON_POSITION_LOST)
      << message.DebugString();
  EXPECT_EQ(order.revision(), revision) << "a message out of order does not count";
}

TEST(EventOrderTest, SnapshotThenDeltasEachFromTheOneBefore) {
  EventOrder order;
  EXPECT_FALSE(order.known());
  EXPECT_TRUE(CheckOrder(&order, Snapshot(5, 7)).ok());
  EXPECT_TRUE(CheckOrder(&order, Delta(5, 7, 9)).ok());
  EXPECT_TRUE(CheckOrder(&order, Stale()).ok());
  EXPECT_TRUE(CheckOrder(&order, Delta(5, 9, 12)).ok());
  EXPECT_TRUE(CheckOrder(&order, Snapshot(5, 12)).ok());
  EXPECT_TRUE(CheckOrder(&order, Snapshot(6, 1)).ok()) << "a new epoch starts again";
  EXPECT_EQ(order.epoch(), 6u);
  EXPECT_EQ(order.revision(), 1u);
}

// A server that does not know the position sends what there is.
TEST(EventOrderTest, AResumedStreamMayBeginWithAnEarlierSnapshot) {
  EventOrder order(5, 12);
  EXPECT_TRUE(CheckOrder(&order, Stale()).ok());
  ExpectGap(order, Delta(5, 4, 5));
  EXPECT_TRUE(CheckOrder(&order, Snapshot(5, 4)).ok());
  EXPECT_EQ(order.revision(), 4u);
  ExpectGap(order, Snapshot(5, 3));
  EventOrder confirmed(5, 12);
  EXPECT_TRUE(CheckOrder(&confirmed, Delta(5, 12, 12)).ok());
  ExpectGap(confirmed, Snapshot(5, 11));
}

TEST(EventOrderTest, ADeltaThatDoesNotFollowIsAGap) {
  EventOrder order;
  ExpectGap(order, Delta(5, 0, 1));
  EXPECT_TRUE(CheckOrder(&order, Snapshot(5, 7)).ok());
  ExpectGap(order, Delta(5, 8, 9));
  ExpectGap(order, Delta(5, 6, 9));
  ExpectGap(order, Delta(6, 7, 9));
  ExpectGap(order, Delta(5, 7, 6));
  EXPECT_TRUE(CheckOrder(&order, Delta(5, 7, 8)).ok());
}

TEST(EventOrderTest, ASnapshotDoesNotGoBackWithinAnEpoch) {
  EventOrder order;
  EXPECT_TRUE(CheckOrder(&order, Snapshot(5, 7)).ok());
  ExpectGap(order, Snapshot(5, 6));
}

TEST(EventOrderTest, PartsBelongTogether) {
  EventOrder order;
  EXPECT_TRUE(CheckOrder(&order, Snapshot(5, 7, true)).ok());
  EXPECT_TRUE(order.in_snapshot());
  ExpectGap(order, Snapshot(5, 8));
  ExpectGap(order, Snapshot(6, 7));
  ExpectGap(order, Delta(5, 7, 8));
  ExpectGap(order, Stale());
  EXPECT_TRUE(CheckOrder(&order, Snapshot(5, 7)).ok());
  EXPECT_FALSE(order.in_snapshot());
}

TEST(EventOrderTest, ResumesWithADeltaOrASnapshot) {
  EventOrder delta(5, 7);
  EXPECT_TRUE(CheckOrder(&delta, Delta(5, 7, 7)).ok()) << "nothing has changed";
  EventOrder snapshot(5, 7);
  EXPECT_TRUE(CheckOrder(&snapshot, Snapshot(6, 1)).ok());
  EventOrder elsewhere(5, 7);
  ExpectGap(elsewhere, Delta(5, 6, 9));
}

}  // namespace
}  // namespace failback
