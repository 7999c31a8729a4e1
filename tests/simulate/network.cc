#include "tests/simulate/network.h"

#include <utility>

namespace failback::simulate {
namespace {

void Arrive(const std::weak_ptr<Process>& to, const Network::Work& arrive,
            const Network::Work& refused) {
  if (const auto process = to.lock(); process != nullptr) return process->Run(arrive);
  if (refused) refused();
}

}  // namespace

void Network::Send(int index, Way way, const std::weak_ptr<Process>& to, const Work& arrive,
                   const Work& refused) {
  ++sent_;
  Link& link = this->link(index);
  Link::State& state = link.way(way);
  if (!state.open || numbers_.Percent(link.loss)) return;
  const int copies = numbers_.Percent(link.duplicates) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    const bool late = numbers_.Percent(link.late);
    const absl::Duration delay =
        late ? numbers_.Between(absl::ZeroDuration(), link.latest) : Delay(&link);
    Work fly = [this, delay, to, arrive, refused] {
      wire_.After(delay, [to, arrive, refused] { Arrive(to, arrive, refused); });
    };
    if (state.clogged) {
      state.waiting.push_back(std::move(fly));
    } else {
      fly();
    }
  }
}

void Network::SendOnStream(int link, Way way, const std::weak_ptr<Process>& to, const Work& arrive,
                           const Work& broken) {
  ++sent_;
  TryOnStream(link, way, to, arrive, broken, clock_->NowNanos());
}

void Network::TryOnStream(int index, Way way, const std::weak_ptr<Process>& to, const Work& arrive,
                          const Work& broken, int64_t since) {
  Link& link = this->link(index);
  const Link::State& state = link.way(way);
  if (numbers_.Percent(link.loss)) {
    wire_.After(Delay(&link), broken);  // more than TCP repairs
    return;
  }
  if (state.open && !state.clogged) {
    wire_.After(Delay(&link), [to, arrive, broken] { Arrive(to, arrive, broken); });
    return;
  }
  if (absl::Nanoseconds(clock_->NowNanos() - since) >= kSilence) return broken();
  wire_.After(absl::Milliseconds(250), [=] { TryOnStream(index, way, to, arrive, broken, since); });
}

void Network::SendNews(int index, Way way, const std::weak_ptr<Process>& to, const Work& arrive) {
  Link& link = this->link(index);
  const Link::State& state = link.way(way);
  const bool passes = state.open && !state.clogged;
  wire_.After(passes ? Delay(&link) : absl::Milliseconds(500), [=] {
    if (passes) return Arrive(to, arrive, nullptr);
    if (!to.expired()) SendNews(index, way, to, arrive);
  });
}

void Network::SetOpen(int index, Way way, bool open) {
  Link::State& state = link(index).way(way);
  if (state.open && !open) state.shut_since = clock_->NowNanos();
  state.open = open;
}

void Network::SetClogged(int index, Way way, bool clogged) {
  Link::State& state = link(index).way(way);
  state.clogged = clogged;
  if (clogged) return;
  const auto waiting = std::exchange(state.waiting, {});
  for (const Work& fly : waiting) fly();
}

void Network::Heal(int index) {
  Link& healed = link(index);
  for (const Way way : {Way::kToRegistry, Way::kToClient}) {
    SetOpen(index, way, true);
    SetClogged(index, way, false);
  }
  healed.loss = healed.duplicates = healed.late = 0;
  healed.slowest = absl::Milliseconds(20);
  healed.refuses_numbers = false;
}

bool Network::IsSilent(int index) {
  const int64_t now = clock_->NowNanos();
  for (const Link::State& state : link(index).ways) {
    if (!state.open && absl::Nanoseconds(now - state.shut_since) >= kSilence) return true;
  }
  return false;
}

}  // namespace failback::simulate
