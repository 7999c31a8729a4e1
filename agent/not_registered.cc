#include "agent/not_registered.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {
namespace {

// Empty: it is not known.
std::string WhyNot(const CarriedRecord& record) {
  const std::string status =
      record.last_status.ok()
          ? ""
          : absl::StrCat(": ",
                         record.last_status.ToString(absl::StatusToStringMode::kWithNoExtraData));
  switch (record.state) {
    case registry::v1::INTENT_STATE_PARKED:
      return absl::StrCat("parked: the registry refuses it", status);
    case registry::v1::INTENT_STATE_SUPERSEDED:
      return absl::StrCat("superseded: another holds its key, or held it until lately", status);
    case registry::v1::INTENT_STATE_LAPSED:
      return "lapsed: the agent's session has run out, so the registry may have removed it";
    case registry::v1::INTENT_STATE_ACCEPTED:
      return absl::StrCat("accepted by the agent, not by the registry yet", status);
    case registry::v1::INTENT_STATE_ACKNOWLEDGED:
      return "acknowledged, and the registry tells no such instance: not yet, or it was taken or "
             "removed there; the agent compares once a minute";
    default:
      return "";
  }
}

}  // namespace

std::vector<dns::NotRegistered> NotRegisteredOf(const std::vector<CarriedRecord>& carried) {
  std::vector<dns::NotRegistered> not_registered;
  for (const CarriedRecord& record : carried) {
    std::string why = WhyNot(record);
    if (why.empty()) continue;
    const bool acknowledged = record.state == registry::v1::INTENT_STATE_ACKNOWLEDGED;
    if (!not_registered.empty() && not_registered.back().key == record.key) {
      if (acknowledged || !not_registered.back().acknowledged) continue;
      not_registered.pop_back();
    }
    not_registered.push_back({record.key, record.instance, std::move(why), acknowledged});
  }
  return not_registered;
}

}  // namespace failback
