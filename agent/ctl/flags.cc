#include "agent/ctl/flags.h"

#include "absl/strings/str_cat.h"

namespace failback {

void AddRepeated(CLI::App* command, const std::string& name, const std::string& type_name,
                 std::vector<std::string>* values, const std::string& help) {
  command->add_option(name, *values, help)
      ->type_name(type_name)
      ->type_size(1)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddMetadata(CLI::App* command, KeyValues* metadata, const std::string& help) {
  command
      ->add_option_function<std::vector<std::string>>(
          "--meta",
          [metadata](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const size_t equals = text.find('=');
              if (equals == std::string::npos || equals == 0) {
                throw CLI::ValidationError("--meta", absl::StrCat("'", text, "' is not KEY=VALUE"));
              }
              metadata->emplace_back(text.substr(0, equals), text.substr(equals + 1));
            }
          },
          help)
      ->type_name("KEY=VALUE")
      ->type_size(1)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
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
