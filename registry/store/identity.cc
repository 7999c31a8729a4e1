#include "registry/store/identity.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/escaping.h"

namespace failback {
namespace {

void FillRandom(void* out, size_t size) {
  auto* at = static_cast<unsigned char*>(out);
  while (size > 0) {
    const ssize_t got = getrandom(at, size, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      std::abort();  // without random numbers sessions could be guessed
    }
    at += got;
    size -= static_cast<size_t>(got);
  }
}

std::string RandomHex128() {
  std::string bytes(16, '\0');
  FillRandom(&bytes[0], bytes.size());
  return absl::BytesToHexString(bytes);
}

}  // namespace

std::string NewStoreId() { return RandomHex128(); }

std::string NewSessionId() { return RandomHex128(); }

uint64_t NewEpoch() {
  uint64_t epoch = 0;
  while (epoch == 0) {
    FillRandom(&epoch, sizeof(epoch));
    epoch &= (uint64_t{1} << 53) - 1;
  }
  return epoch;
}

}  // namespace failback
