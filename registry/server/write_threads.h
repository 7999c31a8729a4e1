// Carries out Registers and Unregisters from their bytes: small ones where they were read, large
// ones on threads of their own, so that small calls, renewals and streams do not wait behind
// another caller's bulk.
//
// To change threads costs as much as to store many instances. So of the large messages of streams
// one at a time may stay on the thread that read it, if it is not that large: at most one thread
// that serves connections is with bulk.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_WRITE_THREADS_H_
#define FAILBACK_REGISTRY_SERVER_WRITE_THREADS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "grpcpp/support/byte_buffer.h"
#include "registry/model/batch.h"
#include "registry/registry.h"
#include "registry/rpc/call_gauge.h"
#include "retry/executor.h"

namespace failback {

class WriteThreads {
 public:
  // A unary call is answered with a result for each intent, and never stays where it was read. A
  // message of a stream may, and results that are as requested are left out of its answer.
  enum class Source { kCall, kStream };

  struct Options {
    Batch::Limits batch;
    // Of large requests that wait for their turn.
    int64_t max_waiting_bytes = 0;
    int threads = 1;
  };

  explicit WriteThreads(const Options& options);

  // False: `request` is large, and too much waits already.
  bool HasRoomFor(const grpc::ByteBuffer& request) const;
  int64_t max_waiting_bytes() const { return options_.max_waiting_bytes; }
  int64_t waiting_bytes() const { return waiting_bytes_; }

  // Carries out an encoded RegisterRequest or UnregisterRequest. `done` gets the bytes of the
  // response.
  void Write(Source source, Batch::Kind kind, std::shared_ptr<Registry> registry,
             const grpc::ByteBuffer& request, Callback<std::string> done);

  // From now on what has waited is refused with SHUTTING_DOWN.
  void Stop() { stopping_ = true; }

  // Carries out what waits, and ends the threads. Nothing is written after.
  void Join() { threads_.reset(); }

 private:
  void WriteHere(Source source, Batch::Kind kind, Registry* registry,
                 const grpc::ByteBuffer& request, Callback<std::string> done) const;

  const Options options_;
  Gauge bulk_calls_{0};  // no limit; waiting or under way, until WriteHere has returned
  std::atomic<int64_t> waiting_bytes_{0};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<ThreadPool> threads_;  // ends before the rest
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_WRITE_THREADS_H_
