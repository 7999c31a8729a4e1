#include "daemon/command_line.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace {

// CLI11's name for the option, as the message of a mismatch begins with it; null for another one.
const CLI::Option* OptionOf(const CLI::App& app, const CLI::ParseError& error) {
  const std::string message = error.what();
  const std::string name = message.substr(0, message.find(": "));
  for (const CLI::App* command : app.get_subcommands()) {
    if (const CLI::Option* option = command->get_option_no_throw(name)) return option;
  }
  return app.get_option_no_throw(name);
}

// The error in the words of this project; CLI11's where those will do.
std::string Problem(const CLI::App& app, const CLI::ParseError& error) {
  const bool has_commands = !app.get_subcommands(nullptr).empty();
  const bool has_command = !app.get_subcommands().empty();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && has_commands && !has_command) {
    return "a command is missing";
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return error.what();
  const CLI::Option* const option = OptionOf(app, error);
  if (option == nullptr) return error.what();
  const bool may_be_repeated = option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  if (option->count() > 1 && !may_be_repeated) {
    return absl::StrCat(option->get_name(), ": given twice");
  }
  return absl::StrCat(option->get_name(), ": its value is missing: ", option->get_type_name());
}

// What was found, and where help is.
std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error) {
  // A word that belongs nowhere is the cause; what misses for it is the consequence.
  std::string problem = Problem(app, error);
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

}  // namespace

std::optional<int> ParseArguments(CLI::App* app, int argc, const char* const* argv,
                                  const std::function<int(const std::string&)>& fail) {
  std::vector<std::string> words;
  bool flags = true;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    flags = flags && word != "--";
    const bool empty = flags && absl::StartsWith(word, "--") && absl::EndsWith(word, "=");
    if (empty) word.pop_back();
    words.push_back(std::move(word));
    if (empty) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    app->parse(std::move(words));
  } catch (const CLI::Success& e) {
    return app->exit(e);
  } catch (const CLI::ParseError& e) {
    return fail(DescribeUsageError(*app, e));
  }
  return std::nullopt;
}

void MakeRepeated(CLI::Option* option) {
  option->type_size(1)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

}  // namespace failback
