// A program of another project that keeps itself registered for a moment.

#include <iostream>
#include <string>

#include "agent/agent.h"
#include "agent/discovery_channel.h"

int main(int argc, char** argv) {
  failback::Agent::Options options;
  options.registry = argc > 1 ? argv[1] : "grpc://127.0.0.1:7070";
  options.drain_deadline = absl::ZeroDuration();
  auto agent = failback::Agent::Create(options);
  if (!agent.ok()) {
    std::cerr << agent.status() << "\n";
    return 2;
  }
  failback::ServiceInstance me;
  me.mutable_key()->set_service("orders");
  me.mutable_key()->set_instance_id("orders-1");
  me.set_address("127.0.0.1");
  me.set_port(8080);
  auto registration = (*agent)->Register(me);
  auto payments = failback::DiscoveryChannel::Create(agent->get(), "payments", {});
  std::cout << (registration.ok() && payments.ok() ? "registered " : "refused ")
            << registration->instance().key().instance_id() << ", pending "
            << (*agent)->Pending().size() << "\n";
  return registration.ok() ? 0 : 1;
}
