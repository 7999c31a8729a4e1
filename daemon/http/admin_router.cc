#include "daemon/http/admin_router.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

bool IsParameter(const std::string& segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

int HexDigit(char c) {
  if (!absl::ascii_isxdigit(c)) return -1;
  return absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
}

}  // namespace

absl::StatusOr<std::string> PercentDecode(std::string_view text, bool plus) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else if (i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0) {
      out += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    } else {
      return InvalidField(
          plus ? "query" : "path",
          absl::StrCat("'", std::string(text), "' is not percent-encoded: two digits follow a %"));
    }
  }
  return out;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> query;
  if (text.empty()) return query;
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), '&', absl::SkipEmpty());
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(part, absl::MaxSplits('=', 1));
    absl::StatusOr<std::string> key = PercentDecode(entry.first, /*plus=*/true);
    if (!key.ok()) return key.status();
    absl::StatusOr<std::string> value = PercentDecode(entry.second, /*plus=*/true);
    if (!value.ok()) return value.status();
    query.emplace_back(*std::move(key), *std::move(value));
  }
  return query;
}

void AdminRouter::Add(const std::string& method, const std::string& pattern,
                      AdminServer::Handler handler) {
  routes_.push_back({method, pattern, absl::StrSplit(pattern, '/'), std::move(handler)});
}

absl::StatusOr<AdminRouter::Match> AdminRouter::Find(const std::string& method,
                                                     std::string_view path) const {
  std::vector<std::string> segments;
  const std::vector<std::string> parts = absl::StrSplit(std::string(path), '/');
  for (const std::string& encoded : parts) {
    absl::StatusOr<std::string> segment = PercentDecode(encoded, /*plus=*/false);
    if (!segment.ok()) return segment.status();
    segments.push_back(*std::move(segment));
  }
  // A slash at the end means the same as none.
  if (segments.size() > 2 && segments.back().empty()) segments.pop_back();
  Match match;
  for (const Route& route : routes_) {
    if (route.segments.size() != segments.size()) continue;
    std::vector<std::string> parameters;
    bool fits = true;
    for (size_t i = 0; fits && i < segments.size(); ++i) {
      if (IsParameter(route.segments[i])) {
        parameters.push_back(segments[i]);
        fits = !segments[i].empty();
      } else {
        fits = route.segments[i] == segments[i];
      }
    }
    if (!fits) continue;
    if (route.method == method) {
      match.handler = &route.handler;
      match.parameters = std::move(parameters);
      match.allowed.clear();
      return match;
    }
    match.allowed.push_back(route.method);
  }
  return match;
}

std::vector<std::string> AdminRouter::paths() const {
  std::vector<std::string> paths;
  for (const Route& route : routes_)
    paths.push_back(absl::StrCat(route.method, " ", route.pattern));
  return paths;
}

}  // namespace failback
