// A Registry for tests: it records every request and answers as the test says.
//
// Each method has a FakeMethod, which takes, in this order: an answer queued with Answer, else
// the function set with AnswerWith, else an answer that says "done" (every item of a batch
// acknowledged, a session opened, an empty listing). While a method is on hold its callbacks wait
// until the test completes them.
//
//   FakeRegistry fake;
//   fake.registers.Answer(absl::UnavailableError("away"));   // the first fails
//   fake.registers.Hold();                                   // the next ones wait …
//   code_under_test.Register(…);
//   ASSERT_TRUE(fake.registers.WaitForRequests(2));
//   fake.registers.Complete(RegisterResponse());             // … until told
//
//   auto subscription = fake.WaitForSubscription(0);
//   subscription->Push(event);
//   subscription->End(absl::UnavailableError("gone"));
//
// Callbacks run on the thread that calls the registry, or Complete, Push or End: a test on one
// thread is deterministic. As of any Registry, destruction completes what is held with CANCELLED.
//
// Thread safety: everything may be called from any thread.

#ifndef FAILBACK_TESTS_REGISTRY_FAKE_REGISTRY_H_
#define FAILBACK_TESTS_REGISTRY_FAKE_REGISTRY_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "registry/registry.h"
#include "registry/watch/serial_notifier.h"
#include "retry/mutex.h"
#include "tests/registry/message_listener.h"

namespace failback {

// One method of the fake: its requests, its answers, the callbacks that wait.
template <typename RequestT, typename ResponseT>
class FakeMethod {
 public:
  using Request = RequestT;
  using Response = ResponseT;
  using Answerer = std::function<absl::StatusOr<Response>(const Request&)>;

  explicit FakeMethod(Answerer fallback) : answerer_(std::move(fallback)) {}

  // Queues the answer to one call.
  void Answer(absl::StatusOr<Response> answer) {
    MutexLock lock(&mu_);
    answers_.push_back(std::move(answer));
  }

  // Answers every call that has no answer queued, from now on.
  void AnswerWith(Answerer answerer) {
    MutexLock lock(&mu_);
    answerer_ = std::move(answerer);
  }

  // From now on calls wait for Complete (also those with an answer queued: it stays queued).
  void Hold() {
    MutexLock lock(&mu_);
    on_hold_ = true;
  }

  // Ends the hold, and answers those that wait as if they came now.
  void Release() {
    {
      MutexLock lock(&mu_);
      on_hold_ = false;
    }
    while (CompleteNext(std::nullopt)) {
    }
  }

  // Answers the call that waits longest. False when none does.
  bool Complete(absl::StatusOr<Response> answer) { return CompleteNext(std::move(answer)); }

  // As Complete, for the `index`-th of those that wait, the oldest being 0: for answers that
  // overtake each other.
  bool CompleteAt(size_t index, absl::StatusOr<Response> answer) {
    std::optional<Held> held;
    {
      MutexLock lock(&mu_);
      if (index >= held_.size()) return false;
      held = std::move(held_[index]);
      held_.erase(held_.begin() + index);
    }
    std::move(held->done)(std::move(answer));
    return true;
  }

  // Every request so far, in order of arrival.
  std::vector<Request> requests() const {
    MutexLock lock(&mu_);
    return requests_;
  }
  size_t request_count() const {
    MutexLock lock(&mu_);
    return requests_.size();
  }
  Request last_request() const {
    MutexLock lock(&mu_);
    return requests_.empty() ? Request() : requests_.back();
  }
  size_t held_count() const {
    MutexLock lock(&mu_);
    return held_.size();
  }
  void ClearRequests() {
    MutexLock lock(&mu_);
    requests_.clear();
  }

  // Waits until `count` requests have come (and are held, if on hold). False after `timeout`.
  bool WaitForRequests(size_t count, absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time deadline = absl::Now() + timeout;
    MutexLock lock(&mu_);
    while (requests_.size() < count) {
      if (absl::Now() >= deadline) return false;
      arrived_.WaitFor(&mu_, deadline - absl::Now());
    }
    return true;
  }

  // What the registry's method does.
  void Call(const Request& request, Callback<Response> done) {
    {
      MutexLock lock(&mu_);
      requests_.push_back(request);
      arrived_.SignalAll();
      if (on_hold_) {
        held_.push_back({request, std::move(done)});
        return;
      }
    }
    std::move(done)(NextAnswer(request));
  }

 private:
  struct Held {
    Request request;
    Callback<Response> done;
  };

  bool CompleteNext(std::optional<absl::StatusOr<Response>> answer) {
    std::optional<Held> held;
    {
      MutexLock lock(&mu_);
      if (held_.empty()) return false;
      held = std::move(held_.front());
      held_.pop_front();
    }
    std::move(held->done)(answer.has_value() ? *std::move(answer) : NextAnswer(held->request));
    return true;
  }

  absl::StatusOr<Response> NextAnswer(const Request& request) {
    Answerer answerer;
    {
      MutexLock lock(&mu_);
      if (!answers_.empty()) {
        absl::StatusOr<Response> answer = std::move(answers_.front());
        answers_.pop_front();
        return answer;
      }
      answerer = answerer_;
    }
    return answerer(request);
  }

  mutable Mutex mu_;
  CondVar arrived_;
  Answerer answerer_ ABSL_GUARDED_BY(mu_);
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::StatusOr<Response>> answers_ ABSL_GUARDED_BY(mu_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mu_);
  bool on_hold_ ABSL_GUARDED_BY(mu_) = false;
};

// One Subscribe at the fake, with the test's end of the stream.
class FakeSubscription {
 public:
  FakeSubscription(const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener)
      : request_(request), notifier_(std::move(listener)) {}

  const SubscribeRequest& request() const { return request_; }

  // The next message of the stream; what it completes is sent to the subscriber. False when the
  // stream has ended.
  bool Push(const SubscribeResponse& message) {
    bool posted = true;
    {
      MutexLock lock(&mu_);
      whole_.MergeFrom(message);
      if (!message.snapshot().more()) {
        posted = notifier_.Post(EventOf(std::exchange(whole_, SubscribeResponse())));
      }
    }
    notifier_.Deliver();
    return posted;
  }
  void End(const absl::Status& status) {
    notifier_.PostEnd(status);
    notifier_.Deliver();
  }

  // Whether the subscriber has destroyed its SubscribeStream.
  bool cancelled() const;
  bool WaitForCancel(absl::Duration timeout = absl::Seconds(30)) const;

 private:
  friend class FakeRegistry;
  class Stream;

  const SubscribeRequest request_;
  SerialNotifier notifier_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  SubscribeResponse whole_ ABSL_GUARDED_BY(mu_);  // the parts of a snapshot so far
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

class FakeRegistry : public Registry {
 public:
  FakeRegistry();
  ~FakeRegistry() override;

  FakeMethod<OpenSessionRequest, OpenSessionResponse> opens;
  FakeMethod<KeepAliveRequest, KeepAliveResponse> keep_alives;
  FakeMethod<CloseSessionRequest, CloseSessionResponse> closes;
  FakeMethod<RegisterRequest, RegisterResponse> registers;
  FakeMethod<UnregisterRequest, UnregisterResponse> unregisters;
  FakeMethod<UnsubscribeRequest, UnsubscribeResponse> unsubscribes;
  FakeMethod<ListRequest, ListResponse> lists;

  // The connection breaks while nothing is asked.
  void Disconnect(const absl::Status& status);
  void SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) override;

  // Every Subscribe so far, in order of arrival.
  std::vector<std::shared_ptr<FakeSubscription>> subscriptions() const;

  // The `index`-th Subscribe, from 0, waiting for it; null after `timeout`.
  std::shared_ptr<FakeSubscription> WaitForSubscription(
      size_t index, absl::Duration timeout = absl::Seconds(30)) const;

  // Ends every Subscribe that comes from now on with `status` at once; nullopt lets them live.
  void EndSubscriptionsWith(std::optional<absl::Status> status);
  // From now on each Subscribe has this message before it returns.
  void BeginSubscriptionsWith(SubscribeResponse message);

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;

 private:
  mutable Mutex mu_;
  mutable CondVar subscribed_;
  std::vector<std::shared_ptr<FakeSubscription>> subscriptions_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> subscription_end_ ABSL_GUARDED_BY(mu_);
  std::optional<SubscribeResponse> subscription_begin_ ABSL_GUARDED_BY(mu_);
  std::function<void(const absl::Status&)> disconnect_listener_ ABSL_GUARDED_BY(mu_);
};

// A listener that records what it is sent, part by part. `on_message`, if given, also runs with
// each part.
class RecordingListener : public MessageListener {
 public:
  explicit RecordingListener(std::function<void(const MessagePtr&)> on_message = nullptr)
      : on_message_(std::move(on_message)) {}

  void OnMessage(const MessagePtr& message) override;
  void OnEnd(const absl::Status& status) override;

  std::vector<MessagePtr> events() const;
  // The status of the end, or nullopt while the stream lives.
  std::optional<absl::Status> end() const;

  // False after `timeout`.
  bool WaitForEvents(size_t count, absl::Duration timeout = absl::Seconds(30)) const;
  bool WaitForEnd(absl::Duration timeout = absl::Seconds(30)) const;

 private:
  const std::function<void(const MessagePtr&)> on_message_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  std::vector<MessagePtr> events_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAKE_REGISTRY_H_
