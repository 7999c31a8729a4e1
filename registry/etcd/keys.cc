#include "registry/etcd/keys.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace failback {
namespace etcd {
namespace {

constexpr std::string_view kMark = " offline";

bool IsMark(std::string_view key) {
  return key.size() > kMark.size() && key.substr(key.size() - kMark.size()) == kMark;
}

void AppendEscaped(std::string_view part, std::string* out) {
  const auto special = [](char c) { return c == '%' || c == '/'; };
  while (true) {
    const auto plain = std::find_if(part.begin(), part.end(), special) - part.begin();
    out->append(part.substr(0, plain));
    part.remove_prefix(plain);
    if (part.empty()) return;
    out->append(part.front() == '%' ? "%25" : "%2F");
    part.remove_prefix(1);
  }
}

// `a NUL b NUL c` as a/b/c, each part escaped.
void AppendParts(std::string_view parts, std::string* out) {
  for (size_t begin = 0;;) {
    const size_t end = parts.find('\0', begin);
    AppendEscaped(parts.substr(begin, end == std::string_view::npos ? end : end - begin), out);
    if (end == std::string_view::npos) return;
    out->push_back('/');
    begin = end + 1;
  }
}

std::optional<std::string> Unescape(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] != '%') {
      out.push_back(part[i]);
    } else if (part.substr(i, 3) == "%25" || part.substr(i, 3) == "%2F") {
      out.push_back(part[i + 2] == '5' ? '%' : '/');
      i += 2;
    } else {
      return std::nullopt;
    }
  }
  return out;
}

// The canonical key of `<namespace>/<service>/<instance id>`.
std::optional<std::string> ParseParts(std::string_view text) {
  std::string canonical;
  for (int part = 0; part < 3; ++part) {
    const size_t slash = text.find('/');
    // Two slashes: in a part they are escaped.
    if ((part < 2) == (slash == std::string_view::npos)) return std::nullopt;
    const std::optional<std::string> plain = Unescape(text.substr(0, slash));
    if (!plain.has_value() || plain->empty()) return std::nullopt;
    if (plain->find('\0') != std::string::npos) return std::nullopt;
    if (part > 0) canonical.push_back('\0');
    canonical += *plain;
    if (part < 2) text.remove_prefix(slash + 1);
  }
  return canonical;
}

// Everything that starts with `prefix`, which ends with a slash: '0' follows it in ASCII.
KeyRange Below(std::string prefix) {
  std::string end = prefix;
  end.back() = '0';
  return {std::move(prefix), std::move(end)};
}

}  // namespace

std::string Keys::Incarnation(std::string_view name) const {
  std::string key = absl::StrCat(root_, ".incarnation/");
  AppendEscaped(name, &key);
  return key;
}

KeyRange Keys::Incarnations() const { return Below(absl::StrCat(root_, ".incarnation/")); }

std::string Keys::Rank(uint64_t rank) const { return absl::StrCat(root_, ".rank/", rank); }

std::string Keys::Session(std::string_view session_id) const {
  std::string key = absl::StrCat(root_, ".session/");
  AppendEscaped(session_id, &key);
  return key;
}

KeyRange Keys::Sessions() const { return Below(absl::StrCat(root_, ".session/")); }

std::string Keys::Lease(std::string_view session_id, int64_t lease) const {
  return absl::StrCat(LeasesOf(session_id).begin, lease);
}

KeyRange Keys::LeasesOf(std::string_view session_id) const {
  std::string key = absl::StrCat(root_, ".lease/");
  AppendEscaped(session_id, &key);
  return Below(key + "/");
}

std::string Keys::Instance(std::string_view canonical) const {
  std::string key;
  key.reserve(root_.size() + canonical.size() + 8);
  key = root_;
  AppendParts(canonical, &key);
  return key;
}

std::optional<std::string> Keys::ParseInstance(std::string_view key) const {
  if (IsMark(key)) return std::nullopt;
  return ParseUnmarked(key);
}

std::optional<std::string> Keys::ParseUnmarked(std::string_view key) const {
  if (key.substr(0, root_.size()) != root_ || key.substr(root_.size(), 1) == ".") {
    return std::nullopt;
  }
  return ParseParts(key.substr(root_.size()));
}

std::string Keys::Mark(std::string_view canonical) const {
  return Instance(canonical).append(kMark);
}

std::optional<std::string> Keys::ParseMark(std::string_view key) const {
  if (!IsMark(key)) return std::nullopt;
  return ParseUnmarked(key.substr(0, key.size() - kMark.size()));
}

KeyRange Keys::InstanceWithMark(std::string_view canonical) const {
  std::string begin = Instance(canonical);
  // The lowest character that an id may hold.
  std::string end = begin + '!';
  return {std::move(begin), std::move(end)};
}

KeyRange Keys::Service(std::string_view service_key) const {
  std::string key = root_;
  AppendParts(service_key, &key);
  return Below(key + "/");
}

KeyRange Keys::Namespace(std::string_view name) const {
  std::string key = root_;
  AppendEscaped(name, &key);
  return Below(key + "/");
}

KeyRange Keys::Beginning(std::string_view prefix) const {
  if (prefix.empty()) return AllInstances();
  std::string key = root_;
  AppendParts(prefix, &key);
  std::string end = key;
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return {std::move(key), std::move(end)};
}

KeyRange Keys::AllInstances() const { return {root_ + "0", root_ + "{"}; }

std::string Keys::Persistent(std::string_view incarnation, std::string_view canonical) const {
  std::string key = PersistentOf(incarnation).begin;
  AppendParts(canonical, &key);
  return key;
}

KeyRange Keys::PersistentOf(std::string_view incarnation) const {
  std::string key = absl::StrCat(root_, ".persistent/");
  AppendEscaped(incarnation, &key);
  return Below(key + "/");
}

std::optional<std::string> Keys::ParsePersistent(std::string_view incarnation,
                                                 std::string_view key) const {
  const std::string prefix = PersistentOf(incarnation).begin;
  if (key.substr(0, prefix.size()) != prefix) return std::nullopt;
  return ParseParts(key.substr(prefix.size()));
}

}  // namespace etcd
}  // namespace failback
