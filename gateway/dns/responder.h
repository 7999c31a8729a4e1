// From a packet to its answer: what is the same for UDP and TCP.
//
// Thread safety: Answer on one thread; Count from any.

#ifndef FAILBACK_GATEWAY_DNS_RESPONDER_H_
#define FAILBACK_GATEWAY_DNS_RESPONDER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gateway/dns/cookie.h"
#include "gateway/dns/message.h"
#include "gateway/dns/rate_limit.h"
#include "gateway/dns/service_table.h"
#include "gateway/dns/zone.h"

namespace failback::dns {

struct Counters {
  using Counter = std::atomic<int64_t>;
  Counter udp_queries{0}, tcp_queries{0};
  Counter no_error{0}, no_data{0}, nx_domain{0}, serv_fail{0}, refused{0}, other{0};
  Counter truncated{0}, limited{0}, ignored{0};
};

class Responder {
 public:
  // `table` outlives this.
  Responder(const Zone& zone, ServiceTable* table, uint32_t responses_per_second);

  enum class Outcome {
    kSend,    // `size` bytes are in the buffer
    kIgnore,  // nothing is to be sent
    kWait,    // nothing is known of the service yet: ask again
  };
  struct Answered {
    Outcome outcome = Outcome::kIgnore;
    size_t size = 0;
  };
  // `client`: its address, 4 or 16 bytes. `may_wait`: else an answer is given, whatever is known.
  // `again`: it has been counted. `buffer` has kMaxMessageBytes, or for UDP as many as the zone
  // allows.
  Answered Answer(std::string_view packet, std::string_view client, bool tcp, bool may_wait,
                  bool again, char* buffer);

  const Counters& counters() const { return counters_; }

 private:
  void Count(const Reply& reply, bool data);

  const Zone zone_;
  ServiceTable* const table_;
  CookieJar cookies_;
  RateLimit limit_;
  Shuffle shuffle_;
  Counters counters_;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_RESPONDER_H_
