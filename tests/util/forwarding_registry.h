// A registry that passes every call on to another one; tests override what they interfere with, or
// give it to an owner while they keep the registry itself.
//
// Thread safety: as the other registry's.

#ifndef FAILBACK_TESTS_UTIL_FORWARDING_REGISTRY_H_
#define FAILBACK_TESTS_UTIL_FORWARDING_REGISTRY_H_

#include <memory>
#include <utility>

#include "registry/registry.h"

namespace failback {

class ForwardingRegistry : public Registry {
 public:
  // `to` outlives this.
  explicit ForwardingRegistry(Registry* to) : to_(to) {}

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override {
    to_->OpenSession(request, std::move(done));
  }
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override {
    to_->KeepAlive(request, std::move(done));
  }
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override {
    to_->CloseSession(request, std::move(done));
  }
  void Write(Batch batch, Callback<BatchResult> done) override {
    to_->Write(std::move(batch), std::move(done));
  }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override {
    return to_->Subscribe(request, std::move(listener));
  }
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override {
    to_->Unsubscribe(request, std::move(done));
  }
  void List(const ListRequest& request, Callback<ListResponse> done) override {
    to_->List(request, std::move(done));
  }

 protected:
  Registry* to() const { return to_; }

 private:
  Registry* const to_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_FORWARDING_REGISTRY_H_
