// Page tokens that reveal nothing to their holder.
//
// A page token is a place in a listing. Where a caller may not read all that is listed the place
// may be one that is hidden, so the token is encrypted and authenticated (AES-256-GCM) under a key
// that this process made at its start: no client can read, make or change one. A token of an
// earlier process is refused, and the caller begins the listing again.
//
// Example:
//
//   const std::string sealed = SealToken("default/orders/a");
//   std::optional<std::string> opened = OpenToken(sealed);   // "default/orders/a"
//   OpenToken("made up");                                    // nullopt
//
// Thread safety: both functions are.

#ifndef FAILBACK_REGISTRY_SECURITY_TOKEN_SEAL_H_
#define FAILBACK_REGISTRY_SECURITY_TOKEN_SEAL_H_

#include <optional>
#include <string>

namespace failback {

// Empty for the empty one, which ends a listing.
std::string SealToken(const std::string& token);

// The token that was sealed by this process; nullopt for anything else, and beyond 8 KiB unread.
std::optional<std::string> OpenToken(const std::string& sealed);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_TOKEN_SEAL_H_
