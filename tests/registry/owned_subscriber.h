// A listener of a caller that has a name, for tests: it passes on to another one.

#ifndef FAILBACK_TESTS_REGISTRY_OWNED_SUBSCRIBER_H_
#define FAILBACK_TESTS_REGISTRY_OWNED_SUBSCRIBER_H_

#include <memory>
#include <string>
#include <utility>

#include "registry/watch/owned_listener.h"

namespace failback {

class OwnedSubscriber final : public OwnedListener {
 public:
  OwnedSubscriber(std::string owner, std::shared_ptr<NotifyListener> listener)
      : owner_(std::move(owner)), listener_(std::move(listener)) {}
  const std::string& owner() const override { return owner_; }
  void OnEvent(const EventPtr& event) override { listener_->OnEvent(event); }
  void OnEnd(const absl::Status& status) override { listener_->OnEnd(status); }

 private:
  const std::string owner_;
  const std::shared_ptr<NotifyListener> listener_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_OWNED_SUBSCRIBER_H_
