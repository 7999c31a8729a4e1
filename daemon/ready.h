// How a daemon says that it serves, to the program that started it and to a service manager.
//
// Thread safety: all of it.

#ifndef FAILBACK_DAEMON_READY_H_
#define FAILBACK_DAEMON_READY_H_

#include <string>
#include <vector>

namespace failback {

// Writes "PROGRAM listening on ADDRESS and ADDRESS, admin http://ADDRESS, DETAIL" to stdout, where
// nothing else goes: the program that starts the daemon waits for the line and reads the addresses
// from it. `admin` empty: there is none, and it is left out. The service manager is notified with
// READY=1, and has the line as the unit's status.
void AnnounceReady(const std::string& program, const std::vector<std::string>& addresses,
                   const std::string& admin, const std::string& detail);

// Notifies the service manager that the daemon is about to stop: STOPPING=1.
void AnnounceStopping();

}  // namespace failback

#endif  // FAILBACK_DAEMON_READY_H_
