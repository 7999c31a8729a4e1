#include "gateway/json/json_door.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/gateway/v1/gateway.pb.h"
#include "gateway/door/door_guard.h"
#include "gateway/door/parked_read.h"
#include "gateway/http/message_json.h"
#include "gateway/http/problem.h"
#include "gateway/json/follower.h"
#include "gateway/json/openapi.h"
#include "gateway/json/parameters.h"
#include "gateway/json/prometheus_targets.h"
#include "gateway/json/service_json.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "retry/mutex.h"

namespace failback {
namespace {

using http::Problem;
using http::Request;
using http::Responder;
using http::Response;
using SourcesPtr = std::shared_ptr<const JsonDoor::Sources>;

constexpr absl::Duration kDefaultWait = absl::Seconds(30);
constexpr absl::Duration kMostWait = absl::Minutes(10);
constexpr absl::Duration kMostTtl = absl::Hours(24);

Response MessageResponse(const google::protobuf::Message& message) {
  absl::StatusOr<std::string> json = MessageJson(message);
  return json.ok() ? Response::Json(*std::move(json)) : Problem(json.status());
}

template <typename Message>
Callback<Message> Answering(Responder responder) {
  return [responder = std::move(responder)](absl::StatusOr<Message> message) mutable {
    responder.Send(message.ok() ? MessageResponse(*message) : Problem(message.status()));
  };
}

// --- Reading.

// The service of the path, or the list of a namespace's services. INVALID_ARGUMENT names what is
// wrong.
absl::StatusOr<ServiceName> ReadName(const Request& request) {
  Selector selector;
  selector.set_namespace_(request.Query("namespace"));
  if (!request.parameters.empty()) selector.set_service(request.parameters[0]);
  NormalizeSelector(&selector);
  if (auto status = ValidateFollowed(FieldPath(), selector); !status.ok()) return status;
  return ServiceName{selector.namespace_(), selector.service()};
}

// A read: of what is known, or, after `seen`, of the next state.
class Reading {
 public:
  Reading(SourcesPtr sources, ServiceName name, Identity caller, std::optional<StatePosition> seen)
      : sources_(std::move(sources)),
        name_(std::move(name)),
        caller_(std::move(caller)),
        seen_(seen) {}

  // As LookForAnswer.
  std::optional<Response> Look(bool last, uint64_t* version) {
    const catalog::ServiceView view = sources_->catalog->Service(name_.name_space, name_.service);
    *version = view.version;
    const absl::Status missing = catalog::WhyUnknown(view.knowledge, last);
    if (!missing.ok()) return Problem(missing);
    if (view.knowledge != catalog::Knowledge::kKnown) return std::nullopt;
    if (!last && Has(PositionOf(view))) return std::nullopt;
    // The policy may be another one than when the request came.
    const absl::Status allowed =
        MayRead(sources_->access.get(), caller_, name_.name_space, name_.service);
    if (!allowed.ok()) return Problem(allowed);
    Response response;
    response.shared_body = StateJson(name_, view);
    return response;
  }

  catalog::Wait WaitForChange(uint64_t version, std::function<void()> wake) const {
    return sources_->catalog->WaitForService(name_.name_space, name_.service, version,
                                             std::move(wake));
  }

 private:
  // Whether the client has this state. That it is stale is a change while the client waits, and not
  // at the beginning: one that has been answered so would be answered at once again and again.
  bool Has(const StatePosition& position) {
    MutexLock lock(&mu_);
    if (!seen_.has_value() || !seen_->SameSet(position)) return false;
    if (!std::exchange(waits_, true)) seen_ = position;
    return *seen_ == position;
  }

  const SourcesPtr sources_;
  const ServiceName name_;
  const Identity caller_;
  Mutex mu_;
  std::optional<StatePosition> seen_ ABSL_GUARDED_BY(mu_);
  bool waits_ ABSL_GUARDED_BY(mu_) = false;
};

void Read(const SourcesPtr& sources, const Request& request, Responder responder) {
  if (auto status =
          CheckParameters(request, {"namespace", "epoch", "revision", "wait", "last_event_id"});
      !status.ok()) {
    return responder.Send(Problem(status));
  }
  const absl::StatusOr<ServiceName> name = ReadName(request);
  if (!name.ok()) return responder.Send(Problem(name.status()));
  const bool follows =
      absl::StrContains(std::string(request.Header("Accept")), "text/event-stream");
  const auto position = ReadPosition(request, follows);
  if (!position.ok()) return responder.Send(Problem(position.status()));
  const auto wait = ReadDuration(request, "wait", kDefaultWait, absl::ZeroDuration(), kMostWait);
  if (!wait.ok()) return responder.Send(Problem(wait.status()));
  const absl::Status allowed =
      MayRead(sources->access.get(), request.caller, name->name_space, name->service);
  if (!allowed.ok()) return responder.Send(Problem(allowed));
  if (follows) {
    return StartFollower(sources, *name, request.caller, *position, std::move(responder));
  }
  auto reading = std::make_shared<Reading>(sources, *name, request.caller, *position);
  AnswerWhenDue(
      std::move(responder), position->has_value() ? *wait : sources->first_wait,
      [reading](bool last, uint64_t* version) { return reading->Look(last, version); },
      [reading](uint64_t version, std::function<void()> wake) {
        return reading->WaitForChange(version, std::move(wake));
      });
}

// --- Writing.

InstanceKey KeyOf(const Request& request) {
  InstanceKey key;
  key.set_namespace_(request.Query("namespace"));
  key.set_service(request.parameters[0]);
  key.set_instance_id(request.parameters[1]);
  NormalizeKey(&key);
  return key;
}

// What the body says of the key is what the path says, or nothing.
absl::Status CheckSame(const std::string& in_body, const std::string& in_path, const char* field) {
  if (in_body.empty() || in_body == in_path) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(Quoted(in_body), " is not ", Quoted(in_path),
                                          ", which the address names"));
}

absl::StatusOr<InstanceWriter::PutRequest> ReadPut(const Request& request) {
  if (auto status = CheckParameters(request, {"namespace", "ttl", "wait_for"}); !status.ok()) {
    return status;
  }
  InstanceWriter::PutRequest put;
  if (request.body.empty()) {
    return InvalidField("body",
                        "is empty; a ServiceInstance is needed, as {\"address\": "
                        "\"10.0.0.7\", \"port\": 8080}");
  }
  if (auto status = ParseJson(request.body, &put.instance); !status.ok()) return status;
  const InstanceKey key = KeyOf(request);
  const InstanceKey& given = put.instance.key();
  for (const auto& status :
       {CheckSame(given.namespace_(), key.namespace_(), "key.namespace"),
        CheckSame(given.service(), key.service(), "key.service"),
        CheckSame(given.instance_id(), key.instance_id(), "key.instance_id")}) {
    if (!status.ok()) return status;
  }
  *put.instance.mutable_key() = key;
  const auto ttl = ReadDuration(request, "ttl", absl::ZeroDuration(), absl::Seconds(1), kMostTtl);
  if (!ttl.ok()) return ttl.status();
  put.ttl = *ttl;
  const auto wait_for = ReadWaitFor(request);
  if (!wait_for.ok()) return wait_for.status();
  put.wait_for = *wait_for;
  return put;
}

// What has become of a write.
Callback<LiveInstance> Writing(InstanceKey key, bool registers, Responder responder) {
  return [key = std::move(key), registers,
          responder = std::move(responder)](absl::StatusOr<LiveInstance> live) mutable {
    if (!live.ok()) return responder.Send(Problem(live.status()));
    gateway::v1::Registered registered;
    *registered.mutable_key() = std::move(key);
    registered.set_state(live->state);
    const bool expires = live->ttl > absl::ZeroDuration();
    registered.set_persistent(registers && !expires);
    if (expires) *registered.mutable_ttl() = ToProto(live->ttl);
    responder.Send(MessageResponse(registered));
  };
}

void Put(const SourcesPtr& sources, const Request& request, Responder responder) {
  absl::StatusOr<InstanceWriter::PutRequest> put = ReadPut(request);
  if (!put.ok()) return responder.Send(Problem(put.status()));
  sources->writer->Put(request.caller, *std::move(put),
                       Writing(KeyOf(request), /*registers=*/true, std::move(responder)));
}

void Renew(const SourcesPtr& sources, const Request& request, Responder responder) {
  auto status = CheckParameters(request, {"namespace", "ttl"});
  const auto ttl = ReadDuration(request, "ttl", absl::ZeroDuration(), absl::Seconds(1), kMostTtl);
  if (status.ok()) status = ttl.status();
  if (!status.ok()) return responder.Send(Problem(status));
  const InstanceKey key = KeyOf(request);
  sources->writer->Renew(request.caller, key, *ttl,
                         Writing(key, /*registers=*/true, std::move(responder)));
}

void Delete(const SourcesPtr& sources, const Request& request, Responder responder) {
  auto status = CheckParameters(request, {"namespace", "wait_for"});
  const auto wait_for = ReadWaitFor(request);
  if (status.ok()) status = wait_for.status();
  if (!status.ok()) return responder.Send(Problem(status));
  const InstanceKey key = KeyOf(request);
  sources->writer->Remove(request.caller, key, *wait_for,
                          Writing(key, /*registers=*/false, std::move(responder)));
}

// --- What an agent owes.

absl::Status MayAdminister(const JsonDoor::Sources& sources, const Identity& caller) {
  if (sources.pending == nullptr) {
    return Refusal(registry::v1::ERROR_REASON_UNSUPPORTED,
                   "a registry owes nothing: ask an agent what is pending");
  }
  if (sources.access == nullptr) return absl::OkStatus();
  absl::Status status =
      sources.access->rules()->JudgeAll(caller, config::v1::PERMISSION_ADMINISTER, std::nullopt);
  if (status.ok()) return status;
  return sources.access->Denied(caller, "HTTP", config::v1::PERMISSION_ADMINISTER,
                                std::move(status));
}

void Pending(const SourcesPtr& sources, const Request& request, Responder responder) {
  absl::Status status = MayAdminister(*sources, request.caller);
  if (status.ok()) status = CheckParameters(request, {"page_token"});
  if (!status.ok()) return responder.Send(Problem(status));
  agent::v1::ListPendingRequest list;
  list.set_page_token(request.Query("page_token"));
  Answering<agent::v1::ListPendingResponse>(std::move(responder))(sources->pending(list));
}

void Retry(const SourcesPtr& sources, const Request& request, Responder responder) {
  agent::v1::RetryRequest retry;
  absl::Status status = MayAdminister(*sources, request.caller);
  if (status.ok()) status = CheckParameters(request, {});
  if (status.ok() && !request.body.empty()) status = ParseJson(request.body, &retry);
  if (!status.ok()) return responder.Send(Problem(status));
  sources->retry(retry, Answering<agent::v1::RetryResponse>(std::move(responder)));
}

void NewTicketFor(const Request& request, Responder responder) {
  gateway::v1::TicketRequest wanted;
  absl::Status status = CheckParameters(request, {});
  if (status.ok()) status = ParseJson(request.body.empty() ? "{}" : request.body, &wanted);
  if (status.ok() && !absl::StartsWith(wanted.path(), "/v1/")) {
    status = InvalidField("path", absl::StrCat(Quoted(wanted.path()),
                                               " is no path to follow, as /v1/services/orders"));
  }
  if (!status.ok()) return responder.Send(Problem(status));
  responder.Send(MessageResponse(NewTicket(request.caller, wanted.path(), absl::Now())));
}

}  // namespace

JsonDoor::JsonDoor(Sources sources)
    : sources_(std::make_shared<const Sources>(std::move(sources))) {}

void JsonDoor::AddTo(http::Server* server) {
  const auto handle = [&](const char* method, const char* pattern, auto handler) {
    server->Handle(method, pattern,
                   [sources = sources_, handler](const Request& request, Responder responder) {
                     handler(sources, request, std::move(responder));
                   });
  };
  handle("GET", "/v1/services", Read);
  handle("GET", "/v1/services/{service}", Read);
  handle("PUT", "/v1/services/{service}/instances/{id}", Put);
  handle("DELETE", "/v1/services/{service}/instances/{id}", Delete);
  handle("POST", "/v1/services/{service}/instances/{id}/renew", Renew);
  handle("GET", "/v1/pending", Pending);
  handle("POST", "/v1/pending/retry", Retry);
  handle("GET", "/v1/prometheus", AnswerPrometheus);
  server->Handle("POST", "/v1/tickets", NewTicketFor);
  auto document = std::make_shared<const std::string>(OpenApiDocument());
  server->Handle("GET", "/openapi.json", [document](const Request&, Responder responder) {
    Response response;
    response.shared_body = document;
    responder.Send(std::move(response));
  });
}

}  // namespace failback
