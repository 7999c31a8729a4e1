// The ways in for programs that do not speak the registry's protocol, at an agent: DNS, HTTP and
// xDS. Each is the product's own, on the agent's process and over its registry: ServiceTable and the
// answers of its zone; the Catalog, which all HTTP doors read, with a client that waits for each
// change; ServiceCache with a stream of endpoints.
//
// Not here: their sockets, and what HTTP renders of a view.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_GATEWAYS_H_
#define FAILBACK_TESTS_SIMULATE_GATEWAYS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "registry/registry.h"
#include "tests/simulate/history.h"
#include "tests/simulate/process.h"

namespace failback::simulate {

class Gateways {
 public:
  enum class Way { kDns, kHttp, kXds };
  static constexpr std::array<Way, 3> kWays = {Way::kDns, Way::kHttp, Way::kXds};
  static const char* NameOf(Way way);

  // `registry` and `process` outlive them.
  Gateways(Registry* registry, Process* process, int services);
  ~Gateways();

  // What a client is answered about a service. All instances have one address, so they are
  // distinguished by their ports.
  struct Answer {
    enum class State {
      kUnknown,  // nothing is known, or it may not be read
      kAbsent,   // there is no such service
      kPresent,
    };
    State state = State::kUnknown;
    std::set<uint32_t> ports;
    std::string error;  // what is wrong with its form
  };
  Answer Ask(Way way, const std::string& service);

  // What is to be answered of a set of instances.
  static std::set<uint32_t> PortsOf(Way way, const Set& set);

 private:
  class Dns;
  class Http;
  class Xds;

  const std::unique_ptr<Dns> dns_;
  const std::unique_ptr<Http> http_;
  const std::unique_ptr<Xds> xds_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_GATEWAYS_H_
