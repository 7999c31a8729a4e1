#include "registry/failback/former_owners.h"

#include <algorithm>

namespace failback {
namespace {

// Of all places, those that one owner may take: a quarter.
constexpr size_t kShare = 4;

}  // namespace

void FormerOwners::Leave(const std::string& incarnation, const std::string& owner,
                         int64_t now_nanos) {
  Take(incarnation);
  if (owner.empty() || max_ == 0) return;
  // In the order in which they were left they end, too.
  while (!all_.empty() && left_.at(all_.begin()->second).until_nanos <= now_nanos) DropFirst(all_);
  if (const auto own = by_owner_.find(owner); own != by_owner_.end()) {
    if (own->second.size() >= std::max<size_t>(1, max_ / kShare) || left_.size() >= max_) {
      DropFirst(own->second);
    }
  } else if (left_.size() >= max_) {
    DropFirst(all_);
  }
  const uint64_t serial = ++last_serial_;
  left_[incarnation] = {owner, serial, now_nanos + life_nanos_};
  all_[serial] = incarnation;
  by_owner_[owner][serial] = incarnation;
}

void FormerOwners::Take(const std::string& incarnation) {
  const auto it = left_.find(incarnation);
  if (it == left_.end()) return;
  const auto own = by_owner_.find(it->second.owner);
  own->second.erase(it->second.serial);
  if (own->second.empty()) by_owner_.erase(own);
  all_.erase(it->second.serial);
  left_.erase(it);
}

std::string FormerOwners::OwnerOf(const std::string& incarnation, int64_t now_nanos) const {
  const auto it = left_.find(incarnation);
  return it == left_.end() || it->second.until_nanos <= now_nanos ? "" : it->second.owner;
}

void FormerOwners::DropFirst(const Order& order) {
  const std::string first = order.begin()->second;  // what it is read from goes
  Take(first);
}

}  // namespace failback
