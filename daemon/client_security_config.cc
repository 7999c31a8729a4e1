#include "daemon/client_security_config.h"

#include "absl/strings/str_cat.h"

namespace failback {

absl::StatusOr<std::shared_ptr<ClientSecurity>> LoadClientSecurity(const config::v1::ClientTls& tls,
                                                                   const std::string& tls_key,
                                                                   const std::string& token_file,
                                                                   const ConfigLoader& loader) {
  ClientSecurity::Options options;
  options.tls = {tls.ca(), tls.cert(), tls.key()};
  options.server_name = tls.server_name();
  options.token_file = token_file;
  if (options.tls.paths().empty() && options.server_name.empty() && token_file.empty()) {
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<ClientSecurity>> security = ClientSecurity::Create(options);
  if (security.ok()) return security;
  // "option: problem"
  const std::string message(security.status().message());
  const size_t colon = message.find(": ");
  const std::string option = message.substr(0, colon);
  return loader.ErrorAt(option == "token_file" ? option : absl::StrCat(tls_key, ".", option),
                        message.substr(colon + 2));
}

}  // namespace failback
