// What the calls and the streams of a WireRegistry share, as the core of GrpcRegistry. Internal to
// WireRegistry.

#ifndef FAILBACK_TESTS_SIMULATE_WIRE_SHARED_H_
#define FAILBACK_TESTS_SIMULATE_WIRE_SHARED_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/client/ask_flow.h"
#include "registry/client/follow_flow.h"
#include "registry/model/event_reader.h"
#include "tests/simulate/wire.h"

namespace failback::simulate {

class WireRegistry::Shared : public std::enable_shared_from_this<Shared> {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::string>) &&>;

  class ClientEnd;
  class ExchangeEnd;
  class FollowEnd;
  struct Subscription;

  Shared(Network* network, std::weak_ptr<Process> self, int link, Server server)
      : network_(network), self_(std::move(self)), link_(link), server_(std::move(server)) {}

  // A call, and a message on a stream. Each has a deadline.
  void Call(Method method, std::string bytes, Done done);
  void Ask(WireStream::Kind kind, const std::string& session_id, std::string bytes, Done done);
  // The next Register, of so many intents, goes on a stream: as those of GrpcRegistry which are
  // large and not alone, and as others, so that both ways are taken.
  bool Streams(size_t intents) const { return intents > 1 && sent_ % 4 != 0; }
  void Follow(const std::shared_ptr<Subscription>& subscription);

  // A session was asked for at `asked_nanos`.
  void Opened(int64_t asked_nanos);

  // The connection is broken; or what ran at a server that is gone, behind a balancer which has the
  // answers that were given.
  void Break(const absl::Status& status, bool connection);
  void Close() { closed_ = true; }

  // `end` takes no more; it is over, too.
  void Drop(const ClientEnd* end);
  void Forget(const ClientEnd* end);
  void Disconnected(const absl::Status& status) {
    if (!closed_ && disconnect_listener) disconnect_listener(status);
  }
  void Complete(uint64_t id, absl::StatusOr<std::string> answer);

  Network* network() const { return network_; }
  bool closed() const { return closed_; }
  int64_t sent() const { return sent_; }
  absl::Duration SessionAge() const {
    if (opened_at_.expired()) return absl::InfiniteDuration();
    return absl::Nanoseconds(network_->now() - opened_nanos_);
  }

  std::function<void(const absl::Status&)> disconnect_listener;

 private:
  struct Pending {
    Done done;
    Timeout deadline;
    std::weak_ptr<WireServer> server;  // of a call
    bool on_stream = false;
    bool answered = false;  // the answer is on its way
  };

  // Null: it was killed.
  Pending* Begin(Done done, uint64_t* id);
  template <typename EndType>
  std::shared_ptr<EndType> EndOf(WireStream::Kind kind);
  std::shared_ptr<WireStream> NewStream(WireStream::Kind kind);
  void GiveUp(uint64_t id);
  // Notices a connection that is silent.
  void Watch();

  Network* const network_;
  const std::weak_ptr<Process> self_;
  const int link_;
  const Server server_;
  bool closed_ = false;
  bool watching_ = false;
  uint64_t last_id_ = 0;
  int64_t sent_ = 0;
  std::weak_ptr<WireServer> answered_by_;  // the last answer to a call
  std::weak_ptr<WireServer> opened_at_;
  int64_t opened_nanos_ = 0;
  std::map<uint64_t, Pending> pending_;
  std::vector<std::shared_ptr<ClientEnd>> ends_;     // all that are not over
  std::array<std::shared_ptr<ClientEnd>, 3> takes_;  // those that take more, by kind
};

// The client's end of a stream.
class WireRegistry::Shared::ClientEnd : public WireStream::End {
 public:
  ClientEnd(std::weak_ptr<Shared> shared, std::shared_ptr<WireStream> stream)
      : shared_(std::move(shared)), stream_(std::move(stream)) {}

  const WireStream& stream() const { return *stream_; }
  // Whether a message waits for its answer.
  virtual bool HasWaiting(uint64_t /*id*/) const { return false; }
  // Ends the stream, and with `status` what waits.
  void Abandon(const absl::Status& status) {
    abandoned_ = true;
    stream_->Cancel();
    OnOver(status);
  }
  // Its connection is broken: the other side finds out, too.
  void Break(const absl::Status& status) {
    stream_->Cancel();
    OnOver(status);
  }

 protected:
  const std::weak_ptr<Shared> shared_;
  const std::shared_ptr<WireStream> stream_;
  bool abandoned_ = false;
};

struct WireRegistry::Shared::Subscription {
  std::string request;
  std::shared_ptr<NotifyListener> listener;
  EventReader reader;
  std::weak_ptr<FollowEnd> on;
  uint64_t id = 0;
};

// As GrpcRegistry's WatchStream.
class WireRegistry::Shared::FollowEnd final : public ClientEnd,
                                              public std::enable_shared_from_this<FollowEnd> {
 public:
  using ClientEnd::ClientEnd;

  bool Join(const std::shared_ptr<Subscription>& subscription);
  void Leave(uint64_t id, bool notify);

  void OnMessage(const std::string& bytes) override;
  void OnWritten() override;
  void OnOver(const absl::Status& status) override;

 private:
  void Write();
  void Take(uint64_t id, std::string_view event, const absl::Status* end);

  FollowFlow<Subscription> flow_;
};

// As its ClientExchange.
class WireRegistry::Shared::ExchangeEnd final : public ClientEnd,
                                                public std::enable_shared_from_this<ExchangeEnd> {
 public:
  struct Asked {
    uint64_t id;
    std::string session_id;
    std::string request;
  };

  ExchangeEnd(std::weak_ptr<Shared> shared, std::shared_ptr<WireStream> stream);

  bool Send(const std::shared_ptr<Asked>& asked);
  bool HasWaiting(uint64_t id) const override {
    return flow_.HasWaiting([id](const Asked& asked) { return asked.id == id; });
  }

  void OnMessage(const std::string& bytes) override;
  void OnWritten() override;
  void OnOver(const absl::Status& status) override;

 private:
  void Write();
  bool renews() const { return stream_->kind() == WireStream::Kind::kKeepAlive; }
  // What the message answers, and how.
  std::shared_ptr<Asked> Read(const std::string& bytes, absl::Status* status);

  AskFlow<Asked> flow_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_WIRE_SHARED_H_
