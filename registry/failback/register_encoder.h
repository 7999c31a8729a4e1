// Writes a RegisterRequest of instances that are encoded already, as the core keeps them: what a
// registry that takes bytes (registry/encoded_registrar.h) gets without a message in between.
//
//   RegisterEncoder request;
//   request.SetSession(session_id);
//   for (const auto& record : records) request.Add(record->payload, record->generation);
//   registrar->RegisterEncoded(request.bytes(), EncodedRegistrar::Results::kAll, &done);
//
// Thread safety: none.

#ifndef FAILBACK_REGISTRY_FAILBACK_REGISTER_ENCODER_H_
#define FAILBACK_REGISTRY_FAILBACK_REGISTER_ENCODER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "failback/registry/v1/registry.pb.h"
#include "registry/model/wire_writer.h"

namespace failback {

class RegisterEncoder {
 public:
  // Once, before all registrations.
  void SetSession(std::string_view session_id) {
    using registry::v1::RegisterRequest;
    if (!session_id.empty()) {
      wire::AppendBytes(RegisterRequest::kSessionIdFieldNumber, session_id, &bytes_);
    }
  }

  // `instance` is a serialized ServiceInstance.
  void Add(std::string_view instance, uint64_t generation) {
    using registry::v1::RegisterRequest;
    using registry::v1::Registration;
    const size_t size =
        wire::BytesSize(instance.size()) + (generation == 0 ? 0 : wire::NumberSize(generation));
    wire::AppendHead(RegisterRequest::kRegistrationsFieldNumber, size, &bytes_);
    wire::AppendBytes(Registration::kInstanceFieldNumber, instance, &bytes_);
    if (generation != 0) {
      wire::AppendNumber(Registration::kGenerationFieldNumber, generation, &bytes_);
    }
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_REGISTER_ENCODER_H_
