// A request's answer without a connection: what a handler sends, and a client that goes away.
//
// Example: a handler is called, and its response looked at.
//
//   FakeExchange exchange;
//   handler(request, exchange.NewResponder());
//   EXPECT_EQ(exchange.response()->status, 200);
//
// Thread safety: thread-compatible; it outlives its responder.

#ifndef FAILBACK_TESTS_GATEWAY_HTTP_FAKE_EXCHANGE_H_
#define FAILBACK_TESTS_GATEWAY_HTTP_FAKE_EXCHANGE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gateway/http/responder.h"

namespace failback::http {

class FakeExchange {
 public:
  Responder NewResponder() { return Responder(std::make_unique<Link>(this)); }

  // Null: it is parked, or a stream.
  const std::optional<Response>& response() const { return response_; }
  const std::optional<Response>& stream_head() const { return head_; }
  const std::string& streamed() const { return streamed_; }
  bool ended() const { return ended_; }
  absl::Duration wait() const { return wait_; }

  // The client closes its connection.
  void Leave() {
    left_ = true;
    if (gone_ != nullptr) std::exchange(gone_, nullptr)();
  }
  // What was given to WaitAtMost is over.
  void WaitIsOver() {
    if (expired_ != nullptr) response_ = std::exchange(expired_, nullptr)();
  }

 private:
  class Link final : public Exchange {
   public:
    explicit Link(FakeExchange* fake) : fake_(fake) {}
    void Send(Response response) override {
      if (fake_->answered()) return;
      fake_->response_ = std::move(response);
      fake_->gone_ = nullptr;
      fake_->expired_ = nullptr;
    }
    std::unique_ptr<BodyStream> Begin(Response head) override {
      fake_->streamed_ = std::string(head.content());
      fake_->head_ = std::move(head);
      fake_->gone_ = nullptr;
      fake_->expired_ = nullptr;
      return std::make_unique<Stream>(fake_);
    }
    void WhenGone(absl::AnyInvocable<void() &&> gone) override { fake_->SetGone(std::move(gone)); }
    void WaitAtMost(absl::Duration wait, absl::AnyInvocable<Response() &&> answer) override {
      fake_->wait_ = wait;
      fake_->expired_ = [answer = std::move(answer)]() mutable { return std::move(answer)(); };
    }

   private:
    FakeExchange* const fake_;
  };
  class Stream final : public BodyStream {
   public:
    explicit Stream(FakeExchange* fake) : fake_(fake) {}
    ~Stream() override { fake_->ended_ = true; }
    bool Write(std::shared_ptr<const std::string> chunk) override {
      if (fake_->left_) return false;
      fake_->streamed_ += *chunk;
      return true;
    }
    void WhenDrained(absl::AnyInvocable<void() &&> drained) override { std::move(drained)(); }
    void WhenGone(absl::AnyInvocable<void() &&> gone) override { fake_->SetGone(std::move(gone)); }
    void End() override { fake_->ended_ = true; }

   private:
    FakeExchange* const fake_;
  };

  bool answered() const { return response_.has_value() || head_.has_value(); }
  void SetGone(absl::AnyInvocable<void() &&> gone) {
    if (left_) return std::move(gone)();
    gone_ = [gone = std::move(gone)]() mutable { std::move(gone)(); };
  }

  std::optional<Response> response_;
  std::optional<Response> head_;
  std::string streamed_;
  bool ended_ = false;
  bool left_ = false;
  absl::Duration wait_;
  absl::AnyInvocable<void()> gone_;
  absl::AnyInvocable<Response()> expired_;
};

}  // namespace failback::http

#endif  // FAILBACK_TESTS_GATEWAY_HTTP_FAKE_EXCHANGE_H_
