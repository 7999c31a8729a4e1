#include "agent/ctl/completion.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace failback {
namespace {

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool HasName(const CLI::Option& option, const std::string& flag) {
  if (absl::StartsWith(flag, "--")) {
    const auto& names = option.get_lnames();
    return std::find(names.begin(), names.end(), flag.substr(2)) != names.end();
  }
  const auto& names = option.get_snames();
  return std::find(names.begin(), names.end(), flag.substr(1)) != names.end();
}

// The flag of that name, of the command or of those above it.
const CLI::Option* FindFlag(const CLI::App* command, const std::string& flag) {
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : command->get_options()) {
      if (HasName(*option, flag)) return option;
    }
  }
  return nullptr;
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

const CLI::Option* Positional(const CLI::App& command, size_t index) {
  const CLI::Option* last = nullptr;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    last = option;
    if (index-- == 0) return option;
  }
  const bool repeats = last != nullptr && last->get_items_expected_max() > 1;
  return repeats ? last : nullptr;
}

// Where a command line is, after some words.
struct Place {
  const CLI::App* command;
  // That the next word is the value of.
  const CLI::Option* waiting = nullptr;
  size_t positionals = 0;
};

void Advance(const std::string& word, Place* place) {
  if (place->waiting != nullptr) {
    place->waiting = nullptr;
  } else if (absl::StartsWith(word, "-") && word.size() > 1) {
    const CLI::Option* const flag = FindFlag(place->command, word);
    if (flag != nullptr && TakesValue(*flag)) place->waiting = flag;
  } else if (const CLI::App* const command =
                 place->positionals == 0 ? FindCommand(*place->command, word) : nullptr) {
    place->command = command;
  } else {
    ++place->positionals;
  }
}

// "" or the first sentence of a description.
std::string Help(const std::string& description) {
  return description.substr(0, description.find("; "));
}

void AddFlags(const CLI::App* command, Completion* completion) {
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        completion->candidates.push_back(
            {absl::StrCat("--", name), Help(option->get_description())});
      }
    }
  }
}

void AddValues(const CLI::Option& option, const std::vector<std::string>& words,
               const ValueSource& values, Completion* completion) {
  const std::string type = option.get_type_name();
  if (type == "FILE") {
    completion->files = true;
  } else if (absl::StrContains(type, '|')) {
    for (const auto word : absl::StrSplit(type, '|')) {
      completion->candidates.push_back({std::string(word), ""});
    }
  } else {
    completion->candidates = values(type, words);
  }
}

void KeepWithPrefix(const std::string& prefix, std::vector<Candidate>* candidates) {
  candidates->erase(std::remove_if(candidates->begin(), candidates->end(),
                                   [&](const Candidate& candidate) {
                                     return !absl::StartsWith(candidate.value, prefix);
                                   }),
                    candidates->end());
}

}  // namespace

Completion Complete(const CLI::App& app, const std::vector<std::string>& words,
                    const ValueSource& values) {
  Completion completion;
  if (words.empty()) return completion;
  Place place = {&app};
  for (size_t i = 0; i + 1 < words.size(); ++i) Advance(words[i], &place);
  const std::string& last = words.back();
  const size_t equals = absl::StartsWith(last, "--") ? last.find('=') : std::string::npos;
  if (place.waiting != nullptr) {
    AddValues(*place.waiting, words, values, &completion);
  } else if (equals != std::string::npos) {
    const std::string name = last.substr(0, equals);
    const CLI::Option* const flag = FindFlag(place.command, name);
    if (flag != nullptr && TakesValue(*flag)) AddValues(*flag, words, values, &completion);
    for (Candidate& candidate : completion.candidates) {
      candidate.value = absl::StrCat(name, "=", candidate.value);
    }
  } else if (absl::StartsWith(last, "-")) {
    AddFlags(place.command, &completion);
  } else if (place.command == &app) {
    for (const CLI::App* command : app.get_subcommands(nullptr)) {
      completion.candidates.push_back({command->get_name(), Help(command->get_description())});
    }
  } else if (const CLI::Option* const option = Positional(*place.command, place.positionals)) {
    AddValues(*option, words, values, &completion);
  }
  KeepWithPrefix(last, &completion.candidates);
  return completion;
}

std::string FormatCompletion(const Completion& completion) {
  std::string text = completion.files ? "files\n" : "values\n";
  for (const Candidate& candidate : completion.candidates) {
    absl::StrAppend(&text, candidate.value, "\t", candidate.help, "\n");
  }
  return text;
}

}  // namespace failback
