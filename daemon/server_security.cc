#include "daemon/server_security.h"

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/config_file.h"
#include "failback/config/v1/access.pb.h"
#include "registry/base/log.h"
#include "registry/base/small_file.h"
#include "registry/security/tls_files.h"

namespace failback {
namespace {

constexpr size_t kMostLoggedRules = 20;  // that can never match, at once

std::vector<std::string> RulePaths(const ServerSecurity::Keys& keys) {
  std::vector<std::string> paths;
  for (const std::string* path : {&keys.known_tokens_file, &keys.policy_file}) {
    if (!path->empty()) paths.push_back(*path);
  }
  return paths;
}

ServerTls::Options ToOptions(const config::v1::ServerTls& tls) {
  ServerTls::Options options;
  options.files = {tls.client_ca(), tls.cert(), tls.key()};
  switch (tls.client_certificates()) {
    case config::v1::CLIENT_CERTIFICATES_OFF:
      break;
    case config::v1::CLIENT_CERTIFICATES_OPTIONAL:
      options.client_certificates = ClientCertificates::kOptional;
      break;
    case config::v1::CLIENT_CERTIFICATES_REQUIRED:
      options.client_certificates = ClientCertificates::kRequired;
      break;
    default:
      if (!tls.client_ca().empty()) options.client_certificates = ClientCertificates::kRequired;
  }
  return options;
}

// Reads one of the YAML files. The error is one line that names it.
template <typename Message>
absl::StatusOr<Message> ReadYaml(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", text.status().message()));
  }
  Message message;
  absl::Status status = ParseYaml(path, *text, &message);
  if (!status.ok()) return status;
  // With the line, where the parser gives it.
  absl::StatusOr<AccessRules> rules;
  if constexpr (std::is_same_v<Message, config::v1::Policy>) {
    rules = AccessRules::Make(&message, nullptr);
  } else {
    rules = AccessRules::Make(nullptr, &message);
  }
  if (rules.ok()) return message;
  const std::string problem(rules.status().message());
  const std::string place = PlaceInYaml(path, *text, problem.substr(0, problem.find(": ")));
  return absl::InvalidArgumentError(absl::StrCat(place.empty() ? path : place, ": ", problem));
}

}  // namespace

ServerSecurity::ServerSecurity(Keys keys)
    : keys_(std::move(keys)), rule_changes_(RulePaths(keys_)) {}

absl::StatusOr<AccessRules> ServerSecurity::ReadRules(std::string* content) const {
  std::optional<config::v1::Policy> policy;
  std::optional<config::v1::Tokens> tokens;
  if (!keys_.policy_file.empty()) {
    auto read = ReadYaml<config::v1::Policy>(keys_.policy_file);
    if (!read.ok()) return read.status();
    policy = *std::move(read);
  }
  if (!keys_.known_tokens_file.empty()) {
    auto read = ReadYaml<config::v1::Tokens>(keys_.known_tokens_file);
    if (!read.ok()) return read.status();
    tokens = *std::move(read);
  }
  content->clear();
  if (policy.has_value()) absl::StrAppend(content, policy->SerializeAsString());
  if (tokens.has_value()) absl::StrAppend(content, "\n", tokens->SerializeAsString());
  absl::StatusOr<AccessRules> rules =
      AccessRules::Make(policy ? &*policy : nullptr, tokens ? &*tokens : nullptr);
  if (!rules.ok() || rules->size() == 0) return rules;
  const std::vector<std::string> never = rules->NeverMatching(asks_clients_, keys_.reader);
  if (never.size() < rules->size()) return rules;
  return absl::InvalidArgumentError(absl::StrCat(
      keys_.policy_file, ": no rule can ever match, which would deny everything: ", never.front()));
}

absl::StatusOr<std::unique_ptr<ServerSecurity>> ServerSecurity::Load(Keys keys,
                                                                     const ConfigLoader& loader) {
  std::unique_ptr<ServerSecurity> security(new ServerSecurity(std::move(keys)));
  const Keys& set = security->keys_;
  const ServerTls::Options tls = ToOptions(set.tls);
  const bool asks = tls.client_certificates != ClientCertificates::kOff;
  if (!tls.files.paths().empty() || asks) {
    absl::StatusOr<std::shared_ptr<ServerTls>> made = ServerTls::Create(tls);
    if (!made.ok()) {
      // "field: problem"; the authorities are those of clients.
      const std::string message(made.status().message());
      const size_t colon = message.find(": ");
      const std::string field = message.substr(0, colon);
      return loader.ErrorAt(absl::StrCat("tls.", field == "ca" ? "client_ca" : field),
                            message.substr(colon + 2));
    }
    security->tls_ = *std::move(made);
  }
  security->asks_clients_ = asks;
  if (!asks && RulePaths(set).empty()) return security;
  MutexLock lock(&security->look_mu_);
  security->rule_changes_.Check();
  absl::StatusOr<AccessRules> rules = security->ReadRules(&security->rules_content_);
  if (!rules.ok()) {
    const std::string message(rules.status().message());
    const bool policy = !set.policy_file.empty() && absl::StartsWith(message, set.policy_file);
    return loader.ErrorAt(policy ? "policy_file" : "known_tokens_file", message);
  }
  security->LogNeverMatching(*rules);
  security->access_ = std::make_shared<AccessControl>(*std::move(rules));
  return security;
}

std::shared_ptr<grpc::ServerCredentials> ServerSecurity::credentials() const {
  return tls_ == nullptr ? nullptr : tls_->credentials();
}

absl::Status ServerSecurity::Watch(HashedWheelTimer* timer) {
  if (tls_ == nullptr && RulePaths(keys_).empty()) return absl::OkStatus();
  auto task = PeriodicTask::Start(timer, keys_.reload_interval, [this] { LookNow(); });
  if (!task.ok()) return task.status();
  task_ = *std::move(task);
  return absl::OkStatus();
}

void ServerSecurity::LookNow() {
  MutexLock lock(&look_mu_);
  if (tls_ != nullptr) {
    const absl::StatusOr<bool> taken = tls_->Reload();
    if (!taken.ok() || *taken) LogReload("certificate", taken.status());
    certificate_log_.Look(tls_->times(), absl::Now());
  }
  if (access_ == nullptr || RulePaths(keys_).empty() || !rule_changes_.Check()) return;
  std::string content;
  absl::StatusOr<AccessRules> rules = ReadRules(&content);
  const bool logged = !rules.ok() && rules.status() == refused_rules_;
  refused_rules_ = rules.status();
  if (logged || (rules.ok() && content == rules_content_)) return;
  LogReload("access rules", rules.status());
  if (!rules.ok()) return;
  LogNeverMatching(*rules);
  rules_content_ = std::move(content);
  access_->Update(*std::move(rules));
}

void ServerSecurity::LogNeverMatching(const AccessRules& rules) const {
  std::vector<std::string> never = rules.NeverMatching(asks_clients_, keys_.reader);
  if (never.size() > kMostLoggedRules) never.resize(kMostLoggedRules);
  for (const std::string& rule : never) {
    Log(LogLevel::kWarning, "a rule can never match",
        {{"policy_file", keys_.policy_file}, {"rule", rule}});
  }
}

void ServerSecurity::LogReload(const char* what, const absl::Status& status) {
  if (status.ok()) {
    reloads_.fetch_add(1, std::memory_order_relaxed);
    return Log(LogLevel::kInfo, "reloaded", {{"what", what}});
  }
  refused_reloads_.fetch_add(1, std::memory_order_relaxed);
  Log(LogLevel::kError, "reload refused",
      {{"what", what}, {"problem", std::string(status.message())}, {"kept", "the old"}});
}

ServerSecurity::Counters ServerSecurity::counters() const {
  return {reloads_.load(std::memory_order_relaxed),
          refused_reloads_.load(std::memory_order_relaxed)};
}

absl::Time ServerSecurity::certificate_not_after() const {
  return tls_ == nullptr ? absl::InfiniteFuture() : tls_->times().not_after;
}

}  // namespace failback
