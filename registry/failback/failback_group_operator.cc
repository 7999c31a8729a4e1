// FailbackGroup: what an operator sees of all upstreams at once, and does to them.

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_group.h"
#include "registry/failback/fan_out.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {

std::string FailbackGroup::incarnation() const { return members_->front().registry->incarnation(); }

std::vector<agent::v1::UpstreamStatus> FailbackGroup::UpstreamStatuses() const {
  std::vector<agent::v1::UpstreamStatus> statuses;
  for (const Member& member : *members_) {
    agent::v1::UpstreamStatus& status = statuses.emplace_back(member.registry->UpstreamStatus());
    status.set_name(member.name);
    status.set_uri(member.uri);
    status.set_incarnation(member.registry->incarnation());
  }
  return statuses;
}

std::vector<FailbackStatistics> FailbackGroup::Stats() const {
  std::vector<FailbackStatistics> all;
  for (const Member& member : *members_) {
    all.emplace_back(member.registry->Stats()).upstream = member.name;
  }
  return all;
}

int64_t FailbackGroup::local_sessions() const {
  int64_t most = 0;
  for (const Member& member : *members_) most = std::max(most, member.registry->local_sessions());
  return most;
}

bool FailbackGroup::draining() const { return members_->front().registry->draining(); }

std::vector<agent::v1::PendingOperation> FailbackGroup::Pending(const PendingRange& range) const {
  std::vector<agent::v1::PendingOperation> rows;
  for (const Member& member : *members_) {
    auto own = member.registry->Pending(range);
    std::move(own.begin(), own.end(), std::back_inserter(rows));
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::tie(a.id(), a.upstream()) < std::tie(b.id(), b.upstream());
  });
  // The first of all are among the first of each.
  if (rows.size() > range.most) rows.resize(range.most);
  return rows;
}

std::vector<CarriedRecord> FailbackGroup::Carried(const std::string& begins) const {
  std::vector<CarriedRecord> records;
  for (const Member& member : *members_) {
    std::vector<CarriedRecord> of_member = member.registry->Carried(begins);
    std::move(of_member.begin(), of_member.end(), std::back_inserter(records));
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const auto& a, const auto& b) { return a.key < b.key; });
  return records;
}

absl::StatusOr<int64_t> FailbackGroup::ForPending(const agent::v1::PendingSelector& selector,
                                                  Act act) {
  const auto members = members_;
  if (absl::Status status = CheckUpstream("selector.upstream", selector.upstream()); !status.ok()) {
    return status;
  }
  // Which of the ids are pending at which member.
  const std::set<std::string> ids(selector.ids().begin(), selector.ids().end());
  std::set<std::string> unknown = ids;
  std::vector<std::pair<FailbackRegistry*, std::vector<std::string>>> shares;
  for (const Member& member : *members) {
    if (!selector.upstream().empty() && selector.upstream() != member.name) continue;
    std::vector<std::string> share;
    if (!ids.empty()) {
      for (const auto& row : member.registry->Pending()) {
        if (ids.count(row.id()) == 0) continue;
        unknown.erase(row.id());
        share.push_back(row.id());
      }
    }
    if (ids.empty() || !share.empty()) shares.emplace_back(member.registry.get(), std::move(share));
  }
  if (!unknown.empty()) {
    return Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                   absl::StrCat(Quoted(*unknown.begin(), kMaxQuotedId),
                                " is not pending; `failbackctl pending` lists what is"));
  }
  int64_t sum = 0;
  for (const auto& [registry, share] : shares) {
    const absl::StatusOr<int64_t> count = act(registry, share);
    // One that was acknowledged meanwhile needs nothing any more.
    if (count.ok()) {
      sum += *count;
    } else if (!absl::IsNotFound(count.status())) {
      return count.status();
    }
  }
  return sum;
}

absl::StatusOr<int64_t> FailbackGroup::Retry(const agent::v1::PendingSelector& selector) {
  return ForPending(selector, [](FailbackRegistry* registry, const std::vector<std::string>& ids) {
    return registry->Retry(ids);
  });
}

absl::StatusOr<int64_t> FailbackGroup::Cancel(const agent::v1::PendingSelector& selector,
                                              int64_t* sent) {
  return ForPending(selector,
                    [sent](FailbackRegistry* registry, const std::vector<std::string>& ids) {
                      return registry->Cancel(ids, sent);
                    });
}

void FailbackGroup::WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done) {
  const auto members = members_;
  FanOut<bool>(
      *members,
      [](size_t, FailbackRegistry& member, Callback<bool> done) {
        member.WhenDurable([done = std::move(done)](const absl::Status& status) mutable {
          std::move(done)(status.ok() ? absl::StatusOr<bool>(true) : status);
        });
      },
      [done = std::move(done)](const Answers<bool>& answers) mutable {
        for (const auto& answer : answers) {
          if (!answer.ok()) return std::move(done)(answer.status());
        }
        std::move(done)(absl::OkStatus());
      });
}

void FailbackGroup::Drain(absl::Duration deadline, Callback<agent::v1::DrainResponse> done) {
  const auto members = members_;
  using agent::v1::DrainResponse;
  FanOut<DrainResponse>(
      *members,
      [deadline](size_t, FailbackRegistry& member, Callback<DrainResponse> done) {
        member.Drain(deadline, std::move(done));
      },
      [done = std::move(done)](const Answers<DrainResponse>& answers) mutable {
        DrainResponse sum;
        for (const auto& answer : answers) {
          if (!answer.ok()) return std::move(done)(answer.status());
          sum.set_unregistered(sum.unregistered() + answer->unregistered());
          sum.set_remaining(sum.remaining() + answer->remaining());
          sum.set_persistent(sum.persistent() + answer->persistent());
          for (const agent::v1::DrainRemainder& remainder : answer->left()) {
            if (sum.left_size() < static_cast<int>(kMaxDrainLeft)) *sum.add_left() = remainder;
          }
        }
        std::move(done)(std::move(sum));
      });
}

}  // namespace failback
