// Folds the log of a store into its database while commits go on.
//
// A checkpoint of 16 MB takes tens of milliseconds, half of them for copying and half for the
// device; made by the connection that writes, it holds up every commit for as long. Here a second
// connection makes it, as a task of an executor, and commits append to the log meanwhile. The log
// can start over only when all of it is in the database, which a pass beside commits never quite
// reaches: so each pass has less to do than the one before, and the last few pages are the writer's
// to fold in between two commits, which takes about as long as one of them.
//
// One checkpoint at a time, and none that finds all of the log in the database already: so no
// commit makes the log start over under a pass. Up to version 3.51.2, SQLite may forget what such a
// commit wrote (https://sqlite.org/wal.html#walresetbug).
//
//   SqliteCheckpointer checkpointer(writer, std::move(beside), 4000, executor);
//   ... a commit ...
//   checkpointer.AfterCommit();  // may begin a pass
//   ... answer ...
//   if (checkpointer.wants_finish()) checkpointer.Finish();
//
// It goes before the writer does.
//
// Thread safety: that of the writer's connection.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_CHECKPOINTER_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_CHECKPOINTER_H_

#include <cstdint>
#include <memory>

#include "registry/store/sqlite/sqlite_database.h"
#include "retry/executor.h"
#include "retry/mutex.h"
#include "retry/task_scope.h"

namespace failback {

class SqliteCheckpointer {
 public:
  // `writer` has its log attached. `beside` is another connection to the same file, which has read
  // something and has no other user; without one everything is left for Finish. Passes run on
  // `executor`, and without one on a thread of their own.
  //
  // The log is folded in when it has `pages` or more. Finish has a tenth of that to do at most,
  // unless passes fall so far behind the commits that the log has four times as many.
  SqliteCheckpointer(SqliteDatabase* writer, std::unique_ptr<SqliteDatabase> beside, int64_t pages,
                     Executor* executor = nullptr);
  // Waits for the pass under way; one that has not begun never does.
  ~SqliteCheckpointer();
  SqliteCheckpointer(const SqliteCheckpointer&) = delete;
  SqliteCheckpointer& operator=(const SqliteCheckpointer&) = delete;

  // To be called when a transaction of the writer has been committed, and before the next begins.
  void AfterCommit();

  // Whether it is time for Finish, which does not wait for a pass.
  bool wants_finish() const { return wants_finish_; }
  // What a reader still needs stays in the log, as durable as it was, and is tried again when the
  // log has grown.
  void Finish();

 private:
  bool BeginPass();
  void Pass();
  // To look at the log again when it has grown by a quarter of what it may have.
  void TryLater() { act_at_ = pages_ + begin_ / 4; }

  const int64_t begin_;
  SqliteLog* const log_;
  const std::unique_ptr<SqliteDatabase> beside_;

  // Of the writer's thread.
  int64_t turn_ = 0;    // how often the log has started over
  int64_t pages_ = 0;   // after the last commit
  int64_t folded_ = 0;  // of them, in the database
  int64_t act_at_;      // in pages
  bool wants_finish_ = false;

  Mutex mu_;
  bool passing_ ABSL_GUARDED_BY(mu_) = false;  // or about to
  bool passed_ ABSL_GUARDED_BY(mu_) = false;   // and the result has not been taken
  int64_t pass_turn_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pass_folded_ ABSL_GUARDED_BY(mu_) = 0;

  std::unique_ptr<TaskScope> passes_;  // null without `beside_`, before which it goes
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_CHECKPOINTER_H_
