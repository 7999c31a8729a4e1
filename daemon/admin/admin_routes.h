// The admin paths: an Admin over HTTP, as JSON or, for `Accept: text/plain`, as tables.
// docs/admin.md lists them.
//
// Thread safety: as http::Server::Handle.

#ifndef FAILBACK_DAEMON_ADMIN_ADMIN_ROUTES_H_
#define FAILBACK_DAEMON_ADMIN_ADMIN_ROUTES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/admin/admin.h"
#include "daemon/admin/admin_guard.h"
#include "gateway/http/server.h"
#include "google/protobuf/message.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// What the paths that both daemons have answer from. All outlive the server.
struct AdminSources {
  const Admin* admin = nullptr;
  const HashedWheelTimer* timer = nullptr;
  // The configuration in force, as it is.
  std::function<std::unique_ptr<google::protobuf::Message>()> config;
};

// Adds the paths of both daemons.
void AddAdminRoutes(const AdminSources& sources, http::Server* server);

// A message as this API writes it; or, as text, its table or the message in protobuf's form. 500 with the reason when
// it has no JSON form.
http::Response MessageResponse(bool text, const google::protobuf::Message& message);

// Reads a POST's body; none at all is an empty message. INVALID_ARGUMENT names what is wrong.
absl::Status ParseBody(const http::Request& request, google::protobuf::Message* message);

// The query parameter `page_size`, 0 when there is none.
absl::StatusOr<int32_t> ReadPageSize(const http::Request& request);

// A GET of a list by pages: `answer(request, list, respond)`, with page_size and page_token set.
template <typename List, typename Answer>
void HandleList(http::Server* server, const std::string& pattern, Answer answer) {
  server->Handle("GET", pattern, [answer](const http::Request& request, auto respond) {
    const absl::StatusOr<int32_t> page_size = ReadPageSize(request);
    if (!page_size.ok()) return std::move(respond)(AdminError(page_size.status()));
    List list;
    list.set_page_token(request.Query("page_token"));
    list.set_page_size(*page_size);
    answer(request, std::move(list), std::move(respond));
  });
}

// A POST: `answer(request, body, respond)`, with the body as ParseBody has it.
template <typename Body, typename Answer>
void HandlePost(http::Server* server, const std::string& pattern, Answer answer) {
  server->Handle("POST", pattern, [answer](const http::Request& request, auto respond) {
    Body body;
    if (auto status = ParseBody(request, &body); !status.ok()) {
      return std::move(respond)(AdminError(status));
    }
    answer(request, std::move(body), std::move(respond));
  });
}

// What takes the one response: an http::Responder, or what changes the response before.
using AdminRespond = absl::AnyInvocable<void(http::Response) &&>;

// Answers with a message or an error, once it is there.
template <typename Response>
Callback<Response> Responder(const http::Request& request, AdminRespond respond) {
  return [text = request.wants_text(),
          respond = std::move(respond)](absl::StatusOr<Response> response) mutable {
    if (!response.ok()) return std::move(respond)(AdminError(response.status()));
    std::move(respond)(MessageResponse(text, *response));
  };
}

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_ADMIN_ROUTES_H_
