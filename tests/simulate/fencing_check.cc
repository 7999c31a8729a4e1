#include "tests/simulate/fencing_check.h"

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback::simulate {
namespace {

// A fence without an instance is kept for a minute at least; less what a clock may be off by.
constexpr absl::Duration kRetention = absl::Seconds(59);

}  // namespace

bool FencingCheck::Holds(const Fence& fence) const {
  return fence.gone_at == 0 || absl::Nanoseconds(world_->now() - fence.gone_at) < kRetention;
}

void FencingCheck::Closed(const std::string& session_id) {
  const auto rank = ranks_.find(session_id);
  // One that comes late ends nothing of the session that its incarnation has by then.
  if (rank == ranks_.end() || session_of_[rank->second] != session_id) return;
  for (auto it = fences_.begin(); it != fences_.end();) {
    const Fence& fence = it->second;
    // What was gone before, as the session had expired, has left a fence.
    const bool ended = fence.newest.first == rank->second && fence.registers &&
                       (fence.gone_at == 0 || fence.gone_at == world_->now());
    it = ended ? fences_.erase(it) : std::next(it);
  }
}

void FencingCheck::Removed(const std::string& key) {
  const auto it = fences_.find(key);
  if (it != fences_.end() && it->second.gone_at == 0) it->second.gone_at = world_->now();
}

void FencingCheck::Written(const std::string& session_id, const std::vector<Asked>& asked,
                           const BatchResult& result) {
  const auto rank = ranks_.find(session_id);
  if (rank == ranks_.end()) return;
  for (size_t i = 0; i < asked.size(); ++i) {
    const Asked& intent = asked[i];
    if (const auto begun = begun_.find(intent.key); begun != begun_.end()) begun_.erase(begun);
    const absl::Status status =
        result.results.empty() ? absl::OkStatus() : StatusFromProto(result.results[i].status());
    const std::pair<uint64_t, uint64_t> number = {rank->second, intent.generation};
    const auto it = fences_.find(intent.key);
    const bool known = it != fences_.end();
    const auto text = [&] {
      return absl::StrCat(
          CanonicalKeyText(intent.key), ", rank ", number.first, ", generation ", number.second,
          known ? ", after rank " : ", after nothing",
          known ? absl::StrCat(it->second.newest.first, ", generation ", it->second.newest.second)
                : "");
    };
    if (status.ok()) {
      if (known && number < it->second.newest && Holds(it->second)) {
        return world_->Fail("fencing", absl::StrCat("an older intent is accepted: ", text()));
      }
      // The same again keeps no fence for longer; an instance that had expired is back.
      if (known && number == it->second.newest && Holds(it->second)) {
        if (intent.registers) it->second.gone_at = 0;
        continue;
      }
      unsure_.erase(intent.key);
      fences_[intent.key] = {number, intent.registers, intent.registers ? 0 : world_->now()};
    } else if (ReasonOf(status) == registry::v1::ERROR_REASON_SUPERSEDED && complete_ &&
               unsure_.count(intent.key) == 0 && (!known || number > it->second.newest)) {
      return world_->Fail("fencing", absl::StrCat("the newest intent is refused: ", text()));
    }
  }
}

}  // namespace failback::simulate
