#include "agent/readiness.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

std::string StateText(agent::v1::UpstreamState state) {
  return absl::AsciiStrToLower(agent::v1::UpstreamState_Name(state).substr(15));
}

const std::string& NameOf(const agent::v1::UpstreamStatus& upstream) {
  return upstream.name().empty() ? upstream.uri() : upstream.name();
}

// The words of an error, or its code for a caller who may not see them.
std::string WordsOf(const rpc::v1::Status& error) {
  if (!error.message().empty()) return error.message();
  return absl::StatusCodeToString(StatusFromProto(error).code());
}

}  // namespace

absl::Status Readiness(const agent::v1::GetStatusResponse& status) {
  for (const agent::v1::UpstreamStatus& upstream : status.upstreams()) {
    if (upstream.has_journal_error()) {
      return absl::UnavailableError(absl::StrCat(
          "what is stated now would not survive this agent: ", WordsOf(upstream.journal_error())));
    }
    if (upstream.has_lapsed_since()) {
      return absl::UnavailableError(absl::StrCat("the lease at ", NameOf(upstream),
                                                 " has run out (", WordsOf(upstream.last_error()),
                                                 ")"));
    }
    if (upstream.state() != agent::v1::UPSTREAM_STATE_READY) {
      return absl::UnavailableError(absl::StrCat(
          NameOf(upstream), upstream.refused() ? " refuses this agent, and is " : " is ",
          StateText(upstream.state()),
          upstream.last_error().code() == 0
              ? ""
              : absl::StrCat(" (", WordsOf(upstream.last_error()), ")")));
    }
    // What a later incarnation holds is that one's to serve: a standby is ready.
    if (upstream.acknowledged() + upstream.superseded() < upstream.desired()) {
      return absl::UnavailableError(absl::StrCat(
          NameOf(upstream), " has acknowledged ", upstream.acknowledged(), " of ",
          upstream.desired(), " instances",
          upstream.parked() == 0 ? ""
                                 : absl::StrCat(", ", upstream.parked(), " of its operations ",
                                                upstream.parked() == 1 ? "is" : "are",
                                                " parked: `failbackctl pending` says why")));
    }
  }
  return absl::OkStatus();
}

void ReadinessWatch::Start(HashedWheelTimer* timer) {
  notify_(false);
  MutexLock lock(&mu_);
  auto looking =
      PeriodicTask::Start(timer, absl::ZeroDuration(), kLookInterval, [this] { Look(); });
  if (looking.ok()) looking_ = *std::move(looking);
}

void ReadinessWatch::Stop() {
  // Its end waits for a look under way, which takes the lock.
  std::unique_ptr<PeriodicTask> looking;
  {
    MutexLock lock(&mu_);
    looking.swap(looking_);
  }
}

void ReadinessWatch::Look() {
  const bool ready = look_().ok();
  MutexLock lock(&mu_);
  if (!draining_ && !ready_ && ready) {
    ready_ = true;
    notify_(true);
  }
  if ((draining_ || ready_) && looking_ != nullptr) looking_->Stop();
}

bool ReadinessWatch::ready() const {
  MutexLock lock(&mu_);
  return ready_ && !draining_;
}

void ReadinessWatch::Draining() {
  MutexLock lock(&mu_);
  draining_ = true;
  notify_(false);
}

}  // namespace failback
