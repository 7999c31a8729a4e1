// What happens to registries, and to the etcd that they are on.
#include <utility>

#include "absl/time/time.h"
#include "tests/simulate/story.h"

namespace failback::simulate {

void Story::ResetClientsOf(int registry) {
  // A connection to it is gone. Of others, and of a balancer's, what ran at this registry ends.
  const auto whole = [&](int link) { return !script_.balanced && RegistryFor(link) == registry; };
  for (const auto& agent : agents_) agent->Break(whole(agent->index()));
  for (const auto& follower : followers_) {
    if (follower->wire == nullptr) continue;
    world_.network.SendNews(follower->link, Way::kToClient, follower->process,
                            follower->wire->Breaker(whole(follower->link)));
  }
}

void Story::NoteOutage() {
  // One that follows within a second is the same.
  if (absl::Nanoseconds(world_.now() - registry_well_since_) > absl::Seconds(1)) {
    registry_ill_since_ = world_.now();
  }
  registry_well_since_ = world_.now();
}

void Story::KillRegistry(int index) {
  NoteOutage();
  ResetClientsOf(index);
  registries_[static_cast<size_t>(index)]->Kill();
}

void Story::StartRegistry(int index) {
  RegistryHost& registry = *registries_[static_cast<size_t>(index)];
  if (registry.up()) return;
  registry_since_ = started_ = world_.now();
  NoteOutage();
  // What was acknowledged may be back; an answer may have come since the restore.
  const bool restored = std::exchange(restored_, false);
  if (restored) {
    restored_at_ = world_.now();
    ForgetAcks(-1);
  }
  registry.Start();
  for (const auto& [of, wish] : wishes_.all) {
    // What it has again, and a journal that was put back as well does not know, waits, too.
    const bool there = truth_.Find(of.second) != nullptr;
    if (!there || (restored && !wish.present)) ExcuseWhatWasPutBack(of.second);
  }
}

void Story::DoRegistry(const Operation& operation) {
  const absl::Duration lasts = absl::Milliseconds(operation.for_ms);
  const int index = RegistryOf(operation);
  RegistryHost* const registry = registries_[static_cast<size_t>(index)].get();
  switch (operation.act) {
    case Act::kRegistryCrash:
    case Act::kRegistryWipe:
    case Act::kRegistryRestore:
      if (!registry->up()) return;
      KillRegistry(index);
      if (operation.act == Act::kRegistryWipe) registry->Wipe();
      if (operation.act == Act::kRegistryRestore && registry->Restore()) restored_ = true;
      At(lasts, [this, index] { StartRegistry(index); });
      return;
    case Act::kRegistryStop:
      if (!registry->running()) return;
      registry->Stop();
      At(lasts, [registry, first = operation.amount == 1] {
        if (registry->up()) registry->Continue(first);
      });
      return;
    case Act::kRegistryBackup:
      if (registry->running()) registry->Backup();
      return;
    case Act::kRegistryDiesAnswering: {
      if (!registry->running()) return;
      // The request goes at once; its answer may come when the agent has its next session.
      Link& link = world_.network.link(operation.agent);
      Intend(operation, true, 1);
      At(absl::Milliseconds(2), [this, &link] {
        if (faults_over_) return;
        link.late = 100;
        link.latest = absl::Seconds(4);
      });
      At(absl::Milliseconds(60), [this, registry, index, lasts, &link] {
        link.late = 0;
        if (faults_over_ || !registry->up()) return;
        KillRegistry(index);
        At(lasts, [this, index] { StartRegistry(index); });
      });
      return;
    }
    default:
      return;
  }
}

void Story::DoEtcd(const Operation& operation) {
  const absl::Duration lasts = absl::Milliseconds(operation.for_ms);
  switch (operation.act) {
    case Act::kEtcdStop:
      if (etcd_->process()->stopped()) return;
      NoteOutage();
      etcd_->process()->Stop();
      At(lasts, [this, first = operation.amount == 1] { etcd_->process()->Continue(first); });
      return;
    case Act::kEtcdCompact:
      return etcd_->model().Compact(etcd_->model().revision() - operation.key);
    case Act::kEtcdClog: {
      const int link = LinkToEtcd(RegistryOf(operation));
      for (const Way way : {Way::kToRegistry, Way::kToClient}) {
        if ((operation.amount & (way == Way::kToRegistry ? 1 : 2)) == 0) continue;
        world_.network.SetClogged(link, way, true);
        At(lasts, [this, link, way] { world_.network.SetClogged(link, way, false); });
      }
      // Something changes, and who follows it at another registry goes on at this one.
      if (operation.port % 2 == 0) return;
      At(lasts / 8, [this, operation] {
        if (!faults_over_) Intend(operation, true, 1);
      });
      At(lasts / 4, [this] {
        for (const auto& agent : agents_) {
          if (!faults_over_) agent->Break(/*connection=*/true);
        }
      });
      return;
    }
    default:
      return;
  }
}

}  // namespace failback::simulate
