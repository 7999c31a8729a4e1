#include "agent/consul_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/small_file.h"
#include "registry/security/identity.h"
#include "retry/mutex.h"

namespace failback {
namespace {

constexpr char kEnding[] = ".json";
// More than may be registered: the rest is no work of ours.
constexpr size_t kMostFiles = 100'000;

class Folder final : public consul::ServiceFolder {
 public:
  Folder(std::string path, std::vector<std::string> texts)
      : path_(std::move(path)), texts_(std::move(texts)), thread_([this] { Run(); }) {}

  ~Folder() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  void Keep(const std::string& id, std::string text) override { Change(id, std::move(text)); }
  void Forget(const std::string& id) override { Change(id, std::nullopt); }
  std::vector<std::string> TakeAll() override {
    MutexLock lock(&mu_);
    return std::exchange(texts_, {});
  }

 private:
  using Changes = std::map<std::string, std::optional<std::string>>;  // by id; nullopt: it goes

  void Change(const std::string& id, std::optional<std::string> text) {
    MutexLock lock(&mu_);
    changes_[id] = std::move(text);
    changed_.SignalAll();
  }

  void Run() {
    while (true) {
      Changes changes;
      {
        MutexLock lock(&mu_);
        while (changes_.empty() && !stopping_) changed_.Wait(&mu_);
        if (changes_.empty()) return;
        changes.swap(changes_);
      }
      for (const auto& [id, text] : changes) Write(id, text);
    }
  }

  void Write(const std::string& id, const std::optional<std::string>& text) {
    // An id may hold anything, and be long.
    const std::string file = absl::StrCat(path_, "/", absl::BytesToHexString(Sha256(id)), kEnding);
    absl::Status status;
    if (text.has_value()) {
      status = ReplaceFile(file, *text, 0600);
    } else if (unlink(file.c_str()) != 0 && errno != ENOENT) {
      status = absl::FailedPreconditionError(
          absl::StrCat("cannot remove ", file, ": ", std::strerror(errno)));
    }
    if (status.ok()) return;
    throttle_.Log(LogLevel::kError, "a service of a Consul client is not kept for the next start",
                  {{"id", id}, {"error", std::string(status.message())}});
  }

  const std::string path_;
  LogThrottle throttle_;
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
  Changes changes_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<consul::ServiceFolder>> OpenConsulFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make ", path, ": ", std::strerror(errno)));
  }
  DIR* const dir = opendir(path.c_str());
  if (dir == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  std::vector<std::string> texts;
  while (const dirent* const entry = readdir(dir)) {
    if (!absl::EndsWith(entry->d_name, kEnding) || texts.size() >= kMostFiles) continue;
    const std::string file = absl::StrCat(path, "/", entry->d_name);
    absl::StatusOr<std::string> text = ReadFile(file);
    if (text.ok()) {
      texts.push_back(*std::move(text));
    } else {
      Log(LogLevel::kWarning, "a kept service of a Consul client cannot be read",
          {{"file", file}, {"error", std::string(text.status().message())}});
    }
  }
  closedir(dir);
  return std::make_unique<Folder>(path, std::move(texts));
}

}  // namespace failback
