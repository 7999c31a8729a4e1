#include "gateway/dns/responder.h"

#include "absl/time/clock.h"
#include "gateway/dns/names.h"
#include "gateway/dns/udp_socket.h"

namespace failback::dns {
namespace {

void Add(Counters::Counter* counter) {
  // One thread writes.
  counter->store(counter->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

Responder::Responder(const Zone& zone, ServiceTable* table, uint32_t responses_per_second)
    : zone_(zone),
      table_(table),
      cookies_(RandomKey()),
      limit_(responses_per_second, RandomKey()),
      shuffle_(RandomKey().front()) {}

Responder::Answered Responder::Answer(std::string_view packet, std::string_view client, bool tcp,
                                      bool may_wait, bool again, char* buffer) {
  Query query;
  const Reading reading = ReadQuery(packet, &query);
  if (!reading.answer) {
    Add(&counters_.ignored);
    return {};
  }
  if (!again) Add(tcp ? &counters_.tcp_queries : &counters_.udp_queries);
  const int64_t now = absl::GetCurrentTimeNanos();
  const auto seconds = static_cast<uint32_t>(now / 1000000000);
  Delivery delivery;
  delivery.tcp = tcp;
  delivery.now_seconds = seconds;
  delivery.trusted = tcp || IsLoopback(client);
  CookieJar::Cookie cookie;
  if (!query.cookie.empty()) {
    if (!delivery.trusted) delivery.trusted = cookies_.Check(query.cookie, client, seconds);
    cookie = cookies_.Make(query.cookie, client, seconds);
    delivery.cookie = {cookie.data(), cookie.size()};
  }
  if (!delivery.trusted && !again) {
    const RateLimit::Verdict verdict = limit_.Take(client, now);
    if (verdict != RateLimit::Verdict::kAnswer) Add(&counters_.limited);
    if (verdict == RateLimit::Verdict::kDrop) return {};
    if (verdict == RateLimit::Verdict::kTruncate) {
      Add(&counters_.truncated);
      return {Outcome::kSend,
              WriteEmpty(zone_, query, Rcode::kNoError, true, delivery.cookie, buffer).size};
    }
  }
  if (reading.rcode == Rcode::kNoError && query.question.empty()) {
    const bool wrong =
        query.cookie.size() > kClientCookieBytes && !cookies_.Check(query.cookie, client, seconds);
    Add(&counters_.other);
    return {Outcome::kSend, WriteEmpty(zone_, query, wrong ? Rcode::kBadCookie : Rcode::kNoError,
                                       /*truncated=*/false, delivery.cookie, buffer)
                                .size};
  }
  if (reading.rcode != Rcode::kNoError) {
    const Reply reply =
        WriteEmpty(zone_, query, reading.rcode, /*truncated=*/false, delivery.cookie, buffer);
    Count(reply, /*data=*/false);
    return {Outcome::kSend, reply.size};
  }
  const Meaning meaning = zone_.domain.MeaningOf(query.name);
  ServiceTable::Found found;
  if (NeedsService(query, meaning)) {
    // Of this machine's clients one may ask for many others, as a forwarder does.
    const std::string_view network = IsLoopback(client) ? std::string_view() : client;
    found = table_->Look(meaning.name_space, meaning.service, {network, delivery.trusted});
    if (found.wait && may_wait) return {Outcome::kWait, 0};
  }
  const Reply reply = WriteReply(zone_, query, meaning, found.known, delivery, &shuffle_, buffer);
  Count(reply, /*data=*/reply.answers > 0);
  return {Outcome::kSend, reply.size};
}

void Responder::Count(const Reply& reply, bool data) {
  if (reply.truncated) Add(&counters_.truncated);
  switch (reply.rcode) {
    case Rcode::kNoError:
      Add(&counters_.no_error);
      if (!data) Add(&counters_.no_data);
      return;
    case Rcode::kNxDomain:
      return Add(&counters_.nx_domain);
    case Rcode::kServFail:
      return Add(&counters_.serv_fail);
    case Rcode::kRefused:
      return Add(&counters_.refused);
    default:
      return Add(&counters_.other);
  }
}

}  // namespace failback::dns
