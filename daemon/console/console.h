// The console, from the binary: one page for the person who is paged, at `/` of both daemons.
//
// The page is plain modules and styles, which the browser asks for one by one below `/console/`; it
// gets what it shows from the other paths of the same server (docs/admin.md), and nothing from
// elsewhere.

#ifndef FAILBACK_DAEMON_CONSOLE_CONSOLE_H_
#define FAILBACK_DAEMON_CONSOLE_CONSOLE_H_

#include "gateway/http/server.h"

namespace failback {

// Adds the page to `server`. To be called before Start.
void HandleConsole(http::Server* server);

}  // namespace failback

#endif  // FAILBACK_DAEMON_CONSOLE_CONSOLE_H_
