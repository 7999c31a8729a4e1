#include "tests/bench/http/http_load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/bench/load.h"

namespace failback {
namespace {

constexpr int kTimeoutMs = 120000;

int Connect(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    Die(absl::StrCat("cannot connect to ", address, ": error ", errno));
  }
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return fd;
}

}  // namespace

HttpLoad::HttpLoad(const std::string& address, int clients, OnAnswer on_answer)
    : on_answer_(std::move(on_answer)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  for (int i = 0; i < clients; ++i) {
    clients_.push_back({Connect(address), ""});
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(i);
    epoll_ctl(epoll_, EPOLL_CTL_ADD, clients_.back().fd, &event);
  }
}

HttpLoad::~HttpLoad() {
  for (const Client& client : clients_) close(client.fd);
  close(epoll_);
}

void HttpLoad::Send(int client, const std::string& request) {
  if (send(clients_[static_cast<size_t>(client)].fd, request.data(), request.size(),
           MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    Die("a request is not taken whole");
  }
}

void HttpLoad::Read(int client) {
  Client& from = clients_[static_cast<size_t>(client)];
  std::array<char, 16384> bytes;
  const ssize_t size = recv(from.fd, bytes.data(), bytes.size(), 0);
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) Die("the server has closed a connection");
  from.received.append(bytes.data(), static_cast<size_t>(size));
  const size_t end = from.received.find("\r\n\r\n");
  if (end == std::string::npos) return;
  if (from.received.compare(9, 3, "200") != 0) Die(from.received);
  constexpr char kLength[] = "Content-Length: ";
  const size_t at = from.received.find(kLength);
  if (at > end) Die("an answer without a length");
  const size_t length =
      static_cast<size_t>(std::atoll(from.received.c_str() + at + sizeof(kLength) - 1));
  if (from.received.size() < end + 4 + length) return;
  const std::string body = from.received.substr(end + 4, length);
  from.received = std::string();
  on_answer_(client, body);
}

void HttpLoad::RunUntil(const std::function<bool()>& done) {
  std::array<epoll_event, 256> events;
  while (!done()) {
    const int ready =
        epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), kTimeoutMs);
    if (ready <= 0) Die("no answer comes");
    for (int i = 0; i < ready; ++i) {
      Read(static_cast<int>(events[static_cast<size_t>(i)].data.u32));
    }
  }
}

std::string GetRequest(const std::string& target) {
  return absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
}

std::string PutRequest(const std::string& target, const std::string& body) {
  return absl::StrCat("PUT ", target, " HTTP/1.1\r\nHost: 127.0.0.1\r\n",
                      "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace failback
