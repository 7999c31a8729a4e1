// Keeps gRPC's callback threads for the life of the process.
//
// gRPC (1.51) starts the threads that run callbacks with the first channel or server that needs
// them and joins them with the last. When that last one goes in a callback, a thread would
// join itself: the library aborts ("assertion failed: prior > 0", grpc/grpc#32584). A client that
// is destroyed in a callback is allowed here, so one channel is never given back.

#ifndef FAILBACK_REGISTRY_RPC_GRPC_THREADS_H_
#define FAILBACK_REGISTRY_RPC_GRPC_THREADS_H_

namespace failback {

// To be called before a channel or server with callbacks is made. Cheap after the first time.
void KeepGrpcCallbackThreads();

}  // namespace failback

#endif  // FAILBACK_REGISTRY_RPC_GRPC_THREADS_H_
