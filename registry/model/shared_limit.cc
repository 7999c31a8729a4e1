#include "registry/model/shared_limit.h"

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {

std::string SharedLimit::Text(bool in_all) const {
  if (in_all) return absl::StrCat(what, " (", name, "): at most ", limit, " are allowed");
  return absl::StrCat(what, " of one owner: at most ", share(), " are allowed, its share of ", name,
                      " (", limit, ")");
}

absl::Status SharedLimit::Reached(bool in_all) const {
  return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                 absl::StrCat(Text(in_all), "; remove some, or have the limit raised"),
                 {{"limit", absl::StrCat(in_all ? limit : share())}, {"name", name}});
}

void OwnerCounts::Add(absl::string_view owner, int64_t change) {
  if (owner.empty() || change == 0) return;
  const auto it = counts_.try_emplace(std::string(owner), 0).first;
  if ((it->second += change) == 0) counts_.erase(it);
}

std::optional<int64_t> OwnerCounts::Of(absl::string_view owner) const {
  if (owner.empty()) return std::nullopt;
  const auto it = counts_.find(owner);
  return it == counts_.end() ? 0 : it->second;
}

}  // namespace failback
