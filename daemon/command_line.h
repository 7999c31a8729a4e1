// Command lines, strictly: a flag takes its own value and no other word, and what is wrong is
// reported in one line.

#ifndef FAILBACK_DAEMON_COMMAND_LINE_H_
#define FAILBACK_DAEMON_COMMAND_LINE_H_

#include <functional>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"

namespace failback {

// `app->parse(argc, argv)`, but that `--flag=` gives the flag an empty value, where CLI11 gives it
// the next word. Returns the exit status when the program has nothing more to do: after --help and
// the like, or that of `fail`, which gets what is wrong: what was found, and where help is, as
// "--lisen: unknown flag; see failback-agent --help".
std::optional<int> ParseArguments(CLI::App* app, int argc, const char* const* argv,
                                  const std::function<int(const std::string&)>& fail);

// Makes `option` one that may be given any number of times, with one value each. CLI11 would give
// it all words up to the next flag too.
void MakeRepeated(CLI::Option* option);

}  // namespace failback

#endif  // FAILBACK_DAEMON_COMMAND_LINE_H_
