// AdminService over gRPC: an Admin for callers who may administer.
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_DAEMON_ADMIN_ADMIN_SERVICE_H_
#define FAILBACK_DAEMON_ADMIN_ADMIN_SERVICE_H_

#include <memory>

#include "daemon/admin/admin.h"
#include "grpcpp/impl/service_type.h"
#include "registry/security/access_control.h"

namespace failback {

// For RegistryServer::Options::extra_services.
inline constexpr char kAdminServiceName[] = "failback.admin.v1.AdminService";

// `admin` outlives the service. `access`, unless null, says who may administer.
std::unique_ptr<grpc::Service> NewAdminService(const Admin* admin,
                                               std::shared_ptr<AccessControl> access);

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_ADMIN_SERVICE_H_
