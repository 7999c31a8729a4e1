// What a stream of requests that are answered by a message each has to send, and what of it waits
// for its answer, as the client has it. Internal to ClientExchange.
//
// It knows no gRPC, lock or time, so that simulated streams flow as real ones do
// (docs/testing.md). One write is under way at most.
//
//   AskFlow<Question> flow(WhenIdle::kEnd);
//   if (!flow.Send(question)) …                              // another stream
//   if (auto next = flow.StartWrite()) …                     // send it, and then flow.EndWrite()
//   auto asked = flow.Answered([&](const Question& q) { return q.id == answer.id; });
//   if (flow.Close()) …                                      // nothing more will be sent
//
// An answer belongs to the oldest request that it may be for.
//
// Ask is what waits for an answer; it has the request, and lives until that has been written.
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_CLIENT_ASK_FLOW_H_
#define FAILBACK_REGISTRY_CLIENT_ASK_FLOW_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

namespace failback {

enum class WhenIdle {
  kStay,
  kEnd,  // a caller that has nothing to wait for takes no more, and ends the stream
};

template <typename Ask>
class AskFlow {
 public:
  using AskPtr = std::shared_ptr<Ask>;

  explicit AskFlow(WhenIdle when_idle) : when_idle_(when_idle) {}

  // False when the stream takes no more: take another.
  bool Send(const AskPtr& ask) {
    if (over_) return false;
    waiting_.push_back(ask);
    unsent_.push_back(ask);
    return true;
  }

  // Whether one for which `is` is true waits for its answer.
  template <typename Is>
  bool HasWaiting(Is is) const {
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [&](const AskPtr& waiting) { return is(*waiting); });
  }

  // What is to be sent now, or null; it is being sent until EndWrite, and is kept until then.
  Ask* StartWrite() {
    if (writing_ != nullptr || closed_ || unsent_.empty()) return nullptr;
    writing_ = std::move(unsent_.front());
    unsent_.pop_front();
    return writing_.get();
  }
  void EndWrite() { writing_.reset(); }

  // Whether the other side is to be told now that nothing more comes; once.
  bool Close() {
    if (writing_ != nullptr || closed_ || !unsent_.empty() || !over_) return false;
    closed_ = true;
    return true;
  }

  // Takes no more; ends when what it has taken is answered.
  void Retire() { over_ = true; }
  // The other side is gone: nothing more is sent.
  void Break() { over_ = closed_ = true; }
  bool over() const { return over_; }

  // The oldest for which `answers` is true; null: there is none.
  template <typename Answers>
  AskPtr Answered(Answers answers) {
    const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const AskPtr& ask) { return answers(*ask); });
    if (it == waiting_.end()) return nullptr;
    AskPtr ask = std::move(*it);
    waiting_.erase(it);
    if (when_idle_ == WhenIdle::kEnd && waiting_.empty()) over_ = true;
    return ask;
  }

  // What still waits when the stream has ended, in the order of the requests.
  std::deque<AskPtr> TakeWaiting() {
    unsent_.clear();
    return std::exchange(waiting_, {});
  }

 private:
  const WhenIdle when_idle_;
  bool over_ = false;
  bool closed_ = false;
  AskPtr writing_;
  std::deque<AskPtr> unsent_;
  std::deque<AskPtr> waiting_;  // oldest first
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_ASK_FLOW_H_
