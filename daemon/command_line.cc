#include "daemon/command_line.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace failback {

std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error) {
  // A word that belongs nowhere is the cause; what misses for it is the consequence.
  std::string problem = error.what();
  const std::vector<std::string> extra = app.remaining(/*recurse=*/true);
  const std::vector<CLI::App*> commands = app.get_subcommands();
  if (!extra.empty()) {
    const bool is_command = commands.empty() && !app.get_subcommands(nullptr).empty();
    const char* const kind = absl::StartsWith(extra[0], "-") ? ": unknown flag"
                             : is_command                    ? ": unknown command"
                                                             : ": unexpected argument";
    problem = extra[0] + kind;
  }
  const std::string command = commands.empty() ? "" : commands[0]->get_name();
  return absl::StrCat(command.empty() ? "" : absl::StrCat(command, ": "), problem, "; see ",
                      app.get_name(), command.empty() ? "" : " ", command, " --help");
}

}  // namespace failback
