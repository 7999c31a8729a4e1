// A forwarder between a client and a server that misbehaves as it is instructed.
//
// It listens on loopback (or a Unix socket), connects each connection to its target, and carries
// bytes both ways on one thread of its own. What it can be told at any time:
//
//   auto proxy = FaultProxy::Start("unix:/tmp/x/registry.sock");
//   client.Connect(proxy->address());
//   proxy->Delay(absl::ZeroDuration(), absl::Seconds(1));   // answers come late
//   proxy->BlackHole();           // connections are accepted, every byte vanishes
//   proxy->Refuse();              // ECONNREFUSED, on the same port; what is open is reset
//   proxy->ResetAll();            // RST on everything open; new connections work
//   proxy->CutAfter(FaultProxy::kToClient, 100);   // so many bytes more, then RST
//   proxy->Forward();             // no faults any more
//
// Each call returns when it is in force. The port stays bound throughout, so no other process can
// take it while connections are refused.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_TESTS_FAULT_FAULT_PROXY_H_
#define FAILBACK_TESTS_FAULT_FAULT_PROXY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "retry/mutex.h"

namespace failback {

class FaultProxy {
 public:
  enum Direction { kToServer = 0, kToClient = 1 };

  // `target` and `listen`: "unix:/path" or "127.0.0.1:port"; port 0 in `listen` is a free one. The
  // target need not be there yet: while it is not, connections are reset. Aborts the test when it
  // cannot listen.
  static std::unique_ptr<FaultProxy> Start(const std::string& target,
                                           const std::string& listen = "127.0.0.1:0");

  // Resets what is open.
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  // Where it listens.
  const std::string& address() const { return address_; }

  // Ends every fault. Delayed bytes go at once; connections that have lost bytes are reset.
  void Forward();

  // Carries bytes of each direction so much later, in order. Bytes on their way keep their time.
  void Delay(absl::Duration to_server, absl::Duration to_client);

  // Reads and drops everything, on open connections and on new ones, which it accepts.
  void BlackHole();

  // Resets what is open and refuses what comes.
  void Refuse();

  void ResetAll();

  // Once `bytes` more have gone that way, over all connections, resets everything open. New
  // connections are carried again.
  void CutAfter(Direction direction, int64_t bytes);

  struct Stats {
    int64_t accepted = 0;
    int64_t open = 0;
    // Connections that did not end in order, for whatever reason.
    int64_t reset = 0;
    // Times that CutAfter has struck.
    int64_t cuts = 0;
    int64_t bytes[2] = {0, 0};
  };
  Stats stats();

 private:
  enum class Mode { kForward, kBlackHole, kRefuse };
  struct Chunk {
    absl::Time due;
    std::string bytes;
  };
  // One direction of one connection.
  struct Pipe {
    std::deque<Chunk> chunks;
    size_t size = 0;
    bool source_ended = false;
    bool finished = false;  // the end was passed on
  };
  struct Connection {
    int fds[2] = {-1, -1};  // by the direction that reads from it: client, server
    Pipe pipes[2];
    bool connecting = false;
    bool lossy = false;
  };

  FaultProxy(int listen_fd, bool tcp, std::string address, std::string target);

  void Do(std::function<void()> command);
  void Loop();
  void Accept();
  // False when the connection is over.
  bool Serve(Connection* connection, const short events[2]);
  bool ReadFrom(Connection* connection, int direction);
  bool WriteTo(Connection* connection, int direction);
  void Reset(Connection* connection);
  void ResetEverything();
  void StopLosing();

  const int listen_fd_;
  const bool tcp_;
  const std::string address_;
  const std::string target_;
  int wake_fd_ = -1;

  Mutex mu_;
  CondVar done_;
  std::deque<std::function<void()>> commands_ ABSL_GUARDED_BY(mu_);
  int64_t commands_posted_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t commands_done_ ABSL_GUARDED_BY(mu_) = 0;

  // Of the loop's thread.
  bool stopping_ = false;
  Mode mode_ = Mode::kForward;
  absl::Duration delays_[2];
  std::optional<int64_t> cut_after_[2];
  std::list<Connection> connections_;
  Stats stats_;

  std::thread thread_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_FAULT_FAULT_PROXY_H_
