#include "gateway/dns/udp_socket.h"

#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace failback::dns {
namespace {

// Queries that come while the server is at others.
constexpr int kReceiveBuffer = 1 << 20;

// Has the kernel say at which address a packet arrived, if `bound` is not that address anyway. The
// same data, given back with the answer, names the address that it leaves from.
void AskForArrival(int fd, const sockaddr_storage& bound) {
  const int on = 1;
  if (bound.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(bound).sin6_addr;
    if (!IN6_IS_ADDR_UNSPECIFIED(&address)) return;
    setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof(on));
  } else {
    if (reinterpret_cast<const sockaddr_in&>(bound).sin_addr.s_addr != htonl(INADDR_ANY)) return;
    setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on));
  }
}

// An answer goes by the route that leads to the client, not by the interface of the query.
void ForgetInterface(UdpPeer* peer) {
  msghdr header = {};
  header.msg_control = peer->control.data();
  header.msg_controllen = peer->control_size;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO) {
      in_pktinfo info;
      std::memcpy(&info, CMSG_DATA(part), sizeof(info));
      info.ipi_ifindex = 0;
      std::memcpy(CMSG_DATA(part), &info, sizeof(info));
    }
  }
}

}  // namespace

std::string_view AddressOf(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(peer).sin_addr;
    return {reinterpret_cast<const char*>(&address), 4};
  }
  const auto& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  const auto* const bytes = reinterpret_cast<const char*>(&address);
  if (IN6_IS_ADDR_V4MAPPED(&address)) return {bytes + 12, 4};
  return {bytes, 16};
}

bool IsLoopback(std::string_view address) {
  if (address.size() == 4) return address[0] == 127;
  return address == std::string_view(reinterpret_cast<const char*>(&in6addr_loopback), 16);
}

absl::StatusOr<int> UdpSocket::BindBeside(int tcp_socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(tcp_socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::InternalError(std::generic_category().message(errno));
  }
  const int fd = socket(address.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::InternalError(std::generic_category().message(errno));
  AskForArrival(fd, address);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof(kReceiveBuffer));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  const int error = errno;
  close(fd);
  const std::string why =
      absl::StrCat("cannot listen by UDP: ", std::generic_category().message(error));
  return error == EADDRINUSE ? absl::FailedPreconditionError(why) : absl::InvalidArgumentError(why);
}

UdpSocket::UdpSocket(int fd, size_t answer_bytes)
    : fd_(fd), answer_bytes_(answer_bytes), answers_(new char[kBatch * answer_bytes]) {}

size_t UdpSocket::Receive() {
  for (size_t i = 0; i < kBatch; ++i) {
    vectors_[i] = {packets_[i].data(), packets_[i].size()};
    msghdr& header = messages_[i].msg_hdr;
    header = {};
    header.msg_name = &peers_[i].address;
    header.msg_namelen = sizeof(peers_[i].address);
    header.msg_iov = &vectors_[i];
    header.msg_iovlen = 1;
    header.msg_control = peers_[i].control.data();
    header.msg_controllen = peers_[i].control.size();
  }
  const int received = recvmmsg(fd_, messages_.data(), kBatch, MSG_DONTWAIT, nullptr);
  received_ = received > 0 ? static_cast<size_t>(received) : 0;
  for (size_t i = 0; i < received_; ++i) {
    peers_[i].address_size = messages_[i].msg_hdr.msg_namelen;
    peers_[i].control_size = messages_[i].msg_hdr.msg_controllen;
    ForgetInterface(&peers_[i]);
    answer_sizes_[i] = 0;
  }
  return received_;
}

std::string_view UdpSocket::packet(size_t i) const {
  return {packets_[i].data(), messages_[i].msg_len};
}

void UdpSocket::Send() {
  size_t count = 0;
  for (size_t i = 0; i < received_; ++i) {
    if (answer_sizes_[i] == 0) continue;
    vectors_[count] = {answer(i), answer_sizes_[i]};
    msghdr& header = messages_[count].msg_hdr;
    header = {};
    header.msg_name = &peers_[i].address;
    header.msg_namelen = peers_[i].address_size;
    header.msg_iov = &vectors_[count];
    header.msg_iovlen = 1;
    header.msg_control = peers_[i].control.data();
    header.msg_controllen = peers_[i].control_size;
    ++count;
  }
  for (size_t sent = 0; sent < count;) {
    const int more = sendmmsg(fd_, messages_.data() + sent, count - sent, MSG_DONTWAIT);
    // The first of these cannot be sent: the others may.
    sent += more > 0 ? static_cast<size_t>(more) : 1;
  }
}

void UdpSocket::SendTo(const UdpPeer& peer, std::string_view bytes) {
  UdpPeer to = peer;
  iovec vector = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header = {};
  header.msg_name = &to.address;
  header.msg_namelen = to.address_size;
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = to.control.data();
  header.msg_controllen = to.control_size;
  sendmsg(fd_, &header, MSG_DONTWAIT);
}

}  // namespace failback::dns
