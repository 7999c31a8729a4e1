#include "registry/model/canonical.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::ServiceInstance;

constexpr char kDefault[] = "default";

// `instance.key`, with its tag, when its namespace is empty: what comes before and after what is to
// be explicit. Fields are serialized in the order of their numbers, and both are first in their
// message.
constexpr char kKeyTag = 0x0a;
constexpr char kSpelledNamespace[] =
    "\x0a\x07"
    "default";
constexpr size_t kSpelledSize = sizeof(kSpelledNamespace) - 1;

void AppendNames(std::string_view name_space, std::string_view service,
                 std::string_view instance_id, std::string* out) {
  out->append(name_space.empty() ? std::string_view(kDefault) : name_space);
  out->push_back('\0');
  out->append(service);
  out->push_back('\0');
  out->append(instance_id);
}

// Serializes the instance, of `size` bytes, its maps sorted.
void SerializeSorted(const ServiceInstance& instance, size_t size, char* out) {
  google::protobuf::io::ArrayOutputStream stream(out, static_cast<int>(size));
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  instance.SerializeWithCachedSizes(&coded);
}

}  // namespace

std::string CanonicalKey(const InstanceKey& key) {
  return CanonicalKey(key.namespace_(), key.service(), key.instance_id());
}

std::string CanonicalKey(std::string_view name_space, std::string_view service,
                         std::string_view instance_id) {
  std::string out;
  out.reserve(std::max(name_space.size(), sizeof(kDefault) - 1) + service.size() +
              instance_id.size() + 2);
  AppendNames(name_space, service, instance_id, &out);
  return out;
}

bool ParseCanonicalKey(const std::string& canonical, InstanceKey* key) {
  if (!IsCanonicalKey(canonical)) return false;
  const KeyNames names = SplitCanonicalKey(canonical);
  key->set_namespace_(std::string(names.name_space));
  key->set_service(std::string(names.service));
  key->set_instance_id(std::string(names.instance_id));
  return true;
}

KeyNames SplitCanonicalKey(std::string_view canonical) {
  const auto take = [&canonical] {
    const size_t end = std::min(canonical.find('\0'), canonical.size());
    const std::string_view name = canonical.substr(0, end);
    canonical.remove_prefix(std::min(end + 1, canonical.size()));
    return name;
  };
  KeyNames names;
  names.name_space = take();
  names.service = take();
  names.instance_id = canonical;
  return names;
}

size_t EncodedKeySize(std::string_view canonical) {
  const auto size = [](std::string_view name) {
    return name.empty() ? 0 : wire::BytesSize(name.size());
  };
  const KeyNames names = SplitCanonicalKey(canonical);
  return size(names.name_space) + size(names.service) + size(names.instance_id);
}

void AppendEncodedKey(std::string_view canonical, std::string* out) {
  const auto append = [out](int field, std::string_view name) {
    if (!name.empty()) wire::AppendBytes(field, name, out);
  };
  const KeyNames names = SplitCanonicalKey(canonical);
  append(InstanceKey::kNamespaceFieldNumber, names.name_space);
  append(InstanceKey::kServiceFieldNumber, names.service);
  append(InstanceKey::kInstanceIdFieldNumber, names.instance_id);
}

bool IsCanonicalKey(std::string_view canonical) {
  return std::count(canonical.begin(), canonical.end(), '\0') == 2;
}

std::string_view ServiceKeyOf(std::string_view canonical) {
  const size_t end = canonical.rfind('\0');
  return end == std::string_view::npos ? std::string_view() : canonical.substr(0, end);
}

std::string KeyText(const InstanceKey& key) {
  return absl::StrCat(key.namespace_().empty() ? kDefault : key.namespace_(), "/", key.service(),
                      "/", key.instance_id());
}

std::string CanonicalKeyText(std::string_view canonical) {
  std::string text(canonical);
  std::replace(text.begin(), text.end(), '\0', '/');
  return text;
}

std::string CanonicalInstance(const ServiceInstance& instance) {
  using google::protobuf::io::CodedOutputStream;
  const size_t size = instance.ByteSizeLong();
  std::string out;
  if (!instance.key().namespace_().empty()) {
    out.resize(size);
    SerializeSorted(instance, size, &out[0]);
    return out;
  }
  // The key's header grows by the namespace: the rest is put where it belongs, the header before
  // it.
  const auto key_size =
      instance.has_key() ? static_cast<uint32_t>(instance.key().ByteSizeLong()) : 0;
  const auto spelled_size = static_cast<uint32_t>(key_size + kSpelledSize);
  const size_t old_header = instance.has_key() ? 1 + CodedOutputStream::VarintSize32(key_size) : 0;
  const size_t new_header = 1 + CodedOutputStream::VarintSize32(spelled_size) + kSpelledSize;
  out.resize(new_header - old_header + size);
  SerializeSorted(instance, size, &out[new_header - old_header]);
  out[0] = kKeyTag;
  uint8_t* const after =
      CodedOutputStream::WriteVarint32ToArray(spelled_size, reinterpret_cast<uint8_t*>(&out[1]));
  std::memcpy(after, kSpelledNamespace, kSpelledSize);
  return out;
}

std::string CanonicalRegistration(const ServiceInstance& instance) {
  if (!instance.has_offline()) return CanonicalInstance(instance);
  ServiceInstance registered = instance;
  registered.clear_offline();
  return CanonicalInstance(registered);
}

namespace {

uint64_t LoadLittleEndian64(const char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}

}  // namespace

// MurmurHash64A (Austin Appleby, public domain), read as little-endian.
uint64_t Digest64(const char* data, size_t size) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995u;
  constexpr int kShift = 47;
  uint64_t hash = 0x5f61696c6261636bu ^ (size * kMultiplier);
  const char* const end = data + size / 8 * 8;
  for (; data != end; data += 8) {
    uint64_t word = LoadLittleEndian64(data);
    word *= kMultiplier;
    word ^= word >> kShift;
    word *= kMultiplier;
    hash = (hash ^ word) * kMultiplier;
  }
  if (const size_t rest = size % 8; rest > 0) {
    uint64_t word = 0;
    for (size_t i = rest; i-- > 0;) word = word << 8 | static_cast<unsigned char>(data[i]);
    hash = (hash ^ word) * kMultiplier;
  }
  hash ^= hash >> kShift;
  hash *= kMultiplier;
  return hash ^ (hash >> kShift);
}

}  // namespace failback
