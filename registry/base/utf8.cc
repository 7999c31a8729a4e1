#include "registry/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace failback {
namespace {

bool IsAscii(std::string_view text) {
  const auto has_high_bit = [](const char* from) {
    uint64_t word;
    std::memcpy(&word, from, sizeof(word));
    return (word & 0x8080808080808080u) != 0;
  };
  constexpr size_t kWord = sizeof(uint64_t);
  const char* next = text.data();
  const char* const end = next + text.size();
  if (text.size() < kWord) {
    unsigned char all = 0;
    for (; next != end; ++next) all |= static_cast<unsigned char>(*next);
    return all < 0x80;
  }
  for (; end - next > static_cast<ptrdiff_t>(kWord); next += kWord) {
    if (has_high_bit(next)) return false;
  }
  return !has_high_bit(end - kWord);  // overlaps the last one
}

// How many bytes the character at the beginning of `text`, which is not empty, has; 0: it is none.
size_t CharacterSize(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  size_t more;
  uint32_t code;
  uint32_t least;
  if (lead >= 0xc2 && lead <= 0xdf) {
    more = 1, code = lead & 0x1f, least = 0x80;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    more = 2, code = lead & 0x0f, least = 0x800;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    more = 3, code = lead & 0x07, least = 0x10000;
  } else {
    return 0;
  }
  if (more >= text.size()) return 0;
  for (size_t k = 1; k <= more; ++k) {
    if ((byte(k) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(k) & 0x3f);
  }
  if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
  return more + 1;
}

// How many bytes the control character at the beginning of `text`, which is UTF-8 and not empty,
// has; 0: there is another one.
size_t ControlSize(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  if (text.size() < 2) return 0;
  if (byte(0) == 0xc2) return byte(1) < 0xa0 ? 2 : 0;
  if (byte(0) != 0xe2 || text.size() < 3) return 0;
  const bool separates = byte(1) == 0x80 && byte(2) >= 0xa8 && byte(2) <= 0xae;
  const bool isolates = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;
  return separates || isolates ? 3 : 0;
}

}  // namespace

int Utf8Length(std::string_view text) {
  if (IsAscii(text)) return static_cast<int>(text.size());
  int length = 0;
  for (; !text.empty(); ++length) {
    const size_t size = CharacterSize(text);
    if (size == 0) return -1;
    text.remove_prefix(size);
  }
  return length;
}

void CutUtf8(size_t max_bytes, std::string* text) {
  if (text->size() <= max_bytes) return;
  size_t end = max_bytes;
  // A character has at most three bytes that begin none.
  for (int i = 0; i < 3 && end > 0 && ((*text)[end] & 0xc0) == 0x80; ++i) --end;
  text->resize(end);
}

std::string MadeUtf8(std::string text) {
  if (IsUtf8(text)) return text;
  for (size_t at = 0; at < text.size();) {
    const size_t size = CharacterSize(std::string_view(text).substr(at));
    if (size == 0) text[at] = '?';
    at += std::max<size_t>(size, 1);
  }
  return text;
}

bool HoldsControl(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) {
    if (ControlSize(text) > 0) return true;
  }
  return false;
}

std::string MadePrintable(std::string text, char instead) {
  text = MadeUtf8(std::move(text));
  if (!HoldsControl(text)) return text;
  std::string shown;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t control = ControlSize(rest);
    shown += control > 0 ? instead : rest.front();
    rest.remove_prefix(std::max<size_t>(control, 1));
  }
  return shown;
}

std::string WithControlsEscaped(std::string text) {
  if (IsAscii(text) || !IsUtf8(text)) return text;
  std::string shown;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t control = ControlSize(rest);
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(rest[at]); };
    if (control == 2) {
      absl::StrAppendFormat(&shown, "\\u%04x", (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f));
    } else if (control == 3) {
      absl::StrAppendFormat(&shown, "\\u%04x",
                            (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f));
    } else {
      shown += rest.front();
    }
    rest.remove_prefix(std::max<size_t>(control, 1));
  }
  return shown;
}

}  // namespace failback
