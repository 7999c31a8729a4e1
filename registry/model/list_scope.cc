#include "registry/model/list_scope.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "registry/model/validation.h"

namespace failback {
namespace {

using Grants = google::protobuf::RepeatedPtrField<registry::v1::ListScope::Grant>;

bool IsPrefix(std::string_view pattern) { return !pattern.empty() && pattern.back() == '*'; }

std::string_view TextOf(std::string_view pattern) {
  if (IsPrefix(pattern)) pattern.remove_suffix(1);
  return pattern;
}

std::string KeyOf(std::string_view name_space, std::string_view service) {
  std::string key(name_space);
  key.push_back('\0');
  key += service;
  return key;
}

// Some services of namespaces that are not listed one by one.
bool IsMixed(const registry::v1::ListScope::Grant& grant) {
  const auto all = [](const std::string& service) { return service == "*"; };
  return std::any_of(grant.namespaces().begin(), grant.namespaces().end(), IsPrefix) &&
         std::none_of(grant.services().begin(), grant.services().end(), all);
}

bool Means(const Grants& grants, std::string_view name_space, std::string_view service) {
  return std::any_of(grants.begin(), grants.end(), [&](const auto& grant) {
    const auto any = [](const auto& patterns, std::string_view name) {
      return std::any_of(patterns.begin(), patterns.end(),
                         [&](const auto& pattern) { return PatternMeans(pattern, name); });
    };
    return any(grant.namespaces(), name_space) && any(grant.services(), service);
  });
}

}  // namespace

ServiceRange ServiceRange::Namespace(std::string_view name_space) {
  return {KeyOf(name_space, ""), true};
}

ServiceRange ServiceRange::Service(std::string_view name_space, std::string_view service) {
  return {KeyOf(name_space, service), false};
}

std::string ServiceRange::end() const {
  // Names have no control characters, and no bytes above 0x7F.
  std::string end = text;
  if (!prefix || end.empty()) {
    end.push_back(prefix ? '\xff' : '\1');
  } else {
    end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  }
  return end;
}

bool ServiceRange::Covers(const ServiceRange& other) const {
  if (!prefix) return !other.prefix && other.text == text;
  return std::string_view(other.text).substr(0, text.size()) == text;
}

std::vector<ServiceRange> Disjoint(std::vector<ServiceRange> ranges) {
  // A prefix comes right before what it covers.
  std::sort(ranges.begin(), ranges.end(), [](const ServiceRange& a, const ServiceRange& b) {
    return std::tuple(std::string_view(a.text), !a.prefix) <
           std::tuple(std::string_view(b.text), !b.prefix);
  });
  std::vector<ServiceRange> disjoint;
  for (ServiceRange& range : ranges) {
    if (disjoint.empty() || !disjoint.back().Covers(range)) disjoint.push_back(std::move(range));
  }
  return disjoint;
}

std::vector<ServiceRange> Intersect(const std::vector<ServiceRange>& a,
                                    const std::vector<ServiceRange>& b) {
  std::vector<ServiceRange> both;
  // Those of `some` that a range of `others` covers: that is the last one that is not after it.
  const auto add = [&both](const std::vector<ServiceRange>& some,
                           const std::vector<ServiceRange>& others) {
    for (const ServiceRange& range : some) {
      const auto after =
          std::upper_bound(others.begin(), others.end(), range,
                           [](const auto& x, const auto& y) { return x.text < y.text; });
      if (after != others.begin() && std::prev(after)->Covers(range)) both.push_back(range);
    }
  };
  add(a, b);
  add(b, a);
  return Disjoint(std::move(both));
}

bool PatternMeans(std::string_view pattern, std::string_view name) {
  const std::string_view text = TextOf(pattern);
  return IsPrefix(pattern) ? name.substr(0, text.size()) == text : name == text;
}

ListScopes::ListScopes(const ListRequest& request, std::optional<std::string> owner)
    : request_(request), owner_(std::move(owner)) {
  if (request.has_selector() || request.incarnation().empty()) {
    const std::string& name = request.selector().namespace_();
    name_space_ = name.empty() ? kDefaultNamespace : name;
  }
}

bool ListScopes::IsOwn(const registry::v1::ListScope& scope) const {
  return owner_.has_value() && !owner_->empty() && *owner_ == scope.owner();
}

bool ListScopes::Shows(std::string_view name_space, std::string_view service) const {
  if (name_space.empty()) name_space = kDefaultNamespace;
  return std::all_of(request_.scopes().begin(), request_.scopes().end(), [&](const auto& scope) {
    return IsOwn(scope) || Means(scope.grants(), name_space, service) ||
           (HasNoOwner() && Means(scope.own_grants(), name_space, service));
  });
}

void ListScopes::AddRanges(const Grants& grants, std::vector<ServiceRange>* ranges) const {
  const auto add = [&](const std::string& name_space, const auto& services) {
    for (const std::string& service : services) {
      ranges->push_back({KeyOf(name_space, TextOf(service)), IsPrefix(service)});
    }
  };
  for (const auto& grant : grants) {
    if (name_space_.has_value()) {
      if (std::any_of(grant.namespaces().begin(), grant.namespaces().end(),
                      [&](const auto& name) { return PatternMeans(name, *name_space_); })) {
        add(*name_space_, grant.services());
      }
      continue;
    }
    for (const std::string& name : grant.namespaces()) {
      if (IsPrefix(name)) {
        ranges->push_back({std::string(TextOf(name)), true});
      } else {
        add(name, grant.services());
      }
    }
  }
}

std::vector<ServiceRange> ListScopes::ranges() const {
  const std::string& service = request_.selector().service();
  std::vector<ServiceRange> ranges = {!name_space_.has_value() ? ServiceRange::All()
                                      : service.empty()
                                          ? ServiceRange::Namespace(*name_space_)
                                          : ServiceRange::Service(*name_space_, service)};
  for (const auto& scope : request_.scopes()) {
    if (IsOwn(scope)) continue;
    std::vector<ServiceRange> shown;
    AddRanges(scope.grants(), &shown);
    if (HasNoOwner()) AddRanges(scope.own_grants(), &shown);
    ranges = Intersect(ranges, Disjoint(std::move(shown)));
  }
  return ranges;
}

bool ListScopes::exact() const {
  if (name_space_.has_value()) return true;
  return std::none_of(request_.scopes().begin(), request_.scopes().end(), [&](const auto& scope) {
    if (IsOwn(scope)) return false;
    return std::any_of(scope.grants().begin(), scope.grants().end(), IsMixed) ||
           (HasNoOwner() &&
            std::any_of(scope.own_grants().begin(), scope.own_grants().end(), IsMixed));
  });
}

registry::v1::ListCoverage ListScopes::coverage() const {
  if (!limited()) return registry::v1::LIST_COVERAGE_UNSPECIFIED;
  return std::all_of(request_.scopes().begin(), request_.scopes().end(),
                     [this](const auto& scope) { return IsOwn(scope); })
             ? registry::v1::LIST_COVERAGE_WHOLE
             : registry::v1::LIST_COVERAGE_PART;
}

}  // namespace failback
