#include "gateway/xds/bootstrap.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "registry/base/address.h"
#include "registry/base/small_file.h"

namespace failback::xds {
namespace {

// As a JSON string.
std::string Quoted(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  std::string json;
  // Fails only for text that is not UTF-8, which the configuration does not let in.
  static_cast<void>(google::protobuf::util::MessageToJsonString(value, &json));
  return json;
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
  return ReplaceFile(path, BootstrapJson(bootstrap), 0644);
}

}  // namespace failback::xds
