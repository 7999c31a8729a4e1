#include "gateway/catalog/view.h"

#include <utility>

#include "registry/model/errors.h"

namespace failback::catalog {

namespace {

absl::Status Unavailable(const char* what) {
  return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE, what),
                        absl::Seconds(1));
}

}  // namespace

absl::Status WhyUnknown(Knowledge knowledge, bool last) {
  switch (knowledge) {
    case Knowledge::kPending:
      return last ? Unavailable("the registry has not answered yet") : absl::OkStatus();
    case Knowledge::kUnavailable:
      return Unavailable("the registry cannot be reached, and nothing is known from before");
    case Knowledge::kDenied:
      // 403 would be about the caller.
      return Unavailable("the registry does not let this daemon read that");
    case Knowledge::kTooMany:
      return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                     "this daemon follows as many services as it may");
    default:
      return absl::OkStatus();
  }
}

Renderings::Bytes Renderings::Get(const std::string& kind, absl::FunctionRef<std::string()> render,
                                  bool made_up) {
  // With the lock: others who want the same wait for it rather than make it too.
  MutexLock lock(&mu_);
  const auto it = kept_.find(kind);
  if (it != kept_.end()) return it->second;
  Bytes bytes = std::make_shared<const std::string>(render());
  if (made_up && made_up_ == kMostMadeUp) return bytes;
  if (made_up) ++made_up_;
  kept_.emplace(kind, bytes);
  return bytes;
}

}  // namespace failback::catalog
