#include "tests/gateway/dns/dns_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "gtest/gtest.h"
#include "registry/base/address.h"

namespace failback::dns {
namespace {

constexpr int kSeconds = 30;

int Connect(const std::string& text, int type) {
  const Address address = ParseAddress(text).value();
  sockaddr_storage to = {};
  socklen_t size = 0;
  if (HostKindOf(address.host) == HostKind::kIpv6) {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(to);
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET6, address.host.c_str(), &ipv6.sin6_addr);
    size = sizeof(ipv6);
  } else {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(to);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET, address.host.c_str(), &ipv4.sin_addr);
    size = sizeof(ipv4);
  }
  const int fd = socket(to.ss_family, type | SOCK_CLOEXEC, 0);
  const timeval wait = {kSeconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), size), 0) << text;
  return fd;
}

}  // namespace

UdpClient::UdpClient(const std::string& address) : fd_(Connect(address, SOCK_DGRAM)) {}
UdpClient::~UdpClient() { close(fd_); }

void UdpClient::Send(const std::string& bytes) {
  EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
}

std::string UdpClient::Receive() {
  std::vector<char> buffer(65536);
  const ssize_t size = recv(fd_, buffer.data(), buffer.size(), 0);
  return size <= 0 ? "" : std::string(buffer.data(), static_cast<size_t>(size));
}

bool UdpClient::Answers(const std::string& query, absl::Duration wait) {
  pollfd readable = {fd_, POLLIN, 0};
  char byte = 0;
  return send(fd_, query.data(), query.size(), 0) == static_cast<ssize_t>(query.size()) &&
         poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(wait))) == 1 &&
         recv(fd_, &byte, sizeof(byte), 0) == 1;
}

TcpClient::TcpClient(const std::string& address) : fd_(Connect(address, SOCK_STREAM)) {}
TcpClient::~TcpClient() { close(fd_); }

void TcpClient::SendRaw(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t more = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (more <= 0) return;
    sent += static_cast<size_t>(more);
  }
}

void TcpClient::EndSending() { EXPECT_EQ(shutdown(fd_, SHUT_WR), 0); }

bool TcpClient::ReceiveAll(char* to, size_t size) {
  size_t received = 0;
  while (received < size) {
    const ssize_t more = recv(fd_, to + received, size - received, 0);
    if (more <= 0) return false;
    received += static_cast<size_t>(more);
  }
  return true;
}

std::string TcpClient::Receive() {
  char length[2];
  if (!ReceiveAll(length, sizeof(length))) return "";
  std::string message(
      static_cast<size_t>(static_cast<uint8_t>(length[0])) << 8 | static_cast<uint8_t>(length[1]),
      '\0');
  return ReceiveAll(message.data(), message.size()) ? message : "";
}

}  // namespace failback::dns
