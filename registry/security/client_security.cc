#include "registry/security/client_security.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "registry/base/log.h"
#include "registry/base/small_file.h"

namespace failback {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);
constexpr size_t kMaxTokenBytes = 8192;

}  // namespace

absl::StatusOr<std::shared_ptr<ClientSecurity>> ClientSecurity::Create(Options options) {
  if (options.tls.ca.empty()) {
    for (const auto& [name, value] : {std::pair{"cert", options.tls.cert},
                                      {"key", options.tls.key},
                                      {"server_name", options.server_name}}) {
      if (value.empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("ca: is required with ", name, ": it says whose servers are trusted"));
    }
  }
  auto security = std::shared_ptr<ClientSecurity>(new ClientSecurity(std::move(options)));
  {
    MutexLock lock(&security->mu_);
    security->looked_ = absl::Now();
    security->changes_.Check();
    if (absl::Status status = security->Load(); !status.ok()) return status;
  }
  if (security->has_token()) {
    absl::StatusOr<std::string> token = security->ReadToken();
    if (!token.ok()) return absl::InvalidArgumentError(token.status().message());
  }
  return security;
}

ClientSecurity::ClientSecurity(Options options)
    : options_(std::move(options)), changes_(options_.tls.paths()) {}

ClientSecurity::Credentials ClientSecurity::Current() {
  absl::Status refused;
  bool taken = false;
  Credentials current;
  CertificateTimes times;
  const absl::Time now = absl::Now();
  {
    MutexLock lock(&mu_);
    if (encrypted() && (now - looked_ >= kLookInterval || now < looked_)) {
      looked_ = now;
      const uint64_t before = current_.version;
      if (changes_.Check()) {
        absl::Status status = Load();
        if (!status.ok() && status != refused_) refused = status;
        refused_ = std::move(status);
      }
      taken = current_.version != before;
    }
    current = current_;
    times = material_.times;
  }
  if (!refused.ok()) {
    Log(LogLevel::kError, "certificate refused",
        {{"for", "upstream"}, {"problem", std::string(refused.message())}});
  }
  if (taken) Log(LogLevel::kInfo, "certificate taken", {{"for", "upstream"}});
  certificate_log_.Look(times, now);
  return current;
}

absl::Status ClientSecurity::Load() {
  if (!encrypted()) {
    current_ = {grpc::InsecureChannelCredentials(), 1};
    return absl::OkStatus();
  }
  absl::StatusOr<TlsMaterial> material = ReadTlsFiles(options_.tls);
  if (!material.ok()) return material.status();
  if (*material == material_) return absl::OkStatus();
  material_ = *std::move(material);
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = material_.ca;
  ssl.pem_cert_chain = material_.cert;
  ssl.pem_private_key = material_.key;
  current_ = {grpc::SslCredentials(ssl), current_.version + 1};
  return absl::OkStatus();
}

absl::StatusOr<std::string> ClientSecurity::ReadToken() const {
  const auto problem = [this](const std::string& what) {
    return absl::UnauthenticatedError(
        absl::StrCat("token_file: '", options_.token_file, "' ", what));
  };
  absl::StatusOr<std::string> token = ReadFile(options_.token_file);
  if (!token.ok()) return problem(std::string(token.status().message()));
  absl::StripAsciiWhitespace(&*token);
  if (token->empty()) return problem("is empty; it should hold a bearer token");
  // gRPC aborts the program that sends other bytes.
  if (!std::all_of(token->begin(), token->end(), absl::ascii_isgraph)) {
    return problem("holds no bearer token: one is a line of printable ASCII without spaces");
  }
  if (token->size() > kMaxTokenBytes) {
    return problem(absl::StrCat("holds a token of ", token->size(), " bytes; at most ",
                                kMaxTokenBytes, " are allowed"));
  }
  return token;
}

absl::Status ClientSecurity::Authenticate(grpc::ClientContext* context) const {
  if (!has_token()) return absl::OkStatus();
  absl::StatusOr<std::string> token = ReadToken();
  if (!token.ok()) return token.status();
  context->AddMetadata("authorization", absl::StrCat("Bearer ", *token));
  return absl::OkStatus();
}

CertificateTimes ClientSecurity::times() const {
  MutexLock lock(&mu_);
  return material_.times;
}

}  // namespace failback
