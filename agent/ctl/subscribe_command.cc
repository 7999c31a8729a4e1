#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "agent/ctl/change_command.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/followed_set.h"
#include "agent/ctl/selector_flags.h"
#include "agent/ctl/terminal.h"
#include "agent/ctl/watch_output.h"
#include "grpcpp/grpcpp.h"
#include "registry/failback/status_policy.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;
using registry::v1::SubscribeRequest;
using registry::v1::SubscribeResponse;
using registry::v1::WatchItem;
using registry::v1::WatchRequest;
using registry::v1::WatchResponse;

// Between two streams, unless the target asks for more.
constexpr absl::Duration kReconnectDelay = absl::Milliseconds(200);

// Without a first message for so long, a person wants to know what is waited for.
constexpr absl::Duration kSilence = absl::Seconds(2);

// Says once on stderr that nothing has come, unless something comes within kSilence.
class SilenceNotice {
 public:
  explicit SilenceNotice(const std::string& target)
      : thread_([this, target] {
          if (over_.WaitForNotificationWithTimeout(kSilence)) return;
          std::fprintf(stderr,
                       "failbackctl: subscribe: nothing yet from %s: an agent waits for its "
                       "registry when it has never seen the set; `failbackctl status` says how "
                       "it is\n",
                       target.c_str());
        }) {}
  ~SilenceNotice() {
    End();
    thread_.join();
  }
  SilenceNotice(const SilenceNotice&) = delete;
  SilenceNotice& operator=(const SilenceNotice&) = delete;

  // On the thread that made it.
  void End() {
    if (!over_.HasBeenNotified()) over_.Notify();
  }

 private:
  absl::Notification over_;
  std::thread thread_;
};

struct Flags : SelectorFlags {
  std::optional<uint32_t> count;
  bool watch = false;
  std::string exec;

  bool stays() const { return watch || !exec.empty(); }
};

class Follower {
 public:
  Follower(const Flags& flags, CtlContext* context)
      : flags_(flags),
        context_(context),
        live_(flags.watch && flags.exec.empty() && context->format == OutputFormat::kTable &&
              TerminalAt(STDOUT_FILENO).has_value()),
        silence_(context->target) {
    *request_.mutable_selector() = flags.ToProto();
    request_.set_upstream(flags.upstream);
  }

  // Until the count is reached, or the stream ends for good.
  int Run() {
    while (true) {
      const absl::Status status = FollowOneStream();
      if (!unprintable_.ok()) return context_->Report("subscribe", unprintable_);
      if (enough_) return kCtlOk;
      const bool passes = DecideNextStep(OperationKind::kSubscribe, status) == NextStep::kRetry;
      if (!flags_.stays() || !set_.known() || !passes) {
        return status.ok() ? kCtlOk : context_->Report("subscribe", status);
      }
      TellAway(status);
      absl::SleepFor(std::max(kReconnectDelay, RetryDelayOf(status).value_or(kReconnectDelay)));
    }
  }

 private:
  absl::Status FollowOneStream() {
    const std::unique_ptr<grpc::ClientContext> call = context_->NewStream();
    call->set_wait_for_ready(away_);
    request_.set_epoch(set_.epoch());
    request_.set_revision(set_.revision());
    const auto stream = context_->registry().Watch(call.get());
    WatchRequest commands;
    commands.add_commands()->set_watch_id(1);
    *commands.mutable_commands(0)->mutable_subscribe() = request_;
    stream->WriteLast(commands, grpc::WriteOptions());
    set_.Restart();
    WatchResponse message;
    std::optional<absl::Status> end;  // of the subscription, or what is wrong with it
    const auto over = [&] { return end.has_value() || enough_ || !unprintable_.ok(); };
    while (!over() && stream->Read(&message)) {
      for (const WatchItem& item : message.items()) {
        if (over()) break;
        if (item.has_end()) {
          end = StatusFromProto(item.end());
        } else if (absl::Status gap = Take(item.event()); !gap.ok()) {
          end = gap;
        }
      }
    }
    if (over()) call->TryCancel();
    absl::Status status = StatusFromGrpc(stream->Finish());
    if (absl::IsUnimplemented(status)) {
      status = absl::UnimplementedError(
          "the target has no Watch stream: it is older than this failbackctl; upgrade it");
    }
    return end.value_or(status);
  }

  // An error: the message does not follow on the one before.
  absl::Status Take(const SubscribeResponse& message) {
    silence_.End();
    const bool was_away = std::exchange(away_, false);
    const absl::StatusOr<std::optional<SubscribeResponse>> applied = set_.Apply(message);
    if (!applied.ok()) return applied.status();
    Show(message, *applied, was_away);
    return absl::OkStatus();
  }

  void Show(const SubscribeResponse& message, const std::optional<SubscribeResponse>& change,
            bool was_away) {
    const bool whole = live_ || !flags_.exec.empty();
    if (live_ && (change.has_value() || was_away)) Draw("");
    if (whole && !change.has_value()) return;
    if (!flags_.exec.empty()) {
      unprintable_ = Execute(*change);
    } else if (!live_) {
      unprintable_ = PrintMessage(message);
    }
    enough_ = flags_.count.value_or(0) > 0 && ++told_ >= flags_.count;
  }

  absl::Status Execute(const SubscribeResponse& change) const {
    const absl::StatusOr<std::string> json = FormatOne(OutputFormat::kJson, change);
    if (!json.ok()) return json.status();
    const absl::Status status = RunShellCommand(
        flags_.exec, *json, ChangeEnvironment(context_->target, request_.selector(), change, set_));
    if (status.ok()) return absl::OkStatus();
    std::fprintf(stderr, "failbackctl: subscribe: --exec, at revision %s: the command %s\n",
                 absl::StrCat(change.revision()).c_str(), std::string(status.message()).c_str());
    return absl::OkStatus();
  }

  absl::Status PrintMessage(const SubscribeResponse& message) {
    if (context_->format != OutputFormat::kTable) {
      return PrintText(FormatOne(context_->format, message));
    }
    const bool was_held = std::exchange(held_, message.held());
    Print(FormatEvent(message, absl::Now(), context_->palette, was_held));
    return absl::OkStatus();
  }

  // Once for each time that the target goes away.
  void TellAway(const absl::Status& status) {
    if (std::exchange(away_, true)) return;
    if (live_) return Draw("the target is unavailable; trying again");
    std::fprintf(stderr, "failbackctl: subscribe: %s; trying again\n",
                 status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str());
  }

  // The set itself, in place of what was drawn before.
  void Draw(const std::string& news) {
    std::vector<ServiceInstance> instances;
    instances.reserve(set_.instances().size());
    set_.instances().ForEach(
        [&](const Blob& instance) { instances.push_back(ParseInstance(instance)); });
    screen_.Draw(FormatFollowed(request_.selector(), instances, set_.revision(),
                                news.empty() && set_.stale() ? "the registry is unavailable" : news,
                                absl::Now(), context_->palette),
                 TerminalAt(STDOUT_FILENO).value_or(TerminalSize()));
  }

  const Flags& flags_;
  CtlContext* const context_;
  // Draws the set, instead of printing changes.
  const bool live_;
  SilenceNotice silence_;
  SubscribeRequest request_;
  FollowedSet set_;
  bool held_ = false;  // as printed last
  Screen screen_;
  bool away_ = false;
  uint32_t told_ = 0;
  bool enough_ = false;
  // Not OK: a message that cannot be printed, which ends it.
  absl::Status unprintable_;
};

}  // namespace

void AddSubscribeCommand(CLI::App* app, CtlAction* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      app->add_subcommand("subscribe", "follow a service, or the list of services");
  command->footer(
      "Prints what is there, then each change. Without SERVICE the services of the namespace are\n"
      "followed, with their numbers of instances. With -o json each message is one line, with -o "
      "yaml one document.\n"
      "It goes on until it is ended, or for --count messages, however long the first takes;\n"
      "--timeout does not end it.\n"
      "--exec: CMD runs in /bin/sh for each change, one at a time, with the change as JSON on its\n"
      "standard input and in its environment FAILBACK_EVENT (snapshot, delta, stale, fresh),\n"
      "FAILBACK_EVENT_SERVICE, _NAMESPACE, _EPOCH, _REVISION, _STALE, _COUNT, _UPSERTS and "
      "_REMOVALS.\n"
      "A CMD that fails is named on stderr, and the next change runs it again.\n\n"
      "Examples:\n"
      "  failbackctl subscribe orders\n"
      "  failbackctl subscribe --namespace staging\n"
      "  failbackctl subscribe orders --count 1 -o json\n"
      "  failbackctl subscribe orders --watch\n"
      "  failbackctl subscribe orders --exec 'jq -c .delta.upserts >> changes.jsonl'");
  command
      ->add_option("SERVICE", *flags->selector.mutable_service(),
                   "the service's name [the list of services]")
      ->type_name("SERVICE");
  AddNumber(command, "--count", "NUMBER", "a whole number from 0 up", &flags->count,
            "exit after so many messages; 0: never [0]");
  command->add_flag("--watch,-w", flags->watch,
                    "stay when the target goes away; on a terminal show the list itself");
  command->add_option("--exec", flags->exec, "run this for each change, and stay as with --watch")
      ->type_name("CMD");
  flags->AddTo(command);
  command->callback([action, flags] {
    *action = [flags](CtlContext* context) { return Follower(*flags, context).Run(); };
  });
}

}  // namespace failback
