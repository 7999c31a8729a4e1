// What stories on a lying disk have found, one by one.

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/failback/intent_journal.h"
#include "registry/model/canonical.h"
#include "registry/store/sqlite/sqlite_storage.h"
#include "registry/store/sqlite/store_mark.h"
#include "retry/executor.h"
#include "tests/simulate/disk/lying_disk.h"
#include "tests/util/fake_executor.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

// Each is tried with as many disks, which lose one thing or another.
constexpr uint64_t kDisks = 40;
constexpr char kStore[] = "/d/registry.db";

std::unique_ptr<LyingDisk> MakeDisk(uint64_t seed) {
  SetLogSink(LogLevel::kError, [](LogLevel, const std::string&, const LogFields&) {});
  auto disk = std::make_unique<LyingDisk>(seed);
  EXPECT_EQ(disk->MakeFolder("/d", 0700), 0);
  EXPECT_EQ(disk->SyncFolderOf("/d"), 0);
  return disk;
}

absl::StatusOr<std::unique_ptr<SqliteStorage>> OpenStore(LyingDisk* disk, int boot,
                                                         Durability durability,
                                                         Executor* executor) {
  SqliteStorage::Options options;
  options.path = kStore;
  options.durability = durability;
  options.checkpoint_pages = 8;
  options.boot_id = absl::StrCat("boot-", boot);
  options.executor = executor;
  options.disk = disk;
  return SqliteStorage::Open(std::move(options));
}

void Write(SqliteStorage* storage, uint64_t revision, const std::string& client = "") {
  WriteSet writes;
  writes.revision = revision;
  writes.next_rank = revision + 1;
  writes.incarnations.push_back({revision, absl::StrCat("i", revision), client, 0, ""});
  ASSERT_EQ(storage->Write(writes), absl::OkStatus());
  if (storage->wants_checkpoint()) storage->Checkpoint();
}

// Counts what is there.
class Counter final : public StoreReader {
 public:
  absl::Status OnIncarnation(IncarnationRow row) override {
    ++incarnations;
    clients.insert(row.client_name);
    return absl::OkStatus();
  }
  absl::Status OnSession(SessionRow) override { return absl::OkStatus(); }
  absl::Status OnRecord(RecordRow) override { return absl::OkStatus(); }
  int incarnations = 0;
  std::set<std::string> clients;
};

// Where nothing is synced the log starts over in a file that does not say that a life has begun.
TEST(PowerCutTest, AnUnsyncedStoreBeginsANewEpochWhateverIsLeftOfIt) {
  for (uint64_t seed = 1; seed <= kDisks; ++seed) {
    const auto disk = MakeDisk(seed);
    FakeExecutor executor;
    auto storage = OpenStore(disk.get(), 1, Durability::kOff, &executor).value();
    const uint64_t epoch = storage->identity().epoch;
    for (uint64_t revision = 1; revision <= 30; ++revision) {
      Write(storage.get(), revision);
      executor.RunAll();
    }
    disk->End(LyingDisk::Crash::kPower);
    storage.reset();
    auto again = OpenStore(disk.get(), 2, Durability::kOff, &executor);
    if (!again.ok()) {
      EXPECT_EQ(again.status().code(), absl::StatusCode::kDataLoss) << again.status();
    } else {
      EXPECT_NE((*again)->identity().epoch, epoch) << "disk " << seed;
    }
  }
}

// What was folded without a sync is in the file alone, once the log has started over.
TEST(PowerCutTest, AnUnsyncedStoreThatSaysThatItEndedCleanlyIsWhole) {
  constexpr int kRows = 60;  // more pages than the log has at the end
  int whole = 0;
  for (uint64_t seed = 1; seed <= 3 * kDisks; ++seed) {
    const auto disk = MakeDisk(seed);
    FakeExecutor executor;
    auto storage = OpenStore(disk.get(), 1, Durability::kOff, &executor).value();
    const uint64_t epoch = storage->identity().epoch;
    for (uint64_t revision = 1; revision <= kRows; ++revision) {
      Write(storage.get(), revision, std::string(900, 'c'));
      executor.RunAll();
    }
    disk->EndAfter(static_cast<int64_t>(seed % kDisks), LyingDisk::Crash::kPower);
    storage.reset();
    disk->End(LyingDisk::Crash::kPower);
    auto again = OpenStore(disk.get(), 2, Durability::kOff, &executor);
    if (!again.ok()) {
      EXPECT_EQ(again.status().code(), absl::StatusCode::kDataLoss) << again.status();
      continue;
    }
    if ((*again)->identity().epoch != epoch) continue;
    ++whole;
    Counter counter;
    EXPECT_EQ((*again)->Read(&counter), absl::OkStatus()) << "disk " << seed;
    EXPECT_EQ(counter.incarnations, kRows) << "disk " << seed;
  }
  EXPECT_GT(whole, 0);
}

// Linux takes what a failed sync was to write for written.
TEST(PowerCutTest, ACommitAfterASyncThatFailedInTheLifeBeforeIsThere) {
  for (uint64_t seed = 1; seed <= kDisks; ++seed) {
    const auto disk = MakeDisk(seed);
    FakeExecutor executor;
    auto storage = OpenStore(disk.get(), 1, Durability::kFull, &executor).value();
    const uint64_t epoch = storage->identity().epoch;
    Write(storage.get(), 1);
    LyingDisk::Faults faults;
    faults.sync_chance = 1;
    faults.failed_sync_forgets = true;
    disk->set_faults(faults);
    storage.reset();  // cannot say that it ends in good order
    disk->set_faults({});

    storage = OpenStore(disk.get(), 1, Durability::kFull, &executor).value();
    Write(storage.get(), 2);
    disk->End(LyingDisk::Crash::kPower);
    storage = OpenStore(disk.get(), 2, Durability::kFull, &executor).value();
    EXPECT_EQ(storage->identity().epoch, epoch) << "disk " << seed;
    Counter counter;
    EXPECT_EQ(storage->Read(&counter), absl::OkStatus());
    EXPECT_EQ(counter.incarnations, 2) << "disk " << seed;
  }
}

// Its log is nothing without the header.
TEST(PowerCutTest, AStoreThatHasLostItsLogBeginsANewEpoch) {
  const auto disk = MakeDisk(1);
  FakeExecutor executor;
  auto storage = OpenStore(disk.get(), 1, Durability::kFull, &executor).value();
  const uint64_t epoch = storage->identity().epoch;
  Write(storage.get(), 1);
  disk->End(LyingDisk::Crash::kProcess);
  storage.reset();
  ASSERT_TRUE(disk->FlipBit(absl::StrCat(kStore, "-wal"), 17, 3));
  storage = OpenStore(disk.get(), 1, Durability::kFull, &executor).value();
  EXPECT_NE(storage->identity().epoch, epoch);
}

// SQLite ends a log before its first damaged frame, and some of what was behind that is in the
// file.
TEST(PowerCutTest, AFoldThatWasInterruptedAboveADamagedLogIsNotServedAsAStateThatNeverWas) {
  constexpr int kRows = 12;
  int refused = 0;
  for (int folded = 0; folded < 12; ++folded) {
    SCOPED_TRACE(absl::StrCat(folded, " pages were folded"));
    const auto disk = MakeDisk(1);
    FakeExecutor executor;
    auto storage = OpenStore(disk.get(), 1, Durability::kFull, &executor).value();
    // All rows change with each commit, in one place or another.
    WriteSet writes;
    for (const char* client : {"a", "b", "c"}) {
      ++writes.revision;
      writes.next_rank = kRows + 1;
      writes.incarnations.clear();
      for (uint64_t rank = 1; rank <= kRows; ++rank) {
        writes.incarnations.push_back(
            {rank, absl::StrCat("i", rank), client + std::string(900, 'x'), 0, ""});
      }
      ASSERT_EQ(storage->Write(writes), absl::OkStatus());
    }
    int written = 0;
    disk->set_aim([&written, folded](LyingDisk::Call call, const std::string& path) {
      return call == LyingDisk::Call::kWrite && path == kStore && written++ >= folded;
    });
    LyingDisk::Faults faults;
    faults.chance = 1;
    disk->set_faults(faults);
    storage->Checkpoint();
    disk->set_faults({});
    disk->End(LyingDisk::Crash::kProcess);
    storage.reset();

    constexpr int64_t kFirstFrame = 32 + 24;
    ASSERT_TRUE(disk->FlipBit(absl::StrCat(kStore, "-wal"), kFirstFrame + 1000, 3));
    Counter found;
    auto again = OpenStore(disk.get(), 1, Durability::kFull, &executor);
    absl::Status status = again.status();
    if (status.ok()) status = (*again)->Read(&found);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      ++refused;
      continue;
    }
    EXPECT_TRUE(found.incarnations == 0 || found.incarnations == kRows) << found.incarnations;
    EXPECT_LE(found.clients.size(), 1u);
  }
  EXPECT_GT(refused, 0);
}

TEST(PowerCutTest, AMarkThatCannotBeReadIsNotOneThatIsMissing) {
  const auto disk = MakeDisk(1);
  FakeExecutor executor;
  OpenStore(disk.get(), 1, Durability::kFull, &executor).value().reset();
  disk->set_aim([](LyingDisk::Call call, const std::string& path) {
    return call == LyingDisk::Call::kRead && path == StoreMark::PathOf(kStore);
  });
  LyingDisk::Faults faults;
  faults.chance = 1;
  disk->set_faults(faults);
  const absl::Status status = OpenStore(disk.get(), 1, Durability::kFull, &executor).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(".mark cannot be read"));
}

// --- The journal.

absl::StatusOr<std::shared_ptr<IntentJournal>> OpenJournal(LyingDisk* disk) {
  IntentJournal::Options options;
  options.dir = "/d/state";
  options.full_sync = true;
  options.manual = true;
  options.patience = absl::ZeroDuration();
  options.disk = disk;
  return IntentJournal::Open(options);
}

constexpr char kJournal[] = "/d/state/journal.db";

TEST(PowerCutTest, AJournalThatHasLostItsLogCountsAsPutBack) {
  const auto disk = MakeDisk(1);
  auto journal = OpenJournal(disk.get()).value();
  EXPECT_FALSE(journal->was_put_back());
  disk->End(LyingDisk::Crash::kProcess);
  journal.reset();
  ASSERT_TRUE(disk->FlipBit(absl::StrCat(kJournal, "-wal"), 17, 3));
  journal = OpenJournal(disk.get()).value();
  EXPECT_TRUE(journal->was_put_back());
}

// A sync that fails may leave in the cache alone what the next life reads from the log and folds.
// What is left of that log is not read over it.
TEST(PowerCutTest, WhatAJournalHasFoldedIsNotUndoneByTheRestOfItsLog) {
  const auto put = [](IntentJournal* journal, uint64_t generation) {
    IntentJournal::Intent intent;
    intent.row = 1;
    intent.key = CanonicalKey(MakeInstance("i").key());
    intent.generation = generation;
    journal->Put(std::move(intent));
    journal->Flush();
  };
  for (uint64_t seed = 1; seed <= kDisks; ++seed) {
    SCOPED_TRACE(absl::StrCat("disk ", seed));
    const auto disk = MakeDisk(seed);
    auto journal = OpenJournal(disk.get()).value();
    put(journal.get(), 1);
    put(journal.get(), 2);
    LyingDisk::Faults faults;
    faults.sync_chance = 1;
    faults.failed_sync_forgets = true;
    disk->set_faults(faults);
    put(journal.get(), 3);
    EXPECT_FALSE(journal->Stats().error.ok());
    disk->set_faults({});
    disk->End(LyingDisk::Crash::kProcess);
    journal.reset();
    for (const LyingDisk::Crash crash : {LyingDisk::Crash::kPower, LyingDisk::Crash::kProcess}) {
      journal = OpenJournal(disk.get()).value();
      EXPECT_FALSE(journal->was_put_back());
      const auto intents = journal->TakeIntents();
      ASSERT_EQ(intents.size(), 1u);
      EXPECT_EQ(intents[0].generation, 3u);
      disk->End(crash);
      journal.reset();
    }
  }
}

TEST(PowerCutTest, AFoldThatWasInterruptedAboveADamagedLogIsNoJournal) {
  constexpr int kRows = 60;
  int refused = 0;
  for (int folded = 0; folded < 12; ++folded) {
    SCOPED_TRACE(absl::StrCat(folded, " pages were folded"));
    const auto disk = MakeDisk(1);
    // All rows change with each life.
    uint64_t generation = 0;
    const auto put_all = [&](IntentJournal* journal) {
      ++generation;
      for (int64_t row = 1; row <= kRows; ++row) {
        IntentJournal::Intent intent;
        const registry::v1::ServiceInstance instance = MakeInstance(absl::StrCat("i", row));
        intent.row = row;
        intent.key = CanonicalKey(instance.key());
        intent.present = true;
        intent.payload = CanonicalInstance(instance);
        intent.generation = generation;
        journal->Put(std::move(intent));
      }
    };
    auto journal = OpenJournal(disk.get()).value();
    put_all(journal.get());
    ASSERT_EQ(journal->Stop(), absl::OkStatus());
    journal.reset();
    journal = OpenJournal(disk.get()).value();
    put_all(journal.get());
    journal->Flush();
    disk->End(LyingDisk::Crash::kProcess);
    journal.reset();

    // A start folds what it finds.
    int written = 0;
    disk->set_aim([&written, folded](LyingDisk::Call call, const std::string& path) {
      return call == LyingDisk::Call::kWrite && path == kJournal && written++ >= folded;
    });
    LyingDisk::Faults faults;
    faults.chance = 1;
    disk->set_faults(faults);
    journal = OpenJournal(disk.get()).value();
    EXPECT_EQ(journal->TakeIntents().size(), size_t{kRows});
    disk->set_faults({});
    disk->End(LyingDisk::Crash::kProcess);
    journal.reset();

    constexpr int64_t kFirstFrame = 32 + 24;
    ASSERT_TRUE(disk->FlipBit(absl::StrCat(kJournal, "-wal"), kFirstFrame + 1000, 3));
    journal = OpenJournal(disk.get()).value();
    const auto intents = journal->TakeIntents();
    std::set<uint64_t> generations;
    for (const auto& intent : intents) generations.insert(intent.generation);
    if (intents.empty()) {
      ++refused;  // and moved aside
      continue;
    }
    EXPECT_EQ(intents.size(), size_t{kRows});
    EXPECT_EQ(generations.size(), 1u);
    EXPECT_TRUE(journal->was_put_back() || *generations.begin() == generation);
  }
  EXPECT_GT(refused, 0);
}

TEST(PowerCutTest, ASnapshotOfASelectorThatHasChangedIsNotServed) {
  const auto disk = MakeDisk(1);
  auto journal = OpenJournal(disk.get()).value();
  journal->PutSnapshot({"the-selector", "the-event"});
  ASSERT_EQ(journal->Stop(), absl::OkStatus());
  journal.reset();
  const size_t at = disk->Contents(kJournal)->find("the-selector");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(OpenJournal(disk.get()).value()->TakeSnapshots().size(), 1u);
  ASSERT_TRUE(disk->FlipBit(kJournal, static_cast<int64_t>(at) + 5, 0));
  EXPECT_EQ(OpenJournal(disk.get()).value()->TakeSnapshots().size(), 0u);
}

// Of no table, of no log, and of no list of pages that are free.
TEST(PowerCutTest, APageOfTheJournalThatCannotBeReadNowIsNoDamage) {
  const auto disk = MakeDisk(1);
  auto journal = OpenJournal(disk.get()).value();
  for (int64_t row = 1; row <= 400; ++row) {
    IntentJournal::Intent intent;
    const registry::v1::ServiceInstance instance = MakeInstance(absl::StrCat("i", row));
    intent.row = row;
    intent.key = CanonicalKey(instance.key());
    intent.present = true;
    intent.payload = CanonicalInstance(instance);
    intent.generation = 1;
    journal->Put(std::move(intent));
  }
  journal->Flush();
  for (int64_t row = 1; row <= 390; ++row) journal->Remove(row);
  ASSERT_EQ(journal->Stop(), absl::OkStatus());
  journal.reset();
  bool failed = true;
  for (int at = 0; failed; ++at) {
    SCOPED_TRACE(absl::StrCat("read ", at));
    int reads = 0;
    disk->set_aim([&reads, at](LyingDisk::Call call, const std::string& path) {
      return call == LyingDisk::Call::kRead && path == kJournal && reads++ == at;
    });
    LyingDisk::Faults faults;
    faults.chance = 1;
    disk->set_faults(faults);
    const absl::Status status = OpenJournal(disk.get()).status();
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
    disk->set_faults({});
    failed = reads > at;
    EXPECT_EQ(OpenJournal(disk.get()).value()->TakeIntents().size(), 10u);
  }
}

// The life after it gives out none of the numbers that a lost one may have used.
TEST(PowerCutTest, NumbersLeftOutByAJournalThatWasPutBackStayLeftOut) {
  const auto disk = MakeDisk(1);
  OpenJournal(disk.get()).value().reset();
  disk->Put(kJournal, *disk->Contents(kJournal));
  auto journal = OpenJournal(disk.get()).value();
  ASSERT_TRUE(journal->was_put_back());
  const uint64_t last = journal->last_generation();
  EXPECT_GE(last, 1000000u);
  journal->Settle();
  ASSERT_EQ(journal->Stop(), absl::OkStatus());
  journal.reset();
  journal = OpenJournal(disk.get()).value();
  EXPECT_FALSE(journal->was_put_back());
  EXPECT_GE(journal->last_generation(), last);
}

// The disk takes nothing at the start that notices it. What is put once it does is in no doubt.
TEST(PowerCutTest, AJournalThatWasPutBackSaysSoWithItsFirstWrite) {
  const auto put = [](IntentJournal* journal, int64_t row, uint64_t generation) {
    IntentJournal::Intent intent;
    intent.row = row;
    intent.key = CanonicalKey(MakeInstance(absl::StrCat("i", row)).key());
    intent.generation = generation;
    journal->Put(std::move(intent));
    journal->Flush();
  };
  const auto disk = MakeDisk(1);
  auto journal = OpenJournal(disk.get()).value();
  put(journal.get(), 1, 1);
  put(journal.get(), 2, 2);
  ASSERT_EQ(journal->Stop(), absl::OkStatus());
  journal.reset();
  disk->Put(kJournal, *disk->Contents(kJournal));  // another file

  for (const bool takes : {false, true}) {
    SCOPED_TRACE(takes);
    disk->set_aim([](LyingDisk::Call call, const std::string& path) {
      return call == LyingDisk::Call::kWrite && absl::StrContains(path, "journal.db");
    });
    LyingDisk::Faults faults;
    faults.chance = 1;
    disk->set_faults(faults);
    journal = OpenJournal(disk.get()).value();
    EXPECT_TRUE(journal->was_put_back());
    for (const auto& intent : journal->TakeIntents()) {
      EXPECT_EQ(intent.doubt, Doubt::kOfJournal) << intent.row;
    }
    const uint64_t last = journal->last_generation();
    EXPECT_GE(last, 1000000u);
    EXPECT_LT(last, 2000000u) << "the file itself has come no further";
    if (takes) disk->set_faults({});
    put(journal.get(), 1, last + 1);
    EXPECT_EQ(journal->Stats().error.ok(), takes);
    disk->set_faults({});
    disk->End(LyingDisk::Crash::kProcess);
    journal.reset();
  }
  journal = OpenJournal(disk.get()).value();
  EXPECT_TRUE(journal->was_put_back()) << "2 is in doubt";
  const auto intents = journal->TakeIntents();
  ASSERT_EQ(intents.size(), 2u);
  EXPECT_EQ(intents[0].doubt, Doubt::kNone);
  EXPECT_EQ(intents[1].doubt, Doubt::kOfJournal);
}

TEST(PowerCutTest, AStateDirectoryThatCannotBeOpenedNowIsUnavailable) {
  const auto disk = MakeDisk(1);
  OpenJournal(disk.get()).value().reset();
  disk->set_aim([](LyingDisk::Call call, const std::string&) {
    return call == LyingDisk::Call::kOpen;  // no descriptors, or the disk
  });
  LyingDisk::Faults faults;
  faults.chance = 1;
  disk->set_faults(faults);
  EXPECT_EQ(OpenJournal(disk.get()).status().code(), absl::StatusCode::kUnavailable);
  disk->set_faults({});
  EXPECT_TRUE(OpenJournal(disk.get()).ok());
  for (const std::string& file : disk->Files())
    EXPECT_THAT(file, ::testing::Not(HasSubstr("corr")));
}

}  // namespace
}  // namespace failback
