// The instances that benchmarks register: about 200 bytes each, as a service in a cluster has them.

#ifndef FAILBACK_TESTS_BENCH_INSTANCES_H_
#define FAILBACK_TESTS_BENCH_INSTANCES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "failback/registry/v1/registry.pb.h"
#include "grpcpp/support/byte_buffer.h"

namespace failback {

// Instance `number` of 100 in each service `<prefix>-<number / 100>`, or of one service when
// `one_service`. 190 to 210 bytes with a prefix of up to eight characters.
registry::v1::ServiceInstance NumberedInstance(const std::string& prefix, int64_t number,
                                               bool one_service = false);

// Register calls of `batch` instances each for instances [0, count).
std::vector<grpc::ByteBuffer> EncodedRegisters(const std::string& session_id,
                                               const std::string& prefix, int64_t count, int batch);

grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message);
// False when the bytes are not one.
bool Decode(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message);

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_INSTANCES_H_
