#include "registry/group_sessions.h"

#include "absl/strings/escaping.h"

namespace failback {
namespace {

constexpr size_t kIdBytes = 16;

}  // namespace

std::string JoinSessionIds(const std::vector<std::string>& ids) {
  if (ids.size() == 1) return ids.front();
  std::string bytes;
  for (const std::string& id : ids) bytes += absl::HexStringToBytes(id);
  return absl::WebSafeBase64Escape(bytes);
}

std::vector<std::string> SplitSessionId(const std::string& id, size_t members) {
  std::string bytes;
  if (members == 1 || !absl::WebSafeBase64Unescape(id, &bytes) ||
      bytes.size() != members * kIdBytes) {
    return std::vector<std::string>(members, id);
  }
  std::vector<std::string> ids;
  for (size_t i = 0; i < members; ++i) {
    ids.push_back(absl::BytesToHexString(bytes.substr(i * kIdBytes, kIdBytes)));
  }
  return ids;
}

}  // namespace failback
