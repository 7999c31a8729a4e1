#include "tests/simulate/history.h"

#include "absl/strings/str_join.h"
#include "registry/model/canonical.h"

namespace failback::simulate {
namespace {

ServiceInstance Parse(const std::string& bytes) {
  ServiceInstance instance;
  instance.ParseFromString(bytes);
  return instance;
}

}  // namespace

std::string Apply(const Event& event, bool resumed, Set* set) {
  if (event.is_snapshot()) set->clear();
  for (const std::string& key : event.removals()) {
    if (set->erase(key) == 0 && !resumed) {
      return absl::StrCat("removes ", CanonicalKeyText(key), ", which is not there");
    }
  }
  event.ForEachInstance(
      [&](const Blob& instance) { (*set)[KeyOf(instance)] = std::string(instance.view()); });
  return "";
}

std::string TextOf(const Set& set) {
  return absl::StrCat("{",
                      absl::StrJoin(set, ", ",
                                    [](std::string* out, const auto& entry) {
                                      const ServiceInstance instance = Parse(entry.second);
                                      absl::StrAppend(out, instance.key().instance_id(), ":",
                                                      instance.port(),
                                                      instance.has_offline() ? " offline" : "");
                                    }),
                      "}");
}

// --- Truth.

class Truth::Listener final : public NotifyListener {
 public:
  Listener(Truth* truth, std::string service) : truth_(truth), service_(std::move(service)) {}
  void OnEvent(const EventPtr& event) override {
    const std::string wrong = Apply(*event, /*resumed=*/false, &set_);
    if (!wrong.empty()) truth_->world_->Fail("watch", absl::StrCat("at the store: ", wrong));
    truth_->OnChange(service_, event->epoch(), event->revision(), set_);
  }
  void OnEnd(const absl::Status&) override {}

 private:
  Truth* const truth_;
  const std::string service_;
  Set set_;
};

Truth::Truth(World* world, Wishes* wishes, int services)
    : world_(world), wishes_(wishes), services_(services) {}

void Truth::Attach(Registry* registry) {
  streams_.clear();
  for (int i = 0; i < services_; ++i) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(Service(i));
    streams_.push_back(registry->Subscribe(request, std::make_shared<Listener>(this, Service(i))));
  }
}

void Truth::OnChange(const std::string& service, uint64_t epoch, uint64_t revision,
                     const Set& set) {
  ++commits_;
  epoch_ = epoch;
  auto& revisions = history_[{service, epoch}];
  if (!revisions.empty() && revision < revisions.rbegin()->first) {
    world_->Fail("watch", absl::StrCat("revision ", revision, " of epoch ", epoch, " after ",
                                       revisions.rbegin()->first));
  }
  const Set before = std::exchange(now_[service], set);
  revisions[revision] = set;
  world_->Tell(absl::StrCat("    registry: ", service, " = ", TextOf(set), " at ", revision));
  for (const auto& [key, bytes] : before) {
    if (set.count(key) > 0) continue;
    present_since_.erase(key);
    if (on_removed) on_removed(key);
  }
  for (const auto& [key, bytes] : set) {
    if (present_since_.emplace(key, world_->now()).second && on_appeared) on_appeared(key);
    const uint32_t port = Parse(bytes).port();
    if (!wishes_->WasWanted(key, port)) {
      world_->Fail("never wanted", absl::StrCat(CanonicalKeyText(key), ":", port,
                                                " is at the registry, and no client wanted it"));
    }
  }
}

const Set* Truth::At(const std::string& service, uint64_t epoch, uint64_t revision) const {
  const auto it = history_.find({service, epoch});
  if (it == history_.end()) return nullptr;
  auto at = it->second.upper_bound(revision);
  if (at == it->second.begin()) return nullptr;
  return &std::prev(at)->second;
}

const Set& Truth::Now(const std::string& service) const {
  static const Set none;
  const auto it = now_.find(service);
  return it == now_.end() ? none : it->second;
}

int64_t Truth::PresentSince(const std::string& key) const {
  const auto it = present_since_.find(key);
  return it == present_since_.end() ? -1 : it->second;
}

// --- Viewer.

Viewer::Viewer(World* world, const Truth* truth, std::string name, std::string service,
               std::string zone, bool at_agent)
    : world_(world),
      truth_(truth),
      name_(std::move(name)),
      service_(std::move(service)),
      zone_(std::move(zone)),
      at_agent_(at_agent) {}

void Viewer::Begin(bool resumed) {
  ended_ = closed_ = false;
  fresh_stream_ = true;
  resumed_ = resumed;
  if (resumed) return;
  known_ = stale_ = held_ = false;
  epoch_ = revision_ = 0;
  set_.clear();
}

Set Viewer::Filter(const Set& set) const {
  if (zone_.empty()) return set;
  Set seen;
  for (const auto& [key, bytes] : set) {
    if (Parse(bytes).zone() == zone_) seen[key] = bytes;
  }
  return seen;
}

void Viewer::OnEvent(const EventPtr& event) {
  const auto wrong = [&](const std::string& what) {
    world_->Fail("watch", absl::StrCat(name_, " of ", service_, ": ", what));
  };
  if (ended_ || closed_) return wrong("an event after the end");
  Set next = set_;
  if (event->is_delta() &&
      (!known_ || event->epoch() != epoch_ || event->base_revision() != revision_)) {
    return wrong(
        absl::StrCat("a delta from ", event->base_revision(), " for one who is at ", revision_));
  }
  if (event->is_snapshot()) resumed_ = false;
  if (const std::string what = Apply(*event, resumed_, &next); !what.empty()) return wrong(what);
  const bool same_epoch = known_ && event->epoch() == epoch_;
  // A stream that goes on may begin with a snapshot of a registry that is behind; an agent hides
  // that.
  if (same_epoch && event->revision() < revision_ && (at_agent_ || !fresh_stream_)) {
    return wrong(absl::StrCat("revision ", event->revision(), " after ", revision_));
  }
  if (at_agent_ && !fresh_stream_ && same_epoch && next == set_ && event->flags().stale == stale_ &&
      event->flags().held == held_) {
    return wrong("the same state twice in a row");
  }
  const bool emptied = known_ && !set_.empty() && next.empty() && !event->flags().stale;
  fresh_stream_ = false;
  known_ = true;
  stale_ = event->flags().stale;
  held_ = event->flags().held;
  epoch_ = event->epoch();
  revision_ = event->revision();
  set_ = std::move(next);
  world_->Tell(absl::StrCat("    ", name_, " sees ", service_, " = ", TextOf(set_), " at ",
                            revision_, stale_ ? ", stale" : "", held_ ? ", held" : ""));
  // What it has is what there was at that revision: nothing is missing, torn or too much.
  const Set* const there = truth_->At(service_, epoch_, revision_);
  if (there == nullptr) return wrong(absl::StrCat("no such epoch or revision: ", revision_));
  if (set_ != Filter(*there)) {
    return wrong(absl::StrCat("sees ", TextOf(set_), ", and at revision ", revision_, " there was ",
                              TextOf(Filter(*there))));
  }
  if (emptied && may_be_empty) {
    const std::string why_not = may_be_empty(event->is_delta());
    if (!why_not.empty())
      world_->Fail("empty", absl::StrCat(name_, " of ", service_, ": ", why_not));
  }
}

void Viewer::OnEnd(const absl::Status& status) {
  if (ended_) world_->Fail("watch", absl::StrCat(name_, ": two ends"));
  ended_ = true;
  end_ = status;
}

}  // namespace failback::simulate
