// A gRPC service that keeps itself registered by linking the agent.
//
//   orders_server --id orders-1 --registry grpc://127.0.0.1:7070

#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "agent/agent.h"
#include "examples/orders.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace {

using failback::examples::GetOrderRequest;
using failback::examples::Order;
using failback::examples::Orders;

class OrdersService final : public Orders::CallbackService {
 public:
  explicit OrdersService(std::string id) : id_(std::move(id)) {}

  grpc::ServerUnaryReactor* GetOrder(grpc::CallbackServerContext* context,
                                     const GetOrderRequest* request, Order* order) override {
    order->set_order_id(request->order_id());
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
  std::string id = "orders-" + std::to_string(getpid());
  std::string registry = "grpc://127.0.0.1:7070";
  std::string listen = "127.0.0.1:0";
  int ttl_seconds = 10;
  CLI::App app("Serves orders, and keeps itself registered.");
  app.add_option("--id", id, "instance id");
  app.add_option("--registry", registry, "registry or sidecar, as grpc://127.0.0.1:7070");
  app.add_option("--listen", listen, "address to serve on; port 0 picks a free one");
  app.add_option("--ttl", ttl_seconds, "seconds that the registry keeps us after a sudden death");
  CLI11_PARSE(app, argc, argv);

  // Waited for below; blocked before any thread starts.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  // 1. Serve.
  OrdersService service(id);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::cerr << "orders_server: cannot listen on " << listen << "\n";
    return 1;
  }
  std::cout << id << " serves on 127.0.0.1:" << port << std::endl;

  // 2. Say so, and stay registered.
  failback::Agent::Options options;
  options.registry = registry;
  options.client_name = "orders_server";
  options.session_ttl = absl::Seconds(ttl_seconds);
  auto agent = failback::Agent::Create(options);
  if (!agent.ok()) {
    std::cerr << "orders_server: " << agent.status().message() << "\n";
    return 2;
  }
  failback::ServiceInstance me;
  me.mutable_key()->set_service("orders");
  me.mutable_key()->set_instance_id(id);
  me.set_address("127.0.0.1");
  me.set_port(port);
  auto registration = (*agent)->Register(me, [&](const failback::IntentEvent& event) {
    if (event.kind == failback::IntentEvent::Kind::kAcknowledged) {
      std::cout << id << " is registered" << std::endl;
    } else {
      std::cout << id << ": " << event.status << std::endl;
    }
  });
  if (!registration.ok()) {
    std::cerr << "orders_server: " << registration.status().message() << "\n";
    return 2;
  }

  // 3. Until asked to stop: `registration` and `agent` unregister on the way out.
  int signal = 0;
  sigwait(&stop, &signal);
  return 0;
}
