#include "gateway/xds/stream_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback::xds {
namespace {

// Stands for everything in a subscription.
constexpr char kWildcard[] = "*";

}  // namespace

StreamState::StreamState(std::string version_prefix) : version_prefix_(std::move(version_prefix)) {}

StreamState::Step StreamState::OnRequest(const DiscoveryRequest& request) {
  Step step;
  NoteNode(request);
  if (request.type_url().empty()) {
    step.error = InvalidField("type_url", "is required on an aggregated stream");
    return step;
  }
  const std::optional<ResourceType> type = TypeOfUrl(request.type_url());
  if (!type.has_value()) return step;
  Subscription& subscription = Of(*type);
  if (!request.response_nonce().empty() && request.response_nonce() != subscription.nonce) {
    step.kind = Kind::kStale;
    return step;
  }
  if (request.response_nonce().empty()) {
    step.kind = Kind::kSubscribe;
  } else {
    step.kind = request.has_error_detail() ? Kind::kNack : Kind::kAck;
  }
  Subscribe(*type, request, &step);
  return step;
}

void StreamState::NoteNode(const DiscoveryRequest& request) {
  if (node_known_ || !request.has_node()) return;
  node_known_ = true;
  node_id_ = request.node().id();
  zone_ = request.node().locality().zone();
  user_agent_ = request.node().user_agent_name();
  if (!request.node().user_agent_version().empty()) {
    absl::StrAppend(&user_agent_, " ", request.node().user_agent_version());
  }
}

void StreamState::Subscribe(ResourceType type, const DiscoveryRequest& request, Step* step) {
  Subscription& subscription = Of(type);
  std::set<std::string> wanted(request.resource_names().begin(), request.resource_names().end());
  const bool wildcard = wanted.erase(kWildcard) > 0 || (wanted.empty() && !subscription.requested);
  if (wildcard && IsWholeState(type) && !subscription.requested) {
    subscription.answer_wildcard = true;
  }
  if (wanted.size() > kMaxNames) {
    step->error = Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                          absl::StrCat("resource_names: ", wanted.size(), " of ", TypeName(type),
                                       ", more than ", kMaxNames),
                          {{"limit", absl::StrCat(kMaxNames)}});
    return;
  }
  for (const std::string& name : wanted) {
    if (name.size() > kMaxNameBytes) {
      step->error =
          InvalidField("resource_names",
                       absl::StrCat("one has ", name.size(), " bytes, more than ", kMaxNameBytes));
      return;
    }
  }
  const bool comes_back = !subscription.requested && !request.version_info().empty();
  subscription.requested = true;
  for (auto it = subscription.names.begin(); it != subscription.names.end();) {
    if (wanted.count(it->first) > 0) {
      ++it;
      continue;
    }
    Release(it->first, &step->unfollow);
    subscription.changed.erase(it->first);
    subscription.kept.erase(it->first);
    it = subscription.names.erase(it);
  }
  for (const std::string& name : wanted) {
    if (!subscription.names.emplace(name, 0).second) continue;
    Hold(name, &step->follow);
    subscription.changed.insert(name);
    if (comes_back) subscription.kept.insert(name);
  }
}

void StreamState::Hold(const std::string& name, std::vector<std::string>* follow) {
  if (++followed_[name] == 1) follow->push_back(name);
}

void StreamState::Release(const std::string& name, std::vector<std::string>* unfollow) {
  const auto it = followed_.find(name);
  if (--it->second > 0) return;
  unfollow->push_back(name);
  followed_.erase(it);
}

void StreamState::Changed(const std::string& name) {
  Subscription& endpoints = Of(ResourceType::kEndpoints);
  if (endpoints.names.count(name) > 0) endpoints.changed.insert(name);
}

std::optional<StreamState::Response> StreamState::Next(const Source& source) {
  for (const ResourceType type : kResourceTypes) {
    Response response;
    const bool something = IsWholeState(type) ? TakeWhole(type, source, &response)
                                              : TakeChanged(type, source, &response);
    if (!something) continue;
    response.type = type;
    uint64_t version = 0;
    for (const ResourcePtr& resource : response.resources) {
      version = std::max(version, resource->version);
    }
    response.version = absl::StrCat(version_prefix_, version);
    response.nonce = absl::StrCat(++last_nonce_);
    Of(type).nonce = response.nonce;
    return response;
  }
  return std::nullopt;
}

bool StreamState::TakeWhole(ResourceType type, const Source& source, Response* response) {
  Subscription& subscription = Of(type);
  if (subscription.changed.empty() && !subscription.answer_wildcard) return false;
  subscription.changed.clear();
  subscription.answer_wildcard = false;
  for (auto& [name, sent] : subscription.names) {
    const Found found = source(type, name);
    if (found.resource == nullptr) continue;
    sent = found.resource->version;
    response->resources.push_back(found.resource);
  }
  return true;
}

bool StreamState::TakeChanged(ResourceType type, const Source& source, Response* response) {
  Subscription& subscription = Of(type);
  size_t bytes = 0;
  while (!subscription.changed.empty()) {
    const auto first = subscription.changed.begin();
    const Found found = source(type, *first);
    const bool withheld = found.placeholder && subscription.kept.count(*first) > 0;
    uint64_t& sent = subscription.names[*first];
    if (found.resource != nullptr && !withheld && found.resource->version != sent) {
      if (bytes > 0 && bytes + found.resource->encoded.size() > kResponseBytes) break;
      sent = found.resource->version;
      bytes += found.resource->encoded.size();
      response->resources.push_back(found.resource);
    }
    subscription.changed.erase(first);
  }
  return !response->resources.empty();
}

}  // namespace failback::xds
