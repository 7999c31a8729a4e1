// Which services a listing may show, as the ranges of names that are gone through.
//
// A server that distinguishes its callers adds to a ListRequest what the caller may see
// (ListRequest.scopes). What lists has ordered names, and goes to the ranges here instead of
// through all names: neither the records nor the time of a page depend on what is hidden. Two
// patterns, each a name or a prefix, are either disjoint or one has the other inside of it; so what
// several scopes leave is again a list of names and prefixes.
//
// Example: `grants` of orders and pay-* in namespace default
//
//   const ListScopes scopes(request, std::nullopt);
//   for (const ServiceRange& range : scopes.ranges()) {
//     for (auto it = services.lower_bound(range.begin()); it->first < range.end(); ++it) ...
//   }
//
// Thread safety: const methods from any thread.
//
// Invariants:
// 1. Ranges are sorted and disjoint.
// 2. What Shows() is in a range, if the selector means it. With exact() the converse holds too.

#ifndef FAILBACK_REGISTRY_MODEL_LIST_SCOPE_H_
#define FAILBACK_REGISTRY_MODEL_LIST_SCOPE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/model/messages.h"

namespace failback {

// Keys of services (`namespace NUL service`): one, or all that begin so.
struct ServiceRange {
  std::string text;
  bool prefix = true;

  static ServiceRange All() { return {"", true}; }
  static ServiceRange Namespace(std::string_view name_space);
  static ServiceRange Service(std::string_view name_space, std::string_view service);

  // [begin, end) of the keys of services, and of the canonical keys of their instances.
  const std::string& begin() const { return text; }
  std::string end() const;
  bool Covers(const ServiceRange& other) const;
};

// Sorted, without those that others cover.
std::vector<ServiceRange> Disjoint(std::vector<ServiceRange> ranges);
// What is in a range of each; both are sorted and disjoint.
std::vector<ServiceRange> Intersect(const std::vector<ServiceRange>& a,
                                    const std::vector<ServiceRange>& b);

// Whether `pattern`, a name or a prefix with `*` at its end, means `name`.
bool PatternMeans(std::string_view pattern, std::string_view name);

class ListScopes {
 public:
  // Of a valid request, which outlives this. `owner`: whose the incarnation is that is asked for
  // (registry/model/ids.h), empty for those without an owner; nullopt when none is asked for or
  // that is not known.
  ListScopes(const ListRequest& request, std::optional<std::string> owner);

  // Whether there is any scope.
  bool limited() const { return request_.scopes_size() > 0; }
  bool Shows(std::string_view name_space, std::string_view service) const;

  // Of what the selector means, what the scopes show.
  std::vector<ServiceRange> ranges() const;
  // False: ranges() have services that are not shown. That is so for a listing of all namespaces
  // where a grant has a prefix of namespaces and some services.
  bool exact() const;
  // Of a listing by incarnation.
  registry::v1::ListCoverage coverage() const;

 private:
  using Grants = google::protobuf::RepeatedPtrField<registry::v1::ListScope::Grant>;
  // The incarnation is the scope's owner's: it is shown whole, whatever the grants.
  bool IsOwn(const registry::v1::ListScope& scope) const;
  bool HasNoOwner() const { return owner_.has_value() && owner_->empty(); }
  void AddRanges(const Grants& grants, std::vector<ServiceRange>* ranges) const;

  const ListRequest& request_;
  const std::optional<std::string> owner_;
  // The namespace that is listed; nullopt: all.
  std::optional<std::string> name_space_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_LIST_SCOPE_H_
