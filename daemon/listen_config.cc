#include "daemon/listen_config.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "registry/address.h"

namespace failback {

absl::Status ValidateListen(const std::vector<std::string>& listen, bool allow_remote,
                            const ConfigLoader& loader) {
  if (listen.empty()) return loader.ErrorAt("listen", "names no address");
  for (size_t i = 0; i < listen.size(); ++i) {
    const std::string path = absl::StrCat("listen[", i, "]");
    const absl::StatusOr<Address> address = ParseAddress(listen[i], /*min_port=*/0);
    if (!address.ok()) return loader.ErrorAt(path, std::string(address.status().message()));
    if (!address->is_local() && !allow_remote) {
      return loader.ErrorAt(
          path,
          absl::StrCat("other machines can connect to ", listen[i],
                       ", and calls are not encrypted; listen on a loopback address or "
                       "unix:/PATH, set tls.cert and tls.key, or set allow_remote_plaintext"));
    }
  }
  return absl::OkStatus();
}

}  // namespace failback
