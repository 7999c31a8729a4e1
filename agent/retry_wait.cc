#include "agent/retry_wait.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"
#include "retry/mutex.h"

namespace failback {
namespace {

using agent::v1::PendingOperation;
using agent::v1::RetryRequest;
using agent::v1::RetryResponse;

constexpr absl::Duration kMaxWait = absl::Minutes(5);
constexpr absl::Duration kFirstLook = absl::Milliseconds(10);
constexpr absl::Duration kLastLook = absl::Milliseconds(500);

// Row and upstream.
using Name = std::pair<std::string, std::string>;
Name NameOf(const PendingOperation& row) { return {row.id(), row.upstream()}; }

bool IsUnderWay(const PendingOperation& row) {
  return row.state() == agent::v1::PENDING_STATE_QUEUED ||
         row.state() == agent::v1::PENDING_STATE_IN_FLIGHT;
}

struct Wait {
  std::set<Name> named;
  int64_t retried = 0;
  absl::Time end;
  absl::Duration next_look = kFirstLook;
  Callback<RetryResponse> done;
  Timeout timeout;
};

}  // namespace

struct RetryWaits::Core : std::enable_shared_from_this<Core> {
  Core(FailbackGroup* group, HashedWheelTimer* timer) : group(group), timer(timer) {}

  // How the operations named are now; whether an attempt of one is under way.
  std::pair<RetryResponse, bool> Look(const Wait& wait) const {
    RetryResponse response;
    response.set_retried(wait.retried);
    bool under_way = false;
    int64_t left = 0;
    for (PendingOperation& row : group->Pending()) {
      if (wait.named.count(NameOf(row)) == 0) continue;
      ++left;
      under_way |= IsUnderWay(row);
      if (response.remaining_size() < kMaxRemaining) *response.add_remaining() = std::move(row);
    }
    response.set_done(static_cast<int64_t>(wait.named.size()) - left);
    return {std::move(response), under_way};
  }

  // Answers, or looks again later.
  void Step(const std::shared_ptr<Wait>& wait) {
    auto [response, under_way] = Look(*wait);
    {
      MutexLock lock(&mu);
      // The thread that takes it out of the set answers.
      if (waits.count(wait) == 0) return;
      if (under_way && !closed && timer->clock()->WallNow() < wait->end) {
        auto timeout = timer->NewTimeout(
            [weak = weak_from_this(), wait] {
              if (auto self = weak.lock()) self->Step(wait);
            },
            wait->next_look);
        wait->next_look = std::min(wait->next_look * 2, kLastLook);
        if (timeout.ok()) {
          wait->timeout = *std::move(timeout);
          return;
        }
      }
      waits.erase(wait);
    }
    std::move(wait->done)(std::move(response));
  }

  FailbackGroup* const group;
  HashedWheelTimer* const timer;
  Mutex mu;
  bool closed ABSL_GUARDED_BY(mu) = false;
  std::set<std::shared_ptr<Wait>> waits ABSL_GUARDED_BY(mu);
};

RetryWaits::RetryWaits(FailbackGroup* group, HashedWheelTimer* timer)
    : core_(std::make_shared<Core>(group, timer)) {}

RetryWaits::~RetryWaits() { Close(); }

void RetryWaits::Retry(const RetryRequest& request, Callback<RetryResponse> done) {
  const absl::Duration patience = FromProto(request.wait());
  if (patience < absl::ZeroDuration() || patience > kMaxWait) {
    return std::move(done)(
        InvalidField("wait", absl::StrCat(absl::FormatDuration(patience), " is not in 0s..5m")));
  }
  auto wait = std::make_shared<Wait>();
  if (request.has_wait()) {
    const std::set<std::string> ids(request.selector().ids().begin(),
                                    request.selector().ids().end());
    for (const PendingOperation& row : core_->group->Pending()) {
      if (!ids.empty() && ids.count(row.id()) == 0) continue;
      if (!request.selector().upstream().empty() &&
          request.selector().upstream() != row.upstream()) {
        continue;
      }
      wait->named.insert(NameOf(row));
    }
  }
  const absl::StatusOr<int64_t> retried = core_->group->Retry(request.selector());
  if (!retried.ok()) return std::move(done)(retried.status());
  wait->retried = *retried;
  if (!request.has_wait()) {
    RetryResponse response;
    response.set_retried(*retried);
    return std::move(done)(std::move(response));
  }
  wait->end = core_->timer->clock()->WallNow() + patience;
  wait->done = std::move(done);
  {
    MutexLock lock(&core_->mu);
    core_->waits.insert(wait);
  }
  core_->Step(wait);
}

void RetryWaits::Close() {
  std::set<std::shared_ptr<Wait>> waits;
  std::vector<Timeout> timeouts;
  {
    MutexLock lock(&core_->mu);
    core_->closed = true;
    waits = core_->waits;
    for (const std::shared_ptr<Wait>& wait : waits) timeouts.push_back(std::move(wait->timeout));
  }
  // None looks at the group after this has returned.
  for (Timeout& timeout : timeouts) {
    if (timeout && !timeout.Cancel()) timeout.Wait();
  }
  for (const std::shared_ptr<Wait>& wait : waits) core_->Step(wait);
}

}  // namespace failback
