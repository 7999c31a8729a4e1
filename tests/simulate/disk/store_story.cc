#include "tests/simulate/disk/store_story.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/store/sqlite/sqlite_storage.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/simulate/disk/disk_story.h"
#include "tests/simulate/disk/held_keys.h"
#include "tests/simulate/disk/lying_disk.h"
#include "tests/util/fake_executor.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

constexpr char kPath[] = "/d/registry.db";
constexpr int kClients = 3;
constexpr int kKeys = 8;  // of each client

class StoreStory final : public DiskStory {
 public:
  explicit StoreStory(uint64_t seed)
      : DiskStory(seed, "/d", /*longest_life=*/1500), clock_(int64_t{1000000000000}) {
    durability_ = Pick(3) != 0   ? Durability::kFull
                  : Pick(3) != 0 ? Durability::kNormal
                                 : Durability::kOff;
    checkpoint_pages_ = 6 + Pick(60);
    if (Pick(8) == 0) disk_.set_free_bytes(int64_t{1} << 30);
    if (Pick(4) == 0) disk_.set_sync_time(absl::Milliseconds(1 + Pick(50)));
    disk_.set_wait([this](absl::Duration time) { clock_.Jump(time); });
    DrawFaults(/*synced=*/durability_ == Durability::kFull);
    history_.emplace_back();
    Say(absl::StrCat("durability ", DurabilityNumber(durability_), ", checkpoints of ",
                     checkpoint_pages_, " pages"));
  }

 private:
  struct Client {
    std::string session;
    bool opened = false;   // and that was acknowledged
    bool closing = false;  // a close was tried since the last commit
    bool busy = false;
    // What the call under way would make of its keys; and what refused ones since the last success
    // would have made of them.
    std::vector<Present> possible;
  };
  enum class Ended { kCleanly, kKilled, kCut };

  // --- One life.

  void OnEnd() override {
    if (ended_ == Ended::kCleanly || cut_after_end_) return;
    ended_ = disk_.last_crash() == LyingDisk::Crash::kPower ? Ended::kCut : Ended::kKilled;
    Say(absl::StrCat("dead: ", ended_ == Ended::kCut ? "power cut" : "kill -9"));
    if (ended_ == Ended::kCut) {
      ++result_.cuts;
      ++boot_;
    }
  }

  void Close() override {
    registry_.reset();
    executor_.RunAll();
    for (Client& client : clients_) client.busy = false;
  }

  // While no call to the disk is under way.
  void EndCleanly() override {
    Settle();
    if (Pick(4) == 0) {
      const LyingDisk::Crash crash = CrashOrCut();
      disk_.EndAfter(Pick(60), crash);
    }
    registry_.reset();
    executor_.RunAll();
    disk_.EndAfter(-1, LyingDisk::Crash::kProcess);
    if (!alive()) return;
    ended_ = Ended::kCleanly;
    Say("ended cleanly");
    // The machine goes, after the program.
    if (Pick(2) == 0) {
      disk_.End(LyingDisk::Crash::kPower);
      ++boot_;
      ++result_.cuts;
      // Without faults it was clean.
      if (!clean_) ended_ = Ended::kCut;
      Say("power cut after the end");
      cut_after_end_ = true;
    }
  }

  void Step() override {
    const int what = Pick(20);
    if (what < 3) {
      executor_.RunOne();
    } else if (what < 5) {
      executor_.RunAll();
      ExpectVisible();
    } else if (what == 5) {
      clock_.Advance(absl::Seconds(1 + Pick(2)));
    } else if (what == 6 && Pick(3) == 0) {
      clock_.Advance(absl::Seconds(70));  // fences go
    } else if (what == 7 && Pick(3) == 0) {
      SetFaults();
    } else if (what == 8 && Pick(4) == 0) {
      Recover();
    } else {
      Call(Pick(kClients));
    }
  }

  // A disk that works again is written again.
  void Recover() {
    const LyingDisk::Faults before = disk_.faults();
    disk_.set_faults({});
    Settle();
    clock_.Advance(absl::Seconds(2));
    const int64_t acknowledged = result_.acknowledged;
    Call(0);
    Settle();
    if (alive() && result_.acknowledged == acknowledged) {
      Violation("a disk that works is not written");
    }
    disk_.set_faults(before);
  }

  // Until every call is answered.
  void Settle() {
    executor_.RunAll();
    for (const Client& client : clients_) {
      if (client.busy && alive()) Violation("a call was not answered");
    }
  }

  // --- Calls.

  void Call(int number) {
    Client& client = clients_[number];
    if (client.busy) return;
    if (client.session.empty()) return OpenSession(number);
    const int what = Pick(20);
    if (what == 0) return CloseSession(number);
    Write(number, /*registers=*/what < 12);
  }

  // Runs when a call has an answer, if that reaches its caller.
  template <typename Response, typename Then>
  auto Answer(int number, Then then) {
    clients_[number].busy = true;
    auto answered = std::make_shared<bool>(false);
    return [this, number, answered, life = disk_.life(),
            then = std::move(then)](absl::StatusOr<Response> response) {
      if (std::exchange(*answered, true)) Violation("a call was answered twice");
      // The dead do not answer.
      if (life != disk_.life()) return;
      Client& client = clients_[number];
      client.busy = false;
      if (response.ok()) {
        ++result_.acknowledged;
        const uint64_t before = revision_;
        then(*response);
        // A commit has taken the place of what a failed one may have left.
        for (Client& each : clients_) {
          if (revision_ <= before || each.busy) continue;
          each.possible.clear();
          each.closing = false;
        }
        history_.push_back(now_);
      } else {
        ++result_.refused;
        Say(absl::StrCat("  c", number, " refused: ", response.status().message()));
        // One that its owner's end cancels may yet be there; as may be one that was refused.
        if (response.status().code() != absl::StatusCode::kUnavailable &&
            !absl::IsCancelled(response.status())) {
          Violation(absl::StrCat("refused with ", response.status().ToString()));
        }
      }
    };
  }

  void OpenSession(int number) {
    OpenSessionRequest request;
    request.set_incarnation(absl::StrCat("c", number));
    request.mutable_ttl()->set_seconds(3600);
    Say(absl::StrCat("c", number, " opens"));
    registry_->OpenSession(
        request, Answer<OpenSessionResponse>(number, [this, number](const auto& response) {
          Say(absl::StrCat("  c", number, " has rank ", response.rank()));
          Client& client = clients_[number];
          client.session = response.session_id();
          client.opened = true;
          uint64_t& rank = ranks_[number];
          if (rank != 0 && response.rank() != rank) {
            Violation(absl::StrCat("c", number, " had rank ", rank, " and has ", response.rank()));
          }
          rank = response.rank();
        }));
  }

  void CloseSession(int number) {
    Client& client = clients_[number];
    CloseSessionRequest request;
    request.set_session_id(std::exchange(client.session, ""));
    client.opened = false;
    client.closing = true;
    client.possible.emplace_back();
    Say(absl::StrCat("c", number, " closes"));
    registry_->CloseSession(
        request, Answer<CloseSessionResponse>(number, [this, number](const auto& response) {
          revision_ = std::max(revision_, response.revision());
          Say(absl::StrCat("  c", number, " closed"));
          SetKeys(number, {}, &now_);
        }));
  }

  void Write(int number, bool registers) {
    Client& client = clients_[number];
    const uint64_t generation = ++generation_;
    Present after = KeysOf(now_, number);
    std::set<int> keys;
    for (int i = 1 + Pick(1 + Pick(kKeys)); i > 0; --i) keys.insert(Pick(kKeys));
    RegisterRequest put;
    UnregisterRequest remove;
    put.set_session_id(client.session);
    remove.set_session_id(client.session);
    for (const int key : keys) {
      const std::string id = absl::StrCat("c", number, "-", key);
      ServiceInstance instance = MakeInstance(id, PortOf(generation));
      if (Pick(4) == 0) (*instance.mutable_metadata())["filling"] = Filling(generation);
      if (registers) {
        *put.add_registrations()->mutable_instance() = instance;
        put.mutable_registrations(put.registrations_size() - 1)->set_generation(generation);
        after[id] = generation;
        content_[generation][id] = instance.SerializeAsString();
      } else {
        auto* const removal = remove.add_deregistrations();
        *removal->mutable_key() = instance.key();
        removal->set_generation(generation);
        after.erase(id);
      }
    }
    Say(absl::StrCat("c", number, registers ? " puts " : " takes ", absl::StrJoin(keys, ","),
                     " as ", generation));
    client.possible.push_back(after);
    const auto then = [this, number, generation, after](const auto& response) {
      for (const auto& result : response.results()) {
        if (result.status().code() != 0) {
          Violation(absl::StrCat(generation, ": ", result.status().message()));
        }
      }
      Say(absl::StrCat("  ", generation, " at ", response.revision()));
      revision_ = std::max(revision_, response.revision());
      SetKeys(number, after, &now_);
    };
    if (registers) {
      registry_->Register(put, Answer<RegisterResponse>(number, then));
    } else {
      registry_->Unregister(remove, Answer<UnregisterResponse>(number, then));
    }
  }

  static uint32_t PortOf(uint64_t generation) {
    return 1 + static_cast<uint32_t>(generation % 60000);
  }
  static std::string Filling(uint64_t generation) {
    return std::string(10 + generation * 97 % 900, static_cast<char>('a' + generation % 26));
  }

  // --- What is there.

  // Nothing if a read failed, which is a violation.
  std::optional<Present> Visible() {
    std::optional<Present> visible;
    ListRequest request;
    request.mutable_selector()->set_service("orders");
    registry_->List(request, [&](absl::StatusOr<ListResponse> response) {
      if (!response.ok()) return Violation(std::string(response.status().message()));
      visible.emplace();
      for (const InstanceRecord& record : response->records()) {
        const std::string& id = record.instance().key().instance_id();
        (*visible)[id] = record.generation();
        ServiceInstance instance = record.instance();
        const auto known = content_.find(record.generation());
        if (known == content_.end() || known->second.count(id) == 0) {
          Violation(
              absl::StrCat(id, " has generation ", record.generation(), ", which it never had"));
        } else if (const std::string expected = known->second.at(id);
                   instance.SerializeAsString() != expected) {
          Violation(absl::StrCat(id, " is not what was registered as ", record.generation()));
        }
      }
    });
    return visible;
  }

  void ExpectVisible() {
    const auto visible = Visible();
    for (int i = 0; i < kClients; ++i) {
      if (clients_[i].busy || !visible.has_value()) return;
    }
    if (*visible != now_) {
      Violation(absl::StrCat("visible is ", Shown(*visible), ", acknowledged ", Shown(now_)));
    }
  }

  // --- The next life.

  absl::Status Open() {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(10);
    registry_.reset();
    timer_ = HashedWheelTimer::Create(timer).value();
    SqliteStorage::Options storage;
    storage.path = kPath;
    storage.durability = durability_;
    storage.checkpoint_pages = checkpoint_pages_;
    storage.boot_id = absl::StrCat("boot-", boot_);
    storage.executor = &executor_;
    storage.disk = &disk_;
    auto opened = SqliteStorage::Open(std::move(storage));
    if (!opened.ok()) return opened.status();
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.executor = &executor_;
    options.max_ttl = absl::Hours(2);
    auto registry = StoreRegistry::OpenOn(std::move(options), *std::move(opened));
    if (!registry.ok()) return registry.status();
    registry_ = *std::move(registry);
    return absl::OkStatus();
  }

  // Nothing of a file that was never synced is certain, nor that it is one.
  bool MayBeTorn() const { return durability_ == Durability::kOff && ended_ == Ended::kCut; }

  bool Reopen() override {
    if (exists_ && Pick(3) == 0) FlipAndOpen();
    // Errors on the way in pass, and say so.
    for (int i = Pick(3); exists_ && i > 0 && may_fail(); --i) OpenWithFaults();
    if (violated()) return false;
    const absl::Status status = Open();
    if (!status.ok()) {
      if (absl::IsDataLoss(status) && MayBeTorn()) {
        Say("gone");
      } else {
        Violation(absl::StrCat("cannot be opened: ", status.message()));
      }
      return false;
    }
    Compare(/*flipped=*/false);
    exists_ = true;
    ended_ = Ended::kKilled;
    cut_after_end_ = false;
    clean_ = true;
    return !violated();
  }

  void OpenWithFaults() {
    disk_.set_faults(FaultsOfStart());
    const absl::Status status = Open();
    disk_.set_faults({});
    Say(absl::StrCat("opened with faults: ", status.message()));
    if (absl::IsDataLoss(status) && !MayBeTorn()) {
      Violation(absl::StrCat("not damaged: ", status.message()));
    }
    if (!status.ok()) return;
    Compare(/*flipped=*/false);
    registry_.reset();
    executor_.RunAll();
    if (ended_ == Ended::kCleanly) ended_ = Ended::kKilled;
  }

  // With a bit that has flipped while no program had the files; afterwards all is as before.
  void FlipAndOpen() {
    const auto before = disk_.Save();
    std::vector<std::string> files = disk_.Files();
    // After a power cut nothing tells a commit that the log has lost to a flipped bit from one that
    // was never written: the mark beside it was not synced. Nor where the mark was not written.
    if (ended_ == Ended::kCut || cut_after_end_ || unmarked()) files = {kPath};
    const std::string file = FlipBitOf(files);
    if (file.empty()) return;
    const absl::Status status = Open();
    Say(absl::StrCat("a bit of ", file, " flipped: ", status.message()));
    if (status.ok()) {
      Compare(/*flipped=*/true);
    } else {
      ++result_.flips_refused;
    }
    registry_.reset();
    executor_.RunAll();
    disk_.Load(*before);
  }

  // What is there now, and what may be.
  void Compare(bool flipped) {
    const uint64_t epoch = registry_->epoch();
    const bool same = epoch == epoch_ || epoch_ == 0;
    if (!same) ++result_.doubts;
    if (absl::Status status = registry_->CheckInvariants(); !status.ok()) {
      Violation(std::string(status.message()));
    }
    const auto found = Visible();
    if (!found.has_value()) return;
    Say(absl::StrCat("opened: epoch ", same ? "as before" : "new", " revision ",
                     registry_->revision(), " ", Shown(*found)));
    const bool lossy = ended_ == Ended::kCut && durability_ != Durability::kFull;
    if (!same && !flipped && !lossy) {
      Violation("a new epoch, and nothing can have been lost");
    }
    const bool whole = IsWhole(*found);
    if (!whole && same) {
      Violation(absl::StrCat("in the same epoch there is ", Shown(*found), ", acknowledged was ",
                             Shown(now_)));
    } else if (!whole && !lossy && !flipped) {
      Violation(absl::StrCat("there is ", Shown(*found), ", acknowledged was ", Shown(now_)));
    } else if (!whole && durability_ != Durability::kOff &&
               std::find(history_.begin(), history_.end(), *found) == history_.end()) {
      Violation(absl::StrCat("there is ", Shown(*found), ", which never was"));
    }
    if (same && registry_->revision() < revision_) {
      Violation(absl::StrCat("revision ", registry_->revision(), " after ", revision_));
    }
    if (same) {
      for (int i = 0; i < kClients; ++i) CompareSession(i);
    }
    if (flipped) return;
    for (Client& client : clients_) {
      client.possible.clear();
      client.closing = false;
      // What it was before it went may be gone, or another.
      client.session.clear();
    }
    if (!same) ranks_.clear();
    epoch_ = epoch;
    revision_ = registry_->revision();
    now_ = *found;
    if (!whole) history_.clear();
    history_.push_back(now_);
  }

  void CompareSession(int number) {
    Client& client = clients_[number];
    if (client.session.empty() || !client.opened || client.closing) return;
    KeepAliveRequest request;
    request.set_session_id(client.session);
    registry_->KeepAlive(request, [&](absl::StatusOr<KeepAliveResponse> response) {
      if (!response.ok()) Violation(absl::StrCat("the session of c", number, " is not there"));
    });
  }

  bool IsWhole(const Present& found) const {
    for (int i = 0; i < kClients; ++i) {
      const Present own = KeysOf(found, i);
      const auto& possible = clients_[i].possible;
      if (own != KeysOf(now_, i) &&
          std::find(possible.begin(), possible.end(), own) == possible.end()) {
        return false;
      }
    }
    return true;
  }

  SimulatedClock clock_;
  FakeExecutor executor_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> registry_;
  Durability durability_ = Durability::kFull;
  int64_t checkpoint_pages_ = 0;
  int boot_ = 1;
  Ended ended_ = Ended::kKilled;
  bool cut_after_end_ = false;
  bool exists_ = false;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
  uint64_t generation_ = 0;
  Present now_;  // as acknowledged
  std::vector<Present> history_;
  Client clients_[kClients];
  std::map<int, uint64_t> ranks_;
  std::map<uint64_t, std::map<std::string, std::string>> content_;  // by generation and id
};

}  // namespace

StoryResult TellStoreStory(uint64_t seed) { return StoreStory(seed).Tell(); }

}  // namespace failback
