#include "registry/failback/group_sessions.h"

#include "absl/strings/escaping.h"
#include "registry/model/ids.h"

namespace failback {
namespace {

constexpr size_t kIdBytes = 16;

}  // namespace

std::string JoinSessionIds(const std::vector<std::string>& ids) {
  if (ids.size() == 1) return ids.front();
  // One caller has opened them all.
  const std::string owner = SessionOwner(ids.front());
  std::string bytes;
  for (const std::string& id : ids) bytes += absl::HexStringToBytes(WithoutOwner(id));
  return WithOwner(absl::WebSafeBase64Escape(bytes), owner);
}

std::vector<std::string> SplitSessionId(const std::string& id, size_t members) {
  std::string bytes;
  if (members == 1 || !absl::WebSafeBase64Unescape(WithoutOwner(id), &bytes) ||
      bytes.size() != members * kIdBytes) {
    return std::vector<std::string>(members, id);
  }
  std::vector<std::string> ids;
  for (size_t i = 0; i < members; ++i) {
    ids.push_back(
        WithOwner(absl::BytesToHexString(bytes.substr(i * kIdBytes, kIdBytes)), SessionOwner(id)));
  }
  return ids;
}

}  // namespace failback
