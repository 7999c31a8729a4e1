// When a store on SQLite begins a new epoch: after an end that was not clean, and when its files
// were put back.

#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/store/sqlite/sqlite_storage.h"
#include "registry/store/sqlite/store_mark.h"
#include "tests/registry/store/files.h"
#include "tests/util/process.h"

namespace failback {
namespace {

// What a store consists of, without and with its mark.
const std::vector<std::string> kData = {"", "-wal"};
const std::vector<std::string> kAll = {"", "-wal", ".mark"};

void CopyStore(const std::string& from, const std::string& to,
               const std::vector<std::string>& suffixes) {
  for (const std::string& suffix : suffixes) CopyFile(from + suffix, to + suffix);
}

// What a kill -9 at this moment would leave, to be put back later, into the same files.
class Killed {
 public:
  Killed(const std::string& path, const std::string& aside) : path_(path), aside_(aside) {
    CopyStore(path_, aside_, kAll);
  }
  // To be called when the store is closed.
  void PutBack() const { CopyStore(aside_, path_, kAll); }

 private:
  const std::string path_;
  const std::string aside_;
};

class EpochTest : public ::testing::TestWithParam<Durability> {
 protected:
  static SqliteStorage::Options In(const std::string& path, const std::string& boot) {
    SqliteStorage::Options options;
    options.path = path;
    options.durability = GetParam();
    options.boot_id = boot;
    return options;
  }
  TempDir folder_;
};

TEST_P(EpochTest, IsMintedWhenCommitsMayHaveBeenLost) {
  const std::string path = folder_.File("a.db");
  StoreIdentity first;
  std::optional<Killed> killed;
  {
    auto storage = SqliteStorage::Open(In(path, "boot-1")).value();
    first = storage->identity();
    WriteSet writes;
    writes.revision = 9;
    writes.next_rank = 2;
    writes.incarnations.push_back({1, "a", "", 0});
    RecordRow row;
    row.id = 1;
    const std::string key("default\0orders\0x", 16);
    row.key = key;
    row.instance = Blob("payload");
    row.create_revision = 4;
    row.modify_revision = 9;
    writes.records.push_back(row);
    ASSERT_EQ(storage->Write(writes), absl::OkStatus());
    killed.emplace(path, folder_.File("killed.db"));
  }
  class Reader : public StoreReader {
   public:
    absl::Status OnIncarnation(IncarnationRow row) override { return absl::OkStatus(); }
    absl::Status OnSession(SessionRow row) override { return absl::OkStatus(); }
    absl::Status OnRecord(RecordRow row) override {
      revisions = {row.create_revision, row.modify_revision};
      return absl::OkStatus();
    }
    std::pair<uint64_t, uint64_t> revisions;
  };
  const auto check = [&](const std::string& boot, bool minted) {
    SCOPED_TRACE(boot);
    auto storage = SqliteStorage::Open(In(path, boot)).value();
    Reader reader;
    EXPECT_EQ(storage->Read(&reader), absl::OkStatus());
    EXPECT_EQ(storage->identity().store_id, first.store_id);
    EXPECT_EQ(storage->identity().epoch == first.epoch, !minted);
    EXPECT_EQ(storage->identity().revision, minted ? 1u : 9u);
    EXPECT_EQ(reader.revisions, minted ? std::make_pair(uint64_t{1}, uint64_t{1})
                                       : std::make_pair(uint64_t{4}, uint64_t{9}));
    return storage->identity().epoch;
  };
  check("boot-2", false);  // closed in good order
  killed->PutBack();
  check("boot-1", false);  // killed, and the machine lives on
  killed->PutBack();
  const bool may_be_lost = GetParam() != Durability::kFull;
  const uint64_t minted = check("boot-2", may_be_lost);
  auto again = SqliteStorage::Open(In(path, "boot-3")).value();
  EXPECT_EQ(again->identity().epoch, minted) << "closed in good order since";
  Reader reader;
  EXPECT_EQ(again->Read(&reader), absl::OkStatus());
  if (may_be_lost) {
    EXPECT_EQ(reader.revisions, std::make_pair(uint64_t{1}, uint64_t{1}))
        << "none is of an epoch before";
  }
}

// A store of a few commits, and what is done to its files between two lives.
class PutBackTest : public ::testing::Test {
 protected:
  // One more commit.
  void Live(const std::string& path) {
    auto storage = Open(path);
    Commit(storage.get());
  }

  std::unique_ptr<SqliteStorage> Open(const std::string& path) {
    SqliteStorage::Options options;
    options.path = path;
    return SqliteStorage::Open(options).value();
  }

  void Commit(SqliteStorage* storage) {
    WriteSet writes;
    writes.revision = ++revision_;
    writes.next_rank = ++next_rank_;
    writes.incarnations.push_back({revision_, "a", "", 0});
    ASSERT_EQ(storage->Write(writes), absl::OkStatus());
  }

  uint64_t EpochOf(const std::string& path) { return Open(path)->identity().epoch; }

  TempDir folder_;
  const std::string path_ = folder_.File("a.db");
  const std::string other_ = folder_.File("b.db");
  uint64_t revision_ = 0;
  uint64_t next_rank_ = 1;
};

TEST_F(PutBackTest, AnOlderFileBeginsANewEpoch) {
  Live(path_);
  const uint64_t epoch = EpochOf(path_);
  CopyStore(path_, other_, kData);
  Live(path_);
  EXPECT_EQ(EpochOf(path_), epoch);
  CopyStore(other_, path_, kData);
  const uint64_t restored = EpochOf(path_);
  EXPECT_NE(restored, epoch);
  Live(path_);
  EXPECT_EQ(EpochOf(path_), restored) << "once for one restore";
}

TEST_F(PutBackTest, AFileThatWasCopiedWhileItWasOpenBeginsANewEpoch) {
  uint64_t epoch;
  {
    auto storage = Open(path_);
    epoch = storage->identity().epoch;
    Commit(storage.get());
    CopyStore(path_, other_, kData);
    Commit(storage.get());
  }
  CopyStore(other_, path_, kData);
  EXPECT_NE(EpochOf(path_), epoch);
}

TEST_F(PutBackTest, ACopyBeginsAnEpochOfItsOwn) {
  Live(path_);
  const uint64_t epoch = EpochOf(path_);
  CopyStore(path_, other_, kData);
  EXPECT_NE(EpochOf(other_), epoch) << "without the mark";
  const std::string third = folder_.File("c.db");
  CopyStore(path_, third, kAll);
  EXPECT_NE(EpochOf(third), epoch) << "with the mark";
  EXPECT_EQ(EpochOf(path_), epoch);
}

TEST_F(PutBackTest, ACopyThatCameFurtherElsewhereBeginsANewEpoch) {
  Live(path_);
  const uint64_t epoch = EpochOf(path_);
  CopyStore(path_, other_, kData);
  for (int i = 0; i < 5; ++i) Live(other_);
  const uint64_t others = EpochOf(other_);
  CopyStore(other_, path_, kData);
  const uint64_t here = EpochOf(path_);
  EXPECT_NE(here, epoch);
  EXPECT_NE(here, others) << "both live on";
}

TEST_F(PutBackTest, AStoreWithoutAWholeMarkBeginsANewEpoch) {
  Live(path_);
  const uint64_t first = EpochOf(path_);
  ASSERT_EQ(unlink(StoreMark::PathOf(path_).c_str()), 0);
  const uint64_t second = EpochOf(path_);
  EXPECT_NE(second, first);
  std::ofstream(StoreMark::PathOf(path_), std::ios::binary) << std::string(64, 'x');
  const uint64_t third = EpochOf(path_);
  EXPECT_NE(third, second);
  EXPECT_EQ(EpochOf(path_), third);
  // A bit anywhere, as in a part that says nothing yet.
  std::fstream mark(StoreMark::PathOf(path_), std::ios::binary | std::ios::in | std::ios::out);
  mark.seekp(40) << '\1';
  mark.close();
  EXPECT_NE(EpochOf(path_), third);
}

TEST_F(PutBackTest, AStoreThatHasGoneFromBesideItsMarkIsNewWithAWarning) {
  std::vector<std::string> warnings;
  SetLogSink(LogLevel::kWarning, [&](LogLevel, const std::string& event, const LogFields& fields) {
    warnings.push_back(FormatLogLine(event, fields));
  });
  Live(path_);
  const uint64_t first = EpochOf(path_);
  EXPECT_THAT(warnings, ::testing::IsEmpty()) << "a new store";
  for (const char* suffix : {"", "-wal", "-shm"}) unlink((path_ + suffix).c_str());
  EXPECT_NE(EpochOf(path_), first);
  EXPECT_THAT(warnings, ::testing::ElementsAre(
                            ::testing::AllOf(::testing::HasSubstr("agents send everything again"),
                                             ::testing::HasSubstr("store=" + path_ + " "),
                                             ::testing::HasSubstr("mark=" + path_ + ".mark"))));
  EpochOf(path_);
  EXPECT_EQ(warnings.size(), 1u);
  SetLogSink(LogLevel::kWarning, nullptr);
}

TEST_F(PutBackTest, ANewEpochLeavesOutTheRanksThatMayHaveBeenGiven) {
  for (int i = 0; i < 3; ++i) Live(path_);
  CopyStore(path_, other_, kData);
  for (int i = 0; i < 1000; ++i) ++next_rank_;
  Live(path_);
  CopyStore(other_, path_, kData);
  EXPECT_GT(Open(path_)->identity().next_rank, next_rank_);
}

std::string DurabilityName(const ::testing::TestParamInfo<Durability>& info) {
  constexpr const char* kNames[] = {"Full", "Normal", "Off"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Durabilities, EpochTest,
                         ::testing::Values(Durability::kFull, Durability::kNormal,
                                           Durability::kOff),
                         DurabilityName);

}  // namespace
}  // namespace failback
