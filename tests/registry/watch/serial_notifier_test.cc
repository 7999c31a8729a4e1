#include "registry/watch/serial_notifier.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/registry/fake_registry.h"

namespace failback {
namespace {

EventPtr At(uint64_t revision) { return Event::Flags(0, revision, SetFlags()); }

bool Tell(SerialNotifier& notifier, uint64_t revision) {
  const bool posted = notifier.Post(At(revision));
  notifier.Deliver();
  return posted;
}

void End(SerialNotifier& notifier, absl::Status status) {
  notifier.PostEnd(std::move(status));
  notifier.Deliver();
}

TEST(SerialNotifierTest, DeliversInOrderAndEndsLast) {
  auto listener = std::make_shared<RecordingListener>();
  SerialNotifier notifier(listener);
  EXPECT_TRUE(Tell(notifier, 1));
  EXPECT_TRUE(Tell(notifier, 2));
  End(notifier, absl::UnavailableError("away"));
  End(notifier, absl::OkStatus());
  EXPECT_FALSE(Tell(notifier, 3));
  ASSERT_EQ(listener->events().size(), 2u);
  EXPECT_EQ(listener->events()[1]->revision(), 2u);
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kUnavailable);
}

TEST(SerialNotifierTest, AnEventFromWithinACallbackWaitsForItsEnd) {
  SerialNotifier* notifier = nullptr;
  int depth = 0;
  int deepest = 0;
  auto listener = std::make_shared<RecordingListener>([&](const auto& event) {
    deepest = std::max(deepest, ++depth);
    if (event->revision() < 3) Tell(*notifier, event->revision() + 1);
    --depth;
  });
  SerialNotifier the_notifier(listener);
  notifier = &the_notifier;
  Tell(*notifier, 1);
  EXPECT_EQ(listener->events().size(), 3u);
  EXPECT_EQ(deepest, 1);
}

TEST(SerialNotifierTest, WhatIsDeferredIsMadeOnDeliveryAndKeepsItsPlace) {
  auto listener = std::make_shared<RecordingListener>();
  SerialNotifier notifier(listener);
  int made = 0;
  notifier.Post(At(1));
  for (const uint64_t revision : {2, 3}) {
    notifier.PostDeferred([&made, revision] {
      ++made;
      return At(revision);
    });
  }
  notifier.Post(At(4));
  EXPECT_EQ(made, 0);
  notifier.Deliver();
  EXPECT_EQ(made, 2);
  std::vector<uint64_t> revisions;
  for (const auto& message : listener->events()) revisions.push_back(message->revision());
  EXPECT_EQ(revisions, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST(SerialNotifierTest, CloseFromTheCallbackReturnsAndItIsTheLast) {
  SerialNotifier* notifier = nullptr;
  auto listener = std::make_shared<RecordingListener>([&](const auto&) {
    Tell(*notifier, 2);
    notifier->Close();
  });
  SerialNotifier the_notifier(listener);
  notifier = &the_notifier;
  Tell(*notifier, 1);
  End(*notifier, absl::OkStatus());
  EXPECT_EQ(listener->events().size(), 1u);
  EXPECT_FALSE(listener->end().has_value());
}

TEST(SerialNotifierTest, CloseWaitsForACallbackOfAnotherThread) {
  absl::Notification entered;
  absl::Notification leave;
  std::atomic<bool> left = false;
  auto notifier =
      std::make_shared<SerialNotifier>(std::make_shared<RecordingListener>([&](const auto&) {
        entered.Notify();
        leave.WaitForNotification();
        left = true;
      }));
  std::thread source([notifier] { Tell(*notifier, 1); });
  entered.WaitForNotification();
  std::thread release([&] { leave.Notify(); });
  notifier->Close();
  EXPECT_TRUE(left);
  source.join();
  release.join();
}

TEST(SerialNotifierTest, AListenerThatThrowsGetsTheNextEvent) {
  int calls = 0;
  SerialNotifier notifier(std::make_shared<RecordingListener>([&](const auto&) {
    ++calls;
    throw std::runtime_error("listener");
  }));
  Tell(notifier, 1);
  Tell(notifier, 2);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(notifier.failures(), 2);
}

TEST(SerialNotifierTest, ManySourcesOneCallbackAtATime) {
  std::atomic<int> inside = 0;
  std::atomic<int> calls = 0;
  auto notifier =
      std::make_shared<SerialNotifier>(std::make_shared<RecordingListener>([&](const auto&) {
        EXPECT_EQ(++inside, 1);
        ++calls;
        --inside;
      }));
  std::vector<std::thread> sources;
  for (int i = 0; i < 4; ++i) {
    sources.emplace_back([notifier] {
      for (int j = 0; j < 200; ++j) Tell(*notifier, j);
    });
  }
  for (auto& source : sources) source.join();
  EXPECT_EQ(calls, 800);
}

}  // namespace
}  // namespace failback
