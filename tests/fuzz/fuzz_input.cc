#include "tests/fuzz/fuzz_input.h"

#include "google/protobuf/descriptor.h"

namespace failback {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMaxDepth = 4;

}  // namespace

// Few different ones, so that keys and sessions meet again.
std::string FuzzInput::Word() {
  static const char* const kWords[] = {"", "a", "b", "orders", "default", "eu-1", "*", "10.0.0.1"};
  const uint8_t choice = Byte();
  if (choice < 200) return kWords[choice % 8];
  std::string text = Text(choice == 255 ? 65535 : 32);
  for (char& c : text) c &= 0x7f;  // a message's text is UTF-8
  return text;
}

void FuzzInput::FillFields(Message* message, int depth) {
  const auto* const descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count() && !empty(); ++i) {
    // Most fields are set most of the time.
    if (Byte() % 8 != 0) FillField(message, descriptor->field(i), depth);
  }
}

void FuzzInput::FillField(Message* message, const FieldDescriptor* field, int depth) {
  const Reflection* const reflection = message->GetReflection();
  const bool repeated = field->is_repeated();
  const int count = repeated ? Byte() % 4 : 1;
  for (int i = 0; i < count; ++i) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        repeated ? reflection->AddString(message, field, Word())
                 : reflection->SetString(message, field, Word());
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        if (!repeated) reflection->SetUInt32(message, field, Number());
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        if (!repeated) reflection->SetInt32(message, field, static_cast<int16_t>(Number()));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        if (!repeated) reflection->SetUInt64(message, field, Byte() % 8);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        if (!repeated) reflection->SetInt64(message, field, static_cast<int16_t>(Number()));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (!repeated) reflection->SetBool(message, field, Byte() % 2 == 1);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        repeated ? reflection->AddEnumValue(message, field, Byte() % 5)
                 : reflection->SetEnumValue(message, field, Byte() % 5);
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth == kMaxDepth) break;
        FillFields(repeated ? reflection->AddMessage(message, field)
                            : reflection->MutableMessage(message, field),
                   depth + 1);
        break;
      default:
        break;
    }
  }
}

}  // namespace failback
