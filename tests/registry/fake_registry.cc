#include "tests/registry/fake_registry.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/util/batch_requests.h"

namespace failback {
namespace {

constexpr uint64_t kEpoch = 1;

// Waits until `ready()`, which is called with `mu` held (the annotations cannot say so); false
// after `timeout`.
template <typename Ready>
bool Await(Mutex* mu, CondVar* changed, absl::Duration timeout, Ready ready) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(mu);
  while (!ready()) {
    if (absl::Now() >= deadline) return false;
    changed->WaitFor(mu, deadline - absl::Now());
  }
  return true;
}

// Every item acknowledged.
template <typename Response, typename Items>
Response AcknowledgeAll(const Items& items) {
  Response response;
  response.set_epoch(kEpoch);
  response.set_revision(1);
  for (const auto& item : items) {
    auto* result = response.add_results();
    result->set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    result->set_generation(item.generation());
  }
  return response;
}

OpenSessionResponse OpenedSession(const OpenSessionRequest& request) {
  OpenSessionResponse response;
  response.set_session_id(absl::StrCat("session-of-", request.incarnation()));
  *response.mutable_ttl() = request.ttl();
  if (request.ttl().seconds() == 0 && request.ttl().nanos() == 0) {
    response.mutable_ttl()->set_seconds(10);
  }
  response.set_rank(std::max<uint64_t>(1, request.rank()));
  response.set_store_id("fake-store");
  response.set_epoch(kEpoch);
  response.mutable_limits()->set_max_request_bytes(4 << 20);
  response.mutable_limits()->set_max_batch(1000);
  return response;
}

KeepAliveResponse Renewed(const KeepAliveRequest& request) {
  KeepAliveResponse response;
  response.set_session_id(request.session_id());
  response.mutable_ttl()->set_seconds(10);
  response.set_epoch(kEpoch);
  return response;
}

template <typename Request, typename Response>
typename FakeMethod<Request, Response>::Answerer AlwaysEmpty() {
  return [](const Request&) { return Response(); };
}

template <typename Method>
void CancelHeld(Method& method) {
  while (method.Complete(absl::CancelledError("the registry is destroyed"))) {
  }
}

}  // namespace

class FakeSubscription::Stream : public SubscribeStream {
 public:
  explicit Stream(std::shared_ptr<FakeSubscription> subscription)
      : subscription_(std::move(subscription)) {}

  ~Stream() override {
    subscription_->notifier_.Close();
    MutexLock lock(&subscription_->mu_);
    subscription_->cancelled_ = true;
    subscription_->changed_.SignalAll();
  }

 private:
  const std::shared_ptr<FakeSubscription> subscription_;
};

bool FakeSubscription::cancelled() const {
  MutexLock lock(&mu_);
  return cancelled_;
}

bool FakeSubscription::WaitForCancel(absl::Duration timeout) const {
  return Await(&mu_, &changed_, timeout,
               [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return cancelled_; });
}

FakeRegistry::FakeRegistry()
    : opens(OpenedSession),
      keep_alives(Renewed),
      closes(AlwaysEmpty<CloseSessionRequest, CloseSessionResponse>()),
      registers([](const RegisterRequest& request) {
        return AcknowledgeAll<RegisterResponse>(request.registrations());
      }),
      unregisters([](const UnregisterRequest& request) {
        return AcknowledgeAll<UnregisterResponse>(request.deregistrations());
      }),
      unsubscribes(AlwaysEmpty<UnsubscribeRequest, UnsubscribeResponse>()),
      lists(AlwaysEmpty<ListRequest, ListResponse>()) {}

FakeRegistry::~FakeRegistry() {
  CancelHeld(opens);
  CancelHeld(keep_alives);
  CancelHeld(closes);
  CancelHeld(registers);
  CancelHeld(unregisters);
  CancelHeld(unsubscribes);
  CancelHeld(lists);
  for (const auto& subscription : subscriptions()) {
    subscription->End(absl::CancelledError("the registry is destroyed"));
  }
}

std::vector<std::shared_ptr<FakeSubscription>> FakeRegistry::subscriptions() const {
  MutexLock lock(&mu_);
  return subscriptions_;
}

std::shared_ptr<FakeSubscription> FakeRegistry::WaitForSubscription(size_t index,
                                                                    absl::Duration timeout) const {
  Await(&mu_, &subscribed_, timeout,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return subscriptions_.size() > index; });
  MutexLock lock(&mu_);
  return subscriptions_.size() > index ? subscriptions_[index] : nullptr;
}

void FakeRegistry::Disconnect(const absl::Status& status) {
  std::function<void(const absl::Status&)> listener;
  {
    MutexLock lock(&mu_);
    listener = disconnect_listener_;
  }
  if (listener != nullptr) listener(status);
}

void FakeRegistry::SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) {
  MutexLock lock(&mu_);
  disconnect_listener_ = listener;
}

void FakeRegistry::EndSubscriptionsWith(std::optional<absl::Status> status) {
  MutexLock lock(&mu_);
  subscription_end_ = std::move(status);
}

void FakeRegistry::BeginSubscriptionsWith(SubscribeResponse message) {
  MutexLock lock(&mu_);
  subscription_begin_ = std::move(message);
}

void FakeRegistry::OpenSession(const OpenSessionRequest& request,
                               Callback<OpenSessionResponse> done) {
  opens.Call(request, std::move(done));
}

void FakeRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  keep_alives.Call(request, std::move(done));
}

void FakeRegistry::CloseSession(const CloseSessionRequest& request,
                                Callback<CloseSessionResponse> done) {
  closes.Call(request, std::move(done));
}

void FakeRegistry::Write(Batch batch, Callback<BatchResult> done) {
  WriteInMessages(
      batch, std::move(done),
      [this](const auto& request, auto done) { registers.Call(request, std::move(done)); },
      [this](const auto& request, auto done) { unregisters.Call(request, std::move(done)); });
}

std::unique_ptr<SubscribeStream> FakeRegistry::Subscribe(const SubscribeRequest& request,
                                                         std::shared_ptr<NotifyListener> listener) {
  auto subscription = std::make_shared<FakeSubscription>(request, std::move(listener));
  std::optional<absl::Status> end;
  std::optional<SubscribeResponse> begin;
  {
    MutexLock lock(&mu_);
    subscriptions_.push_back(subscription);
    subscribed_.SignalAll();
    end = subscription_end_;
    begin = subscription_begin_;
  }
  if (begin.has_value()) subscription->Push(*begin);
  if (end.has_value()) subscription->End(*end);
  return std::make_unique<FakeSubscription::Stream>(std::move(subscription));
}

void FakeRegistry::Unsubscribe(const UnsubscribeRequest& request,
                               Callback<UnsubscribeResponse> done) {
  unsubscribes.Call(request, std::move(done));
}

void FakeRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  lists.Call(request, std::move(done));
}

void RecordingListener::OnMessage(const MessagePtr& message) {
  {
    MutexLock lock(&mu_);
    events_.push_back(message);
    changed_.SignalAll();
  }
  if (on_message_) on_message_(message);
}

void RecordingListener::OnEnd(const absl::Status& status) {
  MutexLock lock(&mu_);
  end_ = status;
  changed_.SignalAll();
}

std::vector<MessagePtr> RecordingListener::events() const {
  MutexLock lock(&mu_);
  return events_;
}

std::optional<absl::Status> RecordingListener::end() const {
  MutexLock lock(&mu_);
  return end_;
}

bool RecordingListener::WaitForEvents(size_t count, absl::Duration timeout) const {
  return Await(&mu_, &changed_, timeout,
               [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return events_.size() >= count; });
}

bool RecordingListener::WaitForEnd(absl::Duration timeout) const {
  return Await(&mu_, &changed_, timeout,
               [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return end_.has_value(); });
}

}  // namespace failback
