// The programs' logs: events of the library and of gRPC as lines on stderr, through spdlog.
//
// Thread safety: all functions, once InstallLogging has returned.

#ifndef FAILBACK_DAEMON_LOGGING_H_
#define FAILBACK_DAEMON_LOGGING_H_

#include <string>

#include "failback/config/v1/config.pb.h"
#include "registry/base/log.h"

namespace failback {

// Makes spdlog the sink of Log(). What gRPC itself logs becomes an event too, at level debug: its
// news reach the user as statuses, and its errors on stderr would bury them. A TLS handshake that
// fails, and what libprotobuf logs, as of texts that are no UTF-8, are warnings, each ten times a
// second at most.
void InstallLogging(const config::v1::Log& config);

// For programs that keep no log, as a command line tool: silences gRPC's own messages.
void SilenceGrpcLogging();

// One event as a line: `{"time":…,"level":…,"event":…,fields}`. `time` is RFC 3339. A field named
// like one of the first three is written all the same.
std::string FormatLogJson(const std::string& time, LogLevel level, const std::string& event,
                          const LogFields& fields);

}  // namespace failback

#endif  // FAILBACK_DAEMON_LOGGING_H_
