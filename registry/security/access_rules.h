// The known tokens and the policy, checked and made ready to be asked: who is the bearer of this
// token, and may this caller do that?
//
//   absl::StatusOr<AccessRules> rules = AccessRules::Make(&policy, &tokens);
//   absl::Status status = rules->Judge(identity, config::v1::PERMISSION_READ, "default", "orders");
//
// Rules only allow. Without a policy every known caller may do everything, and without known tokens
// every caller is known. Errors say what is missing: UNAUTHENTICATED (CREDENTIALS_NEEDED) the
// caller may mend with other credentials, PERMISSION_DENIED (ACCESS_DENIED) only the policy.
//
// Tokens are known by their digests. One that is shown is looked up by a hash of its digest with a
// random key of this process, so that the time it takes reveals nothing about those that are known.
//
// Thread safety: const methods from any thread.

#ifndef FAILBACK_REGISTRY_SECURITY_ACCESS_RULES_H_
#define FAILBACK_REGISTRY_SECURITY_ACCESS_RULES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "failback/config/v1/access.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/security/identity.h"

namespace failback {

class AccessRules {
 public:
  // No policy, no tokens: everything is allowed.
  AccessRules() = default;

  // Either may be null. INVALID_ARGUMENT opens with the field, as "rules[2].services: is
  // required…".
  static absl::StatusOr<AccessRules> Make(const config::v1::Policy* policy,
                                          const config::v1::Tokens* tokens);

  // Rules, as "rules[2]: …", that can never match and why: they are for tokens that are not known,
  // for certificates where `certificates` says that clients show none and `reader`, which a front
  // door reads as, is none of them, or for names that nothing can have. If that is all of them,
  // everything is denied.
  std::vector<std::string> NeverMatching(bool certificates, const std::string& reader) const;
  // Rules of the policy; 0: there is none.
  size_t size() const { return rules_.has_value() ? rules_->size() : 0; }

  // Who shows `token`; UNAUTHENTICATED when it is not known.
  absl::StatusOr<Identity> BearerOf(const std::string& token) const;

  // Whether `who` may do `what` with the service.
  absl::Status Judge(const Identity& who, config::v1::Permission what, std::string_view ns,
                     std::string_view service) const;

  // Whether `who` may do `what` with every service: of the namespace, or of all (nullopt).
  absl::Status JudgeAll(const Identity& who, config::v1::Permission what,
                        std::optional<std::string_view> ns) const;

  // Whether `who` may do `what` with some service.
  absl::Status JudgeSome(const Identity& who, config::v1::Permission what) const;

  // With which services `who` may do `what`, as a scope of listings has it. Those of one namespace:
  // one grant, whose services are sorted and disjoint; of all (nullopt): a grant for each rule.
  // Not for who may do it with every service.
  using Grants = google::protobuf::RepeatedPtrField<registry::v1::ListScope::Grant>;
  Grants GrantsOf(const Identity& who, config::v1::Permission what,
                  std::optional<std::string_view> ns) const;

  // Whether `who` may do anything at all.
  absl::Status JudgeAny(const Identity& who) const;

 private:
  // Exact text, or a prefix.
  struct Pattern {
    std::string text;
    bool prefix = false;

    bool Matches(std::string_view value) const;
    bool everything() const { return prefix && text.empty(); }
    // Whether a name can be meant.
    bool possible() const;
  };
  using Patterns = std::vector<Pattern>;
  static bool HasEverything(const Patterns& patterns);
  // Whether a name of a namespace or a service is meant.
  static bool HasPossible(const Patterns& patterns);

  struct Rule {
    Patterns certificates;
    Patterns tokens;
    bool anonymous = false;
    unsigned permissions = 0;  // a bit for each
    Patterns namespaces;
    Patterns services;

    bool IsFor(const Identity& who) const;
  };

  static absl::StatusOr<Rule> MakeRule(const std::string& path, const config::v1::Rule& rule);
  absl::Status AddToken(const std::string& path, const config::v1::Token& token);
  std::string Blind(const std::string& digest) const;
  // OK unless the caller has to show something first, or what it showed is no longer accepted.
  absl::Status CheckKnown(const Identity& who) const;
  // OK when `matches` some rule for `who`; else `denied` says what is denied.
  template <typename Matches, typename Denied>
  absl::Status Find(const Identity& who, const Matches& matches, const Denied& denied) const;

  std::optional<std::vector<Rule>> rules_;
  // Names by blinded digest.
  std::optional<absl::flat_hash_map<std::string, std::string>> tokens_;
  std::string blinding_key_;
};

// "register", "read", "administer".
const char* PermissionName(config::v1::Permission permission);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_ACCESS_RULES_H_
