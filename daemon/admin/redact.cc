#include "daemon/admin/redact.h"

#include <vector>

namespace failback {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kHidden[] = "***";

// All values of a map<string, string>.
void HideValues(Message* message, const FieldDescriptor* field) {
  const Reflection* const reflection = message->GetReflection();
  const FieldDescriptor* const value = field->message_type()->FindFieldByNumber(2);
  for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
    Message* const entry = reflection->MutableRepeatedMessage(message, field, i);
    entry->GetReflection()->SetString(entry, value, kHidden);
  }
}

void RedactText(Message* message, const FieldDescriptor* field) {
  const Reflection* const reflection = message->GetReflection();
  if (!field->is_repeated()) {
    reflection->SetString(message, field, RedactUri(reflection->GetString(*message, field)));
    return;
  }
  for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
    // A program's name says what is run; its arguments may hold anything.
    const bool hide = field->name() == "argv" && i > 0;
    const std::string text = reflection->GetRepeatedString(*message, field, i);
    reflection->SetRepeatedString(message, field, i, hide ? kHidden : RedactUri(text));
  }
}

}  // namespace

std::string RedactUri(const std::string& text) {
  const size_t scheme = text.find("://");
  if (scheme == std::string::npos) return text;
  const size_t begin = scheme + 3;
  const size_t at = text.rfind('@', text.find('/', begin));
  if (at == std::string::npos || at < begin) return text;
  const size_t colon = text.find(':', begin);
  if (colon == std::string::npos || colon > at) return text;
  return text.substr(0, colon + 1) + kHidden + text.substr(at);
}

void RedactConfig(Message* config) {
  const Reflection* const reflection = config->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*config, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_map()) {
      if (field->name() == "headers") HideValues(config, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      RedactText(config, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) {
        RedactConfig(reflection->MutableMessage(config, field));
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(*config, field); ++i) {
        RedactConfig(reflection->MutableRepeatedMessage(config, field, i));
      }
    }
  }
}

}  // namespace failback
