// The SQLite file of an intent journal: what is read from it at the start, and how a group of
// changes is written as one transaction. registry/failback/intent_journal.h decides when.
//
// Rows have integer ids that the caller keeps with its records; keys are not indexed on disk,
// because an append to an integer table is an order of magnitude faster than an insert into a text
// index. Each row has a checksum, and there is one of all that the file says of itself, with the
// sum of all rows in it: rows that are whole may be of different writes.
//
// Beside the file is a mark of how far it has come (registry/store/sqlite/store_mark.h), by which a
// file that was put back to an earlier moment is noticed. Then each row that it holds is marked as
// in doubt, in one transaction, and the mark goes on from there: what is written since is in no
// doubt, also at the next start, and a file that is put back once more is noticed again.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_FAILBACK_JOURNAL_FILE_H_
#define FAILBACK_REGISTRY_FAILBACK_JOURNAL_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/base/disk.h"
#include "registry/failback/journal_snapshots.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/store_mark.h"

namespace failback {

// Why an intent counts for nothing until its owner states it again or an operator retries it.
enum class Doubt : uint8_t {
  kNone,
  // It is from a journal that was put back.
  kOfJournal,
  // It was not in that journal: the registry holds it. Left there, and shown as parked.
  kOfRegistry,
};

struct JournalIntent {
  int64_t row = 0;
  // Canonical.
  std::string key;
  bool present = false;
  bool persistent = false;
  // Serialized ServiceInstance; empty unless present.
  std::string payload;
  uint64_t generation = 0;
  // The local session that owns it (its incarnation, and who opened it), its TTL and its own
  // number; empty: none.
  std::string owner;
  absl::Duration owner_ttl;
  uint64_t owner_generation = 0;
  // An operator has cancelled it: neither sent nor repaired.
  bool given_up = false;
  Doubt doubt = Doubt::kNone;
};

// Changes that are written together.
struct JournalBatch {
  std::map<int64_t, std::optional<JournalIntent>> rows;  // nullopt: removed
  std::map<std::string, std::string> snapshots;          // by selector
  // Of the file from the next start on, and which one of the options they take the place of.
  std::optional<std::string> incarnation;
  std::optional<std::string> refused;
  uint64_t generation = 0;  // the highest
  uint64_t sequence = 0;    // of the last change
  bool settled = false;     // nothing that the file held at the start is in doubt any more

  bool empty() const {
    return rows.empty() && snapshots.empty() && !incarnation.has_value() && !settled;
  }
  // From the next start on `incarnation` is the one of the file, also where that is opened with
  // `refused`, which it takes the place of.
  void ReplaceIncarnation(const std::string& refused, const std::string& incarnation);
  // Adds what came later, which wins.
  void Merge(JournalBatch later);
};

class JournalFile {
 public:
  // What errors call it.
  static constexpr char kKind[] = "intent journal";

  // `incarnation` names this run of the process from now on; empty: the one in the file, or a new
  // one. `full_sync`: commits survive a power cut, too.
  // `disk` outlives it.
  JournalFile(std::string path, std::string incarnation, bool full_sync, Disk* disk = Disk::Real());
  ~JournalFile();

  // Opens the file, or makes one, and reads it. After an error it is closed and may be opened
  // again: UNAVAILABLE, it cannot be read now; DATA_LOSS, it is damaged; FAILED_PRECONDITION, a
  // newer version has written it.
  absl::Status Open();

  // Moves the file aside, where a damaged one is kept, and returns where to.
  absl::StatusOr<std::string> MoveAside();
  // The damaged ones that are still kept aside, the first that is missing and what is after it left
  // out.
  std::vector<std::string> Aside() const;

  // Writes a batch as one transaction.
  absl::Status Write(const JournalBatch& batch);

  const std::string& path() const { return path_; }
  bool is_open() const { return db_ != nullptr; }
  // Of the file and its log.
  int64_t bytes() const;

  // What was read. Intents by row; snapshots oldest first.
  std::vector<JournalIntent> TakeIntents();
  // Rows that hold no intent which could be submitted today, and which TakeIntents leaves out.
  const std::vector<int64_t>& left_out() const { return left_out_; }
  std::vector<JournalSnapshot> TakeSnapshots();
  const std::string& incarnation() const { return incarnation_; }
  uint64_t last_generation() const { return last_generation_; }
  int64_t last_row() const { return last_row_; }
  // The file is not as it was at the end of the last run, or was not at an earlier start and no
  // batch that is `settled` has been written since: the registry is to be asked.
  bool was_put_back() const { return was_put_back_; }
  // Whether Open could write to it.
  const absl::Status& first_write() const { return first_write_; }

 private:
  // What the file says of all its rows.
  struct Meta {
    std::string incarnation;
    std::string refused;  // in its place, when the options name this one
    uint64_t generation = 0;
    uint64_t writes = 0;   // transactions, since the file was made
    uint64_t row_sum = 0;  // of the intents' checksums, in any order; wraps around
    bool in_doubt = false;
    int64_t version = 0;  // of the schema

    int64_t Checksum() const;
  };
  // The checksum that the file has of its meta data, with the writes and the incarnation that it
  // had then: a program that knows of no sum has written since where there are more writes.
  struct Sum {
    std::optional<int64_t> checksum;
    std::optional<uint64_t> writes;
    std::optional<std::string> incarnation;
  };

  std::string AsidePath(int n) const;
  absl::Status OpenDatabase();
  absl::Status CheckSchema();
  absl::Status LoadMeta();
  absl::Status LoadIntents();
  absl::Status CheckSum() const;
  absl::Status LoadSnapshots();
  absl::Status PrepareWrites();
  absl::Status DetectPutBack();
  // Which of the two that the file may have is its own.
  void ChooseIncarnation();
  // Writes what this start has to say, and then the mark.
  absl::Status Begin();
  absl::Status WriteBegin(Meta* meta);
  // Whether the file says so.
  bool HasIncarnation() const;
  // Each brings `meta` up to date.
  absl::Status WriteRows(const JournalBatch& batch, Meta* meta);
  absl::Status WriteIntent(int64_t row, const std::optional<JournalIntent>& intent, Meta* meta);
  absl::Status WriteVersion(int64_t version, Meta* meta);
  // Writes what of `meta` is not in the file, and the sum.
  absl::Status WriteMeta(const Meta& meta);
  // What the file has now.
  void Wrote(Meta meta);
  template <typename Value>
  absl::Status WriteMetaRow(const std::string& name, const Value& value);
  // OK, or what went wrong when a statement returned `code`.
  absl::Status Check(int code) const;
  // How far the file has come.
  StoreMark::Position Position() const;
  // Logs, when it is news, that the mark could not be written.
  void ReportMark(const absl::Status& status);
  void Close();

  const std::string path_;
  const std::string given_incarnation_;
  const bool full_sync_;
  Disk* const disk_;
  std::unique_ptr<SqliteDatabase> db_;
  std::optional<StoreMark> mark_;
  bool created_ = false;  // by this Open

  Meta meta_;  // as the file has it
  Sum sum_;    // as it was read, but for the incarnation
  std::string incarnation_;
  uint64_t last_generation_ = 0;
  int64_t last_row_ = 0;
  bool was_put_back_ = false;
  // The file is yet to say that it was put back now: its mark, which does not fit, stands.
  bool doubt_unwritten_ = false;
  absl::Status first_write_;
  std::vector<JournalIntent> intents_;  // until they are taken, and the doubt is written
  std::vector<int64_t> left_out_;
  std::vector<JournalSnapshot> snapshots_;

  bool mark_failed_ = false;
  int64_t highest_row_ = 0;               // no row of the file is higher
  std::unique_ptr<SqliteStatement> put_;  // destroyed before db_, as the next four
  std::unique_ptr<SqliteStatement> remove_;
  std::unique_ptr<SqliteStatement> checksum_;
  std::unique_ptr<SqliteStatement> put_meta_;
  std::unique_ptr<JournalSnapshots> snapshot_table_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_JOURNAL_FILE_H_
