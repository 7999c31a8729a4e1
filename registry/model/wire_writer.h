// Writes Protocol Buffers' wire format into a string: for requests that would be made of many small
// messages only to be serialized (https://protobuf.dev/programming-guides/encoding/).
//
// Field numbers are below 16, so that a tag is one byte.
//
// Thread safety: all functions are pure but for `out`.

#ifndef FAILBACK_REGISTRY_MODEL_WIRE_WRITER_H_
#define FAILBACK_REGISTRY_MODEL_WIRE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "google/protobuf/io/coded_stream.h"

namespace failback {
namespace wire {

inline constexpr size_t kTagSize = 1;

inline size_t VarintSize(uint64_t value) {
  return google::protobuf::io::CodedOutputStream::VarintSize64(value);
}
// Of fields, tag and all: a number; bytes, or a message, of `size` bytes.
inline size_t NumberSize(uint64_t value) { return kTagSize + VarintSize(value); }
inline size_t BytesSize(size_t size) { return kTagSize + VarintSize(size) + size; }

inline void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

inline void AppendNumber(int field, uint64_t value, std::string* out) {
  out->push_back(static_cast<char>(field << 3));
  AppendVarint(value, out);
}

// The head of a field of `size` bytes, which follow.
inline void AppendHead(int field, size_t size, std::string* out) {
  out->push_back(static_cast<char>(field << 3 | 2));
  AppendVarint(size, out);
}

inline void AppendBytes(int field, std::string_view value, std::string* out) {
  AppendHead(field, value.size(), out);
  out->append(value);
}

}  // namespace wire
}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_WIRE_WRITER_H_
