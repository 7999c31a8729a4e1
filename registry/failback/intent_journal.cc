#include "registry/failback/intent_journal.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "registry/base/log.h"
#include "retry/clock.h"

namespace failback {
namespace {

constexpr absl::Duration kTryAgain = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

}  // namespace

// --- Opening.

IntentJournal::IntentJournal(Options options)
    : options_(std::move(options)),
      file_(options_.dir + "/journal.db", options_.incarnation, options_.full_sync, options_.disk) {
}

absl::Status IntentJournal::FolderError(absl::StatusCode code, const std::string& message) const {
  return absl::Status(code, absl::StrCat("state directory ", options_.dir, ": ", message));
}

absl::StatusOr<std::shared_ptr<IntentJournal>> IntentJournal::Open(Options options) {
  std::shared_ptr<IntentJournal> journal(new IntentJournal(std::move(options)));
  const std::string& dir = journal->options_.dir;
  const auto unusable = [&](const std::string& why) {
    return journal->FolderError(absl::StatusCode::kFailedPrecondition, why);
  };
  const auto error_of = [&](int error, const std::string& why) {
    return MayPass(error) ? journal->FolderError(absl::StatusCode::kUnavailable, why)
                          : unusable(why);
  };
  Disk* const disk = journal->options_.disk;
  if (const int error = disk->MakeFolder(dir, 0700); error != 0 && error != EEXIST) {
    return error_of(error, absl::StrCat("cannot be created: ", std::strerror(error)));
  }
  FileInfo info;
  const int error = disk->Look(dir, &info);
  if (error != 0 || info.kind != FileInfo::Kind::kFolder) {
    return error_of(error, "is not a directory");
  }
  auto lock = FileLock::Acquire(absl::StrCat(dir, "/lock"), disk);
  if (!lock.ok()) {
    const std::string why(lock.status().message());
    return absl::IsUnavailable(lock.status())
               ? journal->FolderError(absl::StatusCode::kUnavailable, why)
               : unusable(why);
  }
  journal->lock_ = *std::move(lock);
  absl::Status opened = journal->WaitForFile();
  if (absl::IsDataLoss(opened)) {
    auto aside = journal->file_.MoveAside();
    if (!aside.ok()) return unusable(std::string(aside.status().message()));
    Log(LogLevel::kError, "the intent journal is damaged, and a new one is begun",
        {{"journal", journal->file_.path()},
         {"kept_as", *aside},
         {"error", std::string(opened.message())}});
    opened = journal->WaitForFile();
  }
  if (!opened.ok()) return journal->FolderError(opened.code(), std::string(opened.message()));
  journal->aside_ = journal->file_.Aside();
  journal->last_row_ = journal->file_.last_row();
  for (const int64_t row : journal->file_.left_out()) journal->Remove(row);
  journal->Report(journal->file_.first_write());
  return journal;
}

absl::Status IntentJournal::WaitForFile() {
  const Clock* const clock = Clock::Real();
  const int64_t end = clock->NowNanos() + absl::ToInt64Nanoseconds(options_.patience);
  bool logged = false;
  while (true) {
    absl::Status status = file_.Open();
    const absl::Duration left = absl::Nanoseconds(end - clock->NowNanos());
    if (!absl::IsUnavailable(status) || left <= absl::ZeroDuration()) return status;
    if (!std::exchange(logged, true)) {
      Log(LogLevel::kWarning, "the intent journal cannot be read yet, waiting",
          {{"journal", file_.path()},
           {"error", std::string(status.message())},
           {"at_most", absl::FormatDuration(options_.patience)}});
    }
    absl::SleepFor(std::min(left, kLookAgain));
  }
}

IntentJournal::~IntentJournal() { Stop().IgnoreError(); }

std::vector<IntentJournal::Intent> IntentJournal::TakeIntents() { return file_.TakeIntents(); }

std::vector<IntentJournal::Snapshot> IntentJournal::TakeSnapshots() {
  return file_.TakeSnapshots();
}

// --- Changes.

uint64_t IntentJournal::Queued() {
  changed_.Signal();
  return queued_.sequence = ++sequence_;
}

uint64_t IntentJournal::Put(Intent intent) {
  MutexLock lock(&mu_);
  queued_.generation = std::max(queued_.generation, intent.generation);
  const int64_t row = intent.row;
  queued_.rows[row] = std::move(intent);
  return Queued();
}

uint64_t IntentJournal::Remove(int64_t row) {
  MutexLock lock(&mu_);
  queued_.rows[row] = std::nullopt;
  return Queued();
}

uint64_t IntentJournal::PutSnapshot(Snapshot snapshot) {
  MutexLock lock(&mu_);
  queued_.snapshots[std::move(snapshot.selector)] = std::move(snapshot.event);
  return Queued();
}

uint64_t IntentJournal::ReplaceIncarnation(const std::string& refused,
                                           const std::string& incarnation) {
  MutexLock lock(&mu_);
  queued_.ReplaceIncarnation(refused, incarnation);
  return Queued();
}

void IntentJournal::Settle() {
  MutexLock lock(&mu_);
  queued_.settled = true;
  changed_.Signal();
}

// --- Writing.

void IntentJournal::Start(OnCommit on_commit) {
  on_commit_ = std::move(on_commit);
  if (!options_.manual) {
    // The thread keeps the journal until it has left it.
    thread_ = std::thread([self = shared_from_this()] { self->Work(); });
  }
}

bool IntentJournal::TakeBatch() {
  JournalBatch batch;
  {
    MutexLock lock(&mu_);
    std::swap(batch, queued_);
  }
  writing_.Merge(std::move(batch));
  return !writing_.empty();
}

void IntentJournal::TryAgainLater() {
  const auto try_again = [weak = weak_from_this()] {
    const std::shared_ptr<IntentJournal> self = weak.lock();
    if (self == nullptr) return;
    MutexLock lock(&self->mu_);
    self->try_again_ = true;
    self->changed_.Signal();
  };
  absl::StatusOr<Timeout> timeout = options_.timer->ScheduleUnbounded(try_again, kTryAgain);
  if (timeout.ok()) retry_ = *std::move(timeout);  // if not, the timer has been stopped
}

void IntentJournal::Work() {
  while (true) {
    {
      MutexLock lock(&mu_);
      try_again_ = false;
      const bool unwritten = failing_ || !writing_.empty();
      if (unwritten && !stopping_ && options_.timer != nullptr) TryAgainLater();
      while (queued_.empty() && !try_again_ && !stopping_) changed_.Wait(&mu_);
      retry_.Cancel();
      if (stopping_) return;
    }
    // One that could not be written is tried without anything to write too: it shows that it can.
    if (!TakeBatch() && !failing_) continue;
    const uint64_t sequence = writing_.sequence;
    const absl::Status status = Write();
    on_commit_(sequence, status);
  }
}

void IntentJournal::Flush() {
  // A caller notified of a write may ask for the next: that is made here, and one that failed not
  // at once.
  if (!options_.manual || flushing_) return;
  flushing_ = true;
  absl::Status status;
  while (status.ok() && TakeBatch()) {
    const uint64_t sequence = writing_.sequence;
    status = Write();
    if (on_commit_) on_commit_(sequence, status);
  }
  flushing_ = false;
}

absl::Status IntentJournal::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
  if (!file_.is_open() || !TakeBatch()) return absl::OkStatus();
  absl::Status status = Write();
  writing_ = JournalBatch();
  return status;
}

absl::Status IntentJournal::Write() {
  const int64_t begin = Clock::Real()->NowNanos();
  absl::Status status = file_.Write(writing_);
  if (!status.ok()) {
    status = absl::UnavailableError(
        absl::StrCat("the intent journal cannot be written: ",
                     absl::StripPrefix(status.message(), absl::StrCat(JournalFile::kKind, " "))));
  }
  Report(status);
  {
    MutexLock lock(&mu_);
    stats_.write_nanos.Observe(Clock::Real()->NowNanos() - begin);
    if (!writing_.rows.empty()) {
      stats_.group_intents.Observe(static_cast<int64_t>(writing_.rows.size()));
    }
  }
  if (status.ok()) writing_ = JournalBatch();
  return status;
}

void IntentJournal::Report(const absl::Status& status) {
  const int64_t now = Clock::Real()->NowNanos();
  if (!status.ok() && outage_.Failed(now)) {
    Log(LogLevel::kError, "the intent journal cannot be written, trying on",
        {{"journal", file_.path()}, {"error", std::string(status.message())}});
  } else if (status.ok() && outage_.Worked(now)) {
    Log(LogLevel::kWarning, "the intent journal is written again", {{"journal", file_.path()}});
  }
  MutexLock lock(&mu_);
  if (!status.ok() && !failing_) stats_.error_since = absl::Now();
  failing_ = !status.ok();
  stats_.error = status;
}

IntentJournal::Statistics IntentJournal::Stats() const {
  Statistics stats;
  {
    MutexLock lock(&mu_);
    stats = stats_;
  }
  stats.bytes = file_.bytes();
  FileInfo info;
  for (auto it = aside_.rbegin(); it != aside_.rend() && stats.damaged.empty(); ++it) {
    if (options_.disk->Look(*it, &info) == 0) stats.damaged = *it;
  }
  return stats;
}

}  // namespace failback
