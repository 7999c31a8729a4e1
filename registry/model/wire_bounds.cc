#include "registry/model/wire_bounds.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// protobuf's own parser goes no deeper.
constexpr int kMaxDepth = 100;

enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kGroup = 3,
  kEnd = 4,
  kFixed32 = 5
};

class Walk {
 public:
  explicit Walk(size_t max_fields) : left_(max_fields) {}

  // False when there are too many fields.
  bool Message(const Descriptor& type, std::string_view bytes, int depth) {
    int groups = 0;  // what is inside of one is not known
    while (!bytes.empty()) {
      uint64_t tag;
      if (!Varint(&bytes, &tag)) return true;
      if (!Take(1)) return false;
      uint64_t size = 0;
      switch (static_cast<WireType>(tag & 7)) {
        case kVarint:
          if (!Varint(&bytes, &size)) return true;
          continue;
        case kFixed64:
          size = 8;
          break;
        case kFixed32:
          size = 4;
          break;
        case kGroup:
          ++groups;
          continue;
        case kEnd:
          if (groups-- == 0) return true;
          continue;
        case kBytes:
          if (!Varint(&bytes, &size) || size > bytes.size()) return true;
          if (groups == 0 &&
              !Inside(type, static_cast<int>(tag >> 3), bytes.substr(0, size), depth)) {
            return false;
          }
          break;
        default:
          return true;
      }
      if (size > bytes.size()) return true;
      bytes.remove_prefix(size);
    }
    return true;
  }

 private:
  // What is in a field that has a length.
  bool Inside(const Descriptor& type, int number, std::string_view bytes, int depth) {
    const FieldDescriptor* const field = type.FindFieldByNumber(number);
    if (field == nullptr) return true;
    if (field->is_packable()) return Take(bytes.size());  // at least a byte each
    if (field->message_type() == nullptr || depth == kMaxDepth) return true;
    return Message(*field->message_type(), bytes, depth + 1);
  }

  bool Take(size_t fields) {
    if (fields > left_) return false;
    left_ -= fields;
    return true;
  }

  static bool Varint(std::string_view* bytes, uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes->front());
      bytes->remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  size_t left_;
};

absl::Status TooLarge(const Descriptor& type, const std::string& has, size_t limit,
                      const char* unit) {
  return Refusal(registry::v1::ERROR_REASON_TOO_LARGE,
                 absl::StrCat("the ", type.name(), " has ", has, " ", unit, ", at most ", limit,
                              " are allowed"),
                 {{"limit", absl::StrCat(limit)}});
}

}  // namespace

absl::Status CheckWireSize(const Descriptor& type, size_t bytes, const WireBounds& bounds) {
  if (bytes <= bounds.max_bytes) return absl::OkStatus();
  return TooLarge(type, absl::StrCat(bytes), bounds.max_bytes, "bytes");
}

absl::Status CheckWire(const Descriptor& type, std::string_view bytes, const WireBounds& bounds) {
  if (auto status = CheckWireSize(type, bytes.size(), bounds); !status.ok()) return status;
  if (!Walk(bounds.max_fields).Message(type, bytes, 0)) {
    return TooLarge(type, "more", bounds.max_fields, "fields");
  }
  return absl::OkStatus();
}

}  // namespace failback
