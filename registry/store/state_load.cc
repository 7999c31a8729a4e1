#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/utf8.h"
#include "registry/model/canonical.h"
#include "registry/model/ids.h"
#include "registry/model/offline_mark.h"
#include "registry/model/stored_text.h"
#include "registry/store/state.h"

namespace failback {

// Builds the state from rows, and refuses what no transaction can have written.
class State::Loader : public StoreReader {
 public:
  Loader(State* state, Moment now) : state_(state), now_(now) {}

  absl::Status OnIncarnation(IncarnationRow row) override {
    if (row.rank == 0 || row.rank > kMost || row.name.empty()) {
      return Bad("incarnation", row.rank, "has no rank or name");
    }
    if (row.last_seen_ms < -kMost || row.last_seen_ms > kMost) {
      return Bad("incarnation", row.rank, "was seen at no possible time");
    }
    if (state_->by_rank_.contains(row.rank) || state_->by_name_.contains(row.name)) {
      return Bad("incarnation", row.rank, "is there twice");
    }
    auto incarnation = std::make_unique<Incarnation>();
    incarnation->rank = row.rank;
    incarnation->name = std::move(row.name);
    incarnation->client_name = MadeUtf8(std::move(row.client_name));
    incarnation->owner = std::move(row.owner);
    incarnation->stored_ms = row.last_seen_ms;
    incarnation->last_seen_ms = row.last_seen_ms + State::kSeenSlackMs;
    state_->AddIncarnation(std::move(incarnation));
    state_->next_rank_ = std::max(state_->next_rank_, row.rank + 1);
    return absl::OkStatus();
  }

  absl::Status OnSession(SessionRow row) override {
    const auto incarnation = state_->by_rank_.find(row.rank);
    if (incarnation == state_->by_rank_.end()) {
      return Bad("session", row.id, absl::StrCat("is of rank ", row.rank, ", which is not there"));
    }
    if (row.id <= 0 || row.id > kMost || row.session_id.empty() || row.ttl_ms <= 0) {
      return Bad("session", row.id, "has no id or no TTL");
    }
    if (incarnation->second->session != nullptr || state_->sessions_.contains(row.session_id)) {
      return Bad("session", row.id, "is there twice");
    }
    auto session = std::make_unique<Session>();
    session->row = row.id;
    session->id = std::move(row.session_id);
    session->incarnation = incarnation->second.get();
    session->ttl_ms = std::min(row.ttl_ms, kLongestTtlMs);
    session->ends_with_stream = row.ends_with_stream;
    session->incarnation->session = session.get();
    if (session->incarnation->totals != nullptr) ++session->incarnation->totals->sessions;
    if (session->incarnation->owner.empty()) {
      // From before the owner was kept with the incarnation; it is stored when the session ends.
      state_->SetOwner(session->incarnation, SessionOwner(session->id));
      session->incarnation->stored_ms = 0;
    }
    const std::string_view id = session->id;
    state_->sessions_.emplace(id, std::move(session));
    state_->next_session_row_ = std::max(state_->next_session_row_, row.id + 1);
    return absl::OkStatus();
  }

  absl::Status OnRecord(RecordRow row) override {
    if (row.id <= 0 || row.id > kMost || !IsCanonicalKey(row.key)) {
      return Bad("record", row.id, "has no id or no key");
    }
    if (row.session < 0 || row.session > kMost) {
      return Bad("record", row.id, "is of no possible session");
    }
    const HashedKey key(row.key);
    if (state_->FindRecord(key) != nullptr) return Bad("record", row.id, "is there twice");
    RecordVersion version;
    version.instance = std::move(row.instance);
    version.offline = std::move(row.offline);
    version.fence = {row.fence_rank, row.fence_generation, row.fence_digest, row.fence_registers};
    version.session = row.session;
    version.create_revision = row.create_revision;
    version.modify_revision = row.modify_revision;
    version.create_ms = row.create_ms;
    version.modify_ms = row.modify_ms;
    version.retention_ms = row.retention_ms;
    version.persistent = row.persistent;
    if (version.empty())
      return Bad("record", row.id, "has neither an instance nor a fence nor a mark");
    if (version.offline) version.offline = MendMark(row.key, version.offline);
    if (version.fence.rank != 0 && !state_->by_rank_.contains(version.fence.rank)) {
      return Bad("record", row.id,
                 absl::StrCat("is of rank ", version.fence.rank, ", which is not there"));
    }
    if (row.owner_rank != 0) {
      const auto owner = state_->by_rank_.find(row.owner_rank);
      if (owner == state_->by_rank_.end() || !version.instance ||
          version.fence.rank != row.owner_rank) {
        return Bad("record", row.id, "has an owner that does not fit");
      }
      version.owner = owner->second.get();
      if (!version.persistent &&
          (version.owner->session == nullptr || version.owner->session->row != version.session)) {
        version = version.WithoutInstance();  // it went with its session
      }
    }
    if (version.instance && HasUnreadableText(version.instance.view())) {
      LogUnreadable("left out", row.key);
      version = version.WithoutInstance();
    }
    state_->next_session_row_ = std::max(state_->next_session_row_, row.session + 1);
    state_->next_record_row_ = std::max(state_->next_record_row_, row.id + 1);
    if (version.empty()) return absl::OkStatus();
    Record* const record = state_->NewRecord(key);
    record->row = row.id;
    state_->SetVersion(record, std::move(version), now_.monotonic_ms);
    return absl::OkStatus();
  }

 private:
  // Sums of what rows hold have room.
  static constexpr int64_t kMost = int64_t{1} << 53;
  static constexpr int64_t kLongestTtlMs = int64_t{366} * 24 * 3600 * 1000;

  // One record that no client can parse would make every listing with it unreadable.
  void LogUnreadable(const char* what, std::string_view key) {
    constexpr int kMostLines = 20;
    if (++unreadable_ > kMostLines) return;
    Log(LogLevel::kError, "a stored record holds text that is not UTF-8",
        {{"instance", CanonicalKeyText(key)}, {"what", what}});
  }

  Blob MendMark(std::string_view key, const Blob& mark) {
    const std::string mended = ReadableMark(mark.view());
    if (mended == mark.view()) return mark;
    LogUnreadable("mark mended", key);
    return Blob(mended);
  }

  template <typename Id>
  static absl::Status Bad(const char* what, Id id, const std::string& why) {
    return absl::DataLossError(absl::StrCat(what, " ", id, " ", why));
  }

  State* const state_;
  const Moment now_;
  int unreadable_ = 0;
};

absl::Status State::Load(Storage* storage, Moment now) {
  const StoreIdentity identity = storage->identity();
  store_id_ = identity.store_id;
  epoch_ = identity.epoch;
  revision_ = identity.revision;
  next_rank_ = std::max<uint64_t>(identity.next_rank, 1);
  Loader loader(this, now);
  if (auto status = storage->Read(&loader); !status.ok()) return status;
  for (const auto& [rank, incarnation] : by_rank_) {
    if (incarnation->session == nullptr) ended_.emplace(incarnation->last_seen_ms, rank);
  }
  return absl::OkStatus();
}

}  // namespace failback
