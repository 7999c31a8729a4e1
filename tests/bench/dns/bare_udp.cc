// A UDP responder that knows one answer: to each packet it sends the bytes of a file, with the id
// of the query. What a DNS server cannot be faster than with the same bytes, one packet at a time.
//
//   bare_udp FILE    writes the port of 127.0.0.1 that it listens on

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  std::string answer((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0) return 1;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  std::printf("listening on %d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  char packet[2048];
  while (true) {
    sockaddr_in peer;
    socklen_t peer_size = sizeof(peer);
    if (recvfrom(fd, packet, sizeof(packet), 0, reinterpret_cast<sockaddr*>(&peer), &peer_size) < 2)
      continue;
    answer[0] = packet[0];
    answer[1] = packet[1];
    sendto(fd, answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&peer),
           peer_size);
  }
}
