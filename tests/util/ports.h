// TCP ports of 127.0.0.1 for servers that a test starts, and perhaps stops and starts again.
//
// A port that was found free and released, or that is free while its server is down, may be given
// to another process on a machine that runs other tests. These are held until the test ends, by a
// socket that is bound and does not listen: Linux gives such a port to no process that leaves the
// choice to it, and a server that sets SO_REUSEADDR, as all do, binds and listens beside it. While
// none listens a connection is refused.
//
// Thread safety: from any thread.

#ifndef FAILBACK_TESTS_UTIL_PORTS_H_
#define FAILBACK_TESTS_UTIL_PORTS_H_

#include <string>

namespace failback {

int ReservedPort();

// "127.0.0.1:PORT"
std::string ReservedAddress();

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_PORTS_H_
