// What is wrong with a command line, in one line.

#ifndef FAILBACK_DAEMON_COMMAND_LINE_H_
#define FAILBACK_DAEMON_COMMAND_LINE_H_

#include <string>

#include "CLI/CLI.hpp"

namespace failback {

// Describes an error that `app.parse()` has thrown: what was found, and where help is; as
// "--lisen: unknown flag; see failback-agent --help". The program's name is the caller's to add.
std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace failback

#endif  // FAILBACK_DAEMON_COMMAND_LINE_H_
