#include "tests/simulate/disk/journal_story.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/failback/intent_journal.h"
#include "registry/model/canonical.h"
#include "tests/simulate/disk/disk_story.h"
#include "tests/simulate/disk/lying_disk.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

constexpr char kFolder[] = "/j";
constexpr char kFile[] = "/j/journal.db";

// What the journal holds: by row the number of its intent, which names all that is in it.
using Rows = std::map<int64_t, uint64_t>;

std::string Shown(const Rows& rows) {
  return absl::StrCat("{", absl::StrJoin(rows, " ", absl::PairFormatter("=")), "}");
}

std::string KeyOf(uint64_t generation) {
  return CanonicalKey(MakeInstance(absl::StrCat("i", generation)).key());
}

IntentJournal::Intent IntentOf(int64_t row, uint64_t generation) {
  IntentJournal::Intent intent;
  intent.row = row;
  intent.key = KeyOf(generation);
  intent.present = generation % 3 != 0;
  intent.persistent = generation % 5 == 0;
  if (intent.present) {
    registry::v1::ServiceInstance instance = MakeInstance(absl::StrCat("i", generation));
    (*instance.mutable_metadata())["filling"] =
        std::string(20 + generation * 37 % 600, static_cast<char>('a' + generation % 26));
    intent.payload = CanonicalInstance(instance);
  }
  intent.generation = generation;
  if (generation % 2 == 0) {
    intent.owner = absl::StrCat("owner-", generation);
    intent.owner_ttl = absl::Seconds(generation);
    intent.owner_generation = generation * 7;
  }
  intent.given_up = generation % 11 == 0;
  return intent;
}

bool IsIntent(const IntentJournal::Intent& found) {
  const IntentJournal::Intent made = IntentOf(found.row, found.generation);
  return found.key == made.key && found.present == made.present &&
         found.persistent == made.persistent && found.payload == made.payload &&
         found.owner == made.owner && found.owner_ttl == made.owner_ttl &&
         found.owner_generation == made.owner_generation && found.given_up == made.given_up;
}

class JournalStory final : public DiskStory {
 public:
  explicit JournalStory(uint64_t seed) : DiskStory(seed, kFolder, /*longest_life=*/600) {
    full_ = Pick(3) != 0;
    DrawFaults(/*synced=*/full_);
    past_.insert(Rows());
    Say(absl::StrCat(full_ ? "every write is synced" : "writes are not synced"));
  }

 private:
  // --- One life.

  void OnEnd() override {
    if (alive()) return;
    cut_ = disk_.last_crash() == LyingDisk::Crash::kPower;
    Say(cut_ ? "power cut" : "kill -9");
    if (cut_) ++result_.cuts;
  }

  void Close() override { journal_.reset(); }

  // What is queued is written by Stop, whose status is all that is said of it.
  void EndCleanly() override {
    const Rows wanted = wanted_;
    const absl::Status status = journal_->Stop();
    if (!alive()) {
      attempts_.insert(wanted);
      return;
    }
    Say(absl::StrCat("stopped: ", status.message()));
    if (status.ok()) {
      Written(wanted);
    } else {
      attempts_.insert(wanted);
    }
    journal_.reset();
    if (Pick(2) == 0 && alive()) disk_.End(LyingDisk::Crash::kPower);
  }

  void Step() override {
    const int what = Pick(12);
    if (what < 4) {
      Flush();
    } else if (what == 4 && Pick(3) == 0) {
      SetFaults();
    } else if (what == 5 && Pick(3) == 0) {
      Recover();
    } else if (what == 6) {
      PutSnapshot();
    } else if (what < 9 && !wanted_.empty()) {
      const auto row = std::next(wanted_.begin(), Pick(wanted_.size()));
      Say(absl::StrCat("removes ", row->first));
      journal_->Remove(row->first);
      wanted_.erase(row);
    } else {
      Put();
    }
  }

  void Put() {
    const uint64_t generation = ++generation_;
    int64_t row = 0;
    if (!wanted_.empty() && Pick(3) == 0) {
      row = std::next(wanted_.begin(), Pick(wanted_.size()))->first;
    } else {
      row = journal_->NewRow();
      if (wanted_.count(row) > 0) Violation(absl::StrCat("row ", row, " was given twice"));
    }
    Say(absl::StrCat("puts ", row, " as ", generation));
    journal_->Put(IntentOf(row, generation));
    wanted_[row] = generation;
    history_[row].insert(generation);
  }

  void PutSnapshot() {
    const std::string selector = absl::StrCat("selector-", Pick(4));
    const std::string event = absl::StrCat("event of ", selector, " ", ++generation_);
    journal_->PutSnapshot({selector, event});
    snapshots_.insert(selector + ":" + event);
  }

  void Flush() {
    attempt_ = wanted_;
    journal_->Flush();
  }

  void OnCommit(const absl::Status& status) {
    if (!alive()) {
      attempts_.insert(attempt_);
      return;  // the dead report nothing
    }
    if (status.ok()) {
      ++result_.acknowledged;
      Say(absl::StrCat("  written: ", Shown(attempt_)));
      Written(attempt_);
    } else {
      ++result_.refused;
      Say(absl::StrCat("  not written: ", status.message()));
      attempts_.insert(attempt_);
      past_.insert(attempt_);  // a power cut may leave it in place of what is written over it
      if (!absl::IsUnavailable(status)) Violation(status.ToString());
    }
  }

  void Written(const Rows& rows) {
    written_ = rows;
    attempts_.clear();
    past_.insert(rows);
    for (const auto& [row, generation] : rows) {
      highest_ = std::max(highest_, generation);
    }
  }

  void Recover() {
    const LyingDisk::Faults before = disk_.faults();
    disk_.set_faults({});
    Put();
    Flush();
    if (alive() && written_ != wanted_) {
      Violation("a disk that works is not written");
    }
    disk_.set_faults(before);
  }

  // --- The next life.

  absl::Status Open() {
    journal_.reset();
    IntentJournal::Options options;
    options.dir = kFolder;
    options.full_sync = full_;
    options.manual = true;
    options.patience = absl::ZeroDuration();
    options.disk = &disk_;
    auto opened = IntentJournal::Open(options);
    if (!opened.ok()) return opened.status();
    journal_ = *std::move(opened);
    life_ = disk_.life();
    journal_->Start([this](uint64_t, const absl::Status& status) { OnCommit(status); });
    return absl::OkStatus();
  }

  bool MovedAside() const {
    for (const std::string& file : disk_.Files()) {
      if (absl::StrContains(file, ".corrupt-")) return true;
    }
    return false;
  }

  bool Reopen() override {
    if (exists_ && Pick(3) == 0) return FlipAndOpen();
    // Errors on the way in pass, and say so.
    for (int i = Pick(3); exists_ && i > 0 && may_fail(); --i) {
      disk_.set_faults(FaultsOfStart());
      const absl::Status status = Open();
      disk_.set_faults({});
      Say(absl::StrCat("opened with faults: ", status.message()));
      if (MovedAside()) Violation("a file was moved aside that is not damaged");
      if (!status.ok() && !absl::IsUnavailable(status)) Violation(status.ToString());
      if (status.ok()) Compare(/*flipped=*/false);
      journal_.reset();
      if (violated()) return false;
    }
    const absl::Status status = Open();
    if (!status.ok()) {
      Violation(absl::StrCat("cannot be opened: ", status.ToString()));
      return false;
    }
    if (MovedAside()) Violation("a file was moved aside that is not damaged");
    Compare(/*flipped=*/false);
    exists_ = true;
    return !violated();
  }

  // Each flip is of the files as they were: one that is not noticed now may be later.
  bool FlipAndOpen() {
    constexpr int kFlips = 8;
    const auto before = disk_.Save();
    std::vector<std::string> files = disk_.Files();
    // After a power cut nothing tells a write that the log has lost to a flipped bit from one that
    // never was: the mark beside it was not synced. Nor where the mark was not written.
    if (cut_ || unmarked()) files = {kFile};
    const auto known = std::make_tuple(cut_, generation_, highest_, wanted_, written_, attempts_,
                                       past_, incarnation_, unsettled_, settling_, doubt_through_);
    for (int flips = 0; flips < kFlips; ++flips) {
      const std::string file = FlipBitOf(files);
      if (file.empty()) return false;
      const absl::Status status = Open();
      Say(absl::StrCat("a bit of ", file, " flipped: ", status.message()));
      if (status.ok() && !MovedAside()) {
        Compare(/*flipped=*/true);
        if (violated()) return false;
        if (journal_->was_put_back()) ++result_.doubts;
      } else {
        ++result_.flips_refused;
      }
      journal_.reset();
      disk_.Load(*before);
      std::tie(cut_, generation_, highest_, wanted_, written_, attempts_, past_, incarnation_,
               unsettled_, settling_, doubt_through_) = known;
    }
    const absl::Status again = Open();
    if (!again.ok()) Violation(absl::StrCat("cannot be opened: ", again.ToString()));
    if (again.ok()) Compare(/*flipped=*/false);
    return !violated();
  }

  void Compare(bool flipped) {
    const std::vector<IntentJournal::Intent> intents = journal_->TakeIntents();
    Rows found;
    for (const IntentJournal::Intent& intent : intents) {
      found[intent.row] = intent.generation;
      const auto known = history_.find(intent.row);
      if (known == history_.end() || known->second.count(intent.generation) == 0) {
        Violation(absl::StrCat("row ", intent.row, " has number ", intent.generation,
                               ", which it never had"));
      }
      if (!IsIntent(intent)) {
        Violation(absl::StrCat("row ", intent.row, " is not what was put as ", intent.generation));
      }
    }
    for (const IntentJournal::Snapshot& snapshot : journal_->TakeSnapshots()) {
      if (snapshots_.count(snapshot.selector + ":" + snapshot.event) == 0) {
        Violation(
            absl::StrCat("a snapshot that never was: ", snapshot.selector, " ", snapshot.event));
      }
    }
    Say(absl::StrCat("opened: ", journal_->was_put_back() ? "put back " : "", Shown(found)));
    const bool lossy = cut_ && !full_;
    const bool whole = found == written_ || attempts_.count(found) > 0;
    if (journal_->was_put_back()) {
      ++result_.doubts;
      if (flipped) return;
    }
    if (!whole && !lossy) {
      Violation(absl::StrCat("there is ", Shown(found), ", written was ", Shown(written_)));
    } else if (!whole && past_.count(found) == 0) {
      Violation(absl::StrCat("there is ", Shown(found), ", which never was"));
    }
    if (!lossy && journal_->last_generation() < highest_) {
      Violation(absl::StrCat("numbers go on from ", journal_->last_generation(), ", and ", highest_,
                             " was written"));
    }
    if (lossy || incarnation_.empty() || incarnation_ == journal_->incarnation()) {
      incarnation_ = journal_->incarnation();
    } else {
      Violation(
          absl::StrCat("the incarnation is ", journal_->incarnation(), ", and was ", incarnation_));
    }
    CompareDoubt(intents, lossy);
    generation_ = std::max(generation_, journal_->last_generation());
    if (!whole) past_.clear();
    Written(found);
    if (lossy) highest_ = 0;
    wanted_ = found;
    cut_ = false;
    if (unsettled_ && (settling_ || Pick(2) == 0)) Settle(intents);
  }

  // In doubt is what a file held that was put back, and was not put since: over lives, too.
  void CompareDoubt(const std::vector<IntentJournal::Intent>& intents, bool lossy) {
    const bool put_back = journal_->was_put_back();
    const bool all = std::all_of(intents.begin(), intents.end(), [](const auto& i) {
      return i.doubt != Doubt::kNone;  // as when it is noticed
    });
    if (!lossy && !settling_ && put_back != unsettled_) {
      Violation(put_back ? "it says that it was put back" : "it says that nothing is in doubt");
    }
    unsettled_ = put_back;
    if (put_back && all && lossy) doubt_through_ = journal_->last_generation();
    for (const IntentJournal::Intent& intent : intents) {
      const bool expected = put_back && intent.generation <= doubt_through_;
      const bool doubted = intent.doubt != Doubt::kNone;
      if (doubted == expected || (settling_ && put_back && !doubted)) continue;
      Violation(absl::StrCat("row ", intent.row, ", ", intent.generation, ", is ",
                             doubted ? "" : "not ", "in doubt, as is all through ",
                             doubt_through_));
    }
    if (!put_back) settling_ = false;
  }

  void Settle(const std::vector<IntentJournal::Intent>& intents) {
    settling_ = true;  // until it is known to be written
    for (IntentJournal::Intent intent : intents) {
      if (std::exchange(intent.doubt, Doubt::kNone) == Doubt::kNone) continue;
      journal_->Put(std::move(intent));
    }
    journal_->Settle();
    attempt_ = wanted_;
    journal_->Flush();
    if (!attempts_.empty() || !alive()) return;
    Say("settled");
    settling_ = unsettled_ = false;
    highest_ = std::max(highest_, journal_->last_generation());
  }

  std::shared_ptr<IntentJournal> journal_;
  bool full_ = false;
  bool exists_ = false;
  bool cut_ = false;
  uint64_t generation_ = 0;
  uint64_t highest_ = 0;  // that was written
  std::string incarnation_;
  bool unsettled_ = false;  // something is in doubt
  bool settling_ = false;   // and that it is not any more may be written
  uint64_t doubt_through_ = 0;
  Rows wanted_;              // as put and removed
  Rows attempt_;             // as it was when the write under way began
  Rows written_;             // as reported
  std::set<Rows> attempts_;  // that were not reported as written, since then
  std::set<Rows> past_;
  std::map<int64_t, std::set<uint64_t>> history_;  // numbers that a row has had
  std::set<std::string> snapshots_;
};

}  // namespace

StoryResult TellJournalStory(uint64_t seed) { return JournalStory(seed).Tell(); }

}  // namespace failback
