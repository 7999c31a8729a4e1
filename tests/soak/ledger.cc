#include "tests/soak/ledger.h"

#include "absl/strings/str_cat.h"

namespace failback {

size_t Ledger::Intend(const std::string& key, bool present) {
  MutexLock lock(&mu_);
  std::vector<bool>& versions = present_[key];
  if (versions.empty()) versions.push_back(false);
  versions.push_back(present);
  return versions.size() - 1;
}

std::map<std::string, size_t> Ledger::Present() const {
  MutexLock lock(&mu_);
  std::map<std::string, size_t> present;
  for (const auto& [key, versions] : present_) {
    if (versions.back()) present[key] = versions.size() - 1;
  }
  return present;
}

size_t Ledger::NextGone(const std::string& key, size_t from) const {
  MutexLock lock(&mu_);
  const auto it = present_.find(key);
  if (it == present_.end()) return 0;
  for (size_t version = from; version < it->second.size(); ++version) {
    if (!it->second[version]) return version;
  }
  return 0;
}

bool Ledger::IsPresentAt(const std::string& key, size_t version) const {
  MutexLock lock(&mu_);
  const auto it = present_.find(key);
  return it != present_.end() && version < it->second.size() && it->second[version];
}

absl::Status View::SeePresent(const std::string& key, size_t version) {
  size_t& at_least = at_least_[key];
  if (!ledger_->IsPresentAt(key, version)) {
    return absl::InternalError(absl::StrCat(key, ": version ", version, " was never registered"));
  }
  if (version < at_least) {
    return absl::InternalError(absl::StrCat(key, ": version ", version, " is back after ", at_least,
                                            ": an older state, or a resurrected instance"));
  }
  at_least = version;
  return absl::OkStatus();
}

absl::Status View::SeeGone(const std::string& key) {
  size_t& at_least = at_least_[key];
  const size_t gone = at_least == 0 ? 0 : ledger_->NextGone(key, at_least);
  if (at_least != 0 && gone == 0) {
    return absl::InternalError(
        absl::StrCat(key, ": gone after version ", at_least, ", and nobody unregistered it: lost"));
  }
  at_least = gone;
  return absl::OkStatus();
}

}  // namespace failback
