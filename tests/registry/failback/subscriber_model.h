// What a subscriber makes of the events of a subscription, checking the contract as it goes: no
// state twice in a row, no older one after a newer, deltas that fit.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_SUBSCRIBER_MODEL_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_SUBSCRIBER_MODEL_H_

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/registry.h"

namespace failback {

class SubscriberModel {
 public:
  void Hear(const SubscribeResponse& event) {
    auto next = state_;
    if (event.has_snapshot()) {
      next.clear();
      for (const auto& i : event.snapshot().instances()) next[CanonicalKey(i.key())] = i.port();
      EXPECT_TRUE(!known_ || event.epoch() != epoch_) << "a snapshot where a delta would do";
    } else if (event.has_delta()) {
      EXPECT_TRUE(known_);
      EXPECT_EQ(event.epoch(), epoch_);
      EXPECT_EQ(event.delta().base_revision(), revision_);
      for (const auto& key : event.delta().removals()) {
        EXPECT_EQ(next.erase(CanonicalKey(key)), 1) << "removed what was not there";
      }
      for (const auto& i : event.delta().upserts()) next[CanonicalKey(i.key())] = i.port();
    }
    if (known_ && event.epoch() == epoch_) {
      EXPECT_GE(event.revision(), revision_) << "an older state after a newer";
    }
    EXPECT_TRUE(!known_ || next != state_ || event.stale() != stale_ || event.held() != held_ ||
                event.epoch() != epoch_)
        << "the same state twice in a row";
    known_ = true;
    epoch_ = event.epoch();
    revision_ = event.revision();
    stale_ = event.stale();
    held_ = event.held();
    state_ = next;
  }

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
