#include "registry/store/sqlite/sqlite_checkpointer.h"

#include <utility>

namespace failback {

SqliteCheckpointer::SqliteCheckpointer(SqliteDatabase* writer,
                                       std::unique_ptr<SqliteDatabase> beside, int64_t pages)
    : begin_(pages), log_(&writer->log()), beside_(std::move(beside)), act_at_(pages) {
  if (beside_ != nullptr) thread_ = std::thread([this] { Run(); });
}

SqliteCheckpointer::~SqliteCheckpointer() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void SqliteCheckpointer::AfterCommit() {
  const int64_t pages = log_->pages();
  if (pages < pages_) {
    ++turn_;
    folded_ = 0;
    act_at_ = begin_;
  }
  pages_ = pages;
  if (wants_finish_ || pages < act_at_) return;
  MutexLock lock(&mu_);
  if (passing_) return;
  // After a pass that leaves nothing the log starts over by itself.
  if (std::exchange(passed_, false) && pass_turn_ == turn_) {
    if (pass_folded_ <= folded_) return TryLater();  // a reader needs the rest
    folded_ = pass_folded_;
  }
  if (beside_ == nullptr || pages - folded_ <= begin_ / 10 || pages >= 4 * begin_) {
    wants_finish_ = true;
    return;
  }
  pass_turn_ = turn_;
  passing_ = true;
  changed_.SignalAll();
}

void SqliteCheckpointer::Finish() {
  wants_finish_ = false;
  folded_ = log_->Checkpoint();
  // The log starts over with the next commit, unless a reader prevents it.
  TryLater();
}

void SqliteCheckpointer::Run() {
  MutexLock lock(&mu_);
  for (;;) {
    while (!passing_ && !stopping_) changed_.Wait(&mu_);
    if (stopping_) return;
    mu_.Unlock();
    const int64_t folded = FoldLog(beside_->handle());
    mu_.Lock();
    pass_folded_ = folded;
    passed_ = true;
    passing_ = false;
    changed_.SignalAll();
  }
}

}  // namespace failback
