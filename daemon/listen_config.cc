#include "daemon/listen_config.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "registry/base/address.h"

namespace failback {
namespace {

// What getpwnam_r and getgrnam_r need at most, on the machines that there are.
constexpr size_t kNameBuffer = 64 << 10;

// The number that `name` stands for: itself, or what `look_up` finds.
template <typename Id, typename LookUp>
absl::StatusOr<std::optional<Id>> IdOf(const std::string& name, const char* kind, LookUp look_up) {
  if (name.empty()) return std::nullopt;
  uint32_t number = 0;
  if (absl::SimpleAtoi(name, &number)) return static_cast<Id>(number);
  std::vector<char> buffer(kNameBuffer);
  const std::optional<Id> found = look_up(name.c_str(), &buffer);
  if (found.has_value()) return found;
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is not a ", kind, " of this machine"));
}

std::optional<uid_t> FindUser(const char* name, std::vector<char>* buffer) {
  passwd entry;
  passwd* found = nullptr;
  getpwnam_r(name, &entry, buffer->data(), buffer->size(), &found);
  return found == nullptr ? std::nullopt : std::optional<uid_t>(found->pw_uid);
}

std::optional<gid_t> FindGroup(const char* name, std::vector<char>* buffer) {
  group entry;
  group* found = nullptr;
  getgrnam_r(name, &entry, buffer->data(), buffer->size(), &found);
  return found == nullptr ? std::nullopt : std::optional<gid_t>(found->gr_gid);
}

}  // namespace

absl::Status ValidateHosts(const std::string& key, const std::vector<std::string>& hosts,
                           const ConfigLoader& loader) {
  for (const std::string& host : hosts) {
    const bool name = !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
    });
    if (name) continue;
    return loader.ErrorAt(
        key, absl::StrCat("'", host,
                          "' is no host name: each is one name of letters, digits, '.', "
                          "'-' and '_', without a port; several are several entries, or the flag "
                          "several times"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ListenOptions> ToListenOptions(const config::v1::Socket& socket, bool allow_remote,
                                              const ConfigLoader& loader) {
  ListenOptions options;
  options.allow_remote_plaintext = allow_remote;
  if (!socket.mode().empty()) {
    const bool octal = socket.mode().find_first_not_of("01234567") == std::string::npos;
    const unsigned long mode = octal ? std::strtoul(socket.mode().c_str(), nullptr, 8) : ~0UL;
    if (socket.mode().size() > 5 || mode > 0777) {
      return loader.ErrorAt(
          "socket.mode",
          absl::StrCat("'", socket.mode(), "' is not a file mode from 0 to 0777, as 0660"));
    }
    options.socket_mode = static_cast<mode_t>(mode);
  }
  const auto owner = IdOf<uid_t>(socket.owner(), "user", FindUser);
  if (!owner.ok()) return loader.ErrorAt("socket.owner", std::string(owner.status().message()));
  options.socket_owner = *owner;
  const auto group = IdOf<gid_t>(socket.group(), "group", FindGroup);
  if (!group.ok()) return loader.ErrorAt("socket.group", std::string(group.status().message()));
  options.socket_group = *group;
  return options;
}

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
