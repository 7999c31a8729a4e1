// Where intents survive the process: one SQLite file in a folder of its own.
//
// The journal holds what is desired now and not the history: a row for each key that is to be there
// or is owed an unregister. Changes are queued, and one thread writes all that has gathered as one
// transaction (group commit), then reports how far it has come. So the caller never waits for the
// disk, and a hundred thousand intents are a few transactions.
//
// The folder is locked against a second process. A file that is damaged is moved aside, kept as
// `journal.db.corrupt-<n>`, and a new one begun: an agent that starts without its memory is better
// than one that does not start. That costs the incarnation too, since the numbers that it has used
// are not known any more. Damaged is what SQLite calls corrupt or no database, and what fails the
// checks made here; nothing else moves a file. One that cannot be read now (locked, no descriptors,
// an I/O error) is waited for, and then Open() fails. One that can be read and not written is
// opened: what is in it is carried on, and what is new is reported as not written.
//
// A file that was put back to an earlier moment is noticed; was_put_back() says so. What it holds
// then is in doubt, each intent until it is put again, and the numbers that follow keep clear of
// those that it cannot know. registry/failback/journal_file.h has the file, its rows and its mark.
//
//   auto journal = IntentJournal::Open(options);
//   for (auto& intent : (*journal)->TakeIntents()) …
//   (*journal)->Start([](uint64_t sequence, const absl::Status& status) { … });
//   intent.row = (*journal)->NewRow();
//   const uint64_t sequence = (*journal)->Put(intent);   // durable when `sequence` is reported
//
// Thread safety: all methods from any thread. Put(), Remove() and PutSnapshot() only queue, and may
// be called with a lock held; `on_commit` runs without locks on the journal's thread.
//
// Invariants:
// 1. What was reported as written is there after kill -9; with `full_sync` also after a power cut.
// 2. Writes become visible in the order in which they were queued, each with all before it.

#ifndef FAILBACK_REGISTRY_FAILBACK_INTENT_JOURNAL_H_
#define FAILBACK_REGISTRY_FAILBACK_INTENT_JOURNAL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/base/disk.h"
#include "registry/base/file_lock.h"
#include "registry/base/outage_log.h"
#include "registry/failback/journal_file.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/histogram.h"
#include "retry/mutex.h"

namespace failback {

class IntentJournal : public std::enable_shared_from_this<IntentJournal> {
 public:
  struct Options {
    // Created if it is not there (its parent is).
    std::string dir;
    // Names this run of the process from now on; empty: the one in the journal, or a new one.
    std::string incarnation;
    // Sync each commit to the disk: intents survive a power cut, too.
    bool full_sync = false;
    // For trying again what could not be written; outlives the journal's Stop(). nullptr: it is
    // tried again with the next change, and by Stop().
    HashedWheelTimer* timer = nullptr;
    // No thread: Flush() writes. For tests on simulated time.
    bool manual = false;
    // How long Open() waits for a file that cannot be read now, on the thread that calls it.
    absl::Duration patience = absl::Seconds(10);
    Disk* disk = Disk::Real();  // outlives the journal
  };

  using Intent = JournalIntent;
  using Snapshot = JournalSnapshot;

  struct Statistics {
    int64_t bytes = 0;  // of its files
    // Why it could last not be written, and since when; OK when it can.
    absl::Status error;
    absl::Time error_since;
    // Where the newest damaged one is kept, until it is removed; empty: there is none.
    std::string damaged;
    // How long a group took to be written, in nanoseconds, and how many intents were in it.
    Histogram write_nanos{kLatencyBoundsNanos};
    Histogram group_intents{kBatchBounds};
  };

  using OnCommit = std::function<void(uint64_t sequence, const absl::Status& status)>;

  // FAILED_PRECONDITION: the folder cannot be used, is in use by another process, or was written by
  // a newer version. UNAVAILABLE, PERMISSION_DENIED: the file cannot be read, and was left as it
  // is. The message names the folder.
  static absl::StatusOr<std::shared_ptr<IntentJournal>> Open(Options options);

  // As Stop().
  ~IntentJournal();
  IntentJournal(const IntentJournal&) = delete;
  IntentJournal& operator=(const IntentJournal&) = delete;

  // What was there when it was opened; the second call has nothing.
  std::vector<Intent> TakeIntents();
  // Oldest first.
  std::vector<Snapshot> TakeSnapshots();
  const std::string& incarnation() const { return file_.incarnation(); }
  uint64_t last_generation() const { return file_.last_generation(); }
  // The file is not as it was last: intents that are in doubt may be older than their owners' last
  // ones, and others may be missing. So it is at each start, until Settle().
  bool was_put_back() const { return file_.was_put_back(); }
  // The registry has been asked, and nothing is in doubt any more.
  void Settle();

  // Begins to write. `on_commit` runs after each attempt: all up to `sequence` is written, or, with
  // an error, is not yet; then it is tried again with the next change, and after a second.
  void Start(OnCommit on_commit);

  int64_t NewRow() { return last_row_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Each returns its sequence.
  uint64_t Put(Intent intent);
  uint64_t Remove(int64_t row);
  uint64_t PutSnapshot(Snapshot snapshot);
  // As JournalBatch::ReplaceIncarnation.
  uint64_t ReplaceIncarnation(const std::string& refused, const std::string& incarnation);

  Statistics Stats() const;

  // Manual: writes what is queued, here and now. Otherwise does nothing.
  void Flush();

  // Writes what is queued and ends; `on_commit` is not called any more. May be called from it, and
  // the journal may be destroyed there. Returns the last error.
  absl::Status Stop();

 private:
  explicit IntentJournal(Options options);
  // Opens the file, again and again while it cannot be read.
  absl::Status WaitForFile();
  // An error of the folder: the message names it.
  absl::Status FolderError(absl::StatusCode code, const std::string& message) const;
  // Notes, and logs when it is news, whether the file can be written.
  void Report(const absl::Status& status);
  // The thread: writes what is queued, until Stop().
  void Work();
  // Wakes the thread up in a while.
  void TryAgainLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // queued_ has another change; returns its sequence.
  uint64_t Queued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes what is queued, with what could not be written before. False: there is nothing.
  bool TakeBatch();
  // Writes what was taken, which stays for the next time if that fails.
  absl::Status Write();

  const Options options_;
  std::optional<FileLock> lock_;
  JournalFile file_;
  std::vector<std::string> aside_;  // damaged ones, when it was opened
  std::atomic<int64_t> last_row_{0};
  OnCommit on_commit_;

  // The writer's own.
  JournalBatch writing_;
  bool failing_ = false;
  bool flushing_ = false;
  OutageLog outage_;

  mutable Mutex mu_;
  CondVar changed_;
  Statistics stats_ ABSL_GUARDED_BY(mu_);
  JournalBatch queued_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool try_again_ ABSL_GUARDED_BY(mu_) = false;  // a failed write has waited long enough
  Timeout retry_ ABSL_GUARDED_BY(mu_);           // until then
  std::thread thread_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_INTENT_JOURNAL_H_
