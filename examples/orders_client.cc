// A client that discovers the orders service and calls its instances in turn.
//
//   orders_client --registry grpc://127.0.0.1:7070 --calls 4

#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>

#include "CLI/CLI.hpp"
#include "agent/agent.h"
#include "examples/orders.grpc.pb.h"
#include "grpcpp/grpcpp.h"

int main(int argc, char** argv) {
  std::string registry = "grpc://127.0.0.1:7070";
  int calls = 4;
  int wait_seconds = 10;
  CLI::App app("Discovers the orders service and calls it.");
  app.add_option("--registry", registry, "registry or sidecar, as grpc://127.0.0.1:7070");
  app.add_option("--calls", calls, "how many calls to make");
  app.add_option("--wait", wait_seconds, "seconds to wait for a first instance");
  CLI11_PARSE(app, argc, argv);

  failback::Agent::Options options;
  options.registry = registry;
  options.client_name = "orders_client";
  auto agent = failback::Agent::Create(options);
  if (!agent.ok()) {
    std::cerr << "orders_client: " << agent.status().message() << "\n";
    return 2;
  }

  // The newest list of instances, kept current by the agent.
  std::mutex mu;
  std::condition_variable changed;
  failback::ServiceSnapshot orders;
  auto subscription = (*agent)->Subscribe("orders", [&](const failback::ServiceSnapshot& now) {
    std::lock_guard<std::mutex> lock(mu);
    orders = now;
    changed.notify_all();
  });
  if (!subscription.ok()) {
    std::cerr << "orders_client: " << subscription.status().message() << "\n";
    return 2;
  }
  {
    std::unique_lock<std::mutex> lock(mu);
    if (!changed.wait_for(lock, std::chrono::seconds(wait_seconds),
                          [&] { return !orders.instances.empty(); })) {
      std::cerr << "orders_client: no instance of orders within " << wait_seconds << " s\n";
      return 1;
    }
  }

  int failed = 0;
  for (int call = 0; call < calls; ++call) {
    failback::ServiceInstance instance;
    {
      std::lock_guard<std::mutex> lock(mu);
      if (orders.instances.empty()) break;
      instance = orders.instances[call % orders.instances.size()];
    }
    const std::string address = instance.address() + ":" + std::to_string(instance.port());
    auto stub = failback::examples::Orders::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    failback::examples::GetOrderRequest request;
    request.set_order_id("order-" + std::to_string(call + 1));
    failback::examples::Order order;
    const grpc::Status status = stub->GetOrder(&context, request, &order);
    if (status.ok()) {
      std::cout << order.order_id() << " served by " << order.served_by() << std::endl;
    } else {
      std::cout << request.order_id() << ": " << status.error_message() << std::endl;
      ++failed;
    }
  }
  return failed == 0 ? 0 : 1;
}
