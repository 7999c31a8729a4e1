// The registry of docs/protocol.md in its simplest form: sessions, ranks, fences, revisions,
// streams. Everything is decided at once and on the caller's thread. For model tests.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_MODEL_REGISTRY_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_MODEL_REGISTRY_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "registry/model/blob.h"
#include "registry/registry.h"

namespace failback {

class ModelRegistry final : public Registry {
 public:
  struct Held {
    Blob bytes;  // canonical
    uint32_t port = 0;
    std::string session;
    std::string incarnation;
    uint64_t generation = 0;
    bool persistent = false;
  };
  using Instances = std::map<std::string, Held>;

  ModelRegistry();
  ~ModelRegistry() override;

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;

  const Instances& instances() const { return state_.instances; }

  // Every session expires.
  void LoseSessions();
  // Another store takes the place of this one, with nothing in it.
  void Wipe();
  void Backup() { backup_ = std::make_unique<State>(state_); }
  // A new life of the store from the last Backup(), if there was one.
  void Restore();
  void BreakStreams(const absl::Status& status);
  // Fences of keys without an instance have been kept for long enough.
  void ForgetFences();
  // Another hand, that knows nothing of fences.
  void HandRemove(const std::string& key);
  void HandChange(const std::string& key, uint32_t port);

 private:
  class Stream;
  struct Fence {
    uint64_t rank = 0;
    uint64_t generation = 0;
    Blob content;  // null: a deregistration
  };
  struct Session {
    std::string incarnation;
    std::map<std::string, uint64_t> unsubscribed;
    std::map<std::string, Stream*> streams;
  };
  struct State {
    std::string store_id;
    uint64_t revision = 0;
    Instances instances;
    std::map<std::string, Fence> fences;
    std::map<std::string, std::string> sessions;  // incarnation by id
    std::map<std::string, std::map<std::string, uint64_t>> unsubscribed;
    std::map<std::string, uint64_t> ranks;
    uint64_t last_rank = 0;
  };

  // OK when the intent is accepted; `content` is empty for a deregistration.
  absl::Status Decide(const std::string& key, uint64_t rank, uint64_t generation,
                      const Blob& content);
  bool EndSession(const std::string& id);
  void Commit();

  State state_;
  uint64_t epoch_ = 1;
  int minted_ = 0;
  std::map<uint64_t, Instances> history_;
  std::set<Stream*> streams_;
  std::unique_ptr<State> backup_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_MODEL_REGISTRY_H_
