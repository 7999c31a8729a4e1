#include "tests/simulate/network.h"

#include <utility>

namespace failback::simulate {
namespace {

void Arrive(const std::weak_ptr<Process>& to, Network::Work arrive, const Network::Work& refused) {
  if (const auto process = to.lock(); process != nullptr) return process->Run(std::move(arrive));
  if (refused) refused();
}

}  // namespace

void Network::Send(int index, Way way, std::weak_ptr<Process> to, Work arrive, Work refused) {
  Count(index);
  Link& link = this->link(index);
  if (!link.way(way).open || numbers_.Percent(link.loss)) return;
  if (numbers_.Percent(link.duplicates)) SendCopy(&link, way, to, arrive, refused);
  SendCopy(&link, way, std::move(to), std::move(arrive), std::move(refused));
}

void Network::SendCopy(Link* link, Way way, std::weak_ptr<Process> to, Work arrive, Work refused) {
  const bool late = numbers_.Percent(link->late);
  const absl::Duration delay = late ? Lateness(*link, way) : Delay(link);
  auto land = [to = std::move(to), arrive = std::move(arrive),
               refused = std::move(refused)]() mutable { Arrive(to, std::move(arrive), refused); };
  Link::State& state = link->way(way);
  if (!state.clogged) return wire_.After(delay, std::move(land));
  state.waiting.push_back(
      [this, delay, land = std::move(land)]() mutable { wire_.After(delay, std::move(land)); });
}

// An answer comes when its call is long over, too.
absl::Duration Network::Lateness(const Link& link, Way way) {
  const bool by_minutes = way == Way::kToClient && numbers_.Percent(link.late_by_minutes);
  return numbers_.Between(absl::ZeroDuration(), by_minutes ? absl::Minutes(4) : link.latest);
}

void Network::SendOnStream(int link, Way way, std::weak_ptr<Process> to, Work arrive, Work broken) {
  Count(link);
  TryOnStream(link, way, std::move(to), std::move(arrive), std::move(broken), clock_->NowNanos());
}

void Network::TryOnStream(int index, Way way, std::weak_ptr<Process> to, Work arrive, Work broken,
                          int64_t since) {
  Link& link = this->link(index);
  const Link::State& state = link.way(way);
  if (numbers_.Percent(link.loss)) {
    return wire_.After(Delay(&link), std::move(broken));  // more than TCP repairs
  }
  if (state.open && !state.clogged) {
    const bool late = link.late > 0 && numbers_.Percent(link.late);
    const absl::Duration delay =
        late ? numbers_.Between(absl::ZeroDuration(), link.latest) : Delay(&link);
    return wire_.After(
        delay, [to = std::move(to), arrive = std::move(arrive),
                broken = std::move(broken)]() mutable { Arrive(to, std::move(arrive), broken); });
  }
  if (absl::Nanoseconds(clock_->NowNanos() - since) >= kSilence) return broken();
  wire_.After(absl::Milliseconds(250),
              [this, index, way, to = std::move(to), arrive = std::move(arrive),
               broken = std::move(broken), since]() mutable {
                TryOnStream(index, way, std::move(to), std::move(arrive), std::move(broken), since);
              });
}

void Network::SendNews(int index, Way way, std::weak_ptr<Process> to, Work arrive) {
  Link& link = this->link(index);
  const Link::State& state = link.way(way);
  const bool passes = state.open && !state.clogged;
  wire_.After(passes ? Delay(&link) : absl::Milliseconds(500),
              [this, index, way, passes, to = std::move(to), arrive = std::move(arrive)]() mutable {
                if (passes) return Arrive(to, std::move(arrive), nullptr);
                if (!to.expired()) SendNews(index, way, std::move(to), std::move(arrive));
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
  auto waiting = std::exchange(state.waiting, {});
  for (auto& fly : waiting) fly();
}

void Network::Heal(int index) {
  Link& healed = link(index);
  for (const Way way : {Way::kToRegistry, Way::kToClient}) {
    SetOpen(index, way, true);
    SetClogged(index, way, false);
  }
  healed.loss = healed.duplicates = healed.late = healed.late_by_minutes = 0;
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
