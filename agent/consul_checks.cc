#include "agent/consul_checks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/health/health_checker.h"
#include "agent/health/io_thread.h"
#include "agent/health/new_probe.h"
#include "registry/base/address.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "retry/mutex.h"

namespace failback {
namespace {

using agent::v1::HealthCheck;
using consul::CheckDefinition;
using consul::CheckStatus;

constexpr absl::Duration kLongestTimeout = absl::Seconds(10);

// HOST:PORT, with the port that a scheme has where none is given.
absl::StatusOr<std::string> HostPort(const std::string& field, const std::string& text,
                                     int default_port) {
  std::string address = text;
  // After the brackets of an IPv6 address.
  const size_t colon = text.rfind(':');
  const bool has_port = colon != std::string::npos && text.find(']', colon) == std::string::npos;
  if (!has_port && default_port != 0) absl::StrAppend(&address, ":", default_port);
  const absl::StatusOr<Address> parsed = ParseAddress(address);
  if (parsed.ok() && !parsed->is_unix()) return address;
  return InvalidField(field, absl::StrCat(Quoted(text), " is no HOST:PORT"));
}

absl::Status FillHttp(const CheckDefinition& check, agent::v1::HttpCheck* http) {
  const bool tls = absl::StartsWithIgnoreCase(check.target, "https://");
  if (!tls && !absl::StartsWithIgnoreCase(check.target, "http://")) {
    return InvalidField("HTTP", absl::StrCat(Quoted(check.target), " is no URL of http or https"));
  }
  const std::string rest = check.target.substr(tls ? 8 : 7);
  const size_t slash = std::min(rest.find('/'), rest.find('?'));
  const std::string host = rest.substr(0, slash);
  absl::StatusOr<std::string> address = HostPort("HTTP", host, tls ? 443 : 80);
  if (!address.ok()) return address.status();
  http->set_address(*address);
  if (slash != std::string::npos) {
    const std::string path = rest.substr(slash);
    http->set_path(path.front() == '/' ? path : absl::StrCat("/", path));
  }
  http->set_host(host);
  http->set_method(check.method);
  for (const auto& [name, value] : check.headers) {
    if (absl::EqualsIgnoreCase(name, "Host")) {
      http->set_host(value);
    } else {
      (*http->mutable_headers())[name] = value;
    }
  }
  if (tls) {
    http->mutable_tls()->set_skip_verify(check.tls_skip_verify);
    http->mutable_tls()->set_server_name(check.tls_server_name);
  }
  return absl::OkStatus();
}

CheckStatus StatusOf(CheckState state) {
  return state == CheckState::kPassing ? CheckStatus::kPassing : CheckStatus::kCritical;
}

class RunningProbe final : public consul::RunningCheck {
 public:
  RunningProbe(HashedWheelTimer* timer, std::unique_ptr<Probe> probe,
               const HealthChecker::Options& options, consul::CheckRunner::Report report)
      : report_(std::move(report)) {
    std::unique_ptr<HealthChecker> checker =
        HealthChecker::Start(timer, std::move(probe), options, [this] { Look(); });
    {
      MutexLock lock(&mu_);
      checker_ = std::move(checker);
    }
    Look();  // what it has found before it was here
  }
  ~RunningProbe() override {
    std::unique_ptr<HealthChecker> checker;  // ends without the lock, and waits for a Look
    MutexLock lock(&mu_);
    checker.swap(checker_);
  }

 private:
  void Look() {
    HealthChecker::Snapshot found;
    {
      MutexLock lock(&mu_);
      if (checker_ == nullptr) return;
      found = checker_->snapshot();
    }
    if (found.state != CheckState::kPassing && found.state != CheckState::kCritical) {
      return;
    }
    report_(StatusOf(found.state), found.last_error);
  }

  const consul::CheckRunner::Report report_;
  Mutex mu_;
  std::unique_ptr<HealthChecker> checker_ ABSL_GUARDED_BY(mu_);
};

class ConsulCheckRunner final : public consul::CheckRunner {
 public:
  explicit ConsulCheckRunner(HashedWheelTimer* timer) : timer_(timer) {}

  absl::Status Validate(const CheckDefinition& check) const override {
    return ToHealthCheck(check).status();
  }

  std::unique_ptr<consul::RunningCheck> Run(const CheckDefinition& check, Report report) override {
    HealthChecker::Options options;
    options.interval = check.interval;
    options.timeout = check.timeout > absl::ZeroDuration() ? check.timeout : kLongestTimeout;
    options.timeout = std::min(options.timeout, options.interval);
    options.rise = check.passes;
    options.fall = check.failures;
    return std::make_unique<RunningProbe>(timer_, NewProbe(&io_, ToHealthCheck(check).value()),
                                          options, std::move(report));
  }

 private:
  HashedWheelTimer* const timer_;
  IoThread io_;
};

}  // namespace

absl::StatusOr<HealthCheck> ToHealthCheck(const CheckDefinition& check) {
  HealthCheck spec;
  switch (check.kind) {
    case CheckDefinition::Kind::kHttp: {
      if (absl::Status status = FillHttp(check, spec.mutable_http()); !status.ok()) return status;
      return spec;
    }
    case CheckDefinition::Kind::kTcp: {
      absl::StatusOr<std::string> address = HostPort("TCP", check.target, 0);
      if (!address.ok()) return address.status();
      spec.mutable_tcp()->set_address(*std::move(address));
      return spec;
    }
    case CheckDefinition::Kind::kGrpc: {
      if (check.tls) return InvalidField("GRPCUseTLS", "is not supported; gRPC checks are plain");
      const size_t slash = check.target.find('/');
      absl::StatusOr<std::string> address = HostPort("GRPC", check.target.substr(0, slash), 0);
      if (!address.ok()) return address.status();
      spec.mutable_grpc()->set_address(*std::move(address));
      if (slash != std::string::npos) {
        spec.mutable_grpc()->set_service(check.target.substr(slash + 1));
      }
      return spec;
    }
    default:
      return InvalidField("TTL", "is reported by its client, and not run");
  }
}

std::vector<InstanceKey> KeysWithId(const std::vector<CarriedRecord>& carried,
                                    const std::string& id) {
  std::vector<InstanceKey> keys;
  std::string last;
  for (const CarriedRecord& record : carried) {
    InstanceKey key;
    if (record.key == last || !ParseCanonicalKey(record.key, &key) || key.instance_id() != id) {
      continue;
    }
    last = record.key;
    keys.push_back(std::move(key));
  }
  return keys;
}

std::unique_ptr<consul::CheckRunner> NewConsulCheckRunner(HashedWheelTimer* timer) {
  return std::make_unique<ConsulCheckRunner>(timer);
}

}  // namespace failback
