// The client side of the benchmarks: one thread, one completion queue, messages encoded
// beforehand, so that the two cores show the server and not the client.
//
// Thread safety: one thread per object.

#ifndef FAILBACK_TESTS_BENCH_LOAD_H_
#define FAILBACK_TESTS_BENCH_LOAD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace failback {

// Full names of methods, as gRPC takes them.
inline constexpr char kOpenSessionMethod[] = "/failback.registry.v1.RegistryService/OpenSession";
inline constexpr char kRegisterMethod[] = "/failback.registry.v1.RegistryService/Register";
inline constexpr char kRegisterStreamMethod[] =
    "/failback.registry.v1.RegistryService/RegisterStream";
inline constexpr char kListMethod[] = "/failback.registry.v1.RegistryService/List";
inline constexpr char kKeepAliveMethod[] = "/failback.registry.v1.RegistryService/KeepAlive";
inline constexpr char kSubscribeMethod[] = "/failback.registry.v1.RegistryService/Subscribe";
inline constexpr char kCarryMethod[] = "/failback.bench.BareService/Carry";

// A connection of its own, shared with no other channel.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address);
std::shared_ptr<grpc::Channel> NewChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

double NowSeconds();

// Ends the process with a message: a benchmark whose work fails measures nothing.
[[noreturn]] void Die(const std::string& message);

// One call to its end. Dies when it fails.
grpc::ByteBuffer CallOnce(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                          const grpc::ByteBuffer& request);

struct LoadResult {
  double seconds = 0;
  // Of each call, in order of completion.
  std::vector<double> latencies_us;
};

// Sees each answer; false: the work was not done, and the benchmark dies.
using AnswerCheck = std::function<bool(const grpc::ByteBuffer&)>;

// Makes a unary call of each request, in order, `in_flight` at a time, until all are answered.
LoadResult RunUnary(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                    const std::vector<grpc::ByteBuffer>& requests, int in_flight,
                    const AnswerCheck& check);

// Makes a unary call of each request, in order, each when its time has come at `per_second`,
// however many are unanswered. `on_send`, if given, is called with the number of each before it is
// sent. Latencies are from the time at which a call was due.
LoadResult RunPaced(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                    const std::vector<grpc::ByteBuffer>& requests, double per_second,
                    const std::function<void(size_t)>& on_send);

// Sends the requests over `streams` bidirectional streams, each answered by one message, with at
// most `window` unanswered in all.
LoadResult RunStreams(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                      const std::vector<grpc::ByteBuffer>& requests, int streams, int window,
                      const AnswerCheck& check);

// Open streams with messages both ways, in groups that share a connection.
class Streams {
 public:
  // Sees each message: the stream's number, and when it came.
  using OnMessage = std::function<void(int stream, const grpc::ByteBuffer& message)>;

  // Opens `count` streams of `method` over `connections` connections to `address`, or in turn to
  // several with commas between. With `request` each sends it
  // and no more (a server stream).
  Streams(const std::string& address, const char* method, int count, int connections,
          const grpc::ByteBuffer* request, OnMessage on_message);
  // With a first message of each, which goes out together with the stream's head. At most
  // kMostSilent of a connection are without an answer at once, as a server may limit those that say
  // nothing; the rest are opened as answers come.
  Streams(const std::string& address, const char* method, int count, int connections,
          std::function<grpc::ByteBuffer(int stream)> first, OnMessage on_message);
  // Cancels all and waits for their end.
  ~Streams();

  // Sends on a stream; messages wait for the one before.
  void Send(int stream, grpc::ByteBuffer message);

  // Handles what comes until `done` holds, seen after each event, or `timeout` has passed. Returns
  // whether it holds.
  bool RunUntil(const std::function<bool()>& done, absl::Duration timeout);

  // Handles what has come or comes until the time.
  void RunFor(absl::Duration duration);

 private:
  struct Stream;
  struct Tag;

  static constexpr int kMostSilent = 32;

  void Connect(const std::string& address, int connections);
  void OpenNext(int connection);
  // The next one, not started.
  Stream& Prepare(const char* method, int connection);
  // One event, or none before the deadline.
  bool Step(absl::Time deadline);

  OnMessage on_message_;
  const char* method_ = nullptr;
  int count_ = 0;
  std::function<grpc::ByteBuffer(int stream)> first_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<Stream>> streams_;
  int open_ = 0;
  bool closing_ = false;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_LOAD_H_
