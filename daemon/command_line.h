// Command lines, strictly: a flag takes its own value and no other word, and what is wrong is
// reported in one line.

#ifndef FAILBACK_DAEMON_COMMAND_LINE_H_
#define FAILBACK_DAEMON_COMMAND_LINE_H_

#include <string>

#include "CLI/CLI.hpp"

namespace failback {

// `app->parse(argc, argv)`, but that `--flag=` gives the flag an empty value, where CLI11 gives it
// the next word.
void ParseArguments(CLI::App* app, int argc, const char* const* argv);

// Makes `option` one that may be given any number of times, with one value each. CLI11 would give
// it all words up to the next flag too.
void MakeRepeated(CLI::Option* option);

// Describes an error that `app.parse()` has thrown: what was found, and where help is; as
// "--lisen: unknown flag; see failback-agent --help". The program's name is the caller's to add.
std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace failback

#endif  // FAILBACK_DAEMON_COMMAND_LINE_H_
