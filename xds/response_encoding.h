// A DiscoveryResponse as it goes on the wire, made of the encodings that the resources have
// already.
//
// Thread safety: pure.

#ifndef FAILBACK_XDS_RESPONSE_ENCODING_H_
#define FAILBACK_XDS_RESPONSE_ENCODING_H_

#include "grpcpp/support/byte_buffer.h"
#include "xds/stream_state.h"

namespace failback::xds {

// Large resources are not copied: the buffer shares them.
grpc::ByteBuffer EncodeResponse(const StreamState::Response& response);

}  // namespace failback::xds

#endif  // FAILBACK_XDS_RESPONSE_ENCODING_H_
