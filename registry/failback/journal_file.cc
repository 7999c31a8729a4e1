#include "registry/failback/journal_file.h"

#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "registry/model/ids.h"
#include "registry/model/instance_view.h"
#include "registry/model/validation.h"
#include "registry/store/sqlite/sqlite_log.h"

namespace failback {
namespace {

// A file has the version that what it holds needs, so that earlier programs read it too: 1; from the
// first intent on that an operator has cancelled; and while an intent may be in doubt.
constexpr int64_t kFirstVersion = 1;
constexpr int64_t kCancelsVersion = 2;
constexpr int64_t kDoubtVersion = 3;
// In the column `present`: an operator has cancelled the intent; its doubt, two bits.
constexpr int64_t kGivenUp = 2;
constexpr int kDoubtShift = 2;
constexpr int kApplicationId = 0x4642494a;  // "FBIJ"
constexpr char kIncarnation[] = "incarnation";
// An incarnation of the options that a registry keeps for another caller.
constexpr char kRefused[] = "refused_incarnation";
constexpr char kGeneration[] = "generation";
constexpr char kWrites[] = "writes";
constexpr char kDoubt[] = "in_doubt";
constexpr char kSum[] = "sum";
constexpr char kSumWrites[] = "sum_writes";
constexpr char kSumIncarnation[] = "sum_incarnation";
// After a journal was put back, so that new numbers are above those that are not in it.
constexpr uint64_t kNumbersLeftOut = 1000000;

constexpr char kCreate[] =
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;"
    "CREATE TABLE intents (row INTEGER PRIMARY KEY, key BLOB NOT NULL, present INTEGER NOT NULL,"
    " persistent INTEGER NOT NULL, payload BLOB NOT NULL, generation INTEGER NOT NULL,"
    " owner TEXT NOT NULL, owner_ttl_nanos INTEGER NOT NULL, owner_generation INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL);";

int64_t Checksum(const JournalIntent& intent) {
  return static_cast<int64_t>(Digest64(absl::StrCat(
      intent.row, " ", intent.key, " ", intent.present, " ", intent.persistent, " ", intent.payload,
      " ", intent.generation, " ", intent.owner, " ", absl::ToInt64Nanoseconds(intent.owner_ttl),
      " ", intent.owner_generation, intent.given_up ? " given up" : "",
      intent.doubt == Doubt::kNone ? std::string()
                                   : absl::StrCat(" doubt ", static_cast<int>(intent.doubt)))));
}

// `generation`, or none where no intent can have it: the next would be above the bound for good.
uint64_t InBounds(uint64_t generation) { return generation < kMaxGeneration ? generation : 0; }

// Whether `payload` could be registered under `key` today. What is not is refused by every
// registry, or, worse, taken by an engine that does not read it.
bool IsInstanceOf(const std::string& key, const std::string& payload) {
  if (payload.size() > kMaxInstanceBytes) return false;
  EncodedInstance encoded;
  if (ReadInstance(payload, &encoded)) {
    const InstanceView& view = encoded.view;
    return IsText(view) && ValidateInstance(FieldPath(), view).ok() &&
           CanonicalKey(view.name_space, view.service, view.instance_id) == key;
  }
  registry::v1::ServiceInstance instance;
  return instance.ParseFromString(payload) && ValidateInstance(FieldPath(), instance).ok() &&
         CanonicalKey(instance.key()) == key;
}

bool CanBeSubmitted(const JournalIntent& intent, const registry::v1::InstanceKey& key) {
  if (intent.generation > kMaxGeneration || !ValidateKey(FieldPath(), key).ok()) return false;
  return intent.present ? IsInstanceOf(intent.key, intent.payload) : intent.payload.empty();
}

// A journal has one incarnation for as long as its numbers mean something.
StoreMark::Position PositionOf(const std::string& incarnation, uint64_t writes) {
  return {Digest64(incarnation), writes};
}

}  // namespace

int64_t JournalFile::Meta::Checksum() const {
  return static_cast<int64_t>(Digest64(
      absl::StrCat(incarnation.size(), " ", incarnation, " ", refused.size(), " ", refused, " ",
                   generation, " ", writes, " ", row_sum, in_doubt ? " in doubt" : "")));
}

void JournalBatch::ReplaceIncarnation(const std::string& refused, const std::string& incarnation) {
  this->incarnation = incarnation;
  this->refused = refused;
}

void JournalBatch::Merge(JournalBatch later) {
  if (empty()) {
    *this = std::move(later);
    return;
  }
  for (auto& [row, intent] : later.rows) rows[row] = std::move(intent);
  for (auto& [selector, event] : later.snapshots) snapshots[selector] = std::move(event);
  if (later.incarnation.has_value()) incarnation = std::move(later.incarnation);
  if (later.refused.has_value()) refused = std::move(later.refused);
  generation = std::max(generation, later.generation);
  sequence = std::max(sequence, later.sequence);
  settled = settled || later.settled;
}

JournalFile::JournalFile(std::string path, std::string incarnation, bool full_sync, Disk* disk)
    : path_(std::move(path)),
      given_incarnation_(std::move(incarnation)),
      full_sync_(full_sync),
      disk_(disk) {}

JournalFile::~JournalFile() { Close(); }

void JournalFile::Close() {
  for (auto* statement : {&put_, &remove_, &checksum_, &put_meta_}) statement->reset();
  snapshot_table_.reset();
  db_.reset();
  mark_.reset();
}

absl::Status JournalFile::Check(int code) const {
  return code == SQLITE_OK || code == SQLITE_DONE ? absl::OkStatus() : db_->Error(code);
}

// --- Opening.

absl::Status JournalFile::Open() {
  absl::Status status = OpenDatabase();
  if (!status.ok()) Close();
  return status;
}

absl::Status JournalFile::OpenDatabase() {
  FileInfo info;
  if (disk_->Look(path_, &info) == 0 && info.kind != FileInfo::Kind::kFile) {
    return absl::DataLossError(absl::StrCat(path_, " is not a file"));
  }
  auto db = SqliteDatabase::Open(path_, SqliteDatabase::Mode::kCreate, kKind, disk_);
  if (!db.ok()) return db.status();
  db_ = *std::move(db);
  for (const char* sql :
       {"PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 4000",
        full_sync_ ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"}) {
    if (absl::Status status = db_->Execute(sql); !status.ok()) return status;
  }
  if (absl::Status status = CheckSchema(); !status.ok()) return status;
  if (absl::Status status = db_->CheckStructure("quick_check"); !status.ok()) return status;
  for (const auto step :
       {&JournalFile::LoadMeta, &JournalFile::LoadIntents, &JournalFile::LoadSnapshots,
        &JournalFile::PrepareWrites, &JournalFile::DetectPutBack}) {
    if (absl::Status status = (this->*step)(); !status.ok()) return status;
  }
  // What is in the log may be in the kernel's cache only, as of a store (SqliteStorage), and the
  // log on the disk may be another: after a power cut that would be read over what is folded now.
  // The commit of Begin, which is synced, starts it over.
  FoldLog(db_->handle());
  absl::Status status = Begin();
  first_write_.Update(status);
  // What cannot be written now is carried on all the same, under the incarnation that it has.
  return HasIncarnation() ? absl::OkStatus() : status;
}

absl::Status JournalFile::CheckSchema() {
  const auto tables = db_->QueryInt("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  created_ = *tables == 0;
  if (created_) {
    return db_->InTransaction([&]() -> absl::Status {
      return db_->Execute(absl::StrCat(kCreate, JournalSnapshots::kCreate,
                                       "PRAGMA application_id = ", kApplicationId,
                                       ";PRAGMA user_version = ", kFirstVersion));
    });
  }
  const auto id = db_->QueryInt("PRAGMA application_id");
  if (!id.ok()) return id.status();
  if (*id != kApplicationId) return db_->Damaged("it is another program's file");
  const auto version = db_->QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version < kFirstVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": schema ", *version, " is not a version"));
  }
  if (*version > kDoubtVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": was written by a newer version: schema ", *version, " found, up to ",
                     kDoubtVersion, " supported"));
  }
  const auto known = db_->QueryInt(
      "SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'intents', 'snapshots')");
  if (!known.ok()) return known.status();
  return *known == 3 ? absl::OkStatus() : db_->Damaged("its tables are not there");
}

absl::Status JournalFile::LoadMeta() {
  meta_ = Meta();
  sum_ = Sum();
  const auto version = db_->QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  meta_.version = *version;
  auto meta = db_->Prepare("SELECT name, value FROM meta");
  if (!meta.ok()) return meta.status();
  int code;
  while ((code = (*meta)->Step()) == SQLITE_ROW) {
    const std::string_view name = (*meta)->Bytes(0);
    if (name == kIncarnation) meta_.incarnation = std::string((*meta)->Bytes(1));
    if (name == kRefused) meta_.refused = std::string((*meta)->Bytes(1));
    if (name == kGeneration) meta_.generation = (*meta)->Uint(1);
    if (name == kWrites) meta_.writes = (*meta)->Uint(1);
    if (name == kDoubt) meta_.in_doubt = (*meta)->Int(1) != 0;
    if (name == kSum) sum_.checksum = (*meta)->Int(1);
    if (name == kSumWrites) sum_.writes = (*meta)->Uint(1);
    if (name == kSumIncarnation) sum_.incarnation = std::string((*meta)->Bytes(1));
  }
  last_generation_ = InBounds(meta_.generation);
  return Check(code);
}

// A row that is whole may yet be an old one, as of a store (registry/store/sqlite/row_checksum.h).
absl::Status JournalFile::CheckSum() const {
  const bool checksum = sum_.checksum.has_value();
  const bool writes = sum_.writes.has_value();
  const bool incarnation = sum_.incarnation.has_value();
  if (!checksum && !writes && !incarnation) return absl::OkStatus();
  if (checksum && writes && incarnation) {
    if (meta_.writes > *sum_.writes) return absl::OkStatus();  // by an earlier program
    Meta summed = meta_;
    summed.incarnation = *sum_.incarnation;  // the file's own: ChooseIncarnation
    if (meta_.writes == *sum_.writes && *sum_.checksum == summed.Checksum()) {
      return absl::OkStatus();
    }
  }
  return db_->Damaged("its rows are not those of its last write: their sum is another");
}

absl::Status JournalFile::LoadIntents() {
  intents_.clear();
  left_out_.clear();
  last_row_ = 0;
  auto rows = db_->Prepare(
      "SELECT row, key, present, persistent, payload, generation, owner,"
      " owner_ttl_nanos, owner_generation, checksum FROM intents ORDER BY row");
  if (!rows.ok()) return rows.status();
  int code;
  while ((code = (*rows)->Step()) == SQLITE_ROW) {
    const SqliteStatement& row = **rows;
    JournalIntent intent;
    intent.row = row.Int(0);
    intent.key = std::string(row.Bytes(1));
    intent.present = (row.Int(2) & 1) != 0;
    intent.given_up = (row.Int(2) & kGivenUp) != 0;
    intent.doubt = static_cast<Doubt>((row.Int(2) >> kDoubtShift) & 3);
    intent.persistent = row.Int(3) != 0;
    intent.payload = std::string(row.Bytes(4));
    intent.generation = row.Uint(5);
    intent.owner = std::string(row.Bytes(6));
    intent.owner_ttl = absl::Nanoseconds(row.Int(7));
    intent.owner_generation = row.Uint(8);
    registry::v1::InstanceKey key;
    if (Checksum(intent) != row.Int(9) || !ParseCanonicalKey(intent.key, &key)) {
      return absl::DataLossError(absl::StrCat("row ", intent.row, " is damaged"));
    }
    meta_.row_sum += row.Uint(9);
    last_row_ = std::max(last_row_, intent.row);
    if (!CanBeSubmitted(intent, key)) {
      Log(LogLevel::kError, "the intent journal holds what no client can have submitted: left out",
          {{"journal", path_}, {"instance", CanonicalKeyText(intent.key)}});
      left_out_.push_back(intent.row);
      continue;
    }
    last_generation_ = std::max(last_generation_, intent.generation);
    intents_.push_back(std::move(intent));
  }
  highest_row_ = last_row_;
  if (absl::Status status = Check(code); !status.ok()) return status;
  return CheckSum();
}

absl::Status JournalFile::LoadSnapshots() {
  snapshot_table_ = std::make_unique<JournalSnapshots>(db_.get());
  auto snapshots = snapshot_table_->Read();
  if (!snapshots.ok()) return snapshots.status();
  snapshots_ = *std::move(snapshots);
  // A file that can only be read for now is read all the same.
  first_write_ = snapshot_table_->RemoveOld();
  return absl::OkStatus();
}

absl::Status JournalFile::PrepareWrites() {
  const std::pair<const char*, std::unique_ptr<SqliteStatement>*> statements[] = {
      {"INSERT OR REPLACE INTO intents (row, key, present, persistent, payload, generation,"
       " owner, owner_ttl_nanos, owner_generation, checksum)"
       " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
       &put_},
      {"DELETE FROM intents WHERE row = ?", &remove_},
      {"SELECT checksum FROM intents WHERE row = ?", &checksum_},
      {"INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", &put_meta_},
  };
  for (const auto& [sql, statement] : statements) {
    auto prepared = db_->Prepare(sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  return absl::OkStatus();
}

absl::Status JournalFile::DetectPutBack() {
  auto mark = StoreMark::Open(path_, kKind, disk_);
  if (!mark.ok()) return mark.status();
  mark_.emplace(*std::move(mark));
  ChooseIncarnation();
  was_put_back_ = meta_.in_doubt;
  doubt_unwritten_ = false;
  if (created_ && !mark_->marks_this_file()) return absl::OkStatus();
  // An earlier version kept neither count nor mark.
  if (meta_.writes == 0 && !mark_->marked()) return absl::OkStatus();
  const std::optional<std::string> why =
      mark_->WhyNotContinued(PositionOf(incarnation_, meta_.writes));
  if (!why.has_value()) return absl::OkStatus();
  was_put_back_ = doubt_unwritten_ = true;
  for (JournalIntent& intent : intents_) {
    if (intent.doubt == Doubt::kNone) intent.doubt = Doubt::kOfJournal;
  }
  if (last_generation_ < kMaxGeneration - kNumbersLeftOut) last_generation_ += kNumbersLeftOut;
  Log(LogLevel::kError,
      "the intent journal is not as it was last: the registry decides what of it still holds",
      {{"journal", path_}, {"reason", *why}, {"intents", absl::StrCat(intents_.size())}});
  return absl::OkStatus();
}

// Version 0.1.0 changes the incarnation when it starts with another, marks that, and counts no
// write: the sum is not of it. A bit that has flipped is not marked, and the incarnation of the sum
// holds.
void JournalFile::ChooseIncarnation() {
  incarnation_ = meta_.incarnation;
  const bool counted = !sum_.writes.has_value() || meta_.writes > *sum_.writes;
  if (counted || *sum_.incarnation == incarnation_) return;
  if (mark_->marks_epoch(PositionOf(incarnation_, meta_.writes).epoch)) return;
  Log(LogLevel::kError,
      "the intent journal's incarnation has changed without a write: the one before holds",
      {{"journal", path_}, {"found", incarnation_}, {"holds", *sum_.incarnation}});
  incarnation_ = *sum_.incarnation;
}

absl::Status JournalFile::Begin() {
  if (!given_incarnation_.empty() && given_incarnation_ != meta_.refused) {
    incarnation_ = given_incarnation_;
  }
  if (incarnation_.empty()) incarnation_ = RandomId();
  if (!HasIncarnation() || full_sync_ || doubt_unwritten_) {
    Meta meta = meta_;
    absl::Status status = db_->InTransaction([&] { return WriteBegin(&meta); });
    if (!status.ok()) return status;
    Wrote(std::move(meta));
    doubt_unwritten_ = false;
  }
  ReportMark(mark_->PutDurably(Position()));
  return absl::OkStatus();
}

bool JournalFile::HasIncarnation() const {
  return meta_.incarnation == incarnation_ &&
         sum_.incarnation.value_or(incarnation_) == incarnation_;
}

absl::Status JournalFile::WriteBegin(Meta* meta) {
  meta->incarnation = incarnation_;
  if (!doubt_unwritten_) return WriteMeta(*meta);
  if (auto status = WriteVersion(kDoubtVersion, meta); !status.ok()) return status;
  for (const JournalIntent& intent : intents_) {
    if (auto status = WriteIntent(intent.row, intent, meta); !status.ok()) return status;
  }
  meta->in_doubt = true;
  meta->generation = InBounds(last_generation_);
  ++meta->writes;
  return WriteMeta(*meta);
}

std::string JournalFile::AsidePath(int n) const { return absl::StrCat(path_, ".corrupt-", n); }

std::vector<std::string> JournalFile::Aside() const {
  std::vector<std::string> aside;
  FileInfo info;
  for (int n = 1; disk_->Look(AsidePath(n), &info) == 0; ++n) aside.push_back(AsidePath(n));
  return aside;
}

absl::StatusOr<std::string> JournalFile::MoveAside() {
  Close();
  FileInfo info;
  int n = 1;
  while (disk_->Look(AsidePath(n), &info) == 0) ++n;
  const std::string aside = AsidePath(n);
  for (const char* suffix : {"", "-wal", "-shm"}) {
    const std::string from = absl::StrCat(path_, suffix);
    if (disk_->Look(from, &info) == ENOENT) continue;
    if (const int error = disk_->Rename(from, absl::StrCat(aside, suffix))) {
      return absl::FailedPreconditionError(
          absl::StrCat(from, " cannot be used, nor moved to ", aside, ": ", std::strerror(error)));
    }
  }
  return aside;
}

std::vector<JournalIntent> JournalFile::TakeIntents() {
  return doubt_unwritten_ ? intents_ : std::exchange(intents_, {});
}

std::vector<JournalSnapshot> JournalFile::TakeSnapshots() { return std::exchange(snapshots_, {}); }

int64_t JournalFile::bytes() const {
  int64_t bytes = 0;
  for (const char* suffix : {"", "-wal"}) {
    FileInfo info;
    if (disk_->Look(absl::StrCat(path_, suffix), &info) == 0) bytes += info.bytes;
  }
  return bytes;
}

// --- Writing.

absl::Status JournalFile::Write(const JournalBatch& batch) {
  if (!batch.snapshots.empty()) {
    if (absl::Status status = snapshot_table_->PrepareWrites(); !status.ok()) return status;
  }
  if (doubt_unwritten_) {
    if (absl::Status status = Begin(); !status.ok()) return status;
    intents_.clear();
  }
  Meta meta = meta_;
  absl::Status status = db_->InTransaction([&] { return WriteRows(batch, &meta); });
  if (!status.ok()) return status;
  Wrote(std::move(meta));
  ReportMark(mark_->Put(Position()));
  return absl::OkStatus();
}

absl::Status JournalFile::WriteRows(const JournalBatch& batch, Meta* meta) {
  const bool cancelled = std::any_of(batch.rows.begin(), batch.rows.end(), [](const auto& row) {
    return row.second.has_value() && row.second->given_up;
  });
  if (cancelled && meta->version < kCancelsVersion) {
    if (auto status = WriteVersion(kCancelsVersion, meta); !status.ok()) return status;
  }
  if (batch.settled && meta->in_doubt) {
    meta->in_doubt = false;
    if (auto status = WriteVersion(kCancelsVersion, meta); !status.ok()) return status;
  }
  for (const auto& [row, intent] : batch.rows) {
    if (auto status = WriteIntent(row, intent, meta); !status.ok()) return status;
  }
  ++meta->writes;
  meta->generation = std::max(InBounds(meta->generation), InBounds(batch.generation));
  if (batch.incarnation.has_value()) meta->incarnation = *batch.incarnation;
  if (batch.refused.has_value()) meta->refused = *batch.refused;
  if (auto status = WriteMeta(*meta); !status.ok()) return status;
  for (const auto& [selector, event] : batch.snapshots) {
    if (auto status = snapshot_table_->Write({selector, event}); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status JournalFile::WriteIntent(int64_t row, const std::optional<JournalIntent>& intent,
                                      Meta* meta) {
  // What is there no longer counts.
  if (row <= highest_row_) {
    checksum_->Bind(1, row);
    const int code = checksum_->Step();
    if (code == SQLITE_ROW) meta->row_sum -= checksum_->Uint(0);
    checksum_->Reset();
    if (code != SQLITE_ROW && code != SQLITE_DONE) return db_->Error(code);
  }
  if (!intent.has_value()) {
    remove_->Bind(1, row);
    return Check(remove_->Run());
  }
  put_->Bind(1, row);
  put_->BindBlob(2, intent->key);
  put_->Bind(3, int64_t{intent->present} | (intent->given_up ? kGivenUp : 0) |
                    (static_cast<int64_t>(intent->doubt) << kDoubtShift));
  put_->Bind(4, int64_t{intent->persistent});
  put_->BindBlob(5, intent->payload);
  put_->Bind(6, intent->generation);
  put_->BindText(7, intent->owner);
  put_->Bind(8, absl::ToInt64Nanoseconds(intent->owner_ttl));
  put_->Bind(9, intent->owner_generation);
  const int64_t checksum = Checksum(*intent);
  put_->Bind(10, checksum);
  meta->row_sum += static_cast<uint64_t>(checksum);
  highest_row_ = std::max(highest_row_, row);
  return Check(put_->Run());
}

absl::Status JournalFile::WriteVersion(int64_t version, Meta* meta) {
  meta->version = version;
  return db_->Execute(absl::StrCat("PRAGMA user_version = ", version));
}

absl::Status JournalFile::WriteMeta(const Meta& meta) {
  absl::Status status;
  const auto write = [&](const char* name, const auto& value, const auto& before) {
    if (status.ok() && !(value == before)) status = WriteMetaRow(name, value);
  };
  write(kIncarnation, meta.incarnation, meta_.incarnation);
  write(kRefused, meta.refused, meta_.refused);
  write(kGeneration, meta.generation, meta_.generation);
  write(kWrites, meta.writes, meta_.writes);
  write(kDoubt, int64_t{meta.in_doubt}, int64_t{meta_.in_doubt});
  write(kSumIncarnation, meta.incarnation, sum_.incarnation);
  if (status.ok()) status = WriteMetaRow(kSumWrites, meta.writes);
  if (status.ok()) status = WriteMetaRow(kSum, meta.Checksum());
  return status;
}

void JournalFile::Wrote(Meta meta) {
  meta_ = std::move(meta);
  sum_.incarnation = meta_.incarnation;
}

template <typename Value>
absl::Status JournalFile::WriteMetaRow(const std::string& name, const Value& value) {
  put_meta_->BindText(1, name);
  if constexpr (std::is_same_v<Value, std::string>) {
    put_meta_->BindText(2, value);
  } else {
    put_meta_->Bind(2, value);
  }
  return Check(put_meta_->Run());
}

StoreMark::Position JournalFile::Position() const {
  return PositionOf(meta_.incarnation, meta_.writes);
}

void JournalFile::ReportMark(const absl::Status& status) {
  if (!status.ok() && !mark_failed_) {
    Log(LogLevel::kWarning, "a journal that is put back may not be noticed",
        {{"error", std::string(status.message())}});
  }
  mark_failed_ = !status.ok();
}

}  // namespace failback
