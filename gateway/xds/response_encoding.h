// A DiscoveryResponse as it goes on the wire, made of the encodings that the resources have
// already.
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_XDS_RESPONSE_ENCODING_H_
#define FAILBACK_GATEWAY_XDS_RESPONSE_ENCODING_H_

#include "gateway/xds/stream_state.h"
#include "grpcpp/support/byte_buffer.h"

namespace failback::xds {

// Large resources are not copied: the buffer shares them.
grpc::ByteBuffer EncodeResponse(const StreamState::Response& response);

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_RESPONSE_ENCODING_H_
