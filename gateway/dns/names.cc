#include "gateway/dns/names.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gateway/dns/message.h"

namespace failback::dns {
namespace {

constexpr char kDefaultNamespace[] = "default";
constexpr char kHex[] = "0123456789abcdef";
constexpr size_t kMaxDomainBytes = 64;
// [tag, service, "service", namespace] and [_service, _tcp, "service", namespace].
constexpr size_t kMostLabels = 4;

bool IsPlain(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

int HexValue(char c) {
  if (absl::ascii_isdigit(c)) return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// 4 or 16 bytes of twice as many digits; empty: none.
std::string ReadAddress(std::string_view digits) {
  if (digits.size() != 8 && digits.size() != 32) return "";
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    const int high = HexValue(digits[i]);
    const int low = HexValue(digits[i + 1]);
    if (high < 0 || low < 0) return "";
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

Meaning Of(Meaning::Kind kind) {
  Meaning meaning;
  meaning.kind = kind;
  return meaning;
}

// The labels of a name below the domain, the first first; the first `count` of `labels`.
using Labels = std::array<std::string_view, kMostLabels>;

Meaning ServiceMeaning(const Labels& labels, size_t count, std::string_view name_space) {
  Meaning meaning;
  if (name_space.empty()) {
    meaning.name_space = kDefaultNamespace;
  } else if (const auto decoded = DecodeLabel(name_space)) {
    meaning.name_space = *decoded;
  } else {
    return Of(Meaning::Kind::kUnknown);
  }
  if (count == 0) return Of(Meaning::Kind::kEmpty);
  std::string_view service = labels[count - 1];
  meaning.kind = Meaning::Kind::kService;
  if (service == "_tcp") {
    if (count == 1) return Of(Meaning::Kind::kEmpty);
    service = labels[0];
    if (count != 2 || service.size() < 2 || service[0] != '_') return Of(Meaning::Kind::kUnknown);
    service.remove_prefix(1);
    meaning.kind = Meaning::Kind::kServiceSrv;
  } else if (count == 2) {
    const auto tag = DecodeLabel(labels[0]);
    if (!tag.has_value()) return Of(Meaning::Kind::kUnknown);
    meaning.tag = *tag;
  } else if (count > 2) {
    return Of(Meaning::Kind::kUnknown);
  }
  const auto decoded = DecodeLabel(service);
  if (!decoded.has_value()) return Of(Meaning::Kind::kUnknown);
  meaning.service = *decoded;
  return meaning;
}

}  // namespace

std::optional<std::string> EncodeLabel(std::string_view name) {
  std::string label;
  if (name.empty() || name.size() > kMaxLabelBytes) return std::nullopt;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool plain_hyphen = c == '-' && i > 0 && i + 1 < name.size() && IsPlain(name[i + 1]);
    if (IsPlain(c) || plain_hyphen) {
      label += c;
    } else {
      const auto byte = static_cast<uint8_t>(c);
      absl::StrAppend(&label, "--");
      label += kHex[byte >> 4];
      label += kHex[byte & 15];
    }
  }
  if (label.size() > kMaxLabelBytes) return std::nullopt;
  return label;
}

std::optional<std::string> DecodeLabel(std::string_view label) {
  std::string name;
  for (size_t i = 0; i < label.size(); ++i) {
    if (label[i] != '-' || i + 1 == label.size() || label[i + 1] != '-') {
      name += label[i];
      continue;
    }
    if (label.size() - i < 4) return std::nullopt;
    const int high = HexValue(label[i + 2]);
    const int low = HexValue(label[i + 3]);
    if (high < 0 || low < 0) return std::nullopt;
    name += static_cast<char>(high << 4 | low);
    i += 3;
  }
  // Each name has one label.
  const auto right = EncodeLabel(name);
  if (!right.has_value() || *right != label) return std::nullopt;
  return name;
}

absl::StatusOr<std::string> ToWire(std::string_view text) {
  const auto invalid = [text](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::Utf8SafeCEscape(std::string(text.substr(0, kMaxNameBytes))),
                     "' is no domain name: ", why));
  };
  if (text.size() > kMaxNameBytes) return invalid("it is longer than 253 characters");
  if (!text.empty() && text.back() == '.') text.remove_suffix(1);
  if (text.empty()) return invalid("it is empty");
  std::string wire;
  while (true) {
    const size_t size = std::min(text.find('.'), text.size());
    if (size == 0) return invalid("a label is empty");
    if (size > kMaxLabelBytes) return invalid("a label has more than 63 characters");
    wire += static_cast<char>(size);
    for (const char c : text.substr(0, size)) {
      if (!absl::ascii_isalnum(c) && c != '-' && c != '_') {
        return invalid("allowed are letters, digits, '-', '_' and dots");
      }
      wire += absl::ascii_tolower(c);
    }
    if (size == text.size()) break;
    text.remove_prefix(size + 1);
  }
  wire += '\0';
  if (wire.size() > kMaxNameBytes) return invalid("it is longer than 253 characters");
  return wire;
}

std::string ToText(std::string_view wire) {
  std::string text;
  while (!wire.empty() && wire[0] != 0) {
    const size_t length = static_cast<uint8_t>(wire[0]);
    for (const char c : wire.substr(1, length)) {
      if (c == '.' || c == '\\') {
        text += '\\';
        text += c;
      } else if (absl::ascii_isgraph(c)) {
        text += c;
      } else {
        absl::StrAppendFormat(&text, "\\%03d", static_cast<uint8_t>(c));
      }
    }
    text += '.';
    wire.remove_prefix(std::min(wire.size(), length + 1));
  }
  return text.empty() ? "." : text;
}

absl::StatusOr<Domain> Domain::Parse(std::string_view text) {
  absl::StatusOr<std::string> wire = ToWire(text);
  if (!wire.ok()) return wire.status();
  if (wire->size() > kMaxDomainBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' is too long: a domain has at most ",
                     kMaxDomainBytes - 2, " characters, so that the names of services fit in it"));
  }
  return Domain(*std::move(wire));
}

Meaning Domain::MeaningOf(std::string_view name) const {
  // Of names that end with the domain; in lower case from here on.
  if (name.size() < wire_.size()) return Of(Meaning::Kind::kOutside);
  char lower[kMaxNameBytes];
  if (name.size() > sizeof(lower)) return Of(Meaning::Kind::kOutside);
  std::transform(name.begin(), name.end(), lower, absl::ascii_tolower);
  const std::string_view whole(lower, name.size());
  const size_t below = whole.size() - wire_.size();
  if (whole.substr(below) != wire_) return Of(Meaning::Kind::kOutside);
  Labels labels;
  size_t count = 0;
  size_t at = 0;
  bool deep = false;
  while (at < below) {
    const size_t length = static_cast<uint8_t>(whole[at]);
    if (count == kMostLabels) {
      deep = true;
    } else {
      labels[count++] = whole.substr(at + 1, length);
    }
    at += 1 + length;
  }
  // The bytes of the domain, but not its labels.
  if (at != below) return Of(Meaning::Kind::kOutside);
  if (deep) return Of(Meaning::Kind::kUnknown);
  if (count == 0) return Of(Meaning::Kind::kApex);
  const std::string_view last = labels[count - 1];
  if (last == "service") return ServiceMeaning(labels, count - 1, "");
  if (count >= 2 && labels[count - 2] == "service") return ServiceMeaning(labels, count - 2, last);
  if (last == "addr") {
    if (count == 1) return Of(Meaning::Kind::kEmpty);
    Meaning meaning = Of(Meaning::Kind::kAddress);
    meaning.address = count == 2 ? ReadAddress(labels[0]) : "";
    return meaning.address.empty() ? Of(Meaning::Kind::kUnknown) : meaning;
  }
  if (count > 1) return Of(Meaning::Kind::kUnknown);
  if (last == "ns") return Of(Meaning::Kind::kNameServer);
  // Perhaps a namespace: `service` is below it.
  return Of(DecodeLabel(last).has_value() ? Meaning::Kind::kEmpty : Meaning::Kind::kUnknown);
}

}  // namespace failback::dns
