#include "xds/bootstrap.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "registry/address.h"

namespace failback::xds {
namespace {

using google::protobuf::Struct;

absl::Status FileError(const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::strerror(errno)));
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
  }
  return best;
}

std::string BootstrapJson(const Bootstrap& bootstrap) {
  Struct root;
  Struct& server = *(*root.mutable_fields())["xds_servers"]
                        .mutable_list_value()
                        ->add_values()
                        ->mutable_struct_value();
  (*server.mutable_fields())["server_uri"].set_string_value(bootstrap.server_uri);
  (*(*server.mutable_fields())["channel_creds"]
        .mutable_list_value()
        ->add_values()
        ->mutable_struct_value()
        ->mutable_fields())["type"]
      .set_string_value("insecure");
  (*server.mutable_fields())["server_features"]
      .mutable_list_value()
      ->add_values()
      ->set_string_value("xds_v3");
  auto& node = *(*root.mutable_fields())["node"].mutable_struct_value()->mutable_fields();
  node["id"].set_string_value(bootstrap.node_id);
  // grpc-js requires it, with or without a zone.
  auto& locality = *node["locality"].mutable_struct_value()->mutable_fields();
  if (!bootstrap.zone.empty()) locality["zone"].set_string_value(bootstrap.zone);

  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  std::string json;
  google::protobuf::util::MessageToJsonString(root, &json, options).ok();
  return json;
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
