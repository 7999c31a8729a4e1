// A client of HTTP/1.1 for tests: a socket, and as much of the protocol as they look at. It sends
// what the test says, whether that is right or not.

#ifndef FAILBACK_TESTS_UTIL_HTTP_CLIENT_H_
#define FAILBACK_TESTS_UTIL_HTTP_CLIENT_H_

#include <map>
#include <string>

namespace failback {

struct HttpAnswer {
  int status = 0;                              // 0: the connection ended without one
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpConnection {
 public:
  // To HOST:PORT, an IPv4 address; from another of this machine's where one is named. Dies if it
  // cannot.
  explicit HttpConnection(const std::string& address, const std::string& from = "");
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // False when the server has closed the connection.
  bool Send(const std::string& bytes);

  // One whole answer, to `method`; waits for 30 s at most.
  HttpAnswer Read(const std::string& method = "GET");

  // What comes, up to and with `end`; without it if the connection ends, or after 30 s.
  std::string ReadUntil(const std::string& end);

  // Says that nothing more is sent.
  void ShutdownSend();

  // Until the server has closed the connection; false after 30 s.
  bool WaitForClose();

 private:
  // More bytes into buffer_; false at the end, or after the deadline.
  bool Fill();

  int fd_;
  std::string buffer_;
};

using HttpHeaders = std::map<std::string, std::string>;

// One request on a connection of its own. A Host header is added unless `headers` have one.
HttpAnswer Http(const std::string& address, const std::string& method, const std::string& target,
                const HttpHeaders& headers = {}, const std::string& body = "");

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_HTTP_CLIENT_H_
