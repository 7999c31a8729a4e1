// A ServiceInstance whose strings stay where they are: in a message, or in an encoded request.
//
// Making a message of an instance takes some twenty allocations, ten times what it takes to store
// it. What only checks an instance, or needs its key and its bytes, reads a view instead:
//
//   EncodedInstance encoded;
//   if (!ReadInstance(bytes, &encoded)) return Parse(bytes);  // rare: not canonical
//   absl::Status status = ValidateInstance(FieldPath("instance"), encoded.view);
//   std::string canonical(encoded.CanonicalSize(), '\0');
//   encoded.WriteCanonical(canonical.data());
//
// Thread safety: none of its own. A view is valid as long as what it was made of.

#ifndef FAILBACK_REGISTRY_MODEL_INSTANCE_VIEW_H_
#define FAILBACK_REGISTRY_MODEL_INSTANCE_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

// More metadata is never valid, nor are more bytes of a whole instance, fields that this version
// does not know included: nothing is sorted, copied or stored beyond them.
inline constexpr int kMaxMetadataEntries = 64;
inline constexpr int kMaxInstanceBytes = 64 * 1024;

struct InstanceView {
  struct Entry {
    std::string_view key;
    std::string_view value;
  };

  InstanceView() = default;
  explicit InstanceView(const registry::v1::ServiceInstance& instance);

  void Clear();

  std::string_view name_space;  // empty: "default"
  std::string_view service;
  std::string_view instance_id;
  std::string_view address;
  uint32_t port = 0;
  int status = 0;
  uint32_t weight = 0;
  bool has_weight = false;
  std::string_view zone;
  absl::InlinedVector<Entry, 8> metadata;
  bool persistent = false;
  uint64_t instance_count = 0;
  bool offline = false;  // an operator's mark is on it
  size_t bytes = 0;      // of the instance as it was encoded
};

// Whether all its text is UTF-8: no message holds other text.
bool IsText(const InstanceView& instance);

// An instance in its encoded form. Entries of the metadata are sorted by their keys.
struct EncodedInstance {
  InstanceView view;

  // The size of the canonical bytes (registry/model/canonical.h), and the bytes.
  size_t CanonicalSize() const;
  void WriteCanonical(char* out) const;

  // Where things are, for the two above.
  std::string_view key_names;  // the fields of the key that follow the namespace
  std::string_view after_key;  // all fields but the key
  std::string_view metadata;   // of these, those of the metadata, as they came
  bool reordered = false;      // they came in another order
};

// Reads `bytes`, a ServiceInstance, if it is encoded as protobuf's own serializers encode it:
// fields in order, each once, none with its default, and only those that an owner sets. False for
// all else, be it valid or not, and for what is larger than a valid one: parse it.
bool ReadInstance(std::string_view bytes, EncodedInstance* instance);

// The same of an instance as a registry sends it: with the fields that only a registry sets.
bool ReadSentInstance(std::string_view bytes, EncodedInstance* instance);

// One Registration.
struct EncodedRegistration {
  EncodedInstance instance;
  uint64_t generation = 0;
};

// Reads a RegisterRequest item by item, under the same terms.
//
//   RegisterReader reader(bytes);
//   if (!reader.ok()) return false;
//   EncodedRegistration item;
//   for (int i = 0; i < reader.size(); ++i) {
//     if (!reader.Next(&item)) return false;
//   }
class RegisterReader {
 public:
  explicit RegisterReader(std::string_view bytes);

  bool ok() const { return ok_; }
  std::string_view session_id() const { return session_id_; }
  int wait_for() const { return wait_for_; }
  bool check() const { return check_; }
  int size() const { return size_; }  // registrations

  bool Next(EncodedRegistration* item);

 private:
  std::string_view rest_;
  std::string_view session_id_;
  int wait_for_ = 0;
  bool check_ = false;
  int size_ = 0;
  bool ok_ = false;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_INSTANCE_VIEW_H_
