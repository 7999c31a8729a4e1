#include "registry/etcd/stored.h"

#include <cstdint>

#include "absl/time/time.h"
#include "google/protobuf/io/coded_stream.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/offline_mark.h"
#include "registry/model/stored_text.h"
#include "registry/model/validation.h"

namespace failback {
namespace etcd {
namespace {

using failback::etcd::v1::Meta;
using failback::etcd::v1::Stored;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kMetaTag = Stored::kMetaFieldNumber << 3 | 2;  // length-delimited

// Reads the meta data in front of `value`, and returns how long they are; 0 when there are none.
size_t ReadMeta(const std::string& value, Meta* meta) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(value.data()),
                         static_cast<int>(value.size()));
  uint32_t size = 0;
  if (input.ReadTag() != kMetaTag || !input.ReadVarint32(&size)) return 0;
  const auto begin = static_cast<size_t>(input.CurrentPosition());
  if (size > value.size() - begin) return 0;
  if (!meta->ParseFromArray(value.data() + begin, static_cast<int>(size))) return 0;
  return begin + size;
}

}  // namespace

void EncodeMeta(const Meta& meta, std::string* head) {
  // A Stored, without a copy of the meta data.
  const auto size = static_cast<uint32_t>(meta.ByteSizeLong());
  head->resize(CodedOutputStream::VarintSize32(kMetaTag) + CodedOutputStream::VarintSize32(size) +
               size);
  auto* out = reinterpret_cast<uint8_t*>(head->data());
  out = CodedOutputStream::WriteTagToArray(kMetaTag, out);
  out = CodedOutputStream::WriteVarint32ToArray(size, out);
  meta.SerializeWithCachedSizesToArray(out);
}

std::string EncodeStored(const StoredRecord& record) {
  std::string value;
  EncodeMeta(record.meta, &value);
  value.append(record.instance.view());
  return value;
}

StoredRecord DecodeStored(std::string_view canonical, const std::string& value) {
  StoredRecord record;
  if (const size_t begin = ReadMeta(value, &record.meta); begin > 0) {
    const std::string_view instance = std::string_view(value).substr(begin);
    if (!instance.empty() && IsReadableInstance(instance)) record.instance = Blob(instance);
    return record;
  }
  record.meta.Clear();
  ServiceInstance instance;
  if (value.empty() || !instance.ParseFromString(value) ||
      !ValidateInstance(FieldPath(), instance).ok() || CanonicalKey(instance.key()) != canonical) {
    return record;
  }
  record.instance = Blob(CanonicalInstance(instance));
  return record;
}

Blob DecodeMark(const std::string& value) { return Blob(ReadableMark(value)); }

registry::v1::InstanceRecord MakeRecord(const StoredRecord& stored, const mvccpb::KeyValue& kv,
                                        const Blob& mark) {
  const Blob shown = WithMark(stored.instance, mark);
  registry::v1::InstanceRecord record;
  record.mutable_instance()->ParseFromArray(shown.data(), static_cast<int>(shown.size()));
  if (!stored.meta.owner().empty()) {
    record.set_incarnation(stored.meta.owner());
    record.set_client_name(stored.meta.client_name());
    record.set_rank(stored.meta.fence().rank());
    record.set_generation(stored.meta.fence().generation());
  }
  record.set_create_revision(stored.meta.create_revision() != 0
                                 ? static_cast<uint64_t>(stored.meta.create_revision())
                                 : static_cast<uint64_t>(kv.mod_revision()));
  record.set_modify_revision(static_cast<uint64_t>(kv.mod_revision()));
  if (stored.meta.create_ms() != 0) {
    *record.mutable_create_time() = ToProto(absl::FromUnixMillis(stored.meta.create_ms()));
    *record.mutable_modify_time() = ToProto(absl::FromUnixMillis(stored.meta.modify_ms()));
  }
  record.set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  return record;
}

}  // namespace etcd
}  // namespace failback
