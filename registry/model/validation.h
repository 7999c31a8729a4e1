// What a request may contain: every limit that the comments of registry.proto state, in one place.
//
// Everything that takes an intent (StoreRegistry, FailbackRegistry, a configuration file)
// checks it with these functions, so that all refuse the same things in the same words. An error is
// INVALID_ARGUMENT / INVALID_FIELD (or TOO_LARGE) and names the field, what was found and what is
// allowed:
//
//   registrations[3].instance.port: 70000 is not in 1..65535
//
// Example: check one instance, found in a file.
//
//   absl::Status status = ValidateInstance(FieldPath("services", i), instance);
//   if (!status.ok()) return status;             // services[2].key.service: is required
//   NormalizeKey(instance.mutable_key());        // an empty namespace becomes "default"
//
// Of a batch this is what concerns the call as a whole; its items are checked where it is made
// (registry/model/batch.h).
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_VALIDATION_H_
#define FAILBACK_REGISTRY_MODEL_VALIDATION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "registry/model/instance_view.h"
#include "registry/model/messages.h"

namespace failback {

// Those of one instance are in registry/model/instance_view.h.
inline constexpr char kDefaultNamespace[] = "default";
inline constexpr int kMaxNamespaceLength = 63;
inline constexpr int kMaxServiceLength = 253;
inline constexpr int kMaxInstanceIdLength = 253;
inline constexpr int kMaxAddressLength = 253;
inline constexpr int kMaxZoneLength = 63;
inline constexpr int kMaxMetadataKeyBytes = 128;
inline constexpr int kMaxMetadataValueBytes = 1024;
inline constexpr int kMaxMetadataBytes = 16 * 1024;
inline constexpr int kMaxIdLength = 128;  // incarnation, subscription_id, session_id, store_id
inline constexpr size_t kMaxOwnerLength = 16;
inline constexpr int kMaxClientNameLength = 128;
inline constexpr size_t kMaxOfflineReasonBytes = 256;
inline constexpr size_t kMaxOperatorBytes = 128;
inline constexpr int kMaxSelectorValues = 64;  // statuses, and zones, of a selector
// Numbers above it are not taken, so that there is always a next one.
inline constexpr uint64_t kMaxGeneration = uint64_t{1} << 62;
inline constexpr int kMaxPageSize = 1000;
inline constexpr uint32_t kDefaultMaxBatch = 1000;

// Where in a request a value is, written out only when there is something to complain about. A
// path refers to its parent and its name: both outlive it.
class FieldPath {
 public:
  // The request itself: its fields go by their bare names.
  FieldPath() = default;
  explicit FieldPath(const char* name, int index = -1) : name_(name), index_(index) {}
  // `parent.name`, or `parent.name[index]`.
  FieldPath(const FieldPath& parent, const char* name, int index = -1)
      : parent_(&parent), name_(name), index_(index) {}

  // As "registrations[3].instance.port".
  std::string ToString() const;

 private:
  const FieldPath* parent_ = nullptr;
  const char* name_ = "";
  int index_ = -1;
};

// A value as an error message shows it: quoted, on one line, of its bytes `max` at most.
inline constexpr size_t kMaxQuoted = 64;
inline constexpr size_t kMaxQuotedId = 1024;  // of a pending operation: a key and more
std::string Quoted(std::string_view value, size_t max = kMaxQuoted);

// Fills in what may be left empty: the namespace.
void NormalizeKey(InstanceKey* key);
void NormalizeSelector(Selector* selector);

absl::Status ValidateKey(const FieldPath& path, const InstanceKey& key);
absl::Status ValidateGeneration(const FieldPath& path, uint64_t generation);
absl::Status ValidateInstance(const FieldPath& path, const ServiceInstance& instance);
absl::Status ValidateInstance(const FieldPath& path, const InstanceView& instance);

absl::Status ValidateSelector(const FieldPath& path, const Selector& selector);
// What may be followed: instances of a service, or all services of a namespace.
absl::Status ValidateFollowed(const FieldPath& path, const Selector& selector);

// What Register and Unregister share: both are a batch of `size` intents, in the field `field`, in
// a session, or detached.
absl::Status ValidateBatch(std::string_view session_id, int wait_for, size_t size,
                           const char* field, uint32_t max_batch);

// Whole requests.
absl::Status ValidateOpenSession(const OpenSessionRequest& request);
absl::Status ValidateKeepAlive(const KeepAliveRequest& request);
absl::Status ValidateCloseSession(const CloseSessionRequest& request);
absl::Status ValidateSubscribe(const SubscribeRequest& request);
absl::Status ValidateUnsubscribe(const UnsubscribeRequest& request);
absl::Status ValidateList(const ListRequest& request);
absl::Status ValidateSetOffline(const SetOfflineRequest& request);
// `by` of what an operator asks for.
absl::Status ValidateOperator(const std::string& by);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_VALIDATION_H_
