// The clients by TCP: a bounded number of them.
//
// One more than there may be makes another close: of the network that has the most connections, the
// one that has said nothing for the longest time. So a network that opens as many as it can, and
// keeps them busy, takes the places of its own, and of others no more than make the shares equal.
//
// Thread safety: all on the thread of the connections' io_context, but size and closed from any.

#ifndef FAILBACK_GATEWAY_DNS_TCP_CONNECTIONS_H_
#define FAILBACK_GATEWAY_DNS_TCP_CONNECTIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "boost/asio/ip/tcp.hpp"
#include "gateway/dns/tcp_connection.h"

namespace failback::dns {

class TcpConnections {
 public:
  // `most`: one at least. `take`: as TcpConnection has it.
  TcpConnections(size_t most, TcpConnection::Take take) : most_(most), take_(std::move(take)) {}

  // Serves one that was accepted, if it is still there.
  void Add(boost::asio::ip::tcp::socket socket, int64_t now_nanos);
  // Closes those that have said nothing since.
  void CloseIdle(int64_t since_nanos);
  void CloseAll();

  int64_t size() const { return size_; }
  // That had to make room.
  int64_t closed() const { return closed_; }

 private:
  void MakeRoom();

  const size_t most_;
  const TcpConnection::Take take_;
  std::unordered_map<TcpConnection*, std::shared_ptr<TcpConnection>> connections_;
  std::atomic<int64_t> size_{0}, closed_{0};
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_TCP_CONNECTIONS_H_
