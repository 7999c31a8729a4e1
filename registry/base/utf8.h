// Text that every client can read.
//
// A protobuf string is UTF-8, and a message with one that is not cannot be parsed: one such name
// makes a whole listing unreadable. So text from outside is checked or mended before it becomes a
// part of a message, and cut only between characters.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_BASE_UTF8_H_
#define FAILBACK_REGISTRY_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace failback {

// How many characters `text` has, or -1 when it is not UTF-8.
int Utf8Length(std::string_view text);

inline bool IsUtf8(std::string_view text) { return Utf8Length(text) >= 0; }

// Cuts `text` to at most `max_bytes`, between two characters.
void CutUtf8(size_t max_bytes, std::string* text);

// `text`, with a '?' in the place of each byte that belongs to no character.
std::string MadeUtf8(std::string text);

// Whether UTF-8 `text` holds a control character: U+0000 to U+001F and U+007F to U+009F, the ends
// of a line or paragraph U+2028 and U+2029, and what changes the direction of the text around it:
// U+202A to U+202E and U+2066 to U+2069. A terminal acts on them.
bool HoldsControl(std::string_view text);

// `text` as a terminal may be given it, on one line: UTF-8, with `instead` in the place of each
// control character.
std::string MadePrintable(std::string text, char instead);

// `text`, which is quoted as JSON or YAML has it, with \uXXXX in the place of each control
// character beyond ASCII. Those of ASCII are escaped already, or end its lines. What is not UTF-8
// stays as it is.
std::string WithControlsEscaped(std::string text);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_UTF8_H_
