#include "agent/ctl/service_output.h"

#include "absl/strings/str_cat.h"
#include "agent/ctl/output.h"

namespace failback {
namespace {

std::string StateText(agent::v1::CheckState state) {
  return FormatEnum(agent::v1::CheckState_descriptor(), state);
}

}  // namespace

std::string FormatConfigStatus(const agent::v1::ConfigStatus& status, absl::Time now) {
  if (status.file().empty()) return "";
  std::string text = absl::StrCat("configuration ", status.file(), ", loaded ",
                                  FormatRelative(status.load_time(), now), ", ", status.reloads(),
                                  " reloads, ", status.refused(), " refused\n");
  if (!status.error().empty()) {
    absl::StrAppend(&text, "              not in force: ", status.error(), "\n");
  }
  return text;
}

std::string FormatStaticServices(const agent::v1::GetStatusResponse& status, absl::Time now,
                                 const Palette& palette) {
  std::string text;
  for (const agent::v1::StaticServiceStatus& service : status.static_services()) {
    const auto& key = service.key();
    absl::StrAppend(&text, "\nservice       ", key.namespace_(), "/", key.service(), "/",
                    key.instance_id(), ": ", palette.State(StateText(service.state())), " since ",
                    FormatRelative(service.since(), now),
                    service.registered() ? "" : ", not registered", "\n");
    for (const agent::v1::CheckStatus& check : service.checks()) {
      absl::StrAppend(&text, "  check       ", check.name(),
                      check.name() == check.kind() ? "" : absl::StrCat(" (", check.kind(), ")"),
                      ": ", palette.State(StateText(check.state())), ", ", check.passes(),
                      " passes, ", check.failures(), " failures",
                      check.last_error().empty() ? "" : absl::StrCat(", ", check.last_error()),
                      "\n");
    }
  }
  return text;
}

}  // namespace failback
