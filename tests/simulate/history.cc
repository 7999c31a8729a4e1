#include "tests/simulate/history.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "registry/model/canonical.h"

namespace failback::simulate {

const Shown* ShownInstances::Of(std::string_view bytes) {
  const auto it = all_.find(bytes);
  if (it != all_.end()) return &it->second;
  ServiceInstance instance;
  instance.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  Shown shown;
  shown.key = CanonicalKey(instance.key());
  shown.zone = instance.zone();
  shown.port = instance.port();
  shown.offline = instance.has_offline();
  return &all_.emplace(bytes, std::move(shown)).first->second;
}

// --- Set.

namespace {

auto PlaceOf(std::string_view key, const std::vector<const Shown*>& all) {
  return std::lower_bound(
      all.begin(), all.end(), key,
      [](const Shown* shown, std::string_view key) { return shown->key < key; });
}

}  // namespace

void Set::Put(const Shown* shown) {
  const auto at = PlaceOf(shown->key, all_);
  if (at != all_.end() && (*at)->key == shown->key) {
    all_[static_cast<size_t>(at - all_.begin())] = shown;
  } else {
    all_.insert(at, shown);
  }
}

bool Set::Erase(std::string_view key) {
  const auto at = PlaceOf(key, all_);
  if (at == all_.end() || (*at)->key != key) return false;
  all_.erase(at);
  return true;
}

const Shown* Set::Find(std::string_view key) const {
  const auto at = PlaceOf(key, all_);
  return at == all_.end() || (*at)->key != key ? nullptr : *at;
}

Set Set::In(const std::string& zone) const {
  if (zone.empty()) return *this;
  Set in;
  for (const Shown* shown : all_) {
    if (shown->zone == zone) in.all_.push_back(shown);
  }
  return in;
}

std::string Apply(const Event& event, bool resumed, ShownInstances* instances, Set* set) {
  if (event.is_snapshot()) set->Clear();
  for (const std::string& key : event.removals()) {
    if (!set->Erase(key) && !resumed) {
      return absl::StrCat("removes ", CanonicalKeyText(key), ", which is not there");
    }
  }
  event.ForEachInstance([&](const Blob& instance) { set->Put(instances->Of(instance.view())); });
  return "";
}

std::string TextOf(const Set& set) {
  return absl::StrCat(
      "{",
      absl::StrJoin(set, ", ",
                    [](std::string* out, const Shown* shown) {
                      absl::StrAppend(out, std::string(SplitCanonicalKey(shown->key).instance_id),
                                      ":", shown->port, shown->offline ? " offline" : "");
                    }),
      "}");
}

// --- Truth.

class Truth::Listener final : public NotifyListener {
 public:
  Listener(Truth* truth, std::string service) : truth_(truth), service_(std::move(service)) {}
  void OnEvent(const EventPtr& event) override {
    const std::string wrong = Apply(*event, /*resumed=*/false, truth_->instances(), &set_);
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
  sets_[service].emplace_back(world_->now(), set);
  if (world_->traced) {
    world_->Tell(absl::StrCat("    registry: ", service, " = ", TextOf(set), " at ", revision));
  }
  for (const Shown* shown : before) {
    if (!set.Has(shown->key) && on_removed) on_removed(shown->key);
  }
  for (const Shown* shown : set) {
    const Shown* const was = before.Find(shown->key);
    if (was == nullptr && on_appeared) on_appeared(shown->key);
    if (was != shown && !wishes_->WasWanted(shown->key, shown->port)) {
      world_->Fail("never wanted", absl::StrCat(CanonicalKeyText(shown->key), ":", shown->port,
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

const Set& Truth::Now(std::string_view service) const {
  static const Set none;
  const auto it = now_.find(service);
  return it == now_.end() ? none : it->second;
}

bool Truth::WasEver(std::string_view service, int64_t since,
                    absl::FunctionRef<bool(const Set&)> is) const {
  const auto it = sets_.find(service);
  if (it != sets_.end()) {
    for (auto set = it->second.rbegin(); set != it->second.rend(); ++set) {
      if (is(set->second)) return true;
      if (set->first <= since) return false;
    }
  }
  return is(Set());  // before the first
}

const Shown* Truth::Find(std::string_view key) const {
  return Now(SplitCanonicalKey(key).service).Find(key);
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

void Viewer::Begin(bool resumed, bool anew) {
  ended_ = closed_ = false;
  fresh_stream_ = unsaid_ = true;
  anew_ = anew;
  resumed_ = resumed;
  if (resumed) return;
  known_ = stale_ = held_ = false;
  epoch_ = revision_ = 0;
  set_.Clear();
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
  if (const std::string what = Apply(*event, resumed_, truth_->instances(), &next); !what.empty())
    return wrong(what);
  const bool same_epoch = known_ && event->epoch() == epoch_;
  // A stream that goes on may begin with a snapshot of a registry that is behind; an agent hides
  // that, if it can know it, and sends nothing old that it has kept.
  const bool may_be_behind = at_agent_ ? unsaid_ && anew_ && !event->flags().stale : fresh_stream_;
  if (same_epoch && event->revision() < revision_ && !may_be_behind) {
    return wrong(absl::StrCat("revision ", event->revision(), " after ", revision_));
  }
  if (at_agent_ && !fresh_stream_ && same_epoch && next == set_ && event->flags().stale == stale_ &&
      event->flags().held == held_) {
    return wrong("the same state twice in a row");
  }
  const bool emptied = known_ && !set_.empty() && next.empty() && !event->flags().stale;
  unsaid_ =
      unsaid_ && resumed_ && same_epoch && event->flags().stale && event->revision() == revision_;
  fresh_stream_ = false;
  known_ = true;
  stale_ = event->flags().stale;
  held_ = event->flags().held;
  epoch_ = event->epoch();
  revision_ = event->revision();
  set_ = std::move(next);
  if (world_->traced) {
    world_->Tell(absl::StrCat("    ", name_, " sees ", service_, " = ", TextOf(set_), " at ",
                              revision_, stale_ ? ", stale" : "", held_ ? ", held" : ""));
  }
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
