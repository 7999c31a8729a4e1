// The answers of the zone: a pure function of a question and of what is known of the service that
// it is about.
//
// Rules: docs/dns.md. In short: what is outside of the zone is refused; a service that is not known
// does not exist (NXDOMAIN), one that has nothing of the type asked for is empty (NODATA), and when
// nothing is known that is said (SERVFAIL). Records come in a random order. What does not fit is
// left out, at random, and the response says so (TC), but for TCP, which has no larger one to offer.
//
// Example:
//
//   const Meaning meaning = zone.domain.MeaningOf(query.name);
//   const Reply reply = WriteReply(zone, query, meaning, KnownAbout(meaning), delivery, &shuffle,
//                                  buffer);
//   Send(buffer, reply.size);
//
// Thread safety: WriteReply is pure, but for the Shuffle, which is thread-compatible.

#ifndef FAILBACK_GATEWAY_DNS_ZONE_H_
#define FAILBACK_GATEWAY_DNS_ZONE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/dns/message.h"
#include "gateway/dns/names.h"
#include "gateway/dns/records.h"

namespace failback::dns {

struct Zone {
  Domain domain;
  // Of all records, in seconds; also how long a client may remember that there is none.
  uint32_t ttl = 1;
  // Of responses by UDP, whatever the client takes.
  uint16_t max_udp_bytes = 1232;
  // Of this server, 4 or 16 bytes each, if clients elsewhere can use them.
  std::vector<std::string> addresses = {};
};

// What is known of the service that a name means.
struct Known {
  enum class State {
    kNothing,  // no word of the registry has come
    kDenied,   // it may not be read here
    kAbsent,   // it has no instance, and had none lately
    kPresent,
  };
  State state = State::kNothing;
  const ServiceRecords* records = nullptr;  // of kPresent
  bool stale = false;                       // the last known: the registry is unavailable
};

// How the response goes out.
struct Delivery {
  bool tcp = false;
  // The client has proved its address, or has one of this machine. To others by UDP goes at most
  // ten times what they have sent.
  bool trusted = false;
  std::string_view cookie;  // to return; empty: none
  uint32_t now_seconds = 0;
};
inline constexpr size_t kMaxAmplification = 10;

// Random orders. Keeps the last one and shuffles it again, so one of another size costs more.
class Shuffle {
 public:
  explicit Shuffle(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  // 0 to `size` - 1 in a random order, of which the first `wanted` are random; valid until the
  // next call.
  const std::vector<uint32_t>& Order(size_t size, size_t wanted);

 private:
  uint64_t state_;
  std::vector<uint32_t> order_;
};

struct Reply {
  size_t size = 0;
  Rcode rcode = Rcode::kNoError;
  bool truncated = false;
  size_t answers = 0;  // records
};

// Records that a TXT answer has at most, and strings of a record.
inline constexpr size_t kMaxTxtRecords = 64;
inline constexpr size_t kMaxTxtStrings = 17;

// Whether the answer to `query` depends on what is known of the service.
bool NeedsService(const Query& query, const Meaning& meaning);

// `buffer` has kMaxMessageBytes.
Reply WriteReply(const Zone& zone, const Query& query, const Meaning& meaning, const Known& known,
                 const Delivery& delivery, Shuffle* shuffle, char* buffer);

// A response without records: to what cannot be answered, or has to come again by TCP.
Reply WriteEmpty(const Zone& zone, const Query& query, Rcode rcode, bool truncated,
                 std::string_view cookie, char* buffer);

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_ZONE_H_
