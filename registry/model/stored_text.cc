#include "registry/model/stored_text.h"

#include "failback/registry/v1/registry.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "registry/base/utf8.h"
#include "registry/model/instance_view.h"

namespace failback {

bool IsReadableInstance(std::string_view instance) {
  EncodedInstance encoded;
  if (ReadInstance(instance, &encoded)) return IsText(encoded.view);
  registry::v1::ServiceInstance parsed;
  return parsed.ParseFromArray(instance.data(), static_cast<int>(instance.size()));
}

bool HasUnreadableText(std::string_view instance) {
  EncodedInstance encoded;
  return ReadInstance(instance, &encoded) && !IsText(encoded.view);
}

std::string ReadableMark(std::string_view mark) {
  const auto size = static_cast<int>(mark.size());
  if (registry::v1::OfflineMark().ParseFromArray(mark.data(), size)) return std::string(mark);
  google::protobuf::UnknownFieldSet fields;
  if (!fields.ParseFromArray(mark.data(), size)) return "";  // offline all the same
  for (int i = 0; i < fields.field_count(); ++i) {
    google::protobuf::UnknownField* const field = fields.mutable_field(i);
    const bool text = field->number() == registry::v1::OfflineMark::kReasonFieldNumber ||
                      field->number() == registry::v1::OfflineMark::kByFieldNumber;
    if (!text || field->type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) continue;
    field->set_length_delimited(MadeUtf8(field->length_delimited()));
  }
  std::string mended;
  fields.SerializeToString(&mended);
  return mended;
}

}  // namespace failback
