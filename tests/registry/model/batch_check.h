// What a batch that is read from bytes must agree with: the batch of the parsed request.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_TESTS_REGISTRY_MODEL_BATCH_CHECK_H_
#define FAILBACK_TESTS_REGISTRY_MODEL_BATCH_CHECK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "registry/model/batch.h"
#include "registry/model/errors.h"

namespace failback {

inline constexpr uint32_t kMaxBatch = 20;
inline constexpr size_t kMaxBytes = 4 << 20;

inline absl::StatusOr<Batch> ReadRegister(const std::string& bytes,
                                          uint32_t max_items = kMaxBatch) {
  return Batch::Read(Batch::Kind::kRegister, bytes,
                     {BatchRequest(kMaxBytes, max_items), max_items});
}

inline bool SameStatus(const absl::Status& a, const absl::Status& b) {
  return a.code() == b.code() && a.message() == b.message() && ReasonOf(a) == ReasonOf(b);
}

// Metadata of what is refused is in no order.
inline bool SameIntent(const Intent& a, const Intent& b) {
  return SameStatus(a.status, b.status) && a.registers == b.registers &&
         a.persistent == b.persistent && a.key == b.key && a.key_hash == b.key_hash &&
         (!a.status.ok() || a.instance == b.instance) && a.digest == b.digest &&
         a.generation == b.generation;
}

inline bool Same(const Batch& a, const Batch& b) {
  return a.kind() == b.kind() && a.session_id() == b.session_id() && a.wait_for() == b.wait_for() &&
         a.check() == b.check() &&
         std::equal(a.intents().begin(), a.intents().end(), b.intents().begin(), b.intents().end(),
                    SameIntent);
}

// Empty, or how the bytes of a request are read in another way than they are parsed.
inline std::string DifferenceFromParsed(const std::string& bytes) {
  const absl::StatusOr<Batch> read = ReadRegister(bytes);
  RegisterRequest request;
  if (!request.ParseFromString(bytes)) {
    return read.ok() ? "was taken, and cannot be parsed" : "";
  }
  if (request.registrations_size() > static_cast<int>(kMaxBatch)) {
    return read.ok() ? "was taken, and has too many items" : "";
  }
  if (!read.ok())
    return ReasonOf(read.status()) == registry::v1::ERROR_REASON_TOO_LARGE
               ? ""
               : read.status().ToString();
  return Same(*read, Batch::Of(request)) ? "" : "other intents";
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_MODEL_BATCH_CHECK_H_
