// A service with one method, for clients to find: `backend ID` serves on a free port, says
// "backend ID listening on 127.0.0.1:PORT", and answers with its id. On SIGTERM it finishes the
// calls that it has.

#include <signal.h>

#include <iostream>
#include <memory>
#include <string>

#include "examples/orders.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace {

using failback::examples::GetOrderRequest;
using failback::examples::Order;
using failback::examples::Orders;

class OrdersService final : public Orders::CallbackService {
 public:
  explicit OrdersService(std::string id) : id_(std::move(id)) {}

  grpc::ServerUnaryReactor* GetOrder(grpc::CallbackServerContext* context, const GetOrderRequest*,
                                     Order* order) override {
    order->set_served_by(id_);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::string id_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  OrdersService service(argv[1]);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return 1;
  std::cout << "backend " << argv[1] << " listening on 127.0.0.1:" << port << std::endl;
  int signal = 0;
  sigwait(&stop, &signal);
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  return 0;
}
