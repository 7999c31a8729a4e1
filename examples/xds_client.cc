// A client that finds the orders service through xDS: gRPC, and nothing of Failback's.
//
//   failback-agent --registry grpc://127.0.0.1:7070 --listen 127.0.0.1:7060 --xds-bootstrap x.json
//   GRPC_XDS_BOOTSTRAP=x.json xds_client 4

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "examples/orders.grpc.pb.h"
#include "grpcpp/grpcpp.h"

using failback::examples::GetOrderRequest;
using failback::examples::Order;
using failback::examples::Orders;

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 4;
  const char* const target = argc > 2 ? argv[2] : "xds:///orders";
  auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  auto orders = Orders::NewStub(channel);
  int failed = 0;
  for (int call = 1; call <= calls; ++call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    GetOrderRequest request;
    request.set_order_id("order-" + std::to_string(call));
    Order order;
    const grpc::Status status = orders->GetOrder(&context, request, &order);
    if (status.ok()) {
      std::cout << order.order_id() << " served by " << order.served_by() << std::endl;
    } else {
      std::cout << request.order_id() << ": " << status.error_message() << std::endl;
      ++failed;
    }
  }
  return failed == 0 ? 0 : 1;
}
