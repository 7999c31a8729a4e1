#include "registry/canonical.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::ServiceInstance;

constexpr char kDefault[] = "default";

void SerializeSorted(const ServiceInstance& instance, std::string* out) {
  google::protobuf::io::StringOutputStream stream(out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  instance.SerializeToCodedStream(&coded);
}

}  // namespace

void AppendCanonicalKey(const InstanceKey& key, std::string* out) {
  if (key.namespace_().empty()) {
    out->append(kDefault);
  } else {
    out->append(key.namespace_());
  }
  out->push_back('\0');
  out->append(key.service());
  out->push_back('\0');
  out->append(key.instance_id());
}

std::string CanonicalKey(const InstanceKey& key) {
  std::string out;
  out.reserve(key.namespace_().size() + key.service().size() + key.instance_id().size() + 9);
  AppendCanonicalKey(key, &out);
  return out;
}

bool ParseCanonicalKey(const std::string& canonical, InstanceKey* key) {
  const size_t first = canonical.find('\0');
  if (first == std::string::npos) return false;
  const size_t second = canonical.find('\0', first + 1);
  if (second == std::string::npos || canonical.find('\0', second + 1) != std::string::npos) {
    return false;
  }
  key->set_namespace_(canonical.substr(0, first));
  key->set_service(canonical.substr(first + 1, second - first - 1));
  key->set_instance_id(canonical.substr(second + 1));
  return true;
}

std::string KeyText(const InstanceKey& key) {
  return absl::StrCat(key.namespace_().empty() ? kDefault : key.namespace_(), "/", key.service(),
                      "/", key.instance_id());
}

std::string CanonicalInstance(const ServiceInstance& instance) {
  std::string out;
  out.reserve(instance.ByteSizeLong() + sizeof(kDefault) + 1);
  if (instance.key().namespace_().empty()) {
    ServiceInstance spelled = instance;
    spelled.mutable_key()->set_namespace_(kDefault);
    SerializeSorted(spelled, &out);
  } else {
    SerializeSorted(instance, &out);
  }
  return out;
}

// MurmurHash64A (Austin Appleby, public domain), read as little-endian.
uint64_t Digest64(const char* data, size_t size) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995u;
  constexpr int kShift = 47;
  uint64_t hash = 0x5f61696c6261636bu ^ (size * kMultiplier);
  const char* const end = data + size / 8 * 8;
  for (; data != end; data += 8) {
    uint64_t word = 0;
    for (int i = 7; i >= 0; --i) word = word << 8 | static_cast<unsigned char>(data[i]);
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
