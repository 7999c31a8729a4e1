#ifndef FAILBACK_REGISTRY_STORE_SQLITE_DURABILITY_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_DURABILITY_H_

namespace failback {

// What a commit survives, once it is acknowledged.
enum class Durability {
  kFull,    // a power cut: each commit is synced to disk
  kNormal,  // the end of the process, kill -9 included; a power cut may cost the last commits
  kOff,     // as normal, and a power cut may cost the whole file
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_DURABILITY_H_
