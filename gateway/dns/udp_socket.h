// One bound UDP socket, read and written many packets at a time.
//
// Answers leave from the address that their queries came to, also where the socket is bound to all
// addresses of the machine.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_GATEWAY_DNS_UDP_SOCKET_H_
#define FAILBACK_GATEWAY_DNS_UDP_SOCKET_H_

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/dns/message.h"

namespace failback::dns {

// Where a packet came from, and at which address it arrived.
struct UdpPeer {
  sockaddr_storage address = {};
  socklen_t address_size = 0;
  std::array<char, 64> control = {};  // as the kernel gave it
  size_t control_size = 0;
};

// The address of a client: 4 or 16 bytes, without the port; refers to `peer`.
std::string_view AddressOf(const sockaddr_storage& peer);
// Of this machine's loopback.
bool IsLoopback(std::string_view address);

class UdpSocket {
 public:
  static constexpr size_t kBatch = 32;

  // At the address of a TCP socket that is bound. FAILED_PRECONDITION when it is in use.
  static absl::StatusOr<int> BindBeside(int tcp_socket);

  // Owns nothing: `fd` is non-blocking and open as long as this is used. Answers have at most
  // `answer_bytes`.
  UdpSocket(int fd, size_t answer_bytes);

  // Takes what has come, at most kBatch packets; how many. One that is longer than a query may be
  // is cut behind kMaxQueryBytes + 1 bytes.
  size_t Receive();
  std::string_view packet(size_t i) const;
  const UdpPeer& peer(size_t i) const { return peers_[i]; }

  // Room for an answer to the i-th packet, and its size: zero for none.
  char* answer(size_t i) { return answers_.get() + i * answer_bytes_; }
  void SetAnswerSize(size_t i, size_t size) { answer_sizes_[i] = size; }
  // Sends the answers to the packets of Receive. What the kernel has no room for is lost, as any
  // packet may be.
  void Send();

  void SendTo(const UdpPeer& peer, std::string_view bytes);

 private:
  const int fd_;
  const size_t answer_bytes_;
  size_t received_ = 0;
  std::array<UdpPeer, kBatch> peers_;
  std::array<mmsghdr, kBatch> messages_ = {};
  std::array<iovec, kBatch> vectors_ = {};
  std::array<size_t, kBatch> answer_sizes_ = {};
  std::array<std::array<char, kMaxQueryBytes + 1>, kBatch> packets_;
  const std::unique_ptr<char[]> answers_;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_UDP_SOCKET_H_
