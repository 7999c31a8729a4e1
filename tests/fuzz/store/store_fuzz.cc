// What a store reads: its file, the log and the mark beside it, with damage anywhere or any bytes
// in their place, and rows of any content. Opening gives a registry that can be read and written,
// or an error that names the file; what `check` finds good can be opened, backed up and restored.
// Nothing crashes.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "registry/model/canonical.h"
#include "registry/store/store_maintenance.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// A folder for this process, in memory where there is some.
const std::string& Folder() {
  static const auto* const folder = [] {
    std::string path = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path += "/failback-store-fuzz-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) Die("no folder for the store");
    std::atexit([] {
      const std::string command = "rm -rf '" + Folder() + "'";
      if (std::system(command.c_str()) != 0) std::perror("rm");
    });
    return new std::string(path);
  }();
  return *folder;
}

class Store {
 public:
  Store() { timer_ = NewTimer(&clock_); }

  absl::Status Open(const std::string& path) {
    StoreRegistry::Options options = MakeOptions();
    options.uri = "sqlite://" + path;
    return Take(StoreRegistry::Open(std::move(options)));
  }
  absl::Status OpenOn(FakeRows* rows) {
    return Take(StoreRegistry::OpenOn(MakeOptions(), std::make_unique<FakeStorage>(rows)));
  }

  Registry& registry() { return *registry_; }
  SimulatedClock& clock() { return clock_; }
  void CheckInvariants() {
    if (const absl::Status broken = registry_->CheckInvariants(); !broken.ok()) {
      Die(broken.ToString());
    }
  }

 private:
  StoreRegistry::Options MakeOptions() {
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.durability = Durability::kOff;
    options.commit_inline = true;
    return options;
  }
  absl::Status Take(absl::StatusOr<std::unique_ptr<StoreRegistry>> opened) {
    if (!opened.ok()) return opened.status();
    registry_ = *std::move(opened);
    return absl::OkStatus();
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> registry_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void Register(Registry* registry, const std::string& session, int port) {
  RegisterRequest request;
  request.set_session_id(session);
  auto* const instance = request.add_registrations()->mutable_instance();
  instance->mutable_key()->set_service("orders");
  instance->mutable_key()->set_instance_id(std::to_string(port));
  instance->set_address("10.0.0.1");
  instance->set_port(static_cast<uint32_t>(port));
  (*instance->mutable_metadata())["k"] = "v";
  registry->Register(request, [](const auto&) {});
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

constexpr const char* kSuffixes[] = {"", "-wal", ".mark"};

// The files of a store with sessions, instances and tombstones, by suffix. What is in the log is
// not in the file yet, as after a kill -9.
struct Files {
  std::string of[std::size(kSuffixes)];
};

const Files& GoodFiles() {
  static const auto* const files = [] {
    const std::string path = Folder() + "/good.db";
    std::string session;
    auto* const good = new Files;
    for (int life = 0; life < 2; ++life) {
      Store store;
      if (const absl::Status status = store.Open(path); !status.ok()) Die(status.ToString());
      OpenSessionRequest open;
      open.set_incarnation("i" + std::to_string(life));
      store.registry().OpenSession(open,
                                   [&](const auto& opened) { session = opened->session_id(); });
      for (int port = 1; port <= 20; ++port) {
        Register(&store.registry(), port % 2 == 0 ? session : "", life * 100 + port);
      }
      UnregisterRequest gone;
      gone.set_session_id(session);
      auto* const key = gone.add_deregistrations()->mutable_key();
      key->set_service("orders");
      key->set_instance_id(std::to_string(life * 100 + 2));
      store.registry().Unregister(gone, [](const auto&) {});
      for (size_t i = 0; i < std::size(kSuffixes); ++i) good->of[i] = ReadFile(path + kSuffixes[i]);
    }
    return good;
  }();
  return *files;
}

void Damage(FuzzInput* input, int most, std::string* bytes) {
  if (input->Byte() % 8 == 0) bytes->resize(bytes->size() * input->Byte() / 255);
  for (int i = 0; i < most && !input->empty() && !bytes->empty(); ++i) {
    const size_t place = (static_cast<size_t>(input->Number()) << 8 | input->Byte());
    (*bytes)[place % bytes->size()] = static_cast<char>(input->Byte());
  }
}

Files DamagedFiles(FuzzInput* input) {
  Files files = GoodFiles();
  const uint8_t which = input->Byte();
  if (which % 16 == 0) {
    files.of[which / 16 % std::size(kSuffixes)] = input->Rest();
    return files;
  }
  for (size_t i = 0; i < std::size(kSuffixes); ++i) {
    if ((which >> i & 1) != 0) Damage(input, 1 + input->Byte(), &files.of[i]);
    if ((which >> (i + 4) & 1) != 0) files.of[i].clear();
  }
  return files;
}

void CheckError(const absl::Status& status, const std::string& path) {
  const std::string message(status.message());
  if (message.find(path) == std::string::npos) Die("the file is not named: " + message);
  if (message.find('\n') != std::string::npos) Die("more than a line: " + message);
}

void Use(Store* store) {
  store->CheckInvariants();
  int answers = 0;
  store->registry().List(ListRequest(), [&](const auto&) { ++answers; });
  Register(&store->registry(), "", 9999);
  store->CheckInvariants();
  // Sessions run out and fences are forgotten.
  store->clock().Advance(absl::Hours(1));
  store->clock().Advance(absl::Hours(30));
  store->CheckInvariants();
  OpenSessionRequest open;
  open.set_incarnation("another");
  store->registry().OpenSession(open, [&](const auto&) { ++answers; });
  if (answers != 2) Die("a call was not answered once");
  store->CheckInvariants();
}

// check, backup and restore, of a file and what is beside it.
void Maintain(const std::string& path) {
  const std::string backup = Folder() + "/backup.db";
  const std::string restored = Folder() + "/restored.db";
  for (const char* suffix : {"", "-wal", "-shm", ".lock", ".mark"}) {
    unlink((backup + suffix).c_str());
    unlink((restored + suffix).c_str());
  }
  const auto checked = CheckStore(path);
  if (!checked.ok()) CheckError(checked.status(), path);
  const auto backed_up = BackUpStore(path, backup, nullptr);
  if (backed_up.ok() != checked.ok()) {
    Die("check and backup differ: " + checked.status().ToString() + " / " +
        backed_up.status().ToString());
  }
  const auto put_back = RestoreStore(path, restored, nullptr);
  if (put_back.ok() != checked.ok()) {
    Die("check and restore differ: " + checked.status().ToString() + " / " +
        put_back.status().ToString());
  }
  if (!checked.ok()) return CheckError(backed_up.status(), Folder());
  for (const std::string& good : {backup, restored}) {
    Store store;
    if (const absl::Status status = store.Open(good); !status.ok()) Die(status.ToString());
    Use(&store);
  }
}

void PlayFiles(FuzzInput* input) {
  const std::string path = Folder() + "/damaged.db";
  for (const char* suffix : {"", "-wal", "-shm", ".lock", ".mark", "-journal"}) {
    unlink((path + suffix).c_str());
  }
  const bool maintain = input->Byte() % 4 == 0;
  const Files files = DamagedFiles(input);
  for (size_t i = 0; i < std::size(kSuffixes); ++i) {
    if (i == 0 || !files.of[i].empty()) WriteFile(path + kSuffixes[i], files.of[i]);
  }
  if (maintain) return Maintain(path);
  Store store;
  if (const absl::Status status = store.Open(path); !status.ok()) return CheckError(status, path);
  Use(&store);
}

// Small numbers that meet again, and the ends of what a row can hold.
int64_t AnyNumber(FuzzInput* input) {
  const uint8_t byte = input->Byte();
  if (byte < 240) return byte % 6;
  if (byte < 246) return std::numeric_limits<int64_t>::max() - byte % 2;
  if (byte < 250) return std::numeric_limits<int64_t>::min();
  return input->Number() - 1000;
}

Blob AnyBlob(FuzzInput* input, const google::protobuf::Message& message) {
  switch (input->Byte() % 16) {
    case 0:
      return Blob(input->Text(40));
    case 1:
    case 2:
    case 3:
      return Blob();
    default:
      return Blob(message.SerializeAsString());
  }
}

RecordRow AnyRecord(FuzzInput* input, std::string* key) {
  ServiceInstance instance;
  input->Fill(&instance);
  *key = CanonicalKey(instance.key());
  if (input->Byte() % 16 == 0) *key = input->Text(20);
  registry::v1::OfflineMark mark;
  input->Fill(&mark);
  RecordRow row;
  row.id = AnyNumber(input);
  row.instance = AnyBlob(input, instance);
  if (input->Byte() % 4 == 0) row.offline = AnyBlob(input, mark);
  row.fence_rank = static_cast<uint64_t>(AnyNumber(input));
  row.fence_generation = static_cast<uint64_t>(AnyNumber(input));
  row.fence_registers = input->Byte() % 2 == 0;
  row.owner_rank =
      input->Byte() % 4 == 0 ? static_cast<uint64_t>(AnyNumber(input)) : row.fence_rank;
  row.session = AnyNumber(input);
  row.create_revision = static_cast<uint64_t>(AnyNumber(input));
  row.modify_revision = static_cast<uint64_t>(AnyNumber(input));
  row.create_ms = AnyNumber(input);
  row.modify_ms = AnyNumber(input);
  row.retention_ms = static_cast<uint32_t>(AnyNumber(input));
  row.persistent = input->Byte() % 4 == 0;
  return row;
}

// Rows whose checksums are right, whatever they say.
void PlayRows(FuzzInput* input) {
  FakeRows rows;
  rows.identity.revision = input->Byte();
  rows.identity.next_rank = input->Byte();
  for (int i = input->Byte() % 4; i > 0; --i) {
    IncarnationRow row;
    row.rank = static_cast<uint64_t>(AnyNumber(input));
    row.name = std::string(1, static_cast<char>('a' + input->Byte() % 6));
    row.last_seen_ms = AnyNumber(input);
    rows.incarnations[row.rank] = row;
  }
  for (int i = input->Byte() % 4; i > 0; --i) {
    SessionRow row;
    row.id = AnyNumber(input);
    row.session_id = std::string(1, static_cast<char>('a' + input->Byte() % 6));
    row.rank = static_cast<uint64_t>(AnyNumber(input));
    row.ttl_ms = AnyNumber(input);
    // Seconds: what happens every quarter of a TTL must not happen all day long.
    if (row.ttl_ms > 0 && row.ttl_ms < 100000) row.ttl_ms *= 10000;
    row.ends_with_stream = input->Byte() % 2 == 0;
    rows.sessions[row.id] = row;
  }
  for (int i = input->Byte() % 8; i > 0; --i) {
    std::string key;
    RecordRow row = AnyRecord(input, &key);
    const int64_t id = row.id;
    rows.records[id] = {std::move(key), std::move(row)};
  }
  Store store;
  if (!store.OpenOn(&rows).ok()) return;
  Use(&store);
}

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  failback::FuzzInput input(data, size);
  if (input.Byte() % 2 == 0) {
    failback::PlayFiles(&input);
  } else {
    failback::PlayRows(&input);
  }
  return 0;
}
