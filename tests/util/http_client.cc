#include "tests/util/http_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace {

constexpr int kTimeoutMs = 30000;

}  // namespace

HttpConnection::HttpConnection(const std::string& address, const std::string& from)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const size_t colon = address.rfind(':');
  int port = 0;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) {
    std::cerr << "not HOST:PORT: " << address << std::endl;
    std::abort();
  }
  to.sin_port = htons(static_cast<uint16_t>(port));
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  if (!from.empty() && (inet_pton(AF_INET, from.c_str(), &own.sin_addr) != 1 ||
                        bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0)) {
    std::cerr << "cannot connect from " << from << std::endl;
    std::abort();
  }
  if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    std::cerr << "cannot connect to " << address << std::endl;
    std::abort();
  }
}

HttpConnection::~HttpConnection() { close(fd_); }

bool HttpConnection::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool HttpConnection::Fill() {
  pollfd ready = {fd_, POLLIN, 0};
  if (poll(&ready, 1, kTimeoutMs) != 1) return false;
  char bytes[4096];
  const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string HttpConnection::ReadUntil(const std::string& end) {
  size_t at;
  size_t from = 0;
  while ((at = buffer_.find(end, from)) == std::string::npos) {
    from = buffer_.size() - std::min(buffer_.size(), end.size());
    if (!Fill()) return std::exchange(buffer_, "");
  }
  const std::string text = buffer_.substr(0, at + end.size());
  buffer_.erase(0, text.size());
  return text;
}

void HttpConnection::ShutdownSend() { shutdown(fd_, SHUT_WR); }

bool HttpConnection::WaitForClose() {
  for (;;) {
    pollfd ready = {fd_, POLLIN, 0};
    if (poll(&ready, 1, kTimeoutMs) != 1) return false;
    char bytes[4096];
    if (recv(fd_, bytes, sizeof(bytes), 0) <= 0) return true;
  }
}

HttpAnswer HttpConnection::Read(const std::string& method) {
  HttpAnswer answer;
  size_t end;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill()) return answer;
  }
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  size_t line = head.find("\r\n");
  if (!absl::SimpleAtoi(head.substr(9, 3), &answer.status)) return answer;
  for (size_t begin = line + 2; begin < head.size(); begin = line + 2) {
    line = head.find("\r\n", begin);
    const std::string text = head.substr(begin, line - begin);
    const size_t colon = text.find(": ");
    answer.headers[absl::AsciiStrToLower(text.substr(0, colon))] = text.substr(colon + 2);
  }
  size_t size = 0;
  if (method != "HEAD" && answer.headers.count("content-length") > 0 &&
      !absl::SimpleAtoi(answer.headers["content-length"], &size)) {
    return answer;
  }
  while (buffer_.size() < size) {
    if (!Fill()) break;
  }
  answer.body = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return answer;
}

HttpAnswer Http(const std::string& address, const std::string& method, const std::string& target,
                const HttpHeaders& headers, const std::string& body) {
  std::string request = absl::StrCat(method, " ", target, " HTTP/1.1\r\n");
  if (headers.count("Host") == 0) absl::StrAppend(&request, "Host: ", address, "\r\n");
  for (const auto& [name, value] : headers) absl::StrAppend(&request, name, ": ", value, "\r\n");
  if (!body.empty()) absl::StrAppend(&request, "Content-Length: ", body.size(), "\r\n");
  HttpConnection connection(address);
  connection.Send(absl::StrCat(request, "\r\n", body));
  return connection.Read(method);
}

}  // namespace failback
