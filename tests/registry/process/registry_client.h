// A client of a registry that runs as a process: short words for its calls, one attempt each.

#ifndef FAILBACK_TESTS_REGISTRY_PROCESS_REGISTRY_CLIENT_H_
#define FAILBACK_TESTS_REGISTRY_PROCESS_REGISTRY_CLIENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/client/grpc_registry.h"
#include "registry/model/errors.h"
#include "tests/registry/store/harness.h"

namespace failback {

class RegistryClient {
 public:
  // Generous: reached only when something is broken.
  explicit RegistryClient(const std::string& address, absl::Duration timeout = absl::Seconds(30))
      : registry_({address}, WithTimeout(timeout)) {}

  GrpcRegistry& operator*() { return registry_; }

  absl::StatusOr<OpenSessionResponse> Open(const std::string& incarnation,
                                           absl::Duration ttl = absl::Seconds(60)) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.mutable_ttl()->set_seconds(absl::ToInt64Seconds(ttl));
    return CallAndWait(registry_, &Registry::OpenSession, request);
  }

  // All in one call; the first error of the call or of an item.
  absl::StatusOr<RegisterResponse> Register(const std::string& session,
                                            const std::vector<ServiceInstance>& instances,
                                            uint64_t generation = 0) {
    RegisterRequest request;
    request.set_session_id(session);
    for (const ServiceInstance& instance : instances) {
      auto* item = request.add_registrations();
      *item->mutable_instance() = instance;
      item->set_generation(generation);
    }
    auto response = CallAndWait(registry_, &Registry::Register, request);
    if (!response.ok()) return response;
    for (const auto& result : response->results()) {
      if (result.status().code() != 0) return StatusFromProto(result.status());
    }
    return response;
  }

  absl::Status Unregister(const std::string& session, const InstanceKey& key,
                          uint64_t generation = 0) {
    UnregisterRequest request;
    request.set_session_id(session);
    auto* item = request.add_deregistrations();
    *item->mutable_key() = key;
    item->set_generation(generation);
    auto response = CallAndWait(registry_, &Registry::Unregister, request);
    if (!response.ok()) return response.status();
    return StatusFromProto(response->results(0).status());
  }

  absl::Status KeepAlive(const std::string& session) {
    KeepAliveRequest request;
    request.set_session_id(session);
    return CallAndWait(registry_, &Registry::KeepAlive, request).status();
  }

  // Everything of a service (of all services when it is empty), page by page.
  absl::StatusOr<std::vector<InstanceRecord>> List(const std::string& service = "") {
    std::vector<InstanceRecord> records;
    ListRequest request;
    request.mutable_selector()->set_service(service);
    do {
      auto page = CallAndWait(registry_, &Registry::List, request);
      if (!page.ok()) return page.status();
      for (auto& record : *page->mutable_records()) records.push_back(std::move(record));
      request.set_page_token(page->next_page_token());
      epoch_ = page->epoch();
      revision_ = page->revision();
    } while (!request.page_token().empty());
    return records;
  }
  std::vector<std::string> Ids(const std::string& service = "") {
    const auto records = List(service);
    if (!records.ok()) return {std::string(records.status().message())};
    std::vector<std::string> ids;
    for (const auto& record : *records) ids.push_back(record.instance().key().instance_id());
    return ids;
  }
  // As the last List said.
  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }

  std::unique_ptr<SubscribeStream> Subscribe(const std::shared_ptr<NotifyListener>& listener,
                                             const std::string& service) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    return registry_.Subscribe(request, listener);
  }

 private:
  static GrpcRegistryOptions WithTimeout(absl::Duration timeout) {
    GrpcRegistryOptions options;
    options.call_timeout = timeout;
    return options;
  }

  GrpcRegistry registry_;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_PROCESS_REGISTRY_CLIENT_H_
