// Asks a DNS server by real sockets.

#ifndef FAILBACK_TESTS_GATEWAY_DNS_DNS_CLIENT_H_
#define FAILBACK_TESTS_GATEWAY_DNS_DNS_CLIENT_H_

#include <string>

#include "absl/time/time.h"
#include "tests/gateway/dns/dns_messages.h"

namespace failback::dns {

// A socket to `address`, as `127.0.0.1:7073` or `[::1]:7073`. Reading waits for 30 s at most.
class UdpClient {
 public:
  explicit UdpClient(const std::string& address);
  ~UdpClient();
  int fd() const { return fd_; }
  void Send(const std::string& bytes);
  // Empty: nothing came.
  std::string Receive();
  // Whether anything comes to `query` within `wait`; false too where no server listens yet.
  bool Answers(const std::string& query, absl::Duration wait);
  Message Ask(const std::string& name, uint16_t type, const QueryShape& shape = {}) {
    Send(QueryBytes(name, type, shape));
    return ReadMessage(Receive());
  }

 private:
  int fd_;
};

class TcpClient {
 public:
  explicit TcpClient(const std::string& address);
  ~TcpClient();
  void Send(const std::string& query) { SendRaw(Framed(query)); }
  void SendRaw(const std::string& bytes);
  // Nothing more is sent; answers still come.
  void EndSending();
  // The next message; empty: the server has closed the connection.
  std::string Receive();
  Message Ask(const std::string& name, uint16_t type, const QueryShape& shape = {}) {
    Send(QueryBytes(name, type, shape));
    return ReadMessage(Receive());
  }

  static std::string Framed(const std::string& query) {
    return std::string{static_cast<char>(query.size() >> 8), static_cast<char>(query.size())} +
           query;
  }

 private:
  bool ReceiveAll(char* to, size_t size);

  int fd_;
};

}  // namespace failback::dns

#endif  // FAILBACK_TESTS_GATEWAY_DNS_DNS_CLIENT_H_
