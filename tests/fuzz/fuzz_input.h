// Reads a fuzzer's bytes as numbers, texts and messages. Never runs out: beyond the end all is
// zero.

#ifndef FAILBACK_TESTS_FUZZ_FUZZ_INPUT_H_
#define FAILBACK_TESTS_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "google/protobuf/message.h"

namespace failback {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }

  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint32_t Number() { return static_cast<uint32_t>(Byte()) << 8 | Byte(); }

  // At most `max` bytes.
  std::string Text(size_t max) {
    const size_t asked = Number();  // first: it takes bytes too
    const size_t size = std::min({size_, max, asked});
    std::string text(reinterpret_cast<const char*>(data_), size);
    data_ += size;
    size_ -= size;
    return text;
  }
  std::string Rest() { return std::string(reinterpret_cast<const char*>(data_), size_); }

  // Any message: half of the time as its bytes, half of the time field by field, so that more of
  // them are valid.
  void Fill(google::protobuf::Message* message) {
    if (Byte() % 2 == 0) {
      // What cannot be parsed, as text that is no UTF-8, does not get past gRPC.
      if (!message->ParsePartialFromString(Text(65535))) message->Clear();
    } else {
      FillFields(message, 0);
    }
  }

 private:
  void FillFields(google::protobuf::Message* message, int depth);
  void FillField(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                 int depth);
  std::string Word();

  const uint8_t* data_;
  size_t size_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_FUZZ_FUZZ_INPUT_H_
