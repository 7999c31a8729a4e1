// The line that says that a daemon serves.

#ifndef FAILBACK_DAEMON_READY_H_
#define FAILBACK_DAEMON_READY_H_

#include <string>
#include <vector>

namespace failback {

// Writes "PROGRAM listening on ADDRESS and ADDRESS, admin http://ADDRESS, DETAIL" to stdout, where
// nothing else goes: the program that starts the daemon waits for the line and reads the addresses
// from it. `admin` empty: there is none, and it is left out.
void AnnounceReady(const std::string& program, const std::vector<std::string>& addresses,
                   const std::string& admin, const std::string& detail);

}  // namespace failback

#endif  // FAILBACK_DAEMON_READY_H_
