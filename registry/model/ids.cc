#include "registry/model/ids.h"

#include <sys/random.h>

#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace failback {
namespace {

constexpr char kOwnerMark = '.';

}  // namespace

std::string RandomId() {
  // Not std::random_device: its making asks for the processor's features, and each of its numbers
  // the processor's source of noise, which on a virtual machine takes many times a system call.
  char bytes[16];
  if (getentropy(bytes, sizeof(bytes)) != 0) {  // a kernel without it
    std::random_device entropy;
    for (char& byte : bytes) byte = static_cast<char>(entropy());
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
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
