// Fields as Protobuf encodes them, for messages that no generated class would write.

#ifndef FAILBACK_TESTS_UTIL_WIRE_FIELD_H_
#define FAILBACK_TESTS_UTIL_WIRE_FIELD_H_

#include <cstddef>
#include <string>

namespace failback {

// Field `number` with a length: text, bytes or a message.
inline std::string WireField(int number, const std::string& bytes) {
  std::string out;
  const auto varint = [&](size_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
  };
  varint(static_cast<size_t>(number) << 3 | 2);
  varint(bytes.size());
  return out + bytes;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_WIRE_FIELD_H_
