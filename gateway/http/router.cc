#include "gateway/http/router.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "registry/model/errors.h"

namespace failback::http {
namespace {

bool IsParameter(const std::string& segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

int HexDigit(char c) {
  if (!absl::ascii_isxdigit(c)) return -1;
  return absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
}

// Quotes what a client sent, so that an error does not repeat kilobytes of it.
std::string Quoted(std::string_view text) {
  constexpr size_t kMost = 100;
  return absl::StrCat("'", std::string(text.substr(0, kMost)), text.size() > kMost ? "…'" : "'");
}

std::vector<std::string> Split(std::string_view path) {
  return absl::StrSplit(absl::string_view(path.data(), path.size()), '/');
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
          absl::StrCat(Quoted(text), " is not percent-encoded: two digits follow a %"));
    }
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> ParsePath(std::string_view path) {
  if (path.empty() || path.front() != '/') {
    return InvalidField("path", absl::StrCat(Quoted(path), " does not begin with a slash"));
  }
  std::vector<std::string> segments = Split(path.substr(1));
  if (segments.back().empty()) segments.pop_back();
  for (std::string& segment : segments) {
    if (segment.find('%') == std::string::npos) continue;
    absl::StatusOr<std::string> decoded = PercentDecode(segment, /*plus=*/false);
    if (!decoded.ok()) return decoded.status();
    segment = *std::move(decoded);
  }
  return segments;
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

void Router::Add(const std::string& method, const std::string& pattern, Handler handler) {
  std::vector<std::string> segments = Split(std::string_view(pattern).substr(1));
  if (segments.back().empty()) segments.pop_back();
  routes_.push_back({method, pattern, std::move(segments), std::move(handler)});
}

Router::Match Router::Find(std::string_view method,
                           const std::vector<std::string>& segments) const {
  Match match;
  for (const Route& route : routes_) {
    if (route.segments.size() != segments.size()) continue;
    const bool fits =
        std::equal(segments.begin(), segments.end(), route.segments.begin(),
                   [](const std::string& segment, const std::string& wanted) {
                     return IsParameter(wanted) ? !segment.empty() : segment == wanted;
                   });
    if (!fits) continue;
    if (route.method != method) {
      match.allowed.push_back(route.method);
      continue;
    }
    match.handler = &route.handler;
    match.parameters.clear();
    for (size_t i = 0; i < segments.size(); ++i) {
      if (IsParameter(route.segments[i])) match.parameters.push_back(segments[i]);
    }
    return match;
  }
  return match;
}

std::vector<std::string> Router::paths() const {
  std::vector<std::string> paths;
  paths.reserve(routes_.size());
  for (const Route& route : routes_) paths.push_back(route.method + " " + route.pattern);
  return paths;
}

}  // namespace failback::http
