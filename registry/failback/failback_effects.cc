// What FailbackRegistry has decided under its lock, carried out without it.

#include <utility>

#include "registry/base/log.h"
#include "registry/failback/failback_core.h"

namespace failback {

void FailbackRegistry::Core::Effects::Answer(std::unique_ptr<DrainState> drain,
                                             absl::StatusOr<agent::v1::DrainResponse> answer) {
  all_.emplace_back(
      std::make_unique<DrainEnd>(DrainEnd{std::move(drain->done), std::move(answer)}));
}

void FailbackRegistry::Core::Effects::Log(LogLevel level, std::string event, LogFields fields) {
  all_.emplace_back(std::make_unique<LogLine>(LogLine{level, std::move(event), std::move(fields)}));
}

void FailbackRegistry::Core::CarryOut(Effects effects) {
  struct Visitor {
    void operator()(const std::shared_ptr<BatchReply>& reply) {
      std::move(reply->done)(std::move(reply->results));
    }
    void operator()(const std::unique_ptr<Effects::DrainEnd>& end) {
      std::move(end->done)(std::move(end->answer));
    }
    void operator()(const std::shared_ptr<Listing>& listing) { core->AnswerLate(listing.get()); }
    void operator()(const std::unique_ptr<IntentEvent>& event) {
      // After a callback of the same news has destroyed the registry there is no listener.
      if (!core->gate_.closed()) core->options_.on_event(*event);
    }
    void operator()(const std::unique_ptr<Effects::LogLine>& line) {
      Log(line->level, line->event, line->fields);
    }
    void operator()(const std::shared_ptr<SerialNotifier>& notifier) { notifier->Deliver(); }
    void operator()(const std::unique_ptr<SubscribeStream>&) {
      // Ends with `effects`, after all the rest: that may wait for a listener.
    }
    void operator()(const std::shared_ptr<Audit>& audit) { core->ListPage(audit); }
    void operator()(Effects::SessionEnd) { core->session_->Close(); }

    Core* const core;
  };
  for (Effects::Effect& effect : effects.all_) std::visit(Visitor{this}, effect);
}

}  // namespace failback
