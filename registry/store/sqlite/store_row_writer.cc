#include "registry/store/sqlite/store_row_writer.h"

#include <sqlite3.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/store/sqlite/row_checksum.h"

namespace failback {

absl::Status StoreRowWriter::Prepare(const char* name, const char* id, const char* put,
                                     const char* checksum, Table* table) {
  const std::pair<std::string, std::unique_ptr<SqliteStatement>*> statements[] = {
      {put, &table->put},
      {absl::StrCat("DELETE FROM ", name, " WHERE ", id, " BETWEEN ?1 AND ?2"), &table->remove},
      {absl::StrCat("SELECT ", checksum, " FROM ", name, " WHERE ", id, " BETWEEN ?1 AND ?2"),
       &table->checksums},
  };
  for (const auto& [sql, statement] : statements) {
    auto prepared = db_->Prepare(sql.c_str());
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  const auto last = db_->QueryInt(absl::StrCat("SELECT max(", id, ") FROM ", name).c_str());
  if (!last.ok()) return last.status();
  table->last = *last;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StoreRowWriter>> StoreRowWriter::Create(SqliteDatabase* db) {
  std::unique_ptr<StoreRowWriter> writer(new StoreRowWriter(db));
  absl::Status status =
      writer->Prepare("records", "id",
                      "INSERT OR REPLACE INTO records VALUES "
                      "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)",
                      "checksum, create_revision, modify_revision", &writer->records_);
  if (!status.ok()) return status;
  writer->records_.part = [](const SqliteStatement& row) {
    return RecordPart(row.Int(0), row.Uint(1), row.Uint(2));
  };
  status = writer->Prepare("sessions", "id",
                           "INSERT OR REPLACE INTO sessions VALUES (?1,?2,?3,?4,?5,?6)", "checksum",
                           &writer->sessions_);
  if (!status.ok()) return status;
  writer->sessions_.part = [](const SqliteStatement& row) { return SessionPart(row.Int(0)); };
  status = writer->Prepare("incarnations", "rank",
                           "INSERT OR REPLACE INTO incarnations VALUES (?1,?2,?3,?4,?5,?6)",
                           "checksum", &writer->incarnations_);
  if (!status.ok()) return status;
  writer->incarnations_.part = [](const SqliteStatement& row) {
    return IncarnationPart(row.Int(0));
  };
  auto put_position = db->Prepare(
      "UPDATE store SET revision = ?1, next_rank = ?2, writes = ?3, checksum = ?4, row_sum = ?5");
  if (!put_position.ok()) return put_position.status();
  writer->put_position_ = *std::move(put_position);
  return writer;
}

// The statement `put` has its values. What was there under its id no longer counts.
int StoreRowWriter::Put(int64_t id, uint64_t part, Table* table) {
  if (id <= table->last) {
    if (const int code = Forget(id, id, table); code != SQLITE_OK) return code;
  }
  table->last = std::max(table->last, id);
  sum_ += part;
  return table->put->Run();
}

int StoreRowWriter::PutRecord(const RecordRow& row) {
  const int64_t checksum = Checksum(row);
  SqliteStatement& put = *records_.put;
  put.Bind(1, row.id);
  put.BindBlob(2, row.key);
  if (row.instance) {
    put.BindBlob(3, row.instance.view());
  } else {
    put.BindNull(3);
  }
  put.Bind(4, row.fence_rank);
  put.Bind(5, row.fence_generation);
  put.Bind(6, row.fence_digest);
  put.Bind(7, int64_t{row.fence_registers});
  put.Bind(8, row.owner_rank);
  put.Bind(9, row.session);
  put.Bind(10, int64_t{row.persistent});
  put.Bind(11, int64_t{row.retention_ms});
  put.Bind(12, row.create_revision);
  put.Bind(13, row.modify_revision);
  put.Bind(14, row.create_ms);
  put.Bind(15, row.modify_ms);
  put.Bind(16, checksum);
  if (row.offline) {
    put.BindBlob(17, row.offline.view());
  } else {
    put.BindNull(17);
  }
  return Put(row.id, RecordPart(checksum, row.create_revision, row.modify_revision), &records_);
}

int StoreRowWriter::PutSession(const SessionRow& row) {
  const int64_t checksum = Checksum(row);
  SqliteStatement& put = *sessions_.put;
  put.Bind(1, row.id);
  put.BindText(2, row.session_id);
  put.Bind(3, row.rank);
  put.Bind(4, row.ttl_ms);
  put.Bind(5, int64_t{row.ends_with_stream});
  put.Bind(6, checksum);
  return Put(row.id, SessionPart(checksum), &sessions_);
}

int StoreRowWriter::PutIncarnation(const IncarnationRow& row) {
  const int64_t checksum = Checksum(row);
  SqliteStatement& put = *incarnations_.put;
  put.Bind(1, row.rank);
  put.BindText(2, row.name);
  put.BindText(3, row.client_name);
  put.Bind(4, row.last_seen_ms);
  put.Bind(5, checksum);
  put.BindText(6, row.owner);
  return Put(static_cast<int64_t>(row.rank), IncarnationPart(checksum), &incarnations_);
}

// The rows from `first` to `last` are about to go.
int StoreRowWriter::Forget(int64_t first, int64_t last, Table* table) {
  table->checksums->Bind(1, first);
  table->checksums->Bind(2, last);
  int code;
  while ((code = table->checksums->Step()) == SQLITE_ROW) sum_ -= table->part(*table->checksums);
  table->checksums->Reset();
  return code == SQLITE_DONE ? SQLITE_OK : code;
}

template <typename Id>
int StoreRowWriter::Remove(const std::vector<Id>& ids, Table* table) {
  int code = SQLITE_OK;
  for (auto first = ids.begin(); first != ids.end() && code == SQLITE_OK;) {
    auto last = first;
    while (last + 1 != ids.end() && *(last + 1) == *last + 1) ++last;
    code = Forget(static_cast<int64_t>(*first), static_cast<int64_t>(*last), table);
    if (code != SQLITE_OK) return code;
    table->remove->Bind(1, *first);
    table->remove->Bind(2, *last);
    code = table->remove->Run();
    first = last + 1;
  }
  return code;
}

int StoreRowWriter::WriteRows(const WriteSet& writes) {
  int code = SQLITE_OK;
  for (const IncarnationRow& row : writes.incarnations) {
    if ((code = PutIncarnation(row)) != SQLITE_OK) return code;
  }
  for (const SessionRow& row : writes.sessions) {
    if ((code = PutSession(row)) != SQLITE_OK) return code;
  }
  for (const RecordRow& row : writes.records) {
    if ((code = PutRecord(row)) != SQLITE_OK) return code;
  }
  code = Remove(writes.removed_records, &records_);
  if (code == SQLITE_OK) code = Remove(writes.removed_sessions, &sessions_);
  if (code == SQLITE_OK) code = Remove(writes.removed_incarnations, &incarnations_);
  return code;
}

absl::Status StoreRowWriter::Write(const WriteSet& writes, StoreHead* head) {
  sum_ = head->row_sum.value_or(0);
  if (const int code = WriteRows(writes); code != SQLITE_OK) return db_->Error(code);
  head->row_sum = sum_;
  put_position_->Bind(1, head->identity.revision);
  put_position_->Bind(2, head->identity.next_rank);
  put_position_->Bind(3, head->writes);
  put_position_->Bind(4, Checksum(*head));
  put_position_->Bind(5, sum_);
  const int code = put_position_->Run();
  return code == SQLITE_OK ? absl::OkStatus() : db_->Error(code);
}

}  // namespace failback
