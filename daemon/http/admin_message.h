// A request to the admin endpoint and its response, apart from the connection that they use.
//
// Thread safety: plain values.

#ifndef FAILBACK_DAEMON_HTTP_ADMIN_MESSAGE_H_
#define FAILBACK_DAEMON_HTTP_ADMIN_MESSAGE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace failback {

struct AdminRequest {
  std::string method;  // GET or POST
  std::string path;    // as it came, without the query
  // What stands in the path for each `{…}` of the pattern, decoded.
  std::vector<std::string> parameters;
  // Decoded, in order; a key may come several times.
  std::vector<std::pair<std::string, std::string>> query;
  std::string accept;         // the Accept header
  std::string if_none_match;  // likewise
  std::string body;
  std::string peer;  // the client's address, without port

  // The first value of `key`, or empty.
  std::string Query(const std::string& key) const;
  // Whether the client would rather have a table than JSON.
  bool wants_text() const;
};

struct AdminResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  // Opaque, without quotes; empty: none. A request that has it already is answered with 304.
  std::string etag;
  // In addition to, or in place of, those that every response has.
  std::vector<std::pair<std::string, std::string>> headers;

  static AdminResponse Json(std::string body);
  static AdminResponse Text(std::string body);
  // As `admin.v1.Error`; the HTTP status follows from the code.
  static AdminResponse Error(const absl::Status& status);
  // The same with another HTTP status.
  static AdminResponse Error(int http_status, const absl::Status& status);
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_HTTP_ADMIN_MESSAGE_H_
