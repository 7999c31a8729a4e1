// A stream of messages on the simulated network, both ways: what HTTP/2 is to gRPC. The two ends
// (wire_server_streams.cc, wire_client_streams.cc) run the product's flows: WatchFlow against
// FollowFlow, AnswerFlow against AskFlow.
//
// Each way messages arrive in order, one on its way at a time: the next is written when the other
// end has read the one before, so who reads slowly holds up who writes. The stream begins at the
// server with what arrives first. What cannot pass breaks it, and both ends find out.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_WIRE_STREAM_H_
#define FAILBACK_TESTS_SIMULATE_WIRE_STREAM_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "tests/simulate/network.h"
#include "tests/simulate/process.h"

namespace failback::simulate {

class WireStream : public std::enable_shared_from_this<WireStream> {
 public:
  enum class Kind { kWatch, kKeepAlive, kRegister };

  // An end. It is called on its process.
  class End {
   public:
    virtual ~End() = default;
    // After Read.
    virtual void OnMessage(const std::string& bytes) = 0;
    // After Write: it has been read.
    virtual void OnWritten() = 0;
    // The client writes no more.
    virtual void OnHalfClose() {}
    // The other end has ended it, or it is broken.
    virtual void OnOver(const absl::Status& status) = 0;
  };

  // `open` makes the server's end, on its process, and sets it.
  using Open = std::function<void(const std::shared_ptr<WireStream>&)>;
  WireStream(Network* network, Kind kind, int link, std::weak_ptr<Process> client,
             std::weak_ptr<Process> server, Open open)
      : network_(network), kind_(kind), link_(link), open_(std::move(open)) {
    sides_[0].process = std::move(server);
    sides_[1].process = std::move(client);
  }

  Kind kind() const { return kind_; }
  int link() const { return link_; }
  // The one that messages of this way arrive at.
  void SetEnd(Way way, std::weak_ptr<End> end) { Of(way).end = std::move(end); }
  // Its process is gone.
  bool IsGone(Way way) const { return sides_[static_cast<size_t>(way)].process.expired(); }

  // The server has its end although nothing is written yet.
  void Begin();
  // One at a time.
  void Write(Way way, std::string bytes);
  // The next message that arrives.
  void Read(Way way);
  void HalfClose();
  // The server's last word. The end may go.
  void Finish(const absl::Status& status);
  // The client ends it, and notices no more of it.
  void Cancel();

 private:
  struct Side {
    std::weak_ptr<Process> process;
    std::weak_ptr<End> end;
    bool reading = false;
    std::optional<std::string> unread;
    bool over = false;
  };

  Side& Of(Way way) { return sides_[static_cast<size_t>(way)]; }
  static Way Back(Way way) { return way == Way::kToClient ? Way::kToRegistry : Way::kToClient; }
  // Runs `arrive` there, or breaks the stream.
  void Send(Way way, std::function<void()> arrive);
  void Arrive(Way way, const std::string& bytes);
  void Deliver(Way way, const std::string& bytes);
  // The server's end is there, or it is over.
  void OpenAtServer();
  void EndAt(Way way, const absl::Status& status);
  void Break();

  Network* const network_;
  const Kind kind_;
  const int link_;
  const Open open_;
  std::array<Side, 2> sides_;  // by the way that arrives there
  bool opened_ = false;
  bool broken_ = false;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_WIRE_STREAM_H_
