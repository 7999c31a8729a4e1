// The one answer to a request, given now or later, from any thread.
//
// A handler that has to wait keeps its Responder and returns: the request is parked. It costs the
// Responder and what the handler keeps, and no thread. When the client goes away meanwhile, `gone`
// of WhenGone runs, so that nobody waits for a client that is not there. WaitAtMost answers when
// nothing else has.
//
// A response whose end is not known when it begins is a stream: Begin sends the head, and the
// BodyStream takes chunks. What its client does not read is kept up to a limit: beyond it Write
// refuses, and `drained` runs when there is room again.
//
// Example: a long poll.
//
//   void Poll(const Request& request, Responder responder) {
//     auto parked = std::make_shared<Responder>(std::move(responder));
//     parked->WaitAtMost(absl::Seconds(30), [] { return Response::Json("[]"); });
//     parked->WhenGone([] { … forget it … });
//     feed.WhenChanged([parked](std::string json) { parked->Send(Response::Json(json)); });
//   }
//
// Thread safety: all methods from any thread. `gone`, `drained` and the wait's end run on a thread
// of the server, without locks; they must not block.
//
// Invariants:
// 1. A request has one answer. A later Send, or Begin, does nothing.
// 2. A Responder that is dropped without an answer answers 500.
// 3. `gone` runs at most once, and not after the answer has begun; that of a stream runs when its
//    client has left before End.

#ifndef FAILBACK_GATEWAY_HTTP_RESPONDER_H_
#define FAILBACK_GATEWAY_HTTP_RESPONDER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "gateway/http/message.h"

namespace failback::http {

// The body of a response that goes on.
class BodyStream {
 public:
  virtual ~BodyStream() = default;

  // Sends a chunk after those before it. False, and nothing is sent, if the client has gone, or if
  // more than the limit waits for it already.
  virtual bool Write(std::shared_ptr<const std::string> chunk) = 0;
  // Runs `drained` once, when all that was written has been handed to the client's connection: at
  // once, if that is so already. One at a time: another takes its place. Not after the client has
  // gone.
  virtual void WhenDrained(absl::AnyInvocable<void() &&> drained) = 0;
  // Runs `gone` once, when the client has left before End: at once, if it has already.
  virtual void WhenGone(absl::AnyInvocable<void() &&> gone) = 0;
  // Ends the response. Dropping the stream does so too.
  virtual void End() = 0;
};

// What a Responder is made of: a connection of the server's, or a test's fake.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void Send(Response response) = 0;
  virtual std::unique_ptr<BodyStream> Begin(Response head) = 0;
  virtual void WhenGone(absl::AnyInvocable<void() &&> gone) = 0;
  virtual void WaitAtMost(absl::Duration wait, absl::AnyInvocable<Response() &&> answer) = 0;
};

class Responder {
 public:
  explicit Responder(std::unique_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  Responder(Responder&&) = default;
  Responder& operator=(Responder&&) = default;

  void Send(Response response) { exchange_->Send(std::move(response)); }
  // The same, as a callback.
  void operator()(Response response) && { Send(std::move(response)); }

  // Begins a response whose body follows; `head.body` is its beginning. Never null: after another
  // answer the stream takes nothing.
  std::unique_ptr<BodyStream> Begin(Response head) { return exchange_->Begin(std::move(head)); }

  // Runs `gone` when the client has closed the connection, or the server stops, before the answer.
  // One: another takes its place.
  void WhenGone(absl::AnyInvocable<void() &&> gone) { exchange_->WhenGone(std::move(gone)); }

  // After so long `answer` is made and sent, unless there was one.
  void WaitAtMost(absl::Duration wait, absl::AnyInvocable<Response() &&> answer) {
    exchange_->WaitAtMost(wait, std::move(answer));
  }

 private:
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_RESPONDER_H_
