#include "registry/security/certificate_expiry.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "registry/base/utf8.h"

namespace failback {
namespace {

constexpr absl::Duration kKept = absl::Hours(2);
constexpr absl::Duration kForgetEvery = absl::Minutes(1);
constexpr absl::Duration kTellEvery = absl::Hours(24);
constexpr size_t kMostName = 256;
constexpr size_t kMostHost = 64;

// "ipv4:10.0.0.7:40112" without the port; of a Unix socket "unix".
absl::string_view HostOf(absl::string_view peer) {
  if (peer.substr(0, 5) == "unix:") return "unix";
  const size_t scheme = peer.find(':');
  if (scheme == absl::string_view::npos) return peer;
  const absl::string_view address = peer.substr(scheme + 1);
  const size_t port = address.rfind(':');
  return port == absl::string_view::npos ? address : address.substr(0, port);
}

std::string Written(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

}  // namespace

void CertificateWatch::Note(absl::string_view name, absl::string_view peer, absl::string_view pem,
                            absl::Time now) {
  std::string key(name);
  CutUtf8(kMostName, &key);
  absl::StrAppend(&key, "\n", HostOf(peer).substr(0, kMostHost));
  const size_t digest = absl::HashOf(pem);
  absl::Time ends;
  bool known = false;
  {
    MutexLock lock(&mu_);
    const auto it = entries_.find(key);
    if (it == entries_.end()) {
      Forget(now);
      if (entries_.size() >= most_) return;
    } else {
      known = digest == it->second.digest || digest == it->second.other;
    }
  }
  // Which takes most of a millisecond, so no other call waits for it.
  CertificateTimes times;
  if (!known) times = TimesOfCertificate({pem.data(), pem.size()});
  {
    MutexLock lock(&mu_);
    const auto [it, is_new] = entries_.try_emplace(key);
    if (is_new && (known || entries_.size() > most_)) {  // it changed meanwhile
      entries_.erase(it);
      return;
    }
    Entry& entry = it->second;
    entry.seen = now;
    if (is_new || (!known && times.not_after >= entry.times.not_after)) {
      entry.other = std::exchange(entry.digest, digest);
      entry.times = times;
    } else if (!known) {
      entry.other = digest;
    }
    if (!entry.times.EndsSoon(now) || entry.logged_end == entry.times.not_after) return;
    entry.logged_end = ends = entry.times.not_after;
  }
  const size_t end_of_name = key.find('\n');
  log_.Log(LogLevel::kWarning, "a client's certificate ends soon",
           {{"client", key.substr(0, end_of_name)},
            {"host", key.substr(end_of_name + 1)},
            {"ends", Written(ends)}});
}

void CertificateWatch::Forget(absl::Time now) {
  if (now - forgot_ < kForgetEvery) return;
  forgot_ = now;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto entry = it++;
    if (now - entry->second.seen > kKept) entries_.erase(entry);
  }
}

CertificateWatch::Summary CertificateWatch::Look(absl::Time now) const {
  Summary summary;
  MutexLock lock(&mu_);
  for (const auto& [key, entry] : entries_) {
    if (now - entry.seen > kKept) continue;
    ++summary.seen;
    summary.first = std::min(summary.first, entry.times.not_after);
    if (!entry.times.EndsSoon(now)) continue;
    ++summary.ending;
    const size_t end_of_name = key.find('\n');
    summary.soonest.push_back({key.substr(0, end_of_name), key.substr(end_of_name + 1),
                               entry.times.not_after, entry.seen});
  }
  const auto sooner = [](const Seen& a, const Seen& b) {
    return std::tie(a.not_after, a.name, a.host) < std::tie(b.not_after, b.name, b.host);
  };
  const size_t most = std::min(kListed, summary.soonest.size());
  std::partial_sort(summary.soonest.begin(), summary.soonest.begin() + static_cast<int64_t>(most),
                    summary.soonest.end(), sooner);
  summary.soonest.resize(most);
  return summary;
}

void OwnCertificateLog::Look(const CertificateTimes& times, absl::Time now) {
  if (!times.EndsSoon(now)) return;
  const bool ended = now >= times.not_after;
  {
    MutexLock lock(&mu_);
    // That it has ended is news of its own.
    const bool news = ended && told_end_ != times.not_after;
    if (!news && now - told_ < kTellEvery) return;
    told_ = now;
    if (ended) told_end_ = times.not_after;
  }
  Log(ended ? LogLevel::kError : LogLevel::kWarning,
      ended ? "certificate has ended: new connections are refused" : "certificate ends soon",
      {{"of", of_}, {"ends", Written(times.not_after)}});
}

}  // namespace failback
