// Random names: sessions, incarnations, store identities.

#ifndef FAILBACK_REGISTRY_MODEL_IDS_H_
#define FAILBACK_REGISTRY_MODEL_IDS_H_

#include <string>

namespace failback {

// 128 bits from the system's entropy as 32 hexadecimal digits: unique, and not to be guessed.
std::string RandomId();

// A session's id: unguessable, and with `owner` (without dots; empty: no owner) in it for
// SessionOwner. As only whole ids are known to a registry, the owner cannot be changed.
std::string NewSessionId(const std::string& owner);
std::string SessionOwner(const std::string& session_id);
std::string WithoutOwner(const std::string& session_id);
std::string WithOwner(const std::string& id, const std::string& owner);

// Whether `owner`, who opens a session of an incarnation, may go on with one that is there. A
// server that does not distinguish callers has no owners, and lets everybody.
bool MayResumeSession(const std::string& session_id, const std::string& owner);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_IDS_H_
