// What protects a daemon's listeners, from its configuration: TLS, known tokens, a policy; and the
// task that follows changes of their files.
//
// Every `reload_interval` a periodic task on the wheel looks at the files, and at once when it is
// asked to. What has changed and is good is taken, what is not is refused: the old stays, the event
// is logged once and counted.
//
//   absl::StatusOr<std::unique_ptr<ServerSecurity>> security =
//       ServerSecurity::Load(ServerSecurity::KeysOf(config), loader);
//   if (!security.ok()) return loader.Fail(security.status());
//   …
//   server_options.credentials = (*security)->credentials();
//   server_options.access = (*security)->access();
//   …
//   absl::Status status = (*security)->Watch(timer);
//
// Thread safety: none but for LookNow(), counters() and certificate_not_after(); it belongs to
// main(), which destroys it before the timer.

#ifndef FAILBACK_DAEMON_SERVER_SECURITY_H_
#define FAILBACK_DAEMON_SERVER_SECURITY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/config.h"
#include "failback/config/v1/config.pb.h"
#include "grpcpp/security/server_credentials.h"
#include "registry/base/proto_time.h"
#include "registry/security/access_control.h"
#include "registry/security/certificate_expiry.h"
#include "registry/security/file_changes.h"
#include "registry/security/server_tls.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"

namespace failback {

class ServerSecurity {
 public:
  // The keys that both daemons have.
  struct Keys {
    config::v1::ServerTls tls;
    std::string known_tokens_file;
    std::string policy_file;
    absl::Duration reload_interval;
    std::string reader;  // whom DNS reads as; empty: anonymous
  };
  template <typename Config>
  static Keys KeysOf(const Config& config) {
    return {config.tls(), config.known_tokens_file(), config.policy_file(),
            FromProto(config.reload_interval()), config.dns().read_as()};
  }

  struct Counters {
    // Changed files that were taken, and that were refused.
    int64_t reloads = 0;
    int64_t refused_reloads = 0;
  };

  // Reads all files. An error names the place, the key, the file and what is allowed.
  static absl::StatusOr<std::unique_ptr<ServerSecurity>> Load(Keys keys,
                                                              const ConfigLoader& loader);

  // Whether TCP addresses are encrypted.
  bool encrypted() const { return tls_ != nullptr; }
  // Whether clients are asked for certificates; then access() is not null.
  bool asks_clients() const { return asks_clients_; }
  // Null without TLS.
  std::shared_ptr<grpc::ServerCredentials> credentials() const;
  // The same for servers beside gRPC's; null without TLS.
  const std::shared_ptr<ServerTls>& tls() const { return tls_; }
  // Null when every caller who can connect may do everything.
  const std::shared_ptr<AccessControl>& access() const { return access_; }

  // Begins to follow changes, on `timer`, which outlives this. Nothing to follow: does nothing.
  absl::Status Watch(HashedWheelTimer* timer);

  // Looks at the files now.
  void LookNow();

  Counters counters() const;

  // When the certificate that is shown ends; infinite future without TLS.
  absl::Time certificate_not_after() const;

 private:
  explicit ServerSecurity(Keys keys);
  // Also returns what the files say, to compare.
  absl::StatusOr<AccessRules> ReadRules(std::string* content) const;
  void LogReload(const char* what, const absl::Status& status);
  void LogNeverMatching(const AccessRules& rules) const;

  const Keys keys_;
  bool asks_clients_ = false;
  std::shared_ptr<ServerTls> tls_;
  std::shared_ptr<AccessControl> access_;
  OwnCertificateLog certificate_log_{"server"};
  Mutex look_mu_;  // held for a look
  FileChanges rule_changes_ ABSL_GUARDED_BY(look_mu_);
  absl::Status refused_rules_ ABSL_GUARDED_BY(look_mu_);  // what is there now, and has been logged
  std::string rules_content_ ABSL_GUARDED_BY(look_mu_);   // of those in force
  std::atomic<int64_t> reloads_{0};
  std::atomic<int64_t> refused_reloads_{0};
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_SERVER_SECURITY_H_
