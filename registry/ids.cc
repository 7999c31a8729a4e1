#include "registry/ids.h"

#include <random>

#include "absl/strings/str_format.h"

namespace failback {
namespace {

constexpr char kOwnerMark = '.';

}  // namespace

std::string RandomId() {
  std::random_device entropy;
  return absl::StrFormat("%08x%08x%08x%08x", entropy(), entropy(), entropy(), entropy());
}

std::string NewSessionId(const std::string& owner) { return WithOwner(RandomId(), owner); }

std::string WithOwner(const std::string& id, const std::string& owner) {
  return owner.empty() ? id : id + kOwnerMark + owner;
}

std::string WithoutOwner(const std::string& session_id) {
  return session_id.substr(0, session_id.find(kOwnerMark));
}

std::string SessionOwner(const std::string& session_id) {
  const size_t mark = session_id.find(kOwnerMark);
  return mark == std::string::npos ? "" : session_id.substr(mark + 1);
}

bool MayResumeSession(const std::string& session_id, const std::string& owner) {
  return owner.empty() || owner == SessionOwner(session_id);
}

}  // namespace failback
