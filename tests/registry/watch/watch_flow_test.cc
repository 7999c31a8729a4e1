// WatchFlow as who drives it sees it: no gRPC, no thread, no time.

#include "registry/watch/watch_flow.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/watch/conflator.h"
#include "tests/registry/watch/conflator_events.h"
#include "tests/util/instances.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using registry::v1::WatchItem;

// A stream at the registry; says when it is destroyed.
struct Handle : SubscribeStream {
  explicit Handle(bool* destroyed) : destroyed(destroyed) {}
  ~Handle() override {
    if (destroyed != nullptr) *destroyed = true;
  }
  bool* const destroyed;
};

WatchRequest Subscribes(uint64_t first, uint64_t last) {
  WatchRequest request;
  for (uint64_t id = first; id <= last; ++id) {
    auto& command = *request.add_commands();
    command.set_watch_id(id);
    command.mutable_subscribe()->mutable_selector()->set_service(absl::StrCat("s", id));
  }
  return request;
}

WatchRequest Unsubscribes(uint64_t id) {
  WatchRequest request;
  request.add_commands()->set_watch_id(id);
  request.mutable_commands(0)->mutable_unsubscribe();
  return request;
}

// The message that the pieces are on the wire.
WatchResponse Joined(const std::vector<WatchFlow::Piece>& pieces) {
  std::string bytes;
  for (const WatchFlow::Piece& piece : pieces) {
    bytes += piece.head;
    if (piece.event != nullptr) bytes += piece.event->EncodedPart(piece.part);
  }
  WatchResponse response;
  EXPECT_TRUE(response.ParseFromString(bytes));
  return response;
}

class WatchFlowTest : public testing::Test {
 protected:
  static WatchFlow::Limits Small() {
    WatchFlow::Limits limits;
    limits.subscriptions = 5;
    limits.begin_below = 1000;
    limits.own_bytes = 100000;
    limits.message_items = 4;
    return limits;
  }

  void Receive(WatchFlow& flow, const WatchRequest& request) {
    const absl::Status status = flow.Receive(request);
    ASSERT_TRUE(status.ok()) << status;
  }

  // Carries out what may be; how many subscriptions have begun.
  int Begin(WatchFlow& flow) {
    int begun = 0;
    while (auto step = flow.NextStep()) {
      if (!step->subscribe.has_value()) continue;
      ++begun;
      flow.Begun(step->id, std::make_unique<Handle>(nullptr));
    }
    return begun;
  }

  void Event(WatchFlow& flow, uint64_t id, const EventPtr& event) {
    flow.OnEvent(id, event, Conflator::ChangesOf(*event));
  }

  // The ids of the next message's items.
  std::vector<uint64_t> TakeIds(WatchFlow& flow) {
    std::vector<uint64_t> ids;
    const WatchResponse response = Joined(flow.Take());
    for (const WatchItem& item : response.items()) ids.push_back(item.watch_id());
    return ids;
  }

  WatchFlow flow_{WatchFlow::Framing::kWatch, Small()};
};

TEST_F(WatchFlowTest, ItemsSayWhoseTheyAreAndAreTheEventsAsSubscribeSendsThem) {
  Receive(flow_, Subscribes(1, 2));
  EXPECT_EQ(Begin(flow_), 2);
  EXPECT_EQ(flow_.open(), 2u);
  const EventPtr first = Snapshot(1, 7, {{"a", 1}});
  const EventPtr second = Snapshot(1, 8, {{"b", 2}});
  Event(flow_, 2, second);
  Event(flow_, 1, first);
  const WatchResponse response = Joined(flow_.Take());
  ASSERT_EQ(response.items_size(), 2);
  EXPECT_EQ(response.items(0).watch_id(), 2u);
  EXPECT_EQ(response.items(0).event().SerializeAsString(), second->EncodedPart(0));
  EXPECT_EQ(response.items(1).watch_id(), 1u);
  EXPECT_EQ(response.items(1).event().SerializeAsString(), first->EncodedPart(0));
  EXPECT_TRUE(flow_.Take().empty());
}

TEST_F(WatchFlowTest, ASubscribeStreamHasEventsAloneAndEndsWithItsSubscription) {
  WatchFlow flow(WatchFlow::Framing::kSubscribe, Small());
  flow.ReceiveOnly(SubscribeRequest());
  EXPECT_EQ(Begin(flow), 1);
  const EventPtr event = Snapshot(1, 7, {{"a", 1}});
  Event(flow, 1, event);
  const auto message = flow.Take();
  ASSERT_EQ(message.size(), 1u);
  EXPECT_TRUE(message[0].head.empty());
  EXPECT_EQ(message[0].event, event);
  EXPECT_FALSE(flow.Finished().has_value());
  flow.OnEnd(1, absl::AbortedError("replaced"));
  EXPECT_TRUE(flow.Take().empty());
  EXPECT_EQ(flow.Finished(), absl::AbortedError("replaced"));
}

TEST_F(WatchFlowTest, MessagesThatAreNoneNameTheFieldAndWhatIsAllowed) {
  EXPECT_EQ(flow_.Receive(WatchRequest()).message(),
            "commands: is empty: a message has at least one command");
  WatchRequest request = Subscribes(0, 0);
  EXPECT_EQ(flow_.Receive(request).message(),
            "commands[0].watch_id: 0 is not above 0, the last one of this stream");
  Receive(flow_, Subscribes(7, 7));
  request = Subscribes(8, 8);
  *request.add_commands() = Subscribes(8, 8).commands(0);
  EXPECT_EQ(flow_.Receive(request).message(),
            "commands[1].watch_id: 8 is not above 8, the last one of this stream");
  EXPECT_EQ(flow_.Receive(Unsubscribes(0)).message(), "commands[0].watch_id: is missing");
  request = WatchRequest();
  request.add_commands()->set_watch_id(9);
  EXPECT_EQ(flow_.Receive(request).message(),
            "commands[0].command: is missing: subscribe or unsubscribe");
  const absl::Status large = flow_.Receive(Subscribes(10, 110));
  EXPECT_EQ(ReasonOf(large), registry::v1::ERROR_REASON_TOO_LARGE) << large;
  EXPECT_EQ(ReasonMetadata(large, "limit"), "100");
}

TEST_F(WatchFlowTest, SubscriptionsTakeTurns) {
  Receive(flow_, Subscribes(1, 3));
  Begin(flow_);
  Event(flow_, 1, InParts(1, 7, {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}}, /*part=*/1));
  Event(flow_, 2, Snapshot(1, 7, {{"a", 1}}));
  Event(flow_, 3, Snapshot(1, 7, {{"a", 1}}));
  EXPECT_EQ(TakeIds(flow_), (std::vector<uint64_t>{1, 2, 3, 1}));
  Event(flow_, 2, Delta(1, 7, 8, {{"b", 1}}));
  EXPECT_EQ(TakeIds(flow_), (std::vector<uint64_t>{1, 2, 1, 1}));
  EXPECT_TRUE(flow_.Take().empty());
  EXPECT_EQ(flow_.waiting_bytes(), 0u);
}

TEST_F(WatchFlowTest, NoMoreBeginsWhileMuchWaits) {
  Receive(flow_, Subscribes(1, 3));
  auto step = flow_.NextStep();
  ASSERT_TRUE(step.has_value());
  flow_.Begun(step->id, std::make_unique<Handle>(nullptr));
  ServiceInstance large = MakeInstance("a", 1);
  (*large.mutable_metadata())["k"] = std::string(2000, 'v');
  Event(flow_, 1, Event::Snapshot(1, 7, SetFlags(), {Blob(CanonicalInstance(large))}));
  EXPECT_FALSE(flow_.has_step()) << flow_.waiting_bytes() << " bytes wait";
  EXPECT_FALSE(flow_.NextStep().has_value());
  flow_.Take();
  EXPECT_EQ(Begin(flow_), 2);
}

TEST_F(WatchFlowTest, CommandsThatWaitAreNotReadWithoutEnd) {
  WatchFlow::Limits limits;
  WatchFlow flow(WatchFlow::Framing::kWatch, limits);
  Receive(flow, Subscribes(1, 99));
  EXPECT_TRUE(flow.wants_request());
  Receive(flow, Subscribes(100, 199));
  EXPECT_FALSE(flow.wants_request());
  Begin(flow);
  EXPECT_TRUE(flow.wants_request());
}

// A storm of subscribes that are refused, and of unsubscribes, by a client that reads nothing.
TEST_F(WatchFlowTest, EndsThatAreNotReadHoldUpWhatComes) {
  WatchFlow::Limits limits;
  limits.begin_below = 10000;
  WatchFlow flow(WatchFlow::Framing::kWatch, limits);
  uint64_t asked = 0;
  while (flow.wants_request() && asked < 100000) {
    Receive(flow, Subscribes(asked + 1, asked + 100));
    asked += 100;
    while (auto step = flow.NextStep()) {
      flow.OnEnd(step->id, absl::PermissionDeniedError("not yours"));
    }
  }
  EXPECT_LT(asked, 500u);
  // Each gets its end when the client reads.
  uint64_t ends = 0;
  while (ends < asked) {
    const auto ids = TakeIds(flow);
    ends += ids.size();
    while (auto step = flow.NextStep()) flow.OnEnd(step->id, absl::PermissionDeniedError(""));
    ASSERT_FALSE(ids.empty());
  }
  EXPECT_TRUE(flow.idle());
}

TEST_F(WatchFlowTest, TooManySubscriptionsOfAStreamAreRefusedAndTheOthersGoOn) {
  Receive(flow_, Subscribes(1, 6));
  EXPECT_EQ(Begin(flow_), 5);
  const WatchResponse response = Joined(flow_.Take());
  ASSERT_EQ(response.items_size(), 1);
  EXPECT_EQ(response.items(0).watch_id(), 6u);
  const absl::Status end = StatusFromProto(response.items(0).end());
  EXPECT_EQ(ReasonOf(end), registry::v1::ERROR_REASON_LIMIT_REACHED) << end;
  EXPECT_EQ(ReasonMetadata(end, "limit"), "5");
  EXPECT_EQ(flow_.open(), 5u);
  Receive(flow_, Unsubscribes(2));
  Receive(flow_, Subscribes(7, 7));
  Begin(flow_);
  EXPECT_EQ(TakeIds(flow_), (std::vector<uint64_t>{2})) << "its place is another's at once";
  EXPECT_EQ(flow_.open(), 5u);
}

TEST_F(WatchFlowTest, UnsubscribeDropsWhatWaitsAndEndsWithOk) {
  bool destroyed = false;
  Receive(flow_, Subscribes(1, 1));
  auto step = flow_.NextStep();
  flow_.Begun(step->id, std::make_unique<Handle>(&destroyed));
  Event(flow_, 1, Snapshot(1, 7, {{"a", 1}}));
  Receive(flow_, Unsubscribes(1));
  step = flow_.NextStep();
  ASSERT_TRUE(step.has_value());
  EXPECT_NE(step->ended, nullptr);
  step.reset();
  EXPECT_TRUE(destroyed);
  Event(flow_, 1, Delta(1, 7, 8, {{"b", 1}}));
  const WatchResponse response = Joined(flow_.Take());
  ASSERT_EQ(response.items_size(), 1);
  ASSERT_TRUE(response.items(0).has_end());
  EXPECT_EQ(response.items(0).end().code(), 0);
  EXPECT_EQ(flow_.open(), 0u);
  Receive(flow_, Unsubscribes(1));
  EXPECT_FALSE(flow_.NextStep().has_value()) << "it is over";
  EXPECT_TRUE(flow_.Take().empty());
}

TEST_F(WatchFlowTest, WhatTheRegistryEndsWhileItBeginsIsOver) {
  bool destroyed = false;
  Receive(flow_, Subscribes(1, 1));
  flow_.NextStep();
  flow_.OnEnd(1, absl::NotFoundError("no"));
  flow_.Begun(1, std::make_unique<Handle>(&destroyed));
  EXPECT_TRUE(destroyed);
  EXPECT_EQ(TakeIds(flow_), (std::vector<uint64_t>{1}));
  EXPECT_EQ(flow_.open(), 0u);
  EXPECT_FALSE(flow_.Begun(1, nullptr).open);
}

TEST_F(WatchFlowTest, TheStreamEndsWithItsLastSubscriptionWhenItsClientSendsNoMore) {
  Receive(flow_, Subscribes(1, 2));
  Begin(flow_);
  flow_.HalfClose();
  EXPECT_FALSE(flow_.wants_request());
  flow_.OnEnd(1, absl::OkStatus());
  flow_.Take();
  EXPECT_FALSE(flow_.Finished().has_value());
  flow_.OnEnd(2, absl::UnavailableError("away"));
  flow_.Take();
  EXPECT_EQ(flow_.Finished(), absl::OkStatus());
}

TEST_F(WatchFlowTest, ADrainSendsWhatWaitsAndTakesInNoMore) {
  Receive(flow_, Subscribes(1, 1));
  Begin(flow_);
  Event(flow_, 1, InParts(1, 7, {{"a", 1}, {"b", 1}}, /*part=*/1));
  Receive(flow_, Subscribes(2, 2));
  flow_.Drain(absl::UnavailableError("old"));
  Event(flow_, 1, Delta(1, 7, 8, {{"c", 1}}));
  EXPECT_FALSE(flow_.Finished().has_value());
  EXPECT_EQ(Joined(flow_.Take()).items_size(), 2);
  EXPECT_EQ(flow_.Finished(), absl::UnavailableError("old"));
  EXPECT_FALSE(flow_.NextStep().has_value());
  EXPECT_EQ(flow_.TakeStreams().size(), 1u);
}

TEST_F(WatchFlowTest, AnAbortDropsWhatWaits) {
  Receive(flow_, Subscribes(1, 1));
  Begin(flow_);
  Event(flow_, 1, Snapshot(1, 7, {{"a", 1}}));
  flow_.Abort(absl::CancelledError("gone"));
  Event(flow_, 1, Delta(1, 7, 8, {{"c", 1}}));
  flow_.OnEnd(1, absl::OkStatus());
  EXPECT_TRUE(flow_.Take().empty());
  EXPECT_EQ(flow_.Finished(), absl::CancelledError("gone"));
  EXPECT_EQ(flow_.waiting_bytes(), 0u);
}

// Each subscription is below its own bound, all together are above that of the stream.
TEST_F(WatchFlowTest, AStreamThatIsNotReadIsBounded) {
  WatchFlow::Limits limits;
  limits.own_bytes = 1 << 20;
  WatchFlow flow(WatchFlow::Framing::kWatch, limits);
  constexpr uint64_t kSubscriptions = 50;
  Receive(flow, Subscribes(1, kSubscriptions));
  Begin(flow);
  for (uint64_t id = 1; id <= kSubscriptions; ++id) Event(flow, id, Snapshot(1, 1, {}));
  while (!flow.Take().empty()) {
  }
  size_t most = 0;
  for (uint64_t revision = 2; revision < 200; ++revision) {
    for (uint64_t id = 1; id <= kSubscriptions; ++id) {
      ServiceInstance instance = MakeInstance(absl::StrCat("i", revision), 1);
      (*instance.mutable_metadata())["k"] = std::string(1000, 'v');
      Event(flow, id,
            Event::Delta(1, revision - 1, revision, SetFlags(), {Blob(CanonicalInstance(instance))},
                         {}));
      most = std::max(most, flow.own_bytes());
    }
  }
  EXPECT_LE(most, limits.own_bytes + (64 << 10));
  size_t slow = 0;
  for (auto message = flow.Take(); !message.empty(); message = flow.Take()) {
    const WatchResponse response = Joined(message);
    for (const WatchItem& item : response.items()) {
      if (!item.has_end()) continue;
      ++slow;
      EXPECT_EQ(ReasonOf(StatusFromProto(item.end())), registry::v1::ERROR_REASON_SUBSCRIBER_SLOW);
    }
  }
  EXPECT_GT(slow, 0u);
  EXPECT_LT(slow, kSubscriptions) << "some have room";
  EXPECT_EQ(flow.own_bytes(), 0u);
}

// The client's side of random streams: what it applies, and which have ended.
struct Reader {
  std::map<uint64_t, Subscriber> subscribers;
  std::map<uint64_t, int> ends;

  void Apply(const WatchResponse& response) {
    for (const WatchItem& item : response.items()) {
      ASSERT_EQ(ends[item.watch_id()], 0) << "an item after the end of " << item.watch_id();
      if (item.has_end()) {
        ++ends[item.watch_id()];
      } else {
        subscribers[item.watch_id()].Apply(item.event());
      }
    }
  }
};

// Random sources behind random subscriptions that come and go, read at random times.
TEST(WatchFlowRandomTest, EachSubscriptionEndsInItsSourcesStateOrHasOneEnd) {
  SeededRandom random;
  for (int round = 0; round < 300; ++round) {
    WatchFlow::Limits limits;
    limits.begin_below = 500;
    limits.message_items = 3;
    WatchFlow flow(WatchFlow::Framing::kWatch, limits);
    struct Source {
      uint64_t revision = 1;
      Contents contents;
      bool over = false;
    };
    std::map<uint64_t, Source> sources;
    std::vector<uint64_t> asked;
    Reader reader;
    uint64_t last = 0;
    const auto write = [&] { reader.Apply(Joined(flow.Take())); };
    const auto work = [&] {
      auto step = flow.NextStep();
      if (!step.has_value() || !step->subscribe.has_value()) return;
      flow.Begun(step->id, std::make_unique<Handle>(nullptr));
      Source& source = sources[step->id];
      source.contents["a"] = 1;
      const EventPtr event = Snapshot(1, source.revision, source.contents);
      flow.OnEvent(step->id, event, Conflator::ChangesOf(*event));
    };
    for (int i = 0; i < 200; ++i) {
      switch (random.Pick(8)) {
        case 0:
          ASSERT_TRUE(flow.Receive(Subscribes(last + 1, last + 2)).ok());
          asked.push_back(++last);
          asked.push_back(++last);
          break;
        case 1:
          if (last > 0) {
            const uint64_t id = 1 + random.Pick(last);
            ASSERT_TRUE(flow.Receive(Unsubscribes(id)).ok());
            sources[id].over = true;
          }
          break;
        case 2:
        case 3:
          work();
          break;
        case 4:
          write();
          break;
        case 5:
          if (last > 0 && random.Pick(4) == 0) {
            const uint64_t id = 1 + random.Pick(last);
            if (sources[id].contents.empty()) break;  // it has not begun
            flow.OnEnd(id, absl::AbortedError("replaced"));
            sources[id].over = true;
          }
          break;
        default:
          for (auto& [id, source] : sources) {
            if (source.over || source.contents.empty() || random.Pick(3) != 0) continue;
            const std::string key(1, static_cast<char>('a' + random.Pick(4)));
            const uint64_t base = source.revision++;
            source.contents[key] = static_cast<uint32_t>(source.revision);
            const EventPtr event = Delta(1, base, source.revision, {{key, source.contents[key]}});
            flow.OnEvent(id, event, Conflator::ChangesOf(*event));
          }
      }
      if (testing::Test::HasFatalFailure()) return;
    }
    flow.HalfClose();
    for (int i = 0; i < 2000; ++i) {
      work();
      write();
    }
    for (const uint64_t id : asked) {
      if (sources[id].over) {
        EXPECT_EQ(reader.ends[id], 1) << id;
      } else {
        EXPECT_EQ(reader.ends[id], 0) << id;
        EXPECT_EQ(reader.subscribers[id].contents, sources[id].contents) << id;
        flow.OnEnd(id, absl::OkStatus());
      }
    }
    for (int i = 0; i < 2000; ++i) write();
    EXPECT_EQ(flow.Finished(), absl::OkStatus());
    EXPECT_EQ(flow.open(), 0u);
    EXPECT_EQ(flow.waiting_bytes(), 0u);
    EXPECT_EQ(flow.own_bytes(), 0u);
  }
}

}  // namespace
}  // namespace failback
