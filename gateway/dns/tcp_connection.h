// A client of the server by TCP: queries one after the other, each behind its length (RFC 7766).
//
// Queries may be sent without waiting for answers. Answers leave in the order in which they are
// known, so one that waits for the registry holds up no other. It is read no further while the
// client has not taken 128 KiB of them, or 16 queries wait. A client that sends nothing more (a
// half close) gets all answers before the connection ends.
//
// Thread safety: all on the thread of its io_context.

#ifndef FAILBACK_GATEWAY_DNS_TCP_CONNECTION_H_
#define FAILBACK_GATEWAY_DNS_TCP_CONNECTION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "boost/asio/ip/tcp.hpp"
#include "gateway/dns/message.h"

namespace failback::dns {

class TcpConnection : public std::enable_shared_from_this<TcpConnection> {
 public:
  static constexpr size_t kMaxUnsent = 128 << 10;
  static constexpr size_t kMaxWaiting = 16;

  // Takes one query; whether its answer, given by Send or NoAnswer, comes later.
  using Take = std::function<bool(TcpConnection* connection, std::string_view query)>;
  // It is closed.
  using Ended = std::function<void(TcpConnection* connection)>;

  // `client`: its address, 4 or 16 bytes.
  TcpConnection(boost::asio::ip::tcp::socket socket, std::string client, Take take, Ended ended)
      : socket_(std::move(socket)),
        client_(std::move(client)),
        take_(std::move(take)),
        ended_(std::move(ended)) {}

  void Start() { Read(); }
  void Close();

  void Send(std::string_view answer);
  // One that came later than Take is there, or will never be.
  void Waited();

  const std::string& client() const { return client_; }
  // When something last came or was taken, on the server's clock; the owner keeps it.
  int64_t active_nanos = 0;

 private:
  void Read();
  // Takes the whole queries of what was read. False: closed.
  bool TakeQueries();
  void Write();
  void CloseIfDone();
  bool MayRead() const {
    return unsent_.size() + writing_.size() < kMaxUnsent && waiting_ < kMaxWaiting;
  }

  boost::asio::ip::tcp::socket socket_;
  const std::string client_;
  const Take take_;
  Ended ended_;
  bool reading_ = false;
  bool read_all_ = false;  // the client sends nothing more
  size_t waiting_ = 0;
  size_t read_ = 0;  // bytes of in_
  std::array<char, 2 * (2 + kMaxQueryBytes)> in_;
  std::string unsent_;
  std::string writing_;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_TCP_CONNECTION_H_
