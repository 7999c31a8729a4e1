// Asks a DNS server by UDP as fast as it answers, so that it is the server that is measured: many
// packets with one call of the kernel, and without ever sleeping, so that no server spends its time
// on waking its client, as none does whose clients are other machines.
//
//   UdpLoad load("127.0.0.1:7073", query, /*window=*/64);
//   load.Ask(10000);  // warm
//   const double seconds = load.Ask(1000000);
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_TESTS_BENCH_DNS_UDP_LOAD_H_
#define FAILBACK_TESTS_BENCH_DNS_UDP_LOAD_H_

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gateway/dns/dns_client.h"

namespace failback {

class UdpLoad {
 public:
  // `window`: queries that are under way; they fit into the buffer of a socket.
  UdpLoad(const std::string& address, std::string query, int window);

  // Until so many are answered; for how many seconds. Ends the program when answers no longer come.
  double Ask(int64_t queries);

 private:
  void Send(int count);
  // How many answers there were.
  int Receive();

  static constexpr size_t kMaxAnswer = 2048;

  const std::string address_;
  const std::string query_;
  const int window_;
  dns::UdpClient client_;
  std::vector<std::array<char, kMaxAnswer>> answers_;
  std::vector<iovec> vectors_;
  std::vector<mmsghdr> incoming_;
  iovec outgoing_vector_;
  std::vector<mmsghdr> outgoing_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_DNS_UDP_LOAD_H_
