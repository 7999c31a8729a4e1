#include "registry/listener_gate.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/registry/fake_registry.h"

namespace failback {
namespace {

std::shared_ptr<const SubscribeResponse> Event(uint64_t revision) {
  auto event = std::make_shared<SubscribeResponse>();
  event->set_revision(revision);
  return event;
}

TEST(ListenerGateTest, DeliversInOrderAndEndsLast) {
  auto listener = std::make_shared<RecordingListener>();
  ListenerGate gate(listener);
  EXPECT_TRUE(gate.Notify(Event(1)));
  EXPECT_TRUE(gate.Notify(Event(2)));
  gate.End(absl::UnavailableError("away"));
  gate.End(absl::OkStatus());
  EXPECT_FALSE(gate.Notify(Event(3)));
  ASSERT_EQ(listener->events().size(), 2u);
  EXPECT_EQ(listener->events()[1]->revision(), 2u);
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kUnavailable);
}

TEST(ListenerGateTest, AnEventFromWithinACallbackWaitsForItsEnd) {
  ListenerGate* gate = nullptr;
  int depth = 0;
  int deepest = 0;
  auto listener = std::make_shared<RecordingListener>([&](const auto& event) {
    deepest = std::max(deepest, ++depth);
    if (event->revision() < 3) gate->Notify(Event(event->revision() + 1));
    --depth;
  });
  ListenerGate the_gate(listener);
  gate = &the_gate;
  gate->Notify(Event(1));
  EXPECT_EQ(listener->events().size(), 3u);
  EXPECT_EQ(deepest, 1);
}

TEST(ListenerGateTest, CloseFromTheCallbackReturnsAndItIsTheLast) {
  ListenerGate* gate = nullptr;
  auto listener = std::make_shared<RecordingListener>([&](const auto&) {
    gate->Notify(Event(2));
    gate->Close();
  });
  std::weak_ptr<RecordingListener> released = listener;
  ListenerGate the_gate(listener);
  gate = &the_gate;
  gate->Notify(Event(1));
  gate->End(absl::OkStatus());
  EXPECT_EQ(listener->events().size(), 1u);
  EXPECT_FALSE(listener->end().has_value());
  listener.reset();
  EXPECT_TRUE(released.expired());
}

TEST(ListenerGateTest, CloseWaitsForACallbackOfAnotherThread) {
  absl::Notification entered;
  absl::Notification leave;
  std::atomic<bool> left = false;
  auto gate = std::make_shared<ListenerGate>(std::make_shared<RecordingListener>([&](const auto&) {
    entered.Notify();
    leave.WaitForNotification();
    left = true;
  }));
  std::thread source([gate] { gate->Notify(Event(1)); });
  entered.WaitForNotification();
  std::thread release([&] { leave.Notify(); });
  gate->Close();
  EXPECT_TRUE(left);
  source.join();
  release.join();
}

TEST(ListenerGateTest, AListenerThatThrowsHearsTheNextEvent) {
  int calls = 0;
  ListenerGate gate(std::make_shared<RecordingListener>([&](const auto&) {
    ++calls;
    throw std::runtime_error("listener");
  }));
  gate.Notify(Event(1));
  gate.Notify(Event(2));
  EXPECT_EQ(calls, 2);
}

TEST(ListenerGateTest, ManySourcesOneCallbackAtATime) {
  std::atomic<int> inside = 0;
  std::atomic<int> calls = 0;
  auto gate = std::make_shared<ListenerGate>(std::make_shared<RecordingListener>([&](const auto&) {
    EXPECT_EQ(++inside, 1);
    ++calls;
    --inside;
  }));
  std::vector<std::thread> sources;
  for (int i = 0; i < 4; ++i) {
    sources.emplace_back([gate] {
      for (int j = 0; j < 200; ++j) gate->Notify(Event(j));
    });
  }
  for (auto& source : sources) source.join();
  EXPECT_EQ(calls, 800);
}

}  // namespace
}  // namespace failback
