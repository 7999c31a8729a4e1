#include "registry/watch/serial_notifier.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
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

bool Tell(SerialNotifier& notifier, uint64_t revision) {
  const bool posted = notifier.Post(Event(revision));
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

// A snapshot of `parts` empty parts at one revision.
class EmptyParts final : public LazySnapshot {
 public:
  EmptyParts(uint64_t revision, size_t parts) : revision_(revision), parts_(parts) {}

  uint64_t epoch() const override { return 1; }
  uint64_t revision() const override { return revision_; }
  SetFlags flags() const override { return {}; }
  size_t instances() const override { return 0; }
  size_t parts() const override { return parts_; }
  std::string EncodedPart(size_t part) const override {
    SubscribeResponse message;
    message.set_revision(revision_);
    message.mutable_snapshot()->set_more(part + 1 < parts_);
    return message.SerializeAsString();
  }
  size_t PartBytes(size_t part) const override { return EncodedPart(part).size(); }
  void ForEach(absl::FunctionRef<void(std::string_view)>) const override {}
  size_t bytes() const override { return 0; }

 private:
  const uint64_t revision_;
  const size_t parts_;
};

std::vector<uint64_t> Revisions(const RecordingListener& listener) {
  std::vector<uint64_t> revisions;
  for (const auto& event : listener.events()) revisions.push_back(event->revision());
  return revisions;
}

TEST(SerialNotifierTest, WhatIsDeferredIsMadeOnDeliveryAndKeepsItsPlace) {
  auto listener = std::make_shared<RecordingListener>();
  SerialNotifier notifier(listener);
  int made = 0;
  notifier.Post(Event(1));
  notifier.PostDeferred([&]() -> SerialNotifier::Notification {
    ++made;
    return {nullptr, std::make_shared<EmptyParts>(2, 2)};
  });
  notifier.PostDeferred([&]() -> SerialNotifier::Notification {
    ++made;
    return {Event(3), nullptr};
  });
  notifier.Post(Event(4));
  EXPECT_EQ(made, 0);
  notifier.Deliver();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(Revisions(*listener), (std::vector<uint64_t>{1, 2, 2, 3, 4}));
  EXPECT_TRUE(listener->events()[1]->snapshot().more());
  EXPECT_FALSE(listener->events()[2]->snapshot().more());
}

TEST(SerialNotifierTest, CloseBetweenThePartsOfASnapshotDropsTheRest) {
  SerialNotifier* notifier = nullptr;
  auto listener = std::make_shared<RecordingListener>([&](const auto&) { notifier->Close(); });
  SerialNotifier the_notifier(listener);
  notifier = &the_notifier;
  notifier->Post(std::make_shared<EmptyParts>(1, 3));
  notifier->Deliver();
  EXPECT_EQ(listener->events().size(), 1u);
}

TEST(SerialNotifierTest, AnExceptionAtOnePartDoesNotLoseTheNext) {
  int calls = 0;
  auto listener = std::make_shared<RecordingListener>([&](const auto&) {
    if (++calls == 1) throw std::runtime_error("a part");
  });
  SerialNotifier notifier(listener);
  notifier.Post(std::make_shared<EmptyParts>(1, 3));
  notifier.Deliver();
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(notifier.failures(), 1);
}

TEST(SerialNotifierTest, AListenerMayTakeASnapshotAsItIs) {
  class Taker final : public NotifyListener {
   public:
    void OnNotify(const std::shared_ptr<const SubscribeResponse>& event) override {
      told += absl::StrCat(event->revision(), " ");
    }
    bool OnSnapshot(const std::shared_ptr<const LazySnapshot>& snapshot) override {
      told += absl::StrCat("snapshot ", snapshot->revision(), " ");
      return true;
    }
    void OnEnd(const absl::Status&) override { told += "end"; }
    std::string told;
  };
  auto listener = std::make_shared<Taker>();
  SerialNotifier notifier(listener);
  notifier.Post(Event(1));
  notifier.Post(std::make_shared<EmptyParts>(2, 3));
  notifier.Post(Event(3));
  End(notifier, absl::OkStatus());
  EXPECT_EQ(listener->told, "1 snapshot 2 3 end");
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

TEST(SerialNotifierTest, AListenerThatThrowsHearsTheNextEvent) {
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
