#include "registry/model/fencing.h"

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

absl::Status Superseded(const Intent& intent, const Fence& winner) {
  return Refusal(
      registry::v1::ERROR_REASON_SUPERSEDED,
      absl::StrCat(CanonicalKeyText(intent.key),
                   ": a newer intent holds the key, or held it until lately (rank ", winner.rank,
                   ", generation ", winner.generation, ")"),
      {{"rank", absl::StrCat(winner.rank)}, {"generation", absl::StrCat(winner.generation)}});
}

absl::Status GenerationReused(const Intent& intent, const Fence& fence) {
  return Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED,
                 absl::StrCat(CanonicalKeyText(intent.key), ": generation ", fence.generation,
                              " was used for another content"),
                 {{"generation", absl::StrCat(fence.generation)}});
}

}  // namespace

Verdict Decide(const Fence& fence, uint64_t rank, const Intent& intent, bool already) {
  const bool unfenced = intent.generation == 0;
  uint64_t generation = intent.generation;
  if (fence.rank > rank) return {Superseded(intent, fence), 0, false};
  if (fence.rank == rank) {
    if (unfenced) generation = fence.generation;
    if (generation < fence.generation) return {Superseded(intent, fence), 0, false};
    if (generation == fence.generation) {
      const bool same = fence.registers == intent.registers && fence.digest == intent.digest;
      if (!same && !unfenced) return {GenerationReused(intent, fence), 0, false};
      if (same && already) return {absl::OkStatus(), generation, false};
    }
  } else if (fence.rank == 0 && unfenced && !intent.registers && already) {
    return {absl::OkStatus(), 0, false};
  }
  return {absl::OkStatus(), generation, true};
}

}  // namespace failback
