#include "agent/config_reload.h"

#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/agent_config.h"
#include "google/protobuf/util/message_differencer.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;
using google::protobuf::FieldDescriptor;
using google::protobuf::util::MessageDifferencer;

const std::set<std::string>& LiveKeys() {
  static const auto& keys =
      *new std::set<std::string>{"services", "namespace", "log", "drain_deadline"};
  return keys;
}

// Takes the services out, and returns them encoded.
std::string TakeServices(AgentConfig* config) {
  AgentConfig services;
  services.mutable_services()->Swap(config->mutable_services());
  return services.SerializeAsString();
}

}  // namespace

absl::Status CheckLiveChange(const AgentConfig& now, const AgentConfig& next,
                             const ConfigLoader& loader) {
  const auto* descriptor = AgentConfig::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* const field = descriptor->field(i);
    if (LiveKeys().count(field->name()) > 0) continue;
    MessageDifferencer differencer;
    if (differencer.CompareWithFields(now, next, {field}, {field})) continue;
    return loader.ErrorAt(
        field->name(), "cannot change while the agent runs; change it back, or restart the agent");
  }
  return absl::OkStatus();
}

ConfigReload::ConfigReload(ConfigLoader* loader, AgentConfig config, Apply apply)
    : loader_(loader), apply_(std::move(apply)), config_(std::move(config)), seen_(HashFiles()) {
  MutexLock lock(&mu_);
  services_ = TakeServices(&config_);
  status_.set_file(loader_->config_file());
  *status_.mutable_load_time() = ToProto(absl::Now());
}

std::vector<std::string> ConfigReload::files() const {
  std::vector<std::string> files;
  for (const std::string& file : {loader_->config_file(), config_.pod().labels_file()}) {
    if (!file.empty()) files.push_back(file);
  }
  return files;
}

size_t ConfigReload::HashFiles() const {
  std::string all;
  for (const std::string& name : files()) {
    std::ifstream file(name);
    std::ostringstream text;
    if (file.is_open()) text << file.rdbuf();
    absl::StrAppend(&all, file.is_open() ? "+" : "-", text.str(), std::string(1, '\0'));
  }
  return std::hash<std::string>()(all);
}

absl::Status ConfigReload::LoadAndApply() {
  AgentConfig next;
  absl::Status status = loader_->Load(&next);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<StaticServiceSpec>> services = ValidateAgentConfig(next, *loader_);
  if (!services.ok()) return services.status();
  status = CheckLiveChange(config_, next, *loader_);
  if (!status.ok()) return status;
  std::string encoded = TakeServices(&next);
  apply_(next, *std::move(services));
  MutexLock lock(&mu_);
  config_ = std::move(next);
  services_ = std::move(encoded);
  return status;
}

void ConfigReload::Reload(bool always) {
  const size_t now = HashFiles();
  if (now == seen_ && !always) return;
  seen_ = now;
  const absl::Status status = LoadAndApply();
  {
    MutexLock lock(&mu_);
    status_.set_error(std::string(status.message()));
    if (status.ok()) {
      status_.set_reloads(status_.reloads() + 1);
      *status_.mutable_load_time() = ToProto(absl::Now());
    } else {
      status_.set_refused(status_.refused() + 1);
    }
  }
  if (status.ok()) {
    Log(LogLevel::kInfo, "configuration reloaded", {{"file", loader_->config_file()}});
  } else {
    Log(LogLevel::kError, "configuration refused, the one before stays",
        {{"error", std::string(status.message())}});
  }
}

AgentConfig ConfigReload::ConfigInForce() const {
  MutexLock lock(&mu_);
  AgentConfig config = config_;
  config.MergeFromString(services_);
  return config;
}

agent::v1::ConfigStatus ConfigReload::Status() const {
  MutexLock lock(&mu_);
  return status_;
}

}  // namespace failback
