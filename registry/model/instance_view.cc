#include "registry/model/instance_view.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/timestamp.pb.h"
#include "registry/base/utf8.h"

namespace failback {
namespace {

using google::protobuf::io::CodedOutputStream;
using registry::v1::InstanceKey;
using registry::v1::OfflineMark;
using registry::v1::RegisterRequest;
using registry::v1::Registration;
using registry::v1::ServiceInstance;

enum WireType : uint32_t { kVarint = 0, kBytes = 2 };

constexpr uint32_t Tag(int field, WireType type) {
  return static_cast<uint32_t>(field) << 3 | type;
}

// Entries of a map are messages of a key and a value.
constexpr uint32_t kEntryKey = Tag(1, kBytes);
constexpr uint32_t kEntryValue = Tag(2, kBytes);

// `namespace: "default"` as a field of a key.
constexpr char kSpelledNamespace[] =
    "\x0a\x07"
    "default";
constexpr size_t kSpelledSize = sizeof(kSpelledNamespace) - 1;
constexpr char kKeyTag = 0x0a;

// Reads the fields of a message one after the other. Every Read says whether it could.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes)
      : next_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool done() const { return next_ == end_; }
  const char* position() const { return next_; }

  // In the shortest form only.
  bool ReadVarint(uint64_t* value) {
    if (next_ != end_ && static_cast<unsigned char>(*next_) < 0x80) {  // most are this short
      *value = static_cast<unsigned char>(*next_++);
      return true;
    }
    uint64_t result = 0;
    for (int shift = 0; shift < 64 && next_ != end_; shift += 7) {
      const auto byte = static_cast<unsigned char>(*next_++);
      if (shift == 63 && byte > 1) return false;
      result |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *value = result;
        return byte != 0 || shift == 0;
      }
    }
    return false;
  }

  template <typename Number>
  bool ReadNumber(Number* number) {
    uint64_t value;
    if (!ReadVarint(&value) || value > static_cast<uint64_t>(std::numeric_limits<Number>::max())) {
      return false;
    }
    *number = static_cast<Number>(value);
    return true;
  }

  bool ReadBytes(std::string_view* bytes) {
    uint64_t size;
    if (!ReadVarint(&size) || size > static_cast<uint64_t>(end_ - next_)) return false;
    *bytes = {next_, static_cast<size_t>(size)};
    next_ += size;
    return true;
  }

  // Of a field that is left out when it is empty.
  bool ReadText(std::string_view* text) { return ReadBytes(text) && !text->empty(); }

 private:
  const char* next_;
  const char* const end_;
};

bool ReadKey(std::string_view bytes, EncodedInstance* instance) {
  FieldReader fields(bytes);
  InstanceView& view = instance->view;
  instance->key_names = bytes;
  uint32_t last = 0;
  while (!fields.done()) {
    uint32_t tag;
    if (!fields.ReadNumber(&tag) || tag <= last) return false;
    last = tag;
    switch (tag) {
      case Tag(InstanceKey::kNamespaceFieldNumber, kBytes):
        if (!fields.ReadText(&view.name_space)) return false;
        instance->key_names.remove_prefix(fields.position() - bytes.data());
        break;
      case Tag(InstanceKey::kServiceFieldNumber, kBytes):
        if (!fields.ReadText(&view.service)) return false;
        break;
      case Tag(InstanceKey::kInstanceIdFieldNumber, kBytes):
        if (!fields.ReadText(&view.instance_id)) return false;
        break;
      default:
        return false;
    }
  }
  return true;
}

bool ReadEntry(std::string_view bytes, InstanceView::Entry* entry) {
  FieldReader fields(bytes);
  uint32_t tag;
  return fields.ReadNumber(&tag) && tag == kEntryKey && fields.ReadBytes(&entry->key) &&
         fields.ReadNumber(&tag) && tag == kEntryValue && fields.ReadBytes(&entry->value) &&
         fields.done();
}

// Whether `bytes` are a Timestamp.
bool IsTime(std::string_view bytes) {
  FieldReader fields(bytes);
  uint32_t last = 0;
  while (!fields.done()) {
    uint32_t tag;
    uint64_t value;
    if (!fields.ReadNumber(&tag) || tag <= last || !fields.ReadVarint(&value) || value == 0) {
      return false;
    }
    last = tag;
    if (tag != Tag(google::protobuf::Timestamp::kSecondsFieldNumber, kVarint) &&
        tag != Tag(google::protobuf::Timestamp::kNanosFieldNumber, kVarint)) {
      return false;
    }
  }
  return true;
}

// Whether `bytes` are an OfflineMark that every client can read.
bool IsMark(std::string_view bytes) {
  FieldReader fields(bytes);
  uint32_t last = 0;
  while (!fields.done()) {
    uint32_t tag;
    if (!fields.ReadNumber(&tag) || tag <= last) return false;
    last = tag;
    std::string_view value;
    switch (tag) {
      case Tag(OfflineMark::kReasonFieldNumber, kBytes):
      case Tag(OfflineMark::kByFieldNumber, kBytes):
        if (!fields.ReadText(&value) || !IsUtf8(value)) return false;
        break;
      case Tag(OfflineMark::kTimeFieldNumber, kBytes):
        if (!fields.ReadBytes(&value) || !IsTime(value)) return false;
        break;
      default:
        return false;
    }
  }
  return true;
}

// Puts the metadata in the order of its keys; false when a key is there twice.
bool SortMetadata(EncodedInstance* instance) {
  auto& metadata = instance->view.metadata;
  instance->reordered = false;
  // Few, and often sorted already: insertion.
  for (size_t i = 1; i < metadata.size(); ++i) {
    const InstanceView::Entry entry = metadata[i];
    size_t to = i;
    for (; to > 0; --to) {
      const int order = entry.key.compare(metadata[to - 1].key);
      if (order == 0) return false;
      if (order > 0) break;
      metadata[to] = metadata[to - 1];
    }
    if (to == i) continue;
    metadata[to] = entry;
    instance->reordered = true;
  }
  return true;
}

// The whole field, tag and length included, that an entry of the metadata was read from: as all
// lengths are in their shortest form, its key and value show where it begins.
std::string_view FieldOf(const InstanceView::Entry& entry) {
  const auto headed = [](size_t size) {
    return 1 + CodedOutputStream::VarintSize32(static_cast<uint32_t>(size));
  };
  const size_t before_key = headed(entry.key.size());
  const size_t size =
      before_key + entry.key.size() + headed(entry.value.size()) + entry.value.size();
  const char* const begin = entry.key.data() - before_key - headed(size);
  return {begin, headed(size) + size};
}

// The size of the canonical key as a field of its instance, without its tag and length.
size_t CanonicalKeySize(const EncodedInstance& instance) {
  const InstanceView& view = instance.view;
  const size_t name_space =
      view.name_space.empty()
          ? kSpelledSize
          : 1 + CodedOutputStream::VarintSize32(static_cast<uint32_t>(view.name_space.size())) +
                view.name_space.size();
  return name_space + instance.key_names.size();
}

char* Append(std::string_view bytes, char* out) {
  std::memcpy(out, bytes.data(), bytes.size());
  return out + bytes.size();
}

char* AppendVarint(size_t value, char* out) {
  return reinterpret_cast<char*>(CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(value), reinterpret_cast<uint8_t*>(out)));
}

}  // namespace

InstanceView::InstanceView(const ServiceInstance& instance)
    : name_space(instance.key().namespace_()),
      service(instance.key().service()),
      instance_id(instance.key().instance_id()),
      address(instance.address()),
      port(instance.port()),
      status(instance.status()),
      weight(instance.weight()),
      has_weight(instance.has_weight()),
      zone(instance.zone()),
      persistent(instance.persistent()),
      instance_count(instance.instance_count()),
      offline(instance.has_offline()),
      bytes(instance.ByteSizeLong()) {
  metadata.reserve(instance.metadata().size());
  for (const auto& [key, value] : instance.metadata()) metadata.push_back({key, value});
}

void InstanceView::Clear() {
  name_space = service = instance_id = address = zone = std::string_view();
  port = weight = 0;
  status = 0;
  metadata.clear();
  persistent = has_weight = false;
  instance_count = 0;
  offline = false;
  bytes = 0;
}

size_t EncodedInstance::CanonicalSize() const {
  const size_t key = CanonicalKeySize(*this);
  return 1 + CodedOutputStream::VarintSize32(static_cast<uint32_t>(key)) + key + after_key.size();
}

void EncodedInstance::WriteCanonical(char* out) const {
  *out++ = kKeyTag;
  out = AppendVarint(CanonicalKeySize(*this), out);
  if (view.name_space.empty()) {
    out = Append({kSpelledNamespace, kSpelledSize}, out);
  } else {
    *out++ = kSpelledNamespace[0];
    out = AppendVarint(view.name_space.size(), out);
    out = Append(view.name_space, out);
  }
  out = Append(key_names, out);
  if (!reordered) {
    Append(after_key, out);
    return;
  }
  const size_t before = metadata.data() - after_key.data();
  out = Append(after_key.substr(0, before), out);
  for (const InstanceView::Entry& entry : view.metadata) out = Append(FieldOf(entry), out);
  Append(after_key.substr(before + metadata.size()), out);
}

namespace {

enum class SetBy { kOwner, kRegistry };

bool Read(std::string_view bytes, SetBy set_by, EncodedInstance* instance) {
  InstanceView& view = instance->view;
  view.Clear();
  view.bytes = bytes.size();
  if (bytes.size() > static_cast<size_t>(kMaxInstanceBytes)) return false;
  FieldReader fields(bytes);
  const char* key_end = nullptr;
  const char* metadata_begin = nullptr;
  const char* metadata_end = nullptr;
  uint32_t last = 0;
  while (!fields.done()) {
    const char* const begin = fields.position();
    uint32_t tag;
    if (!fields.ReadNumber(&tag)) return false;
    constexpr uint32_t kMetadata = Tag(ServiceInstance::kMetadataFieldNumber, kBytes);
    if (tag < last || (tag == last && tag != kMetadata)) return false;
    last = tag;
    switch (tag) {
      case Tag(ServiceInstance::kKeyFieldNumber, kBytes): {
        std::string_view key;
        if (!fields.ReadText(&key) || !ReadKey(key, instance)) return false;
        key_end = fields.position();
        break;
      }
      case Tag(ServiceInstance::kAddressFieldNumber, kBytes):
        if (!fields.ReadText(&view.address)) return false;
        break;
      case Tag(ServiceInstance::kPortFieldNumber, kVarint):
        if (!fields.ReadNumber(&view.port) || view.port == 0) return false;
        break;
      case Tag(ServiceInstance::kStatusFieldNumber, kVarint):
        if (!fields.ReadNumber(&view.status) || view.status == 0) return false;
        break;
      case Tag(ServiceInstance::kWeightFieldNumber, kVarint):  // zero is explicit
        if (!fields.ReadNumber(&view.weight)) return false;
        view.has_weight = true;
        break;
      case Tag(ServiceInstance::kZoneFieldNumber, kBytes):
        if (!fields.ReadText(&view.zone)) return false;
        break;
      case kMetadata: {
        std::string_view entry;
        if (view.metadata.size() == static_cast<size_t>(kMaxMetadataEntries)) return false;
        view.metadata.emplace_back();
        if (!fields.ReadText(&entry) || !ReadEntry(entry, &view.metadata.back())) return false;
        metadata_end = fields.position();
        if (metadata_begin == nullptr) metadata_begin = begin;
        break;
      }
      case Tag(ServiceInstance::kPersistentFieldNumber, kVarint): {
        uint32_t persistent;
        if (!fields.ReadNumber(&persistent) || persistent != 1) return false;
        view.persistent = true;
        break;
      }
      case Tag(ServiceInstance::kInstanceCountFieldNumber, kVarint):
        if (set_by == SetBy::kOwner || !fields.ReadNumber(&view.instance_count) ||
            view.instance_count == 0) {
          return false;
        }
        break;
      case Tag(ServiceInstance::kOfflineFieldNumber, kBytes): {
        std::string_view mark;
        if (set_by == SetBy::kOwner || !fields.ReadBytes(&mark) || !IsMark(mark)) return false;
        view.offline = true;
        break;
      }
      default:
        return false;
    }
  }
  if (key_end == nullptr) return false;
  const char* const end = bytes.data() + bytes.size();
  instance->after_key = {key_end, static_cast<size_t>(end - key_end)};
  instance->metadata = {metadata_begin, static_cast<size_t>(metadata_end - metadata_begin)};
  return SortMetadata(instance);
}

}  // namespace

bool ReadInstance(std::string_view bytes, EncodedInstance* instance) {
  return Read(bytes, SetBy::kOwner, instance);
}

bool ReadSentInstance(std::string_view bytes, EncodedInstance* instance) {
  return Read(bytes, SetBy::kRegistry, instance);
}

bool IsText(const InstanceView& instance) {
  for (const std::string_view text : {instance.name_space, instance.service, instance.instance_id,
                                      instance.address, instance.zone}) {
    if (!IsUtf8(text)) return false;
  }
  return std::all_of(
      instance.metadata.begin(), instance.metadata.end(),
      [](const InstanceView::Entry& entry) { return IsUtf8(entry.key) && IsUtf8(entry.value); });
}

RegisterReader::RegisterReader(std::string_view bytes) : rest_(bytes) {
  FieldReader fields(bytes);
  uint32_t last = 0;
  const char* items_end = bytes.data();
  while (!fields.done()) {
    const char* const begin = fields.position();
    uint32_t tag;
    std::string_view skipped;
    if (!fields.ReadNumber(&tag)) return;
    constexpr uint32_t kItems = Tag(RegisterRequest::kRegistrationsFieldNumber, kBytes);
    if (tag < last || (tag == last && tag != kItems)) return;
    last = tag;
    switch (tag) {
      case Tag(RegisterRequest::kSessionIdFieldNumber, kBytes):
        if (!fields.ReadBytes(&session_id_)) return;
        break;
      case kItems:
        if (!fields.ReadBytes(&skipped)) return;
        if (size_++ == 0) rest_.remove_prefix(begin - bytes.data());
        items_end = fields.position();
        break;
      case Tag(RegisterRequest::kWaitForFieldNumber, kVarint):
        if (!fields.ReadNumber(&wait_for_)) return;
        break;
      case Tag(RegisterRequest::kCheckFieldNumber, kVarint):
        if (!fields.ReadNumber(&check_)) return;
        break;
      default:
        return;
    }
  }
  if (size_ == 0) return;
  rest_ = rest_.substr(0, items_end - rest_.data());
  ok_ = true;
}

bool RegisterReader::Next(EncodedRegistration* item) {
  FieldReader items(rest_);
  uint32_t tag;
  std::string_view bytes;
  if (!items.ReadNumber(&tag) || !items.ReadBytes(&bytes)) return false;
  rest_.remove_prefix(items.position() - rest_.data());

  FieldReader fields(bytes);
  std::string_view instance;
  if (!fields.ReadNumber(&tag) || tag != Tag(Registration::kInstanceFieldNumber, kBytes) ||
      !fields.ReadBytes(&instance) || !ReadInstance(instance, &item->instance)) {
    return false;
  }
  item->generation = 0;
  return fields.done() ||
         (fields.ReadNumber(&tag) && tag == Tag(Registration::kGenerationFieldNumber, kVarint) &&
          fields.ReadNumber(&item->generation) && fields.done());
}

}  // namespace failback
