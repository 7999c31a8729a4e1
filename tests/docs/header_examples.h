// What the examples in the public headers' comments take as given: for each header a class whose
// members its examples use (tests/docs/header_examples.py). Nothing of it runs.

#ifndef FAILBACK_TESTS_DOCS_HEADER_EXAMPLES_H_
#define FAILBACK_TESTS_DOCS_HEADER_EXAMPLES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "grpcpp/grpcpp.h"
#include "registry/base/log.h"
#include "registry/etcd/etcd_uri.h"
#include "registry/registry.h"
#include "retry/backoff.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/retry_rule.h"
#include "retry/retry_task.h"

namespace failback {

// A generated gRPC service.
struct Orders {
  struct Request {};
  struct Response {};
  struct Stub {
    grpc::Status Place(grpc::ClientContext*, const Request&, Response*) { return {}; }
    template <typename Done>
    void AsyncNotify(const Request&, Done) {}
  };
  static std::unique_ptr<Stub> NewStub(const std::shared_ptr<grpc::Channel>&) { return nullptr; }
};

// Of every example: its timer, and a caller to report an error to.
struct Around {
  std::unique_ptr<HashedWheelTimer> timer;
  absl::Status status;
  static absl::Status Fail(const absl::Status& status) { return status; }
};

struct Around_agent : Around {
  static void Use(const std::string& /*address*/, uint32_t /*port*/) {}
};

struct Around_backoff : Around {};

struct Around_discovery_channel : Around {
  std::unique_ptr<Agent> agent;
  absl::Time deadline;
  grpc::ClientContext context;
  Orders::Request request;
  Orders::Response response;
};

struct Around_errors : Around {
  static absl::Status OpenSession() { return absl::OkStatus(); }
  static absl::Status TryAgainIn(absl::Duration) { return absl::OkStatus(); }
};

struct Around_etcd_uri : Around {};

struct Around_failback_invoker : Around {
  Orders::Stub* stub = nullptr;
  Orders::Request request;
  static void Alert(const absl::Status&) {}
};

struct Around_failback_registry : Around {
  std::unique_ptr<Registry> upstream;
  RegisterRequest request;
};

struct Around_failback_statistics : Around {
  std::unique_ptr<Agent> agent;
  static void Warn(const std::string& /*upstream*/, absl::Duration /*pending_for*/) {}
};

struct Around_hashed_wheel_timer : Around {
  static void Expire() {}
};

struct Around_log : Around {
  static void MyLog(LogLevel, const std::string& /*event*/, const LogFields&) {}
};

struct Around_periodic_task : Around {
  absl::Duration ttl;
  static void Renew() {}
};

struct Around_registry : Around {
  Registry& registry;
  std::string session_id;
  ServiceInstance instance;
  static void Log(const absl::Status&) {}
};

struct Around_retry_rule : Around {
  RetryPolicy policy;
  Random random;
  static void Park() {}
};

struct Around_retry_task : Around {
  std::unique_ptr<RetryTask> task;
  RetryPolicy policy;
  Random random;
  static void Call() {}
};

struct Around_simulated_clock : Around {};

struct Around_upstream : Around {};

struct Around_trace_context : Around {
  grpc::ServerContext* context = nullptr;
  std::unique_ptr<Agent> agent;
  ServiceInstance me;
};

struct Around_version : Around {};

}  // namespace failback

#endif  // FAILBACK_TESTS_DOCS_HEADER_EXAMPLES_H_
