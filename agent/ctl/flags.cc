#include "agent/ctl/flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/command_line.h"

namespace failback {

void AddRepeated(CLI::App* command, const std::string& name, const std::string& type_name,
                 std::vector<std::string>* values, const std::string& help) {
  MakeRepeated(command->add_option(name, *values, help)->type_name(type_name));
}

void AddMetadata(CLI::App* command, KeyValues* metadata, const std::string& help) {
  const auto read = [metadata](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw CLI::ValidationError("--meta", absl::StrCat("'", text, "' is not KEY=VALUE"));
      }
      const auto [entry, inserted] =
          metadata->emplace(text.substr(0, equals), text.substr(equals + 1));
      if (!inserted) {
        throw CLI::ValidationError("--meta", absl::StrCat("'", entry->first, "' is given twice"));
      }
    }
  };
  MakeRepeated(command->add_option_function<std::vector<std::string>>("--meta", read, help)
                   ->type_name("KEY=VALUE"));
}

void AddNumber(CLI::App* command, const std::string& name, const std::string& type_name,
               const std::string& allowed, std::optional<uint32_t>* value,
               const std::string& help) {
  const auto read = [name, allowed, value](const std::string& text) {
    if (!absl::SimpleAtoi(text, &value->emplace())) {
      throw CLI::ValidationError(name, absl::StrCat("'", text, "' is not ", allowed));
    }
  };
  command->add_option_function<std::string>(name, read, help)->type_name(type_name);
}

void AddDuration(CLI::App* command, const std::string& name, absl::Duration* value,
                 const std::string& help) {
  command
      ->add_option_function<std::string>(
          name,
          [name, value](const std::string& text) {
            if (!absl::ParseDuration(text, value) || *value <= absl::ZeroDuration() ||
                *value > absl::Hours(24)) {
              throw CLI::ValidationError(
                  name, absl::StrCat("'", text, "' is not a duration up to 24h, as 10s or 500ms"));
            }
          },
          help)
      ->type_name("DURATION");
}

void AddNamespace(CLI::App* command, std::string* name) {
  command->add_option("--namespace", *name, "namespace [default]")->type_name("NAMESPACE");
}

void AddUpstream(CLI::App* command, std::string* name) {
  command->add_option("--upstream", *name, "only this registry of the agent's [all]")
      ->type_name("UPSTREAM");
}

}  // namespace failback
