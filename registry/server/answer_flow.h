// What is open on a stream of requests that are answered by a message each, as the server has it:
// which request may be read, and which answer written next. Internal to ExchangeReactor.
//
// It knows no gRPC, lock or time, so that simulated streams flow as real ones do
// (docs/testing.md). One read and one write are under way at most.
//
//   AnswerFlow<std::string> flow({AnswerOrder::kAsRequested, 32, 4 << 20});
//   if (flow.StartRead()) …                          // read a message, and when it has come:
//   const auto slot = flow.Take(message.size());
//   flow.EndRead();
//   flow.Put(slot, answer, answer.size());           // in any order
//   while (auto next = flow.StartWrite()) … flow.EndWrite();
//   if (flow.over() != nullptr) …                    // the stream ends with this status
//
// Flow: what has been read and not been answered, or whose answer has not been taken, is open.
// While too much is open nothing more is read.
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_SERVER_ANSWER_FLOW_H_
#define FAILBACK_REGISTRY_SERVER_ANSWER_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace failback {

// In which order answers are written.
enum class AnswerOrder { kAsAnswered, kAsRequested };

// What may be open at once: messages, and bytes, of requests or of the answers in their places. The
// last message read may go beyond the bytes.
struct AnswerLimits {
  AnswerOrder order = AnswerOrder::kAsAnswered;
  size_t max_open = 1024;
  size_t max_open_bytes = size_t{4} << 20;
};

// Those of a RegisterStream.
inline constexpr AnswerLimits kRegisterStreamLimits = {AnswerOrder::kAsRequested, 32,
                                                       size_t{4} << 20};

// A request that was read, for its answer.
struct AnswerSlot {
  uint64_t number = 0;  // from 0
  size_t bytes = 0;
};

template <typename Message>
class AnswerFlow {
 public:
  explicit AnswerFlow(const AnswerLimits& limits) : limits_(limits) {}

  // Whether the next request is to be read now; then it is being read until EndRead.
  bool StartRead() {
    if (reading_ || !MayRead() || open_ >= limits_.max_open ||
        open_bytes_ >= limits_.max_open_bytes) {
      return false;
    }
    reading_ = true;
    return true;
  }
  // False: what has been read is of no use, as the stream ends.
  bool MayRead() const { return !end_.has_value() && !final_.has_value(); }
  AnswerSlot Take(size_t bytes) {
    sweeps_since_read_ = 0;
    ++open_;
    open_bytes_ += bytes;
    if (limits_.order == AnswerOrder::kAsRequested) waiting_.emplace_back();
    return {next_++, bytes};
  }
  void EndRead() { reading_ = false; }

  // The answer to a request that was taken.
  void Put(const AnswerSlot& slot, Message answer, size_t bytes) {
    if (end_.has_value()) return;
    open_bytes_ += bytes - slot.bytes;
    if (limits_.order == AnswerOrder::kAsAnswered) {
      ready_.push_back({std::move(answer), bytes});
      return;
    }
    waiting_[slot.number - first_waiting_] = Answer{std::move(answer), bytes};
    for (; !waiting_.empty() && waiting_.front().has_value(); ++first_waiting_) {
      ready_.push_back(*std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }

  // The answer to be written now; then it is being written until EndWrite.
  std::optional<Message> StartWrite() {
    if (writing_ || ready_.empty()) return std::nullopt;
    Answer answer = std::move(ready_.front());
    ready_.pop_front();
    --open_;
    open_bytes_ -= answer.bytes;
    writing_ = true;
    sweeps_since_write_ = 0;
    return std::move(answer.message);
  }
  void EndWrite() { writing_ = false; }

  // Reads no more, and ends when what is open has been answered. The first status counts.
  void Drain(const absl::Status& status) {
    if (!final_.has_value()) final_ = status;
  }
  // Ends when the write under way is done; what is open is dropped. The first status counts.
  void End(const absl::Status& status) {
    if (end_.has_value()) return;
    end_ = status;
    waiting_.clear();
    ready_.clear();
  }
  // How the stream ends, now; null: not yet.
  const absl::Status* over() {
    if (final_.has_value() && open_ == 0) End(*final_);
    return writing_ || !end_.has_value() ? nullptr : &*end_;
  }

  // Called at intervals; what is up with the stream after it.
  enum class Swept {
    kGoesOn,
    kOld,      // open for `oldest` of them: to be drained
    kSilent,   // nothing has come for `silent` of them, and no answer is still to be given
    kStalled,  // one write has been under way for `stalled` of them
  };
  Swept Sweep(int stalled, int silent, int oldest) {
    ++sweeps_since_read_;
    if (++sweeps_ >= oldest && !final_.has_value()) return Swept::kOld;
    if (!end_.has_value() && open_ == ready_.size() && sweeps_since_read_ > silent) {
      return Swept::kSilent;
    }
    return writing_ && ++sweeps_since_write_ > stalled ? Swept::kStalled : Swept::kGoesOn;
  }

 private:
  struct Answer {
    Message message;
    size_t bytes = 0;
  };

  const AnswerLimits limits_;
  bool reading_ = false;  // or a message is being handed over
  bool writing_ = false;
  uint64_t next_ = 0;
  size_t open_ = 0;
  size_t open_bytes_ = 0;
  // Places for the answers from number first_waiting_ on; those in turn go to ready_.
  std::deque<std::optional<Answer>> waiting_;
  uint64_t first_waiting_ = 0;
  std::deque<Answer> ready_;
  int sweeps_ = 0;
  int sweeps_since_read_ = 0;
  int sweeps_since_write_ = 0;         // since the write under way began
  std::optional<absl::Status> final_;  // nothing more is read: the status when all is answered
  std::optional<absl::Status> end_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_ANSWER_FLOW_H_
