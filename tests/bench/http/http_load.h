// Many HTTP clients in one thread: each on a connection of its own that is kept alive, with one
// request under way.
//
// Thread safety: one thread. Dies when a connection fails or an answer is not 200.

#ifndef FAILBACK_TESTS_BENCH_HTTP_HTTP_LOAD_H_
#define FAILBACK_TESTS_BENCH_HTTP_HTTP_LOAD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace failback {

class HttpLoad {
 public:
  // Called with an answer's body, once for each request.
  using OnAnswer = std::function<void(int client, const std::string& body)>;

  // Connects `clients` to HOST:PORT of loopback.
  HttpLoad(const std::string& address, int clients, OnAnswer on_answer);
  ~HttpLoad();
  HttpLoad(const HttpLoad&) = delete;
  HttpLoad& operator=(const HttpLoad&) = delete;

  int clients() const { return static_cast<int>(clients_.size()); }
  void Send(int client, const std::string& request);
  // Handles answers until `done`, seen after each.
  void RunUntil(const std::function<bool()>& done);

 private:
  struct Client {
    int fd = -1;
    std::string received;
  };
  void Read(int client);

  const OnAnswer on_answer_;
  int epoll_ = -1;
  std::vector<Client> clients_;
};

// A request without a body, and one with.
std::string GetRequest(const std::string& target);
std::string PutRequest(const std::string& target, const std::string& body);

// Takes all the descriptors that the system allows.
void RaiseFileLimit();

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_HTTP_HTTP_LOAD_H_
