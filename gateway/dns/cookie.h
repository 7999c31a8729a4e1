// DNS cookies (RFC 7873), as RFC 9018 has them: a client that returns the server's cookie has the
// address that it writes from, so its address is not forged.
//
//   CookieJar jar(random_secret);
//   const bool proven = jar.Check(query.cookie, address, now_seconds);
//   const std::string cookie = jar.Make(query.cookie, address, now_seconds);
//
// Thread safety: const methods from any thread.

#ifndef FAILBACK_GATEWAY_DNS_COOKIE_H_
#define FAILBACK_GATEWAY_DNS_COOKIE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace failback::dns {

// SipHash-2-4, for keys that others cannot guess.
uint64_t SipHash(const std::array<uint64_t, 2>& key, std::string_view bytes);

// Such a key, of the system's random numbers.
std::array<uint64_t, 2> RandomKey();

class CookieJar {
 public:
  // 24 bytes: the client's cookie, version, time, hash.
  static constexpr size_t kBytes = 24;
  using Cookie = std::array<char, kBytes>;

  explicit CookieJar(const std::array<uint64_t, 2>& secret) : secret_(secret) {}

  // The whole cookie to return to a client with this address, whose own cookie `sent` begins with.
  // `address`: 4 or 16 bytes.
  Cookie Make(std::string_view sent, std::string_view address, uint32_t now_seconds) const;

  // Whether `sent` has a cookie of this server's for that address, at most an hour old.
  bool Check(std::string_view sent, std::string_view address, uint32_t now_seconds) const;

 private:
  Cookie MakeAt(std::string_view client, std::string_view address, uint32_t seconds) const;

  const std::array<uint64_t, 2> secret_;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_COOKIE_H_
