#include "registry/model/event_order.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

absl::Status Gap(const std::string& what) {
  return Refusal(registry::v1::ERROR_REASON_POSITION_LOST,
                 absl::StrCat("gap in the subscription: ", what));
}

std::string Position(uint64_t epoch, uint64_t revision) {
  return absl::StrCat("epoch ", epoch, " revision ", revision);
}

}  // namespace

absl::Status EventOrder::Check(const EventPart& part) {
  return Check(Step{part.kind(), part.epoch(), part.revision(), part.base_revision(), part.more()});
}

absl::Status EventOrder::Check(const Event& event) {
  return Check(
      Step{event.kind(), event.epoch(), event.revision(), event.base_revision(), /*more=*/false});
}

absl::Status EventOrder::Check(const Step& step) {
  const uint64_t epoch = step.epoch;
  const uint64_t revision = step.revision;
  if (step.kind == Event::Kind::kSnapshot) {
    if (in_snapshot_ && (epoch != epoch_ || revision != revision_)) {
      return Gap(absl::StrCat("a part of a snapshot is of ", Position(epoch, revision),
                              ", the part before of ", Position(epoch_, revision_)));
    }
    if (known_ && !resuming_ && epoch == epoch_ && revision < revision_) {
      return Gap(absl::StrCat("a snapshot of revision ", revision, " after revision ", revision_,
                              " of the same epoch"));
    }
    known_ = true;
    in_snapshot_ = step.more;
  } else if (in_snapshot_) {
    return Gap("something else came between the parts of a snapshot");
  } else if (step.kind == Event::Kind::kDelta) {
    const uint64_t base = step.base_revision;
    if (!known_) return Gap("a delta came before any snapshot");
    if (epoch != epoch_ || base != revision_ || revision < base) {
      return Gap(absl::StrCat("a delta of epoch ", epoch, " from revision ", base, " to ", revision,
                              " after ", Position(epoch_, revision_)));
    }
  } else {
    return absl::OkStatus();  // only flags changed
  }
  resuming_ = false;
  epoch_ = epoch;
  revision_ = revision;
  return absl::OkStatus();
}

}  // namespace failback
