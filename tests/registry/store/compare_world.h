// A SubscriptionHub, and the state that it publishes.

#ifndef FAILBACK_TESTS_REGISTRY_STORE_COMPARE_WORLD_H_
#define FAILBACK_TESTS_REGISTRY_STORE_COMPARE_WORLD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/selector.h"
#include "registry/watch/subscription_hub.h"
#include "tests/util/instances.h"

namespace failback {

struct Entry {
  ServiceInstance instance;
  std::string bytes;  // canonical
};
// By KeyText.
using Set = std::map<std::string, Entry>;

inline ServiceInstance Orders(const std::string& service, const std::string& id,
                              const std::string& zone, uint32_t port = 80) {
  ServiceInstance instance = MakeInstance(service, id, port);
  instance.mutable_key()->set_namespace_("default");
  instance.set_zone(zone);
  return instance;
}

inline SubscribeRequest Following(const std::string& service, const std::string& zone) {
  SubscribeRequest request;
  request.mutable_selector()->set_namespace_("default");
  request.mutable_selector()->set_service(service);
  if (!zone.empty()) request.mutable_selector()->add_zones(zone);
  return request;
}

inline std::string TopicOf(const std::string& service) {
  return std::string("default") + '\0' + service;
}

inline std::map<std::string, std::string> Seen(const Selector& selector, const Set& set) {
  std::map<std::string, std::string> seen;
  for (const auto& [key, entry] : set) {
    if (entry.instance.key().service() == selector.service() &&
        SelectorMatches(selector, entry.instance)) {
      seen[key] = entry.bytes;
    }
  }
  return seen;
}

// A hub, and the state that it publishes, which is ahead of it between Commit and Publish.
class World {
 public:
  explicit World(SubscriptionHub::Options options)
      : hub_(SubscriptionHub::Create(options, /*epoch=*/1, /*revision=*/0)) {}

  SubscriptionHub& hub() { return *hub_; }
  const std::vector<Set>& history() const { return history_; }
  uint64_t revision() const { return history_.size() - 1; }
  uint64_t published() const { return published_; }
  bool behind() const { return unpublished_.has_value(); }
  const SubscriptionHub::Due& due() const { return due_; }

  // Null in place of an instance: it goes.
  using Changes = std::map<std::string, std::optional<ServiceInstance>>;
  void Commit(const Changes& changes, std::vector<std::string> ended_sessions = {}) {
    ASSERT_FALSE(behind());
    Set now = history_.back();
    std::map<std::string, std::vector<InstanceChange>> by_service;
    for (const auto& [key, instance] : changes) {
      InstanceChange change;
      std::string service;
      if (const auto it = now.find(key); it != now.end()) {
        change.before = Blob(it->second.bytes);
        service = it->second.instance.key().service();
        now.erase(it);
      }
      if (instance.has_value()) {
        const std::string bytes = CanonicalInstance(*instance);
        change.after = Blob(bytes);
        service = instance->key().service();
        now[key] = {*instance, bytes};
      }
      if (change.before != change.after) by_service[service].push_back(std::move(change));
    }
    CommitResult commit;
    commit.ended_sessions = std::move(ended_sessions);
    history_.push_back(std::move(now));
    commit.revision = revision();
    for (auto& [service, instances] : by_service) {
      commit.services.push_back({TopicOf(service), std::move(instances), SizeOf(service)});
    }
    unpublished_ = std::move(commit);
  }
  void Commit(const ServiceInstance& instance) { Commit({{KeyText(instance.key()), instance}}); }

  void Publish() {
    if (!behind()) return;
    published_ = unpublished_->revision;
    hub_->Publish(*std::exchange(unpublished_, std::nullopt), Contents(), &deliveries_, &due_);
  }

  // One turn of the topic at `place`; true: it was its last one.
  template <typename Contents>
  bool Compare(size_t place, Contents contents) {
    const std::shared_ptr<SubscriptionHub::Topic> topic = due_[place];
    if (hub_->Compare(topic, contents, &deliveries_)) return false;
    due_.erase(std::find(due_.begin(), due_.end(), topic));
    return true;
  }
  bool Compare(size_t place) { return Compare(place, Contents()); }

  void Deliver() { SubscriptionHub::Deliver(std::exchange(deliveries_, {})); }

  // Until nothing is left to send.
  void Finish() {
    Publish();
    while (!due_.empty()) Compare(0);
    Deliver();
  }

  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) {
    return hub_->Subscribe(request, std::nullopt, Contents(), std::move(listener), &deliveries_);
  }
  void ForgetSession(const std::string& id) { hub_->ForgetSession(id, &deliveries_); }

  SubscriptionHub::Present Present(const std::string& topic) const {
    SubscriptionHub::Present present;
    present.revision = revision();
    for (const auto& [key, entry] : history_.back()) {
      if (TopicOf(entry.instance.key().service()) != topic) continue;
      present.entries.emplace_back(entry.bytes);
    }
    return present;
  }

 private:
  struct ContentsOf {
    const World* world;
    SubscriptionHub::Present operator()(const std::string& topic) const {
      return world->Present(topic);
    }
  };
  // As a reference to it is taken.
  const ContentsOf& Contents() const { return contents_; }

  int64_t SizeOf(const std::string& service) const {
    int64_t size = 0;
    for (const auto& [key, entry] : history_.back()) {
      if (entry.instance.key().service() == service) ++size;
    }
    return size;
  }

  const std::shared_ptr<SubscriptionHub> hub_;
  const ContentsOf contents_{this};
  std::vector<Set> history_ = {Set()};  // by revision
  uint64_t published_ = 0;
  std::optional<CommitResult> unpublished_;
  SubscriptionHub::Deliveries deliveries_;
  SubscriptionHub::Due due_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_STORE_COMPARE_WORLD_H_
