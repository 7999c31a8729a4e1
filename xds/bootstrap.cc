#include "xds/bootstrap.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "registry/address.h"

namespace failback::xds {
namespace {

absl::Status FileError(const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::strerror(errno)));
}

// As a JSON string.
std::string Quoted(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  std::string json;
  // Fails only for text that is not UTF-8, which the configuration does not let in.
  static_cast<void>(google::protobuf::util::MessageToJsonString(value, &json));
  return json;
}

// Writes all of `text` to a new file and to the disk.
bool WriteFile(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  size_t written = 0;
  bool ok = fchmod(fd, 0644) == 0;
  while (ok && written < text.size()) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    ok = count >= 0;
    if (ok) written += static_cast<size_t>(count);
  }
  ok = ok && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return ok;
}

}  // namespace

std::string ChooseServerUri(const std::vector<std::string>& addresses) {
  std::string best;
  int best_rank = 0;
  for (const std::string& text : addresses) {
    const auto address = ParseAddress(text);
    if (!address.ok()) continue;
    const int rank = address->is_unix() ? 3 : address->is_local() ? 2 : 1;
    if (rank <= best_rank) continue;
    best_rank = rank;
    best = address->ToString();
    // Clients have working directories of their own.
    std::error_code ignored;
    if (address->is_unix()) {
      best = absl::StrCat("unix:", std::filesystem::absolute(address->path, ignored).string());
    }
  }
  return best;
}

std::string BootstrapJson(const Bootstrap& bootstrap) {
  // grpc-js requires a locality, with or without a zone.
  const std::string locality =
      bootstrap.zone.empty() ? "{}" : absl::StrCat("{\"zone\": ", Quoted(bootstrap.zone), "}");
  return absl::StrCat(R"({
  "xds_servers": [
    {
      "server_uri": )",
                      Quoted(bootstrap.server_uri), R"(,
      "channel_creds": [{"type": "insecure"}],
      "server_features": ["xds_v3"]
    }
  ],
  "node": {
    "id": )",
                      Quoted(bootstrap.node_id), R"(,
    "locality": )",
                      locality, R"(
  }
}
)");
}

absl::Status WriteBootstrap(const Bootstrap& bootstrap, const std::string& path) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  if (!WriteFile(temporary, BootstrapJson(bootstrap)) ||
      std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status = FileError(path);
    unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace failback::xds
