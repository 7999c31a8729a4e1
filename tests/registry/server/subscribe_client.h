// A subscription on a Subscribe stream of its own, for tests over both ways in: GrpcRegistry has all
// of its subscriptions on one Watch stream.
//
//   auto stream = SubscribeByItself(address, request, listener);   // as Registry::Subscribe
//
// Thread safety: none. The listener runs on a thread of the stream's.

#ifndef FAILBACK_TESTS_REGISTRY_SERVER_SUBSCRIBE_CLIENT_H_
#define FAILBACK_TESTS_REGISTRY_SERVER_SUBSCRIBE_CLIENT_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "registry/model/event_reader.h"
#include "registry/registry.h"

namespace failback {

class SubscribeClientStream final : public SubscribeStream {
 public:
  SubscribeClientStream(const std::string& address, const SubscribeRequest& request,
                        std::shared_ptr<NotifyListener> listener)
      : stub_(registry::v1::RegistryService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        thread_([this, request, listener = std::move(listener)] { Read(request, *listener); }) {}
  ~SubscribeClientStream() override {
    over_ = true;
    context_.TryCancel();
    thread_.join();
  }

 private:
  void Read(const SubscribeRequest& request, NotifyListener& listener) {
    const auto stream = stub_->Subscribe(&context_, request);
    EventReader reader(request.epoch(), request.revision());
    SubscribeResponse message;
    while (stream->Read(&message)) {
      absl::StatusOr<EventPtr> event = reader.Read(message.SerializeAsString());
      if (!event.ok()) {
        context_.TryCancel();
        return listener.OnEnd(event.status());
      }
      if (*event != nullptr) listener.OnEvent(*event);
    }
    const absl::Status end = StatusFromGrpc(stream->Finish());
    if (!over_) listener.OnEnd(end);
  }

  const std::unique_ptr<registry::v1::RegistryService::Stub> stub_;
  grpc::ClientContext context_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// How a subscription comes to a server.
enum class WayIn { kWatch, kSubscribe };

inline std::string WayInName(const WayIn& way) {
  return way == WayIn::kWatch ? "Watch" : "Subscribe";
}

inline std::unique_ptr<SubscribeStream> SubscribeByItself(
    const std::string& address, const SubscribeRequest& request,
    std::shared_ptr<NotifyListener> listener) {
  return std::make_unique<SubscribeClientStream>(address, request, std::move(listener));
}

// By `client`, whose way is Watch, or beside it.
inline std::unique_ptr<SubscribeStream> SubscribeBy(WayIn way, Registry& client,
                                                    const std::string& address,
                                                    const SubscribeRequest& request,
                                                    std::shared_ptr<NotifyListener> listener) {
  return way == WayIn::kWatch ? client.Subscribe(request, std::move(listener))
                              : SubscribeByItself(address, request, std::move(listener));
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SERVER_SUBSCRIBE_CLIENT_H_
