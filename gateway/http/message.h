// A request over HTTP and its response, apart from the connection that they use.
//
// Example: what a handler reads of a request, and says.
//
//   Response Greet(const Request& request) {
//     if (request.segments.size() != 2) return Response::Text("who?");
//     return Response::Text("hello " + request.segments[1]);
//   }
//
// Thread safety: plain values. A Request is valid during the call of its handler: what is needed
// later is copied.

#ifndef FAILBACK_GATEWAY_HTTP_MESSAGE_H_
#define FAILBACK_GATEWAY_HTTP_MESSAGE_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "registry/security/identity.h"

namespace failback::http {

struct Request {
  // In upper case; HEAD comes as GET, and its response goes without the body.
  std::string method;
  // As it came, encoded, without the query.
  std::string path;
  // The path, decoded segment by segment: `/v1/a%2Fb` is {"v1", "a/b"}. A slash at the end of the
  // path adds none.
  std::vector<std::string> segments;
  // The segments that stand for each `{…}` of the handler's pattern.
  std::vector<std::string> parameters;
  // Decoded, in order; a key may come several times.
  std::vector<std::pair<std::string, std::string>> query;
  // Names as they came, compared without case.
  std::vector<std::pair<std::string_view, std::string_view>> headers;
  // Whole, and within the limit of the server. Not compressed: what is compressed was refused.
  std::string_view body;
  // Who makes the request, by token, certificate or ticket; anonymous where callers are not
  // distinguished. Its `peer` is the client's address and port.
  Identity caller;
  // The client's address, without port.
  std::string peer;
  // A page of another site, which may not use this server, has made a browser send it; set by
  // Options::admit. A handler that changes something for a GET refuses it.
  bool from_another_site = false;
  // Sent with whatever answers the request, in addition to its own; set by Options::admit.
  std::vector<std::pair<std::string, std::string>> response_headers;

  // The first value of `key`, or empty.
  std::string Query(std::string_view key) const;
  bool HasQuery(std::string_view key) const;
  // The first value of that header, or empty.
  std::string_view Header(std::string_view name) const;
  // Whether the client would rather have a table than JSON.
  bool wants_text() const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  // In place of `body`, unless null: bytes that many responses share.
  std::shared_ptr<const std::string> shared_body;
  // Opaque, without quotes; empty: none. A request that has it already is answered with 304.
  std::string etag;
  // In addition to, or in place of, those that every response has.
  std::vector<std::pair<std::string, std::string>> headers;

  std::string_view content() const { return shared_body != nullptr ? *shared_body : body; }

  static Response Json(std::string body);
  static Response Text(std::string body);
};

// The HTTP status for an error, by what its caller should do next.
int HttpStatusOf(const absl::Status& status);

// Adds `Retry-After` if the status says when to try again.
void AddRetryAfter(const absl::Status& status, Response* response);

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_MESSAGE_H_
