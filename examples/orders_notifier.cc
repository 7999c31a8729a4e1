// A call that has to arrive, though its caller does not wait and the service may be down: the first
// attempt is made at once, and FailbackInvoker makes the next ones in the background.
//
//   orders_notifier --registry grpc://127.0.0.1:7070 --order order-7
//
// Started before any orders_server it prints why the attempts fail; once one runs, the call arrives.

#include <chrono>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/discovery_channel.h"
#include "examples/orders.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "retry/failback_invoker.h"

namespace {

using failback::FailbackInvoker;
using failback::examples::GetOrderRequest;
using failback::examples::Order;
using failback::examples::Orders;

// What one attempt needs until its callback has run.
struct Attempt {
  std::unique_ptr<Orders::Stub> stub;
  grpc::ClientContext context;
  GetOrderRequest request;
  Order order;
};

}  // namespace

int main(int argc, char** argv) {
  std::string registry = "grpc://127.0.0.1:7070";
  std::string order_id = "order-1";
  int retries = 20;
  int retry_seconds = 1;
  CLI::App app("Asks the orders service for an order until it answers.");
  app.add_option("--registry", registry, "registry or sidecar, as grpc://127.0.0.1:7070");
  app.add_option("--order", order_id, "id of the order");
  app.add_option("--retries", retries, "attempts after the first one");
  app.add_option("--retry-period", retry_seconds, "seconds between attempts");
  CLI11_PARSE(app, argc, argv);

  failback::Agent::Options options;
  options.registry = registry;
  options.client_name = "orders_notifier";
  auto agent = failback::Agent::Create(options);
  if (!agent.ok()) {
    std::cerr << "orders_notifier: " << agent.status().message() << "\n";
    return 2;
  }
  auto orders = failback::DiscoveryChannel::Create(agent->get(), "orders", {});
  if (!orders.ok()) {
    std::cerr << "orders_notifier: " << orders.status().message() << "\n";
    return 2;
  }
  FailbackInvoker::Options invoker_options;
  invoker_options.retry.retry_times = retries;
  invoker_options.retry.retry_period = absl::Seconds(retry_seconds);
  auto invoker = FailbackInvoker::Create(invoker_options);
  if (!invoker.ok()) {
    std::cerr << "orders_notifier: " << invoker.status().message() << "\n";
    return 2;
  }

  std::promise<absl::Status> finished;
  (*invoker)->Invoke(
      // One attempt. It begins the call and returns; `done` ends the attempt.
      [&](FailbackInvoker::Done done) {
        // The instances as they are now: an attempt after an outage goes to those that are back.
        const auto channel = (*orders)->channel();
        if (!channel.ok()) {
          std::cout << order_id << ": " << channel.status() << std::endl;
          return done(channel.status());
        }
        auto attempt = std::make_shared<Attempt>();
        attempt->stub = Orders::NewStub(*channel);
        attempt->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
        attempt->request.set_order_id(order_id);
        attempt->stub->async()->GetOrder(
            &attempt->context, &attempt->request, &attempt->order,
            [attempt, done = std::move(done)](const grpc::Status& status) {
              if (status.ok()) {
                std::cout << attempt->order.order_id() << " served by "
                          << attempt->order.served_by() << std::endl;
              } else {
                std::cout << attempt->request.order_id() << ": " << status.error_message()
                          << std::endl;
              }
              done(failback::StatusFromGrpc(status));
            });
      },
      [&](const absl::Status& status) { finished.set_value(status); });

  // A program would go on with its work; this one has nothing else to do.
  const absl::Status status = finished.get_future().get();
  if (!status.ok()) std::cerr << "orders_notifier: given up: " << status << "\n";
  return status.ok() ? 0 : 1;
}
