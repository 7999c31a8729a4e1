#include "registry/store/sqlite/sqlite_checkpointer.h"

#include <utility>

namespace failback {

SqliteCheckpointer::SqliteCheckpointer(SqliteDatabase* writer,
                                       std::unique_ptr<SqliteDatabase> beside, int64_t pages,
                                       Executor* executor)
    : begin_(pages), log_(&writer->log()), beside_(std::move(beside)), act_at_(pages) {
  if (beside_ != nullptr) passes_ = std::make_unique<TaskScope>(executor, 1);
}

SqliteCheckpointer::~SqliteCheckpointer() = default;

void SqliteCheckpointer::AfterCommit() {
  const int64_t pages = log_->pages();
  if (pages < pages_) {
    ++turn_;
    folded_ = 0;
    act_at_ = begin_;
  }
  pages_ = pages;
  if (wants_finish_ || pages < act_at_ || !BeginPass()) return;
  passes_->Execute([this] { Pass(); });
}

// Whether a pass is due, which then counts as under way.
bool SqliteCheckpointer::BeginPass() {
  MutexLock lock(&mu_);
  if (passing_) return false;
  // After a pass that leaves nothing the log starts over by itself.
  if (std::exchange(passed_, false) && pass_turn_ == turn_) {
    if (pass_folded_ <= folded_) {  // a reader needs the rest
      TryLater();
      return false;
    }
    folded_ = pass_folded_;
  }
  if (beside_ == nullptr || pages_ - folded_ <= begin_ / 10 || pages_ >= 4 * begin_) {
    wants_finish_ = true;
    return false;
  }
  pass_turn_ = turn_;
  return passing_ = true;
}

void SqliteCheckpointer::Finish() {
  wants_finish_ = false;
  folded_ = log_->Checkpoint();
  // The log starts over with the next commit, unless a reader prevents it.
  TryLater();
}

void SqliteCheckpointer::Pass() {
  const int64_t folded = FoldLog(beside_->handle());
  MutexLock lock(&mu_);
  pass_folded_ = folded;
  passed_ = true;
  passing_ = false;
}

}  // namespace failback
