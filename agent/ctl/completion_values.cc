#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/ctl/completion.h"
#include "grpcpp/grpcpp.h"

namespace failback {
namespace {

using registry::v1::SubscribeRequest;
using registry::v1::SubscribeResponse;

// More are no help.
constexpr int kMaxCandidates = 1000;

// The value of a flag among words, as `--namespace x` or `--namespace=x`.
std::string FlagValue(const std::vector<std::string>& words, const std::string& flag) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == flag && i + 1 < words.size()) return words[i + 1];
    if (absl::StartsWith(words[i], flag + "=")) return words[i].substr(flag.size() + 1);
  }
  return "";
}

std::vector<Candidate> Services(CtlContext* context, const std::vector<std::string>& words) {
  std::vector<Candidate> services;
  SubscribeRequest request;
  request.mutable_selector()->set_namespace_(FlagValue(words, "--namespace"));
  const std::unique_ptr<grpc::ClientContext> call = context->NewCall();
  const auto stream = context->registry().Subscribe(call.get(), request);
  SubscribeResponse message;
  while (stream->Read(&message)) {
    for (const auto& entry : message.snapshot().instances()) {
      services.push_back({entry.key().service(),
                          absl::StrCat(entry.instance_count(),
                                       entry.instance_count() == 1 ? " instance" : " instances")});
    }
    if (!message.snapshot().more()) break;
  }
  call->TryCancel();
  stream->Finish();
  return services;
}

// The word after the command: the service that it is about.
std::string ServiceOf(const std::vector<std::string>& words) {
  const auto command = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word == "unregister" || word == "describe" || word == "offline" || word == "online" ||
           word == "report-health";
  });
  if (command == words.end() || command + 1 == words.end()) return "";
  return absl::StartsWith(command[1], "-") ? "" : command[1];
}

std::vector<Candidate> Instances(CtlContext* context, const std::vector<std::string>& words) {
  std::vector<Candidate> instances;
  registry::v1::ListRequest request;
  request.mutable_selector()->set_service(ServiceOf(words));
  request.mutable_selector()->set_namespace_(FlagValue(words, "--namespace"));
  request.set_page_size(kMaxCandidates);
  registry::v1::ListResponse response;
  context->registry().List(context->NewCall().get(), request, &response);
  for (const auto& record : response.records()) {
    instances.push_back({record.instance().key().instance_id(), FormatEndpoint(record.instance())});
  }
  return instances;
}

std::vector<Candidate> Operations(CtlContext* context) {
  std::vector<Candidate> operations;
  agent::v1::ListPendingRequest request;
  request.set_page_size(kMaxCandidates);
  agent::v1::ListPendingResponse response;
  context->agent().ListPending(context->NewCall().get(), request, &response);
  for (const auto& operation : response.operations()) {
    operations.push_back(
        {operation.id(), FormatEnum(agent::v1::PendingState_descriptor(), operation.state())});
  }
  return operations;
}

std::vector<Candidate> Upstreams(CtlContext* context) {
  std::vector<Candidate> upstreams;
  agent::v1::GetStatusResponse response;
  context->agent().GetStatus(context->NewCall().get(), agent::v1::GetStatusRequest(), &response);
  for (const auto& upstream : response.upstreams()) {
    upstreams.push_back(
        {upstream.name(), FormatEnum(agent::v1::UpstreamState_descriptor(), upstream.state())});
  }
  return upstreams;
}

}  // namespace

std::vector<Candidate> AskForValues(CtlContext* context, const std::string& type_name,
                                    const std::vector<std::string>& words) {
  if (type_name == "SERVICE") return Services(context, words);
  if (type_name == "ID") return Instances(context, words);
  if (type_name == "OPERATION") return Operations(context);
  if (type_name == "UPSTREAM") return Upstreams(context);
  return {};
}

}  // namespace failback
