#include "agent/health/socket_probes.h"

#include "agent/health/connection.h"
#include "agent/health/io_thread.h"

namespace failback {

std::unique_ptr<Probe> NewTcpProbe(IoThread* io, const Address& address) {
  return std::make_unique<AttemptProbe>(
      io, [address](boost::asio::io_context& context, Probe::Done done) {
        return std::make_shared<Connection>(context, address, std::move(done));
      });
}

}  // namespace failback
