#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "registry/model/wire_bounds.h"
#include "tests/simulate/wire.h"

namespace failback::simulate {
namespace {

WireAnswer Refused(const absl::Status& status) {
  return {false, StatusToProto(status).SerializeAsString()};
}

}  // namespace

Registry* WireServer::For(int link, std::optional<GuardedRegistry>* guarded) {
  if (access_ == nullptr) return registry_;
  Identity who;
  who.kind = Identity::Kind::kCertificate;
  who.names = {NameOf(link)};
  guarded->emplace(registry_, access_, std::move(who));
  return &**guarded;
}

template <typename Request, typename Response>
void WireServer::Unary(Registry* registry,
                       void (Registry::*method)(const Request&, Callback<Response>),
                       const std::string& bytes, const Reply& reply) {
  Request request;
  if (auto status = CheckWire(*Request::descriptor(), bytes, kSmallRequest); !status.ok()) {
    return reply(Refused(status));
  }
  if (!request.ParseFromString(bytes)) {
    return reply(Refused(absl::InvalidArgumentError("not a request")));
  }
  (registry->*method)(request, [this, request, reply](const absl::StatusOr<Response>& response) {
    if (!response.ok()) return reply(Refused(response.status()));
    NoteSession(request, *response);
    reply({true, response->SerializeAsString()});
  });
}

template <typename Request, typename Response>
void WireServer::NoteSession(const Request& request, const Response& response) {
  if constexpr (std::is_same_v<Response, OpenSessionResponse>) {
    witness_->Opened(response.session_id(), response.rank());
  } else if constexpr (std::is_same_v<Response, CloseSessionResponse>) {
    witness_->Closed(request.session_id());
  }
}

void WireServer::Write(Registry* registry, int link, Batch::Kind kind, bool leave_out,
                       const std::string& bytes, const Reply& reply) {
  const Batch::Limits limits{BatchRequest(4 << 20, kDefaultMaxBatch), kDefaultMaxBatch};
  absl::StatusOr<Batch> batch = Batch::Read(kind, bytes, limits);
  if (!batch.ok()) return reply(Refused(batch.status()));
  std::optional<Batch::Generations> asked;
  if (!leave_out) asked = batch->generations();
  const std::string session_id = batch->session_id();
  std::vector<Witness::Asked> intents;
  for (const Intent& intent : batch->intents()) {
    intents.push_back({intent.key, intent.generation, intent.registers});
  }
  if (network_->link(link).refuses_numbers) {
    BatchResult refused;
    for (const Witness::Asked& intent : intents) {
      *refused.results.emplace_back().mutable_status() = StatusToProto(
          Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED, "this number is taken, too",
                  {{"generation", absl::StrCat(intent.generation)}}));
    }
    return reply({true, EncodeResponse(refused, asked.has_value() ? &*asked : nullptr)});
  }
  witness_->Begun(intents);
  registry->Write(*std::move(batch),
                  [this, asked, session_id, intents, reply](absl::StatusOr<BatchResult> result) {
                    if (!result.ok()) return reply(Refused(result.status()));
                    witness_->Written(session_id, intents, *result);
                    reply({true, EncodeResponse(*result, asked.has_value() ? &*asked : nullptr)});
                  });
}

void WireServer::Call(Method method, int link, const std::string& bytes, const Reply& reply) {
  std::optional<GuardedRegistry> guarded;
  Registry* const registry = For(link, &guarded);
  switch (method) {
    case Method::kOpenSession:
      return Unary(registry, &Registry::OpenSession, bytes, reply);
    case Method::kCloseSession:
      return Unary(registry, &Registry::CloseSession, bytes, reply);
    case Method::kRegister:
      return Write(registry, link, Batch::Kind::kRegister, /*leave_out=*/false, bytes, reply);
    case Method::kUnregister:
      return Write(registry, link, Batch::Kind::kUnregister, /*leave_out=*/false, bytes, reply);
    case Method::kUnsubscribe:
      return Unary(registry, &Registry::Unsubscribe, bytes, reply);
    case Method::kList:
      return Unary(registry, &Registry::List, bytes, reply);
    case Method::kSetOffline:  // an operator's, who may
      return Unary(registry_, &Registry::SetOffline, bytes, reply);
  }
}

}  // namespace failback::simulate
