// A stock gRPC client in C++, told what to do line by line. It knows nothing of Failback: the
// service's address is `xds:///NAME`, and GRPC_XDS_BOOTSTRAP says the rest.
//
//   call TARGET COUNT DEADLINE_MS   makes the calls, one after the other
//   start TARGET                    calls in the background until `stop`
//   stop
//
// `call` and `stop` are answered by a line `result ID=CALLS … error14=CALLS`, by who served or by
// status code. The clients in the other languages do the same.

#include <atomic>
#include <chrono>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace {

using Counts = std::map<std::string, int>;

class Client {
 public:
  explicit Client(const std::string& target)
      : stub_(grpc::CreateChannel(target, grpc::InsecureChannelCredentials())) {}

  // Who served, or the status code.
  std::string Call(int deadline_ms) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(deadline_ms));
    const grpc::Slice empty(static_cast<size_t>(0));
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub_.UnaryCall(&context, "/failback.examples.Orders/GetOrder", grpc::StubOptions(), &request,
                    &response, [&done](grpc::Status status) { done.set_value(std::move(status)); });
    const grpc::Status status = done.get_future().get();
    if (!status.ok()) {
      std::cerr << "error " << status.error_code() << ": " << status.error_message() << std::endl;
      return "error" + std::to_string(status.error_code());
    }
    grpc::Slice slice;
    if (!response.DumpToSingleSlice(&slice).ok() || slice.size() < 2) return "garbled";
    // An Order with served_by and no order_id: tag, length, text.
    return std::string(reinterpret_cast<const char*>(slice.begin()) + 2, slice.size() - 2);
  }

 private:
  grpc::GenericStub stub_;
};

void Answer(const Counts& counts) {
  std::cout << "result";
  for (const auto& [who, calls] : counts) std::cout << " " << who << "=" << calls;
  std::cout << std::endl;
}

}  // namespace

int main() {
  std::map<std::string, Client> clients;
  std::thread background;
  std::atomic<bool> stop{false};
  Counts background_counts;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    std::string target;
    words >> verb >> target;
    if (verb == "stop") {
      stop = true;
      background.join();
      Answer(background_counts);
      continue;
    }
    Client& client = clients.try_emplace(target, target).first->second;
    if (verb == "start") {
      stop = false;
      background_counts.clear();
      background = std::thread([&] {
        while (!stop) {
          ++background_counts[client.Call(10000)];
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      });
      continue;
    }
    int count = 0;
    int deadline_ms = 0;
    words >> count >> deadline_ms;
    Counts counts;
    for (int i = 0; i < count; ++i) ++counts[client.Call(deadline_ms)];
    Answer(counts);
  }
  if (background.joinable()) {
    stop = true;
    background.join();
  }
}
