#include "gateway/dns/tcp_connections.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/dns/rate_limit.h"
#include "gateway/dns/udp_socket.h"

namespace failback::dns {

using boost::asio::ip::tcp;

void TcpConnections::Add(tcp::socket socket, int64_t now_nanos) {
  boost::system::error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;
  socket.set_option(tcp::no_delay(true), error);
  if (connections_.size() >= most_) MakeRoom();
  sockaddr_storage address = {};
  std::copy_n(reinterpret_cast<const char*>(peer.data()), peer.size(),
              reinterpret_cast<char*>(&address));
  auto connection = std::make_shared<TcpConnection>(
      std::move(socket), std::string(AddressOf(address)), take_, [this](TcpConnection* ended) {
        connections_.erase(ended);
        size_ = static_cast<int64_t>(connections_.size());
      });
  connection->active_nanos = now_nanos;
  connections_[connection.get()] = connection;
  size_ = static_cast<int64_t>(connections_.size());
  connection->Start();
}

void TcpConnections::MakeRoom() {
  std::unordered_map<std::string_view, size_t> of_network;
  for (const auto& [pointer, connection] : connections_) {
    ++of_network[NetworkOf(connection->client())];
  }
  const auto rank = [&](const TcpConnection& connection) {
    return std::make_pair(of_network[NetworkOf(connection.client())], -connection.active_nanos);
  };
  const auto least = std::max_element(
      connections_.begin(), connections_.end(),
      [&](const auto& a, const auto& b) { return rank(*a.second) < rank(*b.second); });
  ++closed_;
  const std::shared_ptr<TcpConnection> connection = least->second;
  connection->Close();
}

void TcpConnections::CloseIdle(int64_t since_nanos) {
  std::vector<std::shared_ptr<TcpConnection>> idle;
  for (const auto& [pointer, connection] : connections_) {
    if (connection->active_nanos < since_nanos) idle.push_back(connection);
  }
  for (const auto& connection : idle) connection->Close();
}

void TcpConnections::CloseAll() {
  for (const auto& [pointer, connection] : std::exchange(connections_, {})) connection->Close();
}

}  // namespace failback::dns
