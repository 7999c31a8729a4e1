#include "agent/ctl/watch_output.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/ctl/output.h"
#include "agent/ctl/service_output.h"
#include "registry/base/proto_time.h"

namespace failback {
namespace {

using agent::v1::GetStatusResponse;
using agent::v1::PendingOperation;
using agent::v1::UpstreamStatus;
using registry::v1::ServiceInstance;

std::string StateText(const UpstreamStatus& upstream) {
  return absl::StrCat(FormatEnum(agent::v1::UpstreamState_descriptor(), upstream.state()),
                      upstream.refused() ? ", refused" : "");
}

std::string NameOf(const UpstreamStatus& upstream) {
  return upstream.name().empty() ? upstream.uri() : upstream.name();
}

std::string MetadataOf(const ServiceInstance& instance) {
  const std::map<std::string, std::string> sorted(instance.metadata().begin(),
                                                  instance.metadata().end());
  return absl::StrJoin(sorted, ",", absl::PairFormatter("="));
}

}  // namespace

std::string ClockTime(absl::Time time) {
  return absl::FormatTime("%H:%M:%E3S", time, absl::LocalTimeZone());
}

std::string FormatTop(const GetStatusResponse& status, const std::vector<PendingOperation>& pending,
                      absl::Time now, const Palette& palette) {
  std::string text = absl::StrCat(
      "agent ", status.version(), ", started ", FormatRelative(status.start_time(), now), ", ",
      status.local_sessions(), " local sessions",
      status.draining() ? absl::StrCat(", ", palette.Paint("draining", Tone::kBusy)) : "", "\n\n");
  std::vector<std::vector<std::string>> rows;
  for (const UpstreamStatus& upstream : status.upstreams()) {
    rows.push_back({NameOf(upstream), StateText(upstream), FormatRelative(upstream.since(), now),
                    absl::StrCat(upstream.desired()), absl::StrCat(upstream.acknowledged()),
                    absl::StrCat(upstream.pending()), absl::StrCat(upstream.parked()),
                    FormatStatus(upstream.last_error())});
  }
  absl::StrAppend(&text,
                  FormatTable({"UPSTREAM", "STATE", "SINCE", "DESIRED", "ACKNOWLEDGED", "PENDING",
                               "PARKED", "LAST ERROR"},
                              rows, palette),
                  FormatStaticServices(status, now, palette), "\n",
                  pending.empty() ? "nothing pending\n" : FormatPending(pending, now, palette),
                  FormatLapses(status, now));
  return text;
}

std::string FormatLapses(const GetStatusResponse& status, absl::Time now) {
  std::string text;
  for (const UpstreamStatus& upstream : status.upstreams()) {
    if (!upstream.has_lapsed_since() || upstream.desired() == 0) continue;
    absl::StrAppend(&text, "the session at ", NameOf(upstream), " ran out ",
                    FormatRelative(upstream.lapsed_since(), now), ": none of ", upstream.desired(),
                    upstream.desired() == 1 ? " registration" : " registrations",
                    " is acknowledged, each is sent when a session opens (",
                    FormatStatus(upstream.last_error()),
                    "); `failbackctl intents --state lapsed` lists them\n");
  }
  return text;
}

std::vector<std::string> FormatUpstreamLines(const GetStatusResponse& status) {
  std::vector<std::string> lines;
  for (const UpstreamStatus& upstream : status.upstreams()) {
    lines.push_back(absl::StrCat(
        NameOf(upstream), "  ", StateText(upstream), "  ", upstream.desired(), " desired, ",
        upstream.acknowledged(), " acknowledged, ", upstream.pending(), " pending, ",
        upstream.parked(), " parked", status.draining() ? "  agent draining" : ""));
  }
  return lines;
}

std::string FormatFollowed(const registry::v1::Selector& selector,
                           const std::vector<ServiceInstance>& instances, uint64_t revision,
                           const std::string& news, absl::Time now, const Palette& palette) {
  const std::string name_space = selector.namespace_().empty() ? "default" : selector.namespace_();
  const bool services = selector.service().empty();
  std::string text =
      absl::StrCat(palette.Paint(services ? absl::StrCat("services of ", name_space)
                                          : absl::StrCat(name_space, "/", selector.service()),
                                 Tone::kTitle),
                   "  ", instances.size(), services ? " services" : " instances", ", revision ",
                   revision, ", ", ClockTime(now),
                   news.empty() ? "" : absl::StrCat("  ", palette.Paint(news, Tone::kBad)), "\n\n");
  std::vector<std::vector<std::string>> rows;
  rows.reserve(instances.size());
  for (const ServiceInstance& instance : instances) {
    if (services) {
      rows.push_back({instance.key().service(), absl::StrCat(instance.instance_count())});
    } else {
      rows.push_back({instance.key().instance_id(), FormatEndpoint(instance),
                      FormatHealth(instance),
                      absl::StrCat(instance.has_weight() ? instance.weight() : 100),
                      instance.zone(), MetadataOf(instance)});
    }
  }
  const std::vector<std::string> header =
      services ? std::vector<std::string>{"SERVICE", "INSTANCES"}
               : std::vector<std::string>{"ID", "ENDPOINT", "STATUS", "WEIGHT", "ZONE", "METADATA"};
  return absl::StrCat(text, FormatTable(header, rows, palette));
}

}  // namespace failback
