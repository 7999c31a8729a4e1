#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ctl/admin_output.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/flags.h"
#include "agent/ctl/terminal.h"
#include "agent/ctl/watch_output.h"
#include "agent/readiness.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using admin::v1::GetOverviewRequest;
using admin::v1::Overview;
using agent::v1::GetStatusRequest;
using agent::v1::GetStatusResponse;
using agent::v1::ListPendingRequest;
using agent::v1::ListPendingResponse;
using agent::v1::PendingOperation;

// How often wait-ready looks.
constexpr absl::Duration kReadyPollInterval = absl::Milliseconds(100);
constexpr int kScreenOperations = 200;

// How an agent, or a registry, is.
struct Look {
  bool is_registry = false;
  GetStatusResponse agent;
  // Of an agent: unset for a caller who may not administer, who sees of its status his own part.
  Overview overview;

  const google::protobuf::Message& message() const {
    if (is_registry) return overview;
    return agent;
  }
  // One for each upstream, or one for a registry.
  std::vector<std::string> Lines() const {
    if (is_registry) return {FormatRegistryLine(overview)};
    return FormatUpstreamLines(agent);
  }
};

absl::StatusOr<Look> TakeLook(CtlContext* context) {
  Look look;
  grpc::Status status =
      context->agent().GetStatus(context->NewCall().get(), GetStatusRequest(), &look.agent);
  look.is_registry = status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
  if (!status.ok() && !look.is_registry) return StatusFromGrpc(status);
  status =
      context->admin().GetOverview(context->NewCall().get(), GetOverviewRequest(), &look.overview);
  const bool own_part =
      !look.is_registry && status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
  if (!status.ok() && !own_part) return StatusFromGrpc(status);
  return look;
}

std::string FormatLook(const Look& look, const Palette& palette) {
  if (look.is_registry) return FormatRegistryStatus(look.overview, absl::Now(), palette);
  const std::string dns = FormatDns(look.overview);
  return FormatAgentStatus(look.agent, absl::Now(), palette) + (dns.empty() ? "" : "\n" + dns);
}

// What fits on a screen, and a few more.
std::vector<PendingOperation> FirstPending(CtlContext* context) {
  ListPendingRequest request;
  request.set_page_size(kScreenOperations);
  ListPendingResponse response;
  context->agent().ListPending(context->NewCall().get(), request, &response);
  return {response.operations().begin(), response.operations().end()};
}

// `status --watch`: on a terminal the screen is redrawn at each look, elsewhere each change is a
// line.
class StatusWatch {
 public:
  StatusWatch(CtlContext* context, absl::Duration interval)
      : context_(context),
        interval_(interval),
        live_(context->format == OutputFormat::kTable && TerminalAt(STDOUT_FILENO).has_value()) {}

  // Until it is interrupted; or at once, when the first look fails.
  int Run() {
    while (true) {
      const absl::StatusOr<Look> look = TakeLook(context_);
      if (look.ok()) {
        if (const absl::Status status = Show(*look); !status.ok()) {
          return context_->Report("status", status);
        }
      } else if (!seen_) {
        return context_->Report("status", look.status());
      } else {
        ShowAway(look.status());
      }
      absl::SleepFor(interval_);
    }
  }

 private:
  absl::Status Show(const Look& look) {
    seen_ = true;
    away_ = false;
    if (live_) {
      Draw(ScreenOf(look));
      return absl::OkStatus();
    }
    const std::vector<std::string> lines = look.Lines();
    for (const std::string& line : lines) {
      if (context_->format != OutputFormat::kTable) break;
      const bool known = std::find(shown_.begin(), shown_.end(), line) != shown_.end();
      if (!known) Print(absl::StrCat(ClockTime(absl::Now()), "  ", line, "\n"));
    }
    const bool changed = lines != shown_;
    shown_ = lines;
    if (context_->format == OutputFormat::kTable || !changed) return absl::OkStatus();
    return PrintText(FormatOne(context_->format, look.message()));
  }

  std::string ScreenOf(const Look& look) {
    if (look.is_registry) return FormatLook(look, context_->palette);
    return FormatTop(look.agent, FirstPending(context_), absl::Now(), context_->palette);
  }

  void ShowAway(const absl::Status& status) {
    shown_.clear();
    if (live_)
      return Draw(absl::StrCat("\n", context_->palette.Paint("away", Tone::kBad), ": ",
                               FormatMessage(std::string(status.message())), "\n"));
    if (!std::exchange(away_, true)) context_->Report("status", status);
  }

  void Draw(const std::string& text) {
    const std::string title = absl::StrCat(context_->target, "  ", ClockTime(absl::Now()),
                                           "  every ", FormatSpan(interval_), ", Ctrl-C ends");
    screen_.Draw(absl::StrCat(context_->palette.Paint(title, Tone::kTitle), "\n", text),
                 TerminalAt(STDOUT_FILENO).value_or(TerminalSize()));
  }

  CtlContext* const context_;
  const absl::Duration interval_;
  const bool live_;
  Screen screen_;
  std::vector<std::string> shown_;
  bool seen_ = false;
  bool away_ = false;
};

void AddStatus(CLI::App* app, CtlAction* action) {
  struct Flags {
    bool watch = false;
    absl::Duration interval = absl::Seconds(1);
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      app->add_subcommand("status", "how an agent and its upstreams are, or a registry");
  command->footer(
      "--watch: on a terminal a live screen, with what is pending; elsewhere a line\n"
      "for each change of an upstream, with -o json or yaml the whole status.\n\n"
      "Examples:\n"
      "  failbackctl status\n"
      "  failbackctl status -o json\n"
      "  failbackctl status --watch --interval 5s");
  command->add_flag("--watch,-w", flags->watch, "go on until interrupted");
  AddDuration(command, "--interval", &flags->interval, "with --watch: from look to look [1s]");
  command->callback([action, flags] {
    *action = [flags](CtlContext* context) {
      if (flags->watch) return StatusWatch(context, flags->interval).Run();
      const absl::StatusOr<Look> look = TakeLook(context);
      if (!look.ok()) return context->Report("status", look.status());
      return context->Show("status", FormatLook(*look, context->palette), look->message());
    };
  });
}

// One look. UNIMPLEMENTED means a registry: ready when it answers a read.
absl::Status LookReady(CtlContext* context) {
  GetStatusResponse response;
  const grpc::Status status =
      context->agent().GetStatus(context->NewCall().get(), GetStatusRequest(), &response);
  if (status.ok() && response.draining()) {
    return Refusal(registry::v1::ERROR_REASON_DRAINING, "the agent is draining");
  }
  if (status.ok()) return Readiness(response);
  if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) return StatusFromGrpc(status);
  registry::v1::ListRequest request;
  request.set_page_size(1);
  registry::v1::ListResponse records;
  return StatusFromGrpc(context->registry().List(context->NewCall().get(), request, &records));
}

void AddWaitReady(CLI::App* app, CtlAction* action) {
  auto patience = std::make_shared<absl::Duration>(absl::Seconds(30));
  CLI::App* const command = app->add_subcommand(
      "wait-ready",
      "wait until the agent's registry has acknowledged all instances, but those that another one "
      "holds");
  command->footer(
      "Against a registry: until it answers. Exit status 1 or 3 when that does not come in "
      "time,\n"
      "and at once when the agent is draining.\n\n"
      "Examples:\n"
      "  failbackctl wait-ready --deadline 1m");
  AddDuration(command, "--deadline", patience.get(), "wait at most so long [30s]");
  command->callback([action, patience] {
    *action = [patience](CtlContext* context) {
      const absl::Time end = absl::Now() + *patience;
      while (true) {
        context->timeout = std::max(end - absl::Now(), kReadyPollInterval);
        const absl::Status status = LookReady(context);
        if (status.ok()) {
          Print("ready\n");
          return kCtlOk;
        }
        // It does not come back from that.
        const bool draining = ReasonOf(status) == registry::v1::ERROR_REASON_DRAINING;
        if (draining || absl::Now() + kReadyPollInterval > end) {
          return context->Report("wait-ready", status);
        }
        context->Pause(kReadyPollInterval);
      }
    };
  });
}

}  // namespace

void AddStatusCommands(CLI::App* app, CtlAction* action) {
  AddStatus(app, action);
  AddWaitReady(app, action);
}

}  // namespace failback
