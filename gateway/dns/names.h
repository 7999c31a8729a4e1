// The names of the zone, and what they mean. With the domain `failback`:
//
//   orders.service.failback              service `orders` of the namespace `default`
//   orders.service.staging.failback      the same of the namespace `staging`
//   canary.orders.service.failback       its instances with the tag `canary`
//   _orders._tcp.service.failback        the same service, as RFC 2782 writes it: SRV only
//   0a000007.addr.failback               10.0.0.7; IPv6 has 32 digits
//   ns.failback                          this server
//
// DNS takes upper and lower case as the same and a label has 63 bytes at most, while services and
// namespaces are case-sensitive and have dots and slashes. So a name is one label, in which
// whatever is not a lower-case letter, a digit or a plain hyphen is `--` and two hexadecimal
// digits: `v2/Orders` is `v2--2f--4frders`. A hyphen is plain if a letter or a digit in lower case
// follows. Each name has one such label; one that would be longer than 63 bytes has none.
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_DNS_NAMES_H_
#define FAILBACK_GATEWAY_DNS_NAMES_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace failback::dns {

// The label of a service, namespace or tag; nullopt if it would be too long or is empty.
std::optional<std::string> EncodeLabel(std::string_view name);
// What a label in lower case stands for; nullopt if EncodeLabel writes no such label.
std::optional<std::string> DecodeLabel(std::string_view label);

// The wire form of a host name or domain as people write it, with or without a dot at its end, in
// lower case. INVALID_ARGUMENT says why it is none.
absl::StatusOr<std::string> ToWire(std::string_view text);

// `orders.service.failback.`, for logs and people: what is not printable is `\DDD`.
std::string ToText(std::string_view wire);

struct Meaning {
  enum class Kind {
    kOutside,     // not of the zone
    kUnknown,     // of the zone, and can never be
    kEmpty,       // has no records, and names below it may have
    kApex,        // the domain itself
    kNameServer,  // ns
    kService,
    kServiceSrv,  // _SERVICE._tcp
    kAddress,
  };
  Kind kind = Kind::kOutside;
  // Of a service.
  std::string service;
  std::string name_space;  // never empty
  std::string tag;         // empty: all instances
  // Of kAddress: 4 or 16 bytes.
  std::string address;
};

class Domain {
 public:
  // As ToWire; the root is no domain, and a domain has 64 bytes at most, so that names fit in it.
  static absl::StatusOr<Domain> Parse(std::string_view text);

  // `name`: of a Query.
  Meaning MeaningOf(std::string_view name) const;

  const std::string& wire() const { return wire_; }
  std::string text() const { return ToText(wire_); }

 private:
  explicit Domain(std::string wire) : wire_(std::move(wire)) {}

  std::string wire_;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_NAMES_H_
