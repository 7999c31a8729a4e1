// What a subscriber makes of the events of a subscription, checking the contract as it goes: no
// state twice in a row, no older one after a newer, deltas that fit.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_SUBSCRIBER_MODEL_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_SUBSCRIBER_MODEL_H_

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "registry/model/instance_view.h"
#include "tests/registry/message_listener.h"

namespace failback {

inline uint32_t PortOf(const Blob& instance) {
  EncodedInstance encoded;
  return ReadInstance(instance.view(), &encoded) ? encoded.view.port
                                                 : ParseInstance(instance).port();
}

class SubscriberModel {
 public:
  // Set by the test, and by End().
  bool gone = false;
  bool ended = false;

  void End() {
    EXPECT_FALSE(ended) << "two ends";
    ended = true;
  }

  void Hear(const Event& event) {
    EXPECT_FALSE(ended) << "an event after the end";
    EXPECT_FALSE(gone) << "an event after the stream was destroyed";
    const bool flags = !event.is_snapshot() && !event.is_delta();
    bool changed = false;
    if (event.is_snapshot()) {
      EXPECT_TRUE(!known_ || event.epoch() != epoch_) << "a snapshot where a delta would do";
      changed = true;
      state_.clear();
    } else if (event.is_delta()) {
      EXPECT_TRUE(known_);
      EXPECT_EQ(event.epoch(), epoch_);
      EXPECT_EQ(event.base_revision(), revision_);
      for (const auto& key : event.removals()) {
        EXPECT_EQ(state_.erase(key), 1) << "removed what was not there";
        changed = true;
      }
    }
    if (!flags) {
      event.ForEachInstance([&](const Blob& instance) {
        uint32_t& port = state_[KeyOf(instance)];
        const uint32_t next = PortOf(instance);
        changed = changed || port != next;
        port = next;
      });
    }
    if (known_ && event.epoch() == epoch_) {
      EXPECT_GE(event.revision(), revision_) << "an older state after a newer";
    }
    EXPECT_TRUE(!known_ || changed || event.flags().stale != stale_ ||
                event.flags().held != held_ || event.epoch() != epoch_)
        << "the same state twice in a row";
    known_ = true;
    epoch_ = event.epoch();
    revision_ = event.revision();
    stale_ = event.flags().stale;
    held_ = event.flags().held;
  }

  void Hear(const SubscribeResponse& message) { Hear(*EventOf(message)); }

  bool known() const { return known_; }
  bool stale() const { return stale_; }
  // Ports by canonical key.
  const std::map<std::string, uint32_t>& state() const { return state_; }

 private:
  bool known_ = false, stale_ = false, held_ = false;
  uint64_t epoch_ = 0, revision_ = 0;
  std::map<std::string, uint32_t> state_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_SUBSCRIBER_MODEL_H_
