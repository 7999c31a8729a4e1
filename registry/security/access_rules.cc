#include "registry/security/access_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/list_scope.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using config::v1::Permission;

absl::Status Bad(const std::string& field, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", problem));
}

absl::Status CredentialsNeeded(const std::string& what) {
  return Refusal(registry::v1::ERROR_REASON_CREDENTIALS_NEEDED, what);
}

constexpr unsigned Bit(Permission permission) { return 1u << permission; }

}  // namespace

const char* PermissionName(Permission permission) {
  switch (permission) {
    case config::v1::PERMISSION_REGISTER:
      return "register";
    case config::v1::PERMISSION_READ:
      return "read";
    case config::v1::PERMISSION_ADMINISTER:
      return "administer";
    default:
      return "unknown";
  }
}

bool AccessRules::Pattern::Matches(std::string_view value) const {
  return prefix ? value.substr(0, text.size()) == text : value == text;
}

bool AccessRules::Pattern::possible() const {
  return text.size() <= static_cast<size_t>(kMaxServiceLength) && IsUtf8(text);
}

bool AccessRules::HasEverything(const Patterns& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [](const Pattern& pattern) { return pattern.everything(); });
}

bool AccessRules::HasPossible(const Patterns& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [](const Pattern& pattern) { return pattern.possible(); });
}

std::vector<std::string> AccessRules::NeverMatching(bool certificates,
                                                    const std::string& reader) const {
  std::vector<std::string> found;
  if (!rules_.has_value()) return found;
  std::vector<std::string_view> known;  // names of tokens
  if (tokens_.has_value()) {
    for (const auto& [digest, name] : *tokens_) known.push_back(name);
  }
  std::sort(known.begin(), known.end());
  const auto is_known = [&](const Pattern& pattern) {
    const auto it = std::lower_bound(known.begin(), known.end(), pattern.text);
    return it != known.end() && pattern.Matches(*it);
  };
  const auto is_shown = [&](const Pattern& pattern) {
    return certificates || (!reader.empty() && pattern.Matches(reader));
  };
  for (size_t i = 0; i < rules_->size(); ++i) {
    const Rule& rule = (*rules_)[i];
    const char* why = nullptr;
    if (!HasPossible(rule.namespaces)) {
      why = "no namespace can have such a name";
    } else if (!HasPossible(rule.services)) {
      why = "no service can have such a name";
    } else if (!rule.anonymous &&
               std::none_of(rule.certificates.begin(), rule.certificates.end(), is_shown) &&
               std::none_of(rule.tokens.begin(), rule.tokens.end(), is_known)) {
      why = rule.tokens.empty() ? "it is for certificates, and clients are asked for none"
            : rule.certificates.empty() || certificates
                ? "known_tokens_file has no such token"
                : "known_tokens_file has no such token, and clients are asked for no certificate";
    }
    if (why != nullptr) found.push_back(absl::StrCat("rules[", i, "]: ", why));
  }
  return found;
}

bool AccessRules::Rule::IsFor(const Identity& who) const {
  if (who.kind == Identity::Kind::kAnonymous) return anonymous;
  const Patterns& patterns = who.kind == Identity::Kind::kToken ? tokens : certificates;
  return std::any_of(patterns.begin(), patterns.end(), [&](const Pattern& pattern) {
    return std::any_of(who.names.begin(), who.names.end(),
                       [&](const std::string& name) { return pattern.Matches(name); });
  });
}

absl::StatusOr<AccessRules::Rule> AccessRules::MakeRule(const std::string& path,
                                                        const config::v1::Rule& rule) {
  Rule made;
  const struct {
    const char* field;
    const google::protobuf::RepeatedPtrField<std::string>& texts;
    Patterns* patterns;
    bool required;
  } kLists[] = {{"certificates", rule.certificates(), &made.certificates, false},
                {"tokens", rule.tokens(), &made.tokens, false},
                {"namespaces", rule.namespaces(), &made.namespaces, true},
                {"services", rule.services(), &made.services, true}};
  for (const auto& list : kLists) {
    for (int i = 0; i < list.texts.size(); ++i) {
      Pattern pattern{list.texts[i], false};
      if (pattern.text.empty()) {
        return Bad(absl::StrCat(path, ".", list.field, "[", i, "]"),
                   "is empty; allowed is a name, a prefix with '*' at its end, or '*'");
      }
      pattern.prefix = pattern.text.back() == '*';
      if (pattern.prefix) pattern.text.pop_back();
      if (pattern.text.find('*') != std::string::npos) {
        return Bad(absl::StrCat(path, ".", list.field, "[", i, "]"),
                   absl::StrCat("'", list.texts[i],
                                "' has a '*' before its end; allowed is a "
                                "name, a prefix with '*' at its end, or '*'"));
      }
      list.patterns->push_back(std::move(pattern));
    }
    if (list.required && list.texts.empty()) {
      return Bad(absl::StrCat(path, ".", list.field), "is required; '*' means all");
    }
  }
  made.anonymous = rule.anonymous();
  if (made.certificates.empty() && made.tokens.empty() && !made.anonymous) {
    return Bad(path, "matches no caller; one of certificates, tokens and anonymous is required");
  }
  for (const int permission : rule.allow()) made.permissions |= Bit(Permission(permission));
  if (made.permissions == 0) {
    return Bad(absl::StrCat(path, ".allow"), "is required; allowed are register, read, administer");
  }
  // A caller who administers sees and changes every service.
  if ((made.permissions & Bit(config::v1::PERMISSION_ADMINISTER)) != 0 &&
      !(HasEverything(made.namespaces) && HasEverything(made.services))) {
    return Bad(absl::StrCat(path, ".allow"),
               "administer needs '*' in namespaces and services; make it a rule of its own");
  }
  return made;
}

absl::Status AccessRules::AddToken(const std::string& path, const config::v1::Token& token) {
  if (token.name().empty()) return Bad(absl::StrCat(path, ".name"), "is required");
  if (!IsUtf8(token.name())) return Bad(absl::StrCat(path, ".name"), "is not UTF-8");
  const std::string& hex = token.sha256();
  if (hex.size() != 64 || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
    // What is there may be the token itself: it is not repeated.
    return Bad(absl::StrCat(path, ".sha256"),
               absl::StrCat("is no SHA-256 digest; one has 64 hexadecimal digits, this has ",
                            hex.size(), " characters"));
  }
  const std::string digest = absl::HexStringToBytes(hex);
  if (digest == Sha256("")) {
    return Bad(absl::StrCat(path, ".sha256"),
               "is the digest of nothing: the token's file was empty or missing");
  }
  const auto [other, added] = tokens_->emplace(Blind(digest), token.name());
  if (!added) {
    return Bad(absl::StrCat(path, ".sha256"),
               absl::StrCat("is the digest of '", other->second, "' already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AccessRules> AccessRules::Make(const config::v1::Policy* policy,
                                              const config::v1::Tokens* tokens) {
  AccessRules made;
  if (policy != nullptr) {
    if (policy->rules().empty()) {
      return Bad("rules", "is required: a policy without rules would deny everything");
    }
    made.rules_.emplace();
    for (int i = 0; i < policy->rules_size(); ++i) {
      absl::StatusOr<Rule> rule = MakeRule(absl::StrCat("rules[", i, "]"), policy->rules(i));
      if (!rule.ok()) return rule.status();
      made.rules_->push_back(*std::move(rule));
    }
  }
  if (tokens != nullptr) {
    if (tokens->tokens().empty()) return Bad("tokens", "is required: no token would be known");
    made.blinding_key_ = RandomId();
    made.tokens_.emplace();
    for (int i = 0; i < tokens->tokens_size(); ++i) {
      absl::Status status = made.AddToken(absl::StrCat("tokens[", i, "]"), tokens->tokens(i));
      if (!status.ok()) return status;
    }
  }
  return made;
}

std::string AccessRules::Blind(const std::string& digest) const {
  return Sha256(absl::StrCat(blinding_key_, digest));
}

absl::StatusOr<Identity> AccessRules::BearerOf(const std::string& token) const {
  Identity bearer;
  bearer.kind = Identity::Kind::kToken;
  bearer.token_digest = Sha256(token);
  if (tokens_.has_value()) {
    if (const auto found = tokens_->find(Blind(bearer.token_digest)); found != tokens_->end()) {
      bearer.names = {found->second};
      return bearer;
    }
  }
  return CredentialsNeeded("the token is not known here");
}

absl::Status AccessRules::CheckKnown(const Identity& who) const {
  if (who.kind == Identity::Kind::kToken) {
    const bool known = tokens_.has_value() && tokens_->contains(Blind(who.token_digest));
    return known ? absl::OkStatus() : CredentialsNeeded("the token is no longer accepted");
  }
  if (who.kind == Identity::Kind::kAnonymous && tokens_.has_value() && !rules_.has_value()) {
    return CredentialsNeeded("a bearer token or a client certificate is needed");
  }
  return absl::OkStatus();
}

template <typename Matches, typename Denied>
absl::Status AccessRules::Find(const Identity& who, const Matches& matches,
                               const Denied& denied) const {
  if (absl::Status status = CheckKnown(who); !status.ok()) return status;
  if (!rules_.has_value()) return absl::OkStatus();
  for (const Rule& rule : *rules_) {
    if (matches(rule) && rule.IsFor(who)) return absl::OkStatus();
  }
  if (who.kind == Identity::Kind::kAnonymous) {
    return CredentialsNeeded(
        absl::StrCat("callers without bearer token and client certificate may not ", denied()));
  }
  return Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED,
                 absl::StrCat(who.ToString(), " may not ", denied()));
}

absl::Status AccessRules::Judge(const Identity& who, Permission what, std::string_view ns,
                                std::string_view service) const {
  if (!rules_.has_value()) return CheckKnown(who);
  const auto any = [](const Patterns& patterns, std::string_view value) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const Pattern& pattern) { return pattern.Matches(value); });
  };
  return Find(
      who,
      [&](const Rule& rule) {
        return (rule.permissions & Bit(what)) != 0 && any(rule.namespaces, ns) &&
               any(rule.services, service);
      },
      [&] {
        return absl::StrCat(PermissionName(what), " ", std::string(ns), "/", std::string(service));
      });
}

absl::Status AccessRules::JudgeAll(const Identity& who, Permission what,
                                   std::optional<std::string_view> ns) const {
  return Find(
      who,
      [&](const Rule& rule) {
        const bool namespaces =
            HasEverything(rule.namespaces) ||
            (ns.has_value() && std::any_of(rule.namespaces.begin(), rule.namespaces.end(),
                                           [&](const Pattern& p) { return p.Matches(*ns); }));
        return (rule.permissions & Bit(what)) != 0 && namespaces && HasEverything(rule.services);
      },
      [&] {
        return absl::StrCat(PermissionName(what), " every service of ",
                            ns.has_value() ? absl::StrCat("namespace ", std::string(*ns))
                                           : std::string("every namespace"));
      });
}

absl::Status AccessRules::JudgeSome(const Identity& who, Permission what) const {
  return Find(
      who, [&](const Rule& rule) { return (rule.permissions & Bit(what)) != 0; },
      [&] { return absl::StrCat(PermissionName(what), " anything here"); });
}

AccessRules::Grants AccessRules::GrantsOf(const Identity& who, Permission what,
                                          std::optional<std::string_view> ns) const {
  Grants grants;
  if (!rules_.has_value()) return grants;
  std::vector<ServiceRange> services;  // of `ns`, without it
  for (const Rule& rule : *rules_) {
    if ((rule.permissions & Bit(what)) == 0 || !rule.IsFor(who)) continue;
    if (ns.has_value()) {
      if (std::none_of(rule.namespaces.begin(), rule.namespaces.end(),
                       [&](const Pattern& pattern) { return pattern.Matches(*ns); })) {
        continue;
      }
      for (const Pattern& pattern : rule.services) {
        if (pattern.possible()) services.push_back({pattern.text, pattern.prefix});
      }
      continue;
    }
    auto* const grant = grants.Add();
    const auto list = [](const Patterns& patterns, auto* texts) {
      for (const Pattern& pattern : patterns) {
        if (pattern.possible()) *texts->Add() = pattern.text + (pattern.prefix ? "*" : "");
      }
    };
    list(rule.namespaces, grant->mutable_namespaces());
    list(rule.services, grant->mutable_services());
  }
  if (!services.empty()) {
    auto* const grant = grants.Add();
    grant->add_namespaces(std::string(*ns));
    for (const ServiceRange& service : Disjoint(std::move(services))) {
      grant->add_services(service.text + (service.prefix ? "*" : ""));
    }
  }
  return grants;
}

absl::Status AccessRules::JudgeAny(const Identity& who) const {
  return Find(
      who, [](const Rule&) { return true; }, [] { return "do anything here"; });
}

}  // namespace failback
