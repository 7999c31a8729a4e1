#include "registry/model/offline_mark.h"

#include <string>

#include "failback/registry/v1/registry.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

namespace failback {

using google::protobuf::internal::WireFormatLite;

Blob WithMark(const Blob& instance, const Blob& mark) {
  if (!mark || !instance) return instance;
  // The bytes of a message with one more field are those without, and the field.
  std::string shown;
  {
    google::protobuf::io::StringOutputStream stream(&shown);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteRaw(instance.data(), static_cast<int>(instance.size()));
    coded.WriteTag(WireFormatLite::MakeTag(registry::v1::ServiceInstance::kOfflineFieldNumber,
                                           WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    coded.WriteVarint32(static_cast<uint32_t>(mark.size()));
    coded.WriteRaw(mark.data(), static_cast<int>(mark.size()));
  }
  return Blob(shown);
}

}  // namespace failback
