// Answers a read when there is an answer: now, after a change, or when the client has waited long
// enough. Until then the request is parked, and nothing is asked of anybody.
//
// Example: a long poll.
//
//   AnswerWhenDue(std::move(responder), query.wait,
//                 [=](bool last, uint64_t* version) -> std::optional<http::Response> {
//                   const catalog::ServiceView view = catalog->Service(name_space, service);
//                   *version = view.version;
//                   if (!last && view.index == query.index) return std::nullopt;
//                   return http::Response::Json(Render(view));
//                 },
//                 [=](uint64_t version, std::function<void()> wake) {
//                   return catalog->WaitForService(name_space, service, version, wake);
//                 });
//
// Thread safety: from any thread.

#ifndef FAILBACK_GATEWAY_DOOR_PARKED_READ_H_
#define FAILBACK_GATEWAY_DOOR_PARKED_READ_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/time/time.h"
#include "gateway/catalog/catalog.h"
#include "gateway/http/message.h"
#include "gateway/http/responder.h"

namespace failback {

// The answer, or nullopt: not yet. Sets the version that it has looked at. `last`: the time is over,
// and there has to be one. Runs on the thread that brings the news, several times, and never twice
// at once for long: whichever answers first counts.
using LookForAnswer = std::function<std::optional<http::Response>(bool last, uint64_t* version)>;
using WaitForChange = std::function<catalog::Wait(uint64_t version, std::function<void()> wake)>;

void AnswerWhenDue(http::Responder responder, absl::Duration most, LookForAnswer look,
                   WaitForChange wait_for);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_DOOR_PARKED_READ_H_
