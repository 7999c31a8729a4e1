#include "tests/registry/failback/model_registry.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"
#include "tests/registry/failback/subscriber_model.h"

namespace failback {
namespace {

constexpr size_t kHistory = 8;

absl::Status Unknown(const std::string& session) {
  return Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                 absl::StrCat("session ", session, " is not known"));
}

// What the canonical keys of a selector's instances begin with; empty: look at the instances.
std::string PrefixOf(Selector selector) {
  if (HasFilter(selector) || selector.service().empty()) return "";
  NormalizeSelector(&selector);
  InstanceKey key;
  key.set_namespace_(selector.namespace_());
  key.set_service(selector.service());
  return CanonicalKey(key);
}

}  // namespace

class ModelRegistry::Stream final : public SubscribeStream {
 public:
  Stream(ModelRegistry* registry, const SubscribeRequest& request,
         std::shared_ptr<NotifyListener> listener)
      : registry_(registry),
        request_(request),
        prefix_(PrefixOf(request.selector())),
        listener_(std::move(listener)) {}
  ~Stream() override {
    if (registry_ != nullptr) registry_->streams_.erase(this);
  }

  void Begin() {
    const auto& history = registry_->history_;
    const auto known = history.find(request_.revision());
    if (request_.epoch() == registry_->epoch_ && known != history.end()) {
      told_ = Filtered(known->second);
      revision_ = request_.revision();
      Tell(/*always=*/true);
      return;
    }
    told_ = Filtered(registry_->state_.instances);
    revision_ = registry_->state_.revision;
    std::vector<Blob> instances;
    for (const auto& [key, bytes] : told_) instances.push_back(bytes);
    listener_->OnEvent(
        Event::Snapshot(registry_->epoch_, revision_, SetFlags(), std::move(instances)));
  }

  void Tell(bool always = false) {
    std::vector<Blob> upserts;
    std::vector<std::string> removals;
    auto next = Filtered(registry_->state_.instances);
    for (const auto& [key, bytes] : next) {
      const auto it = told_.find(key);
      if (it == told_.end() || it->second != bytes) upserts.push_back(bytes);
    }
    for (const auto& [key, bytes] : told_) {
      if (next.count(key) == 0) removals.push_back(key);
    }
    if (!always && next == told_) return;
    told_ = std::move(next);
    const uint64_t base = std::exchange(revision_, registry_->state_.revision);
    listener_->OnEvent(Event::Delta(registry_->epoch_, base, revision_, SetFlags(),
                                    std::move(upserts), std::move(removals)));
  }

  void End(const absl::Status& status) {
    registry_->streams_.erase(this);
    registry_ = nullptr;
    listener_->OnEnd(status);
  }

  const SubscribeRequest& request() const { return request_; }
  void Orphan() { registry_ = nullptr; }

 private:
  std::map<std::string, Blob> Filtered(const Instances& instances) const {
    std::map<std::string, Blob> filtered;
    for (const auto& [key, held] : instances) {
      const bool matches = prefix_.empty()
                               ? SelectorMatches(request_.selector(), ParseInstance(held.bytes))
                               : key.compare(0, prefix_.size(), prefix_) == 0;
      if (matches) filtered.emplace_hint(filtered.end(), key, held.bytes);
    }
    return filtered;
  }

  ModelRegistry* registry_;
  const SubscribeRequest request_;
  const std::string prefix_;
  const std::shared_ptr<NotifyListener> listener_;
  std::map<std::string, Blob> told_;
  uint64_t revision_ = 0;
};

ModelRegistry::ModelRegistry() {
  state_.store_id = absl::StrCat("store-", ++minted_);
  history_[0] = {};
}

ModelRegistry::~ModelRegistry() {
  for (Stream* stream : streams_) stream->Orphan();
}

void ModelRegistry::OpenSession(const OpenSessionRequest& request,
                                Callback<OpenSessionResponse> done) {
  OpenSessionResponse response;
  for (const auto& [id, incarnation] : state_.sessions) {
    if (incarnation == request.incarnation()) {
      response.set_session_id(id);
      response.set_resumed(true);
    }
  }
  if (!response.resumed()) {
    response.set_session_id(absl::StrCat("session-", ++minted_));
    state_.sessions[response.session_id()] = request.incarnation();
  }
  uint64_t& rank = state_.ranks[request.incarnation()];
  if (rank == 0 && request.store_id() == state_.store_id) rank = request.rank();
  if (rank == 0) rank = state_.last_rank + 1;
  state_.last_rank = std::max(state_.last_rank, rank);
  response.set_rank(rank);
  response.mutable_ttl()->set_seconds(10);
  response.set_store_id(state_.store_id);
  response.set_epoch(epoch_);
  std::move(done)(std::move(response));
}

void ModelRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  if (state_.sessions.count(request.session_id()) == 0) {
    return std::move(done)(Unknown(request.session_id()));
  }
  KeepAliveResponse response;
  response.set_session_id(request.session_id());
  response.mutable_ttl()->set_seconds(10);
  response.set_epoch(epoch_);
  response.set_revision(state_.revision);
  std::move(done)(std::move(response));
}

bool ModelRegistry::EndSession(const std::string& id) {
  bool changed = false;
  for (auto it = state_.instances.begin(); it != state_.instances.end();) {
    if (it->second.session == id && !it->second.persistent) {
      it = state_.instances.erase(it);
      changed = true;
    } else {
      ++it;
    }
  }
  state_.sessions.erase(id);
  state_.unsubscribed.erase(id);
  const auto streams = streams_;
  for (Stream* stream : streams) {
    if (stream->request().session_id() == id) stream->End(Unknown(id));
  }
  return changed;
}

void ModelRegistry::CloseSession(const CloseSessionRequest& request,
                                 Callback<CloseSessionResponse> done) {
  if (EndSession(request.session_id())) Commit();
  std::move(done)(CloseSessionResponse());
}

absl::Status ModelRegistry::Decide(const std::string& key, uint64_t rank, uint64_t generation,
                                   const Blob& content) {
  Fence& fence = state_.fences[key];
  const auto mine = std::make_pair(rank, generation);
  const auto held = std::make_pair(fence.rank, fence.generation);
  const auto refusal = [&](ErrorReason reason, const char* why) {
    return Refusal(
        reason, why,
        {{"rank", absl::StrCat(fence.rank)}, {"generation", absl::StrCat(fence.generation)}});
  };
  if (mine < held) {
    return refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                   "a newer intent holds the key, or held it until lately");
  }
  if (mine == held && content != fence.content) {
    return refusal(registry::v1::ERROR_REASON_GENERATION_REUSED, "the number was used");
  }
  fence = {rank, generation, content};
  return absl::OkStatus();
}

void ModelRegistry::Write(Batch batch, Callback<BatchResult> done) {
  const auto session = state_.sessions.find(batch.session_id());
  if (session == state_.sessions.end()) return std::move(done)(Unknown(batch.session_id()));
  if (auto status = batch.Check(kDefaultMaxBatch); !status.ok()) return std::move(done)(status);
  BatchResult result;
  bool changed = false;
  for (const Intent& intent : batch.intents()) {
    const absl::Status status =
        intent.status.ok()
            ? Decide(intent.key, state_.ranks[session->second], intent.generation, intent.instance)
            : intent.status;
    auto& one = result.results.emplace_back();
    if (!status.ok()) {
      *one.mutable_status() = StatusToProto(status);
    } else if (intent.registers) {
      Held& held = state_.instances[intent.key];
      changed = changed || held.bytes != intent.instance;
      held = {intent.instance, PortOf(intent.instance), session->first,
              session->second, intent.generation,       intent.persistent};
    } else {
      changed = state_.instances.erase(intent.key) > 0 || changed;
    }
  }
  if (changed) Commit();
  std::move(done)(std::move(result));
}

std::unique_ptr<SubscribeStream> ModelRegistry::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  auto stream = std::make_unique<Stream>(this, request, std::move(listener));
  if (state_.sessions.count(request.session_id()) == 0) {
    stream->End(Unknown(request.session_id()));
    return stream;
  }
  const uint64_t ended = state_.unsubscribed[request.session_id()][request.subscription_id()];
  if (request.generation() <= ended) {
    stream->End(Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "was unsubscribed",
                        {{"generation", absl::StrCat(ended)}}));
    return stream;
  }
  const auto streams = streams_;
  for (Stream* older : streams) {
    if (older->request().session_id() == request.session_id() &&
        older->request().subscription_id() == request.subscription_id()) {
      older->End(Refusal(registry::v1::ERROR_REASON_REPLACED, "a newer one took over"));
    }
  }
  streams_.insert(stream.get());
  stream->Begin();
  return stream;
}

void ModelRegistry::Unsubscribe(const UnsubscribeRequest& request,
                                Callback<UnsubscribeResponse> done) {
  if (state_.sessions.count(request.session_id()) > 0) {
    uint64_t& ended = state_.unsubscribed[request.session_id()][request.subscription_id()];
    ended = std::max(ended, request.generation());
    const auto streams = streams_;
    for (Stream* stream : streams) {
      if (stream->request().session_id() == request.session_id() &&
          stream->request().subscription_id() == request.subscription_id() &&
          stream->request().generation() <= ended) {
        stream->End(absl::OkStatus());
      }
    }
  }
  std::move(done)(UnsubscribeResponse());
}

void ModelRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  ListResponse response;
  response.set_epoch(epoch_);
  response.set_revision(state_.revision);
  for (const auto& [key, held] : state_.instances) {
    if (key <= request.page_token()) continue;
    if (held.incarnation != request.incarnation()) continue;
    if (response.records_size() == 2) {  // small pages, to be more of them
      response.set_next_page_token(
          CanonicalKey(response.records(response.records_size() - 1).instance().key()));
      break;
    }
    auto* row = response.add_records();
    row->mutable_instance()->ParseFromArray(held.bytes.data(), static_cast<int>(held.bytes.size()));
    row->set_incarnation(held.incarnation);
    row->set_generation(held.generation);
  }
  std::move(done)(std::move(response));
}

void ModelRegistry::Commit() {
  ++state_.revision;
  history_[state_.revision] = state_.instances;
  if (history_.size() > kHistory) history_.erase(history_.begin());
  const auto streams = streams_;
  for (Stream* stream : streams) stream->Tell();
}

void ModelRegistry::LoseSessions() {
  bool changed = false;
  const auto sessions = state_.sessions;
  for (const auto& [id, incarnation] : sessions) changed = EndSession(id) || changed;
  if (changed) Commit();
}

void ModelRegistry::Wipe() {
  state_ = State();
  state_.store_id = absl::StrCat("store-", ++minted_);
  ++epoch_;
  history_ = {{0, {}}};
  BreakStreams(absl::UnavailableError("the registry has stopped"));
}

void ModelRegistry::Restore() {
  if (backup_ == nullptr) return;
  state_ = *backup_;
  ++epoch_;
  history_ = {{state_.revision, state_.instances}};
  BreakStreams(absl::UnavailableError("the registry has stopped"));
}

void ModelRegistry::BreakStreams(const absl::Status& status) {
  const auto streams = streams_;
  for (Stream* stream : streams) stream->End(status);
}

void ModelRegistry::ForgetFences() {
  for (auto it = state_.fences.begin(); it != state_.fences.end();) {
    it = state_.instances.count(it->first) == 0 ? state_.fences.erase(it) : std::next(it);
  }
}

void ModelRegistry::HandRemove(const std::string& key) {
  if (state_.instances.erase(key) > 0) Commit();
}

void ModelRegistry::HandChange(const std::string& key, uint32_t port) {
  const auto it = state_.instances.find(key);
  if (it == state_.instances.end()) return;
  if (it->second.port == port) return;
  ServiceInstance instance = ParseInstance(it->second.bytes);
  instance.set_port(port);
  it->second.bytes = Blob(CanonicalInstance(instance));
  it->second.port = port;
  Commit();
}

}  // namespace failback
