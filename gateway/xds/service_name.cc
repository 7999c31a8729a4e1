#include "gateway/xds/service_name.h"

#include "registry/model/validation.h"

namespace failback::xds {

absl::StatusOr<Selector> ParseServiceName(const std::string& name) {
  Selector selector;
  const size_t slash = name.find('/');
  if (slash == std::string::npos) {
    selector.set_service(name);
  } else {
    if (slash == 0) return absl::InvalidArgumentError("the namespace before the slash is empty");
    selector.set_namespace_(name.substr(0, slash));
    selector.set_service(name.substr(slash + 1));
  }
  if (selector.service().empty()) return absl::InvalidArgumentError("the service is empty");
  NormalizeSelector(&selector);
  if (absl::Status status = ValidateSelector(FieldPath(), selector); !status.ok()) return status;
  return selector;
}

}  // namespace failback::xds
