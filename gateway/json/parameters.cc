#include "gateway/json/parameters.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {

absl::StatusOr<absl::Duration> ReadDuration(const http::Request& request, const std::string& name,
                                            absl::Duration otherwise, absl::Duration least,
                                            absl::Duration most) {
  if (!request.HasQuery(name)) return otherwise;
  const std::string text = request.Query(name);
  absl::Duration duration;
  if (absl::ParseDuration(text, &duration) && duration >= least && duration <= most) {
    return duration;
  }
  return InvalidField(
      name, absl::StrCat(Quoted(text), " is not a duration from ", absl::FormatDuration(least),
                         " to ", absl::FormatDuration(most), ", as 30s"));
}

absl::StatusOr<std::optional<StatePosition>> ReadPosition(const http::Request& request,
                                                          bool header) {
  StatePosition position;
  std::string id = header ? std::string(request.Header("Last-Event-ID")) : "";
  if (header && id.empty()) id = request.Query("last_event_id");
  if (!id.empty()) {
    const size_t dot = id.find('.');
    if (dot != std::string::npos && absl::SimpleAtoi(id.substr(0, dot), &position.epoch) &&
        absl::SimpleAtoi(id.substr(dot + 1), &position.revision)) {
      return position;
    }
    return InvalidField("Last-Event-ID",
                        absl::StrCat(Quoted(id), " is not EPOCH.REVISION, the id of an event"));
  }
  const bool has_epoch = request.HasQuery("epoch");
  if (has_epoch != request.HasQuery("revision")) {
    return InvalidField(has_epoch ? "revision" : "epoch",
                        "is missing: epoch and revision go together");
  }
  if (!has_epoch) return std::nullopt;
  for (const auto& [name, number] :
       {std::pair("epoch", &position.epoch), std::pair("revision", &position.revision)}) {
    const std::string text = request.Query(name);
    if (absl::SimpleAtoi(text, number)) continue;
    return InvalidField(name, absl::StrCat(Quoted(text), " is not a number from 0 up"));
  }
  return position;
}

absl::StatusOr<registry::v1::IntentState> ReadWaitFor(const http::Request& request) {
  if (!request.HasQuery("wait_for")) return registry::v1::INTENT_STATE_UNSPECIFIED;
  const std::string text = request.Query("wait_for");
  if (text == "accepted") return registry::v1::INTENT_STATE_ACCEPTED;
  if (text == "acknowledged") return registry::v1::INTENT_STATE_ACKNOWLEDGED;
  return InvalidField("wait_for",
                      absl::StrCat(Quoted(text), " is not one of accepted, acknowledged"));
}

absl::Status CheckParameters(const http::Request& request,
                             std::initializer_list<const char*> known) {
  std::set<std::string> seen;
  for (const auto& [name, value] : request.query) {
    // Only a listing takes several services.
    if (!seen.insert(name).second && name != "service") {
      return InvalidField("query", absl::StrCat(Quoted(name), " is there twice"));
    }
    const bool found = std::any_of(known.begin(), known.end(),
                                   [&name = name](const char* one) { return name == one; });
    if (found || name == "ticket") continue;
    return InvalidField(
        "query", known.size() == 0
                     ? absl::StrCat(Quoted(name), " is not known; no parameter is taken here")
                     : absl::StrCat(Quoted(name), " is not one of ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace failback
