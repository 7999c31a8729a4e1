// A storage whose rows a test can look at, and whose writes it can make fail.

#ifndef FAILBACK_TESTS_REGISTRY_STORE_FAKE_STORAGE_H_
#define FAILBACK_TESTS_REGISTRY_STORE_FAKE_STORAGE_H_

#include <map>
#include <string>
#include <utility>

#include "registry/store/sqlite/storage.h"

namespace failback {

// The rows of a store; several lives of a FakeStorage may share them.
struct FakeRows {
  StoreIdentity identity = {"fake-store", 77, 0, 1};
  std::map<uint64_t, IncarnationRow> incarnations;
  std::map<int64_t, SessionRow> sessions;
  std::map<int64_t, std::pair<std::string, RecordRow>> records;  // with the key's bytes
  absl::Status write_status;                                     // not OK: writes fail with it
  int writes = 0;

  absl::Status Write(const WriteSet& set) {
    if (!write_status.ok()) return write_status;
    ++writes;
    for (const auto& row : set.incarnations) incarnations[row.rank] = row;
    for (const auto& row : set.sessions) sessions[row.id] = row;
    for (const auto& row : set.records) records[row.id] = {std::string(row.key), row};
    for (const auto id : set.removed_records) records.erase(id);
    for (const auto id : set.removed_sessions) sessions.erase(id);
    for (const auto rank : set.removed_incarnations) incarnations.erase(rank);
    identity.revision = set.revision;
    identity.next_rank = set.next_rank;
    return absl::OkStatus();
  }
};

class FakeStorage : public Storage {
 public:
  // `rows` outlives the storage.
  explicit FakeStorage(FakeRows* rows) : rows_(rows) {}

  StoreIdentity identity() const override { return rows_->identity; }
  absl::Status Read(StoreReader* reader) override {
    for (const auto& [rank, row] : rows_->incarnations) {
      if (auto status = reader->OnIncarnation(row); !status.ok()) return status;
    }
    for (const auto& [id, row] : rows_->sessions) {
      if (auto status = reader->OnSession(row); !status.ok()) return status;
    }
    for (const auto& [id, entry] : rows_->records) {
      RecordRow row = entry.second;
      row.key = entry.first;
      if (auto status = reader->OnRecord(std::move(row)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status Write(const WriteSet& writes) override { return rows_->Write(writes); }
  bool blocks() const override { return false; }

 private:
  FakeRows* const rows_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_STORE_FAKE_STORAGE_H_
