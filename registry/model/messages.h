// The messages of the registry protocol under short names (registry.proto, docs/protocol.md). They
// are the vocabulary of the C++ interface too.

#ifndef FAILBACK_REGISTRY_MODEL_MESSAGES_H_
#define FAILBACK_REGISTRY_MODEL_MESSAGES_H_

#include "failback/admin/v1/offline.pb.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

using admin::v1::SetOfflineRequest;
using admin::v1::SetOfflineResponse;
using registry::v1::CloseSessionRequest;
using registry::v1::CloseSessionResponse;
using registry::v1::InstanceKey;
using registry::v1::InstanceRecord;
using registry::v1::KeepAliveRequest;
using registry::v1::KeepAliveResponse;
using registry::v1::ListRequest;
using registry::v1::ListResponse;
using registry::v1::OpenSessionRequest;
using registry::v1::OpenSessionResponse;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::Selector;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeRequest;
using registry::v1::SubscribeResponse;
using registry::v1::UnregisterRequest;
using registry::v1::UnregisterResponse;
using registry::v1::UnsubscribeRequest;
using registry::v1::UnsubscribeResponse;
using registry::v1::WatchRequest;
using registry::v1::WatchResponse;

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_MESSAGES_H_
