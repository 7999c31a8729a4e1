// Eureka's REST API over a Registry, as its clients use it: docs/eureka.md lists every call.
//
// An instance that registers lives in a session of its lease; each heartbeat renews it, and one that
// comes too late is answered with 404, by which clients register again. Reads are answered from a
// Catalog that follows the namespace, in XML, or in JSON where `Accept` asks for it.
//
// Example:
//
//   EurekaDoor::Options options;
//   options.catalog = catalog;
//   options.writer = &sessions;
//   auto door = std::make_shared<EurekaDoor>(std::move(options));
//   door->AddRoutes([&](const char* method, const char* pattern, http::Handler handler) {
//     server->Handle(method, pattern, std::move(handler));
//   });
//
// Thread safety: all methods from any thread. The writer and the registry outlive the server's
// handlers.

#ifndef FAILBACK_GATEWAY_EUREKA_EUREKA_DOOR_H_
#define FAILBACK_GATEWAY_EUREKA_EUREKA_DOOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gateway/catalog/catalog.h"
#include "gateway/door/instance_writer.h"
#include "gateway/eureka/delta_log.h"
#include "gateway/eureka/render.h"
#include "gateway/http/message.h"
#include "gateway/http/responder.h"
#include "gateway/http/router.h"
#include "registry/registry.h"
#include "registry/security/access_control.h"
#include "retry/mutex.h"

namespace failback::eureka {

class EurekaDoor : public std::enable_shared_from_this<EurekaDoor> {
 public:
  struct Options {
    // Required.
    std::shared_ptr<catalog::Catalog> catalog;
    InstanceWriter* writer = nullptr;
    // Required; takes the overrides of statuses.
    Registry* registry = nullptr;
    // Null: everybody may do everything.
    std::shared_ptr<AccessControl> access = nullptr;
    std::string name_space = "default";
    std::function<absl::Time()> now = absl::Now;
  };

  explicit EurekaDoor(Options options) : options_(std::move(options)) {}

  using Add =
      std::function<void(const std::string& method, const std::string& pattern, http::Handler)>;
  // Below `/eureka` and `/eureka/v2`.
  void AddRoutes(const Add& add);

  // What the server says of its own errors: a line of text.
  static http::Response Error(int http_status, const absl::Status& status);
  static http::Response Error(const absl::Status& status);

 private:
  using View = catalog::NamespaceView;
  // Which services a caller may read; null: all.
  using Readable = std::function<bool(const std::string& service)>;
  // What is answered of a view that is known.
  using Answer = std::function<http::Response(const View& view, const Readable& readable)>;

  void AddBelow(const std::string& prefix, const Add& add);
  Readable ReadableBy(const Identity& caller) const;
  // Answers as soon as the namespace is known.
  void Read(const http::Request& request, http::Responder responder, const Answer& answer) const;

  void GetApps(const http::Request& request, http::Responder responder);
  void GetDelta(const http::Request& request, http::Responder responder);
  http::Response Delta(const View& view, const Readable& readable, Form form);
  // The instances that `wanted` says, as `<applications>`.
  void GetVips(const http::Request& request, http::Responder responder, bool secure);
  void GetApp(const http::Request& request, http::Responder responder);
  // `app` empty: of any.
  void GetInstance(const http::Request& request, http::Responder responder, const std::string& app,
                   const std::string& id);

  void Register(const http::Request& request, http::Responder responder);
  void Renew(const http::Request& request, http::Responder responder);
  void Cancel(const http::Request& request, http::Responder responder);
  void SetStatus(const http::Request& request, http::Responder responder, bool remove);

  InstanceKey KeyOf(const http::Request& request) const;

  const Options options_;

  Mutex mu_;
  DeltaLog delta_ ABSL_GUARDED_BY(mu_);
  uint64_t delta_of_ ABSL_GUARDED_BY(mu_) = 0;  // the version of the view that it has seen
  // What callers who may read everything get; of these versions.
  std::pair<uint64_t, uint64_t> rendered_of_ ABSL_GUARDED_BY(mu_);
  std::map<Form, std::shared_ptr<const std::string>> rendered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback::eureka

#endif  // FAILBACK_GATEWAY_EUREKA_EUREKA_DOOR_H_
