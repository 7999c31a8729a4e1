// Reads Protocol Buffers' wire format where it is, field by field, as a parser does: fields in any
// order, unknown ones too (https://protobuf.dev/programming-guides/encoding/).
//
//   wire::Reader fields(bytes);
//   for (wire::Field field; fields.Next(&field);) {
//     if (field.Is(Snapshot::kMoreFieldNumber, wire::kVarint)) more = field.value != 0;
//   }
//   if (!fields.ok()) return NoMessage();
//
// A field whose number is known and whose type is another is unknown, as it is to a parser. Groups,
// which no message of proto3 has, are not read.
//
// Thread safety: thread-compatible. What was read refers to the bytes.

#ifndef FAILBACK_REGISTRY_MODEL_WIRE_READER_H_
#define FAILBACK_REGISTRY_MODEL_WIRE_READER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace failback {
namespace wire {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  WireType type = kVarint;
  uint64_t value = 0;      // of a kVarint
  std::string_view bytes;  // of kBytes

  bool Is(int wanted, WireType wanted_type) const {
    return number == static_cast<uint32_t>(wanted) && type == wanted_type;
  }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  // False at the end, and where the bytes are no message.
  bool Next(Field* field) {
    if (rest_.empty()) return false;
    ok_ = Read(field);
    return ok_;
  }
  bool ok() const { return ok_; }

 private:
  bool Read(Field* field) {
    uint64_t tag;
    if (!ReadVarint(kMost32, &tag) || tag >> 32 != 0 || tag >> 3 == 0) return false;
    field->number = static_cast<uint32_t>(tag >> 3);
    field->type = static_cast<WireType>(tag & 7);
    uint64_t size;
    switch (field->type) {
      case kVarint:
        return ReadVarint(kMost64, &field->value);
      case kFixed64:
        return Skip(8);
      case kFixed32:
        return Skip(4);
      case kBytes:
        if (!ReadVarint(kMost32, &size) || size > rest_.size()) return false;
        field->bytes = rest_.substr(0, static_cast<size_t>(size));
        return Skip(static_cast<size_t>(size));
    }
    return false;
  }

  // Bytes of numbers of 32 and of 64 bits.
  static constexpr int kMost32 = 5;
  static constexpr int kMost64 = 10;

  bool ReadVarint(int most_bytes, uint64_t* value) {
    *value = 0;
    for (int i = 0; i < most_bytes && !rest_.empty(); ++i) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Skip(size_t size) {
    if (size > rest_.size()) return false;
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace wire
}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_WIRE_READER_H_
