#include "gateway/consul/query.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gateway/consul/definition.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback::consul {
namespace {

constexpr size_t kMaxQueryTags = 16;

bool IsOneOf(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* known) { return name == known; });
}

absl::Status Refuse(const std::string& name, unsigned accepts) {
  std::string allowed = "dc, index, wait, stale, consistent, cached, near, token, pretty";
  if ((accepts & Query::kTags) != 0) absl::StrAppend(&allowed, ", tag");
  if ((accepts & (Query::kTags | Query::kPassing)) != 0) absl::StrAppend(&allowed, ", passing");
  if ((accepts & Query::kMembers) != 0) absl::StrAppend(&allowed, ", wan, segment");
  return InvalidField(name.size() > kMaxQuoted ? Quoted(name) : name,
                      absl::StrCat("is not supported here; allowed: ", allowed));
}

}  // namespace

absl::StatusOr<Query> ParseQuery(const Parameters& parameters, unsigned accepts,
                                 const std::string& own) {
  Query query;
  query.name_space = own;
  query.wait = kDefaultQueryWait;
  for (const auto& [name, value] : parameters) {
    if (name == "dc") {
      if (!value.empty()) query.name_space = value;
    } else if (name == "index") {
      if (!absl::SimpleAtoi(value, &query.index)) {
        return InvalidField("index", absl::StrCat(Quoted(value), " is no whole number"));
      }
      query.blocking = query.index > 0;
    } else if (name == "wait") {
      if (value.empty()) continue;
      absl::StatusOr<absl::Duration> wait = ParseGoDuration("wait", value);
      if (!wait.ok()) return wait.status();
      // Zero is as if it were not given, as Consul has it.
      if (*wait > absl::ZeroDuration()) query.wait = std::min(*wait, kLongestQueryWait);
    } else if ((accepts & Query::kTags) != 0 && name == "tag") {
      if (query.tags.size() == kMaxQueryTags) {
        return InvalidField("tag", absl::StrCat("there are more than ", kMaxQueryTags));
      }
      query.tags.push_back(value);
    } else if ((accepts & (Query::kTags | Query::kPassing)) != 0 && name == "passing") {
      // Without a value it is set, as in Consul.
      const std::optional<bool> passing = value.empty() ? true : ParseBool(value);
      if (!passing.has_value()) {
        return InvalidField("passing", absl::StrCat(Quoted(value), " is not true or false"));
      }
      query.passing = *passing;
    } else if ((accepts & Query::kMembers) != 0 && IsOneOf(name, {"wan", "segment"})) {
      continue;  // there is one pool, which has this daemon
    } else if (!IsOneOf(name, {"stale", "consistent", "cached", "near", "token", "pretty"}) &&
               (accepts & Query::kAny) == 0) {
      return Refuse(name, accepts);
    }
  }
  Selector selector;
  selector.set_namespace_(query.name_space);
  if (!ValidateSelector(FieldPath(), selector).ok()) {
    return InvalidField("dc",
                        absl::StrCat(Quoted(query.name_space), " is no name of a datacenter"));
  }
  return query;
}

std::optional<bool> ParseBool(const std::string& text) {
  if (IsOneOf(text, {"1", "t", "T", "true", "TRUE", "True"})) return true;
  if (IsOneOf(text, {"0", "f", "F", "false", "FALSE", "False"})) return false;
  return std::nullopt;
}

bool IsDue(const Query& query, uint64_t index) { return !query.blocking || query.index != index; }

absl::Duration WaitWithJitter(absl::Duration wait, double random) {
  return wait + wait / 16 * random;
}

}  // namespace failback::consul
