#include "daemon/config.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/command_line.h"
#include "registry/base/version.h"

namespace failback {
namespace {

using google::protobuf::Message;

// Sets the key from `texts`, in place of what was there.
absl::Status SetKey(const ConfigKey& key, const std::vector<std::string>& texts,
                    const std::string& origin, Message* config, ConfigOrigins* origins) {
  Message* const parent = MutableParent(config, key);
  parent->GetReflection()->ClearField(parent, key.field());
  for (const std::string& text : texts) {
    absl::Status status = SetFromText(parent, key.field(), text);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": ", status.message()));
    }
  }
  (*origins)[key.path] = origin;
  return absl::OkStatus();
}

std::string HelpText(const ConfigKey& key) {
  const config::v1::Key& options = key.options();
  std::string text = options.help();
  if (!options.default_().empty()) absl::StrAppend(&text, " [", options.default_(), "]");
  return text;
}

}  // namespace

ConfigLoader::ConfigLoader(Program program, const google::protobuf::Descriptor* descriptor)
    : program_(std::move(program)), keys_(ConfigKeys(descriptor)) {}

std::optional<int> ConfigLoader::ParseCommandLine(int argc, const char* const* argv) {
  CLI::App app(program_.summary, program_.name);
  app.set_version_flag("--version", VersionLine(program_.name), "print the version and exit");
  app.set_help_flag("--help,-h", "print this help and exit");
  app.get_formatter()->column_width(42);
  app.footer(absl::StrCat(
      "Each flag is also a key of the file (--log-level is log: {level: …}) and an environment\n"
      "variable (FAILBACK_LOG_LEVEL). The flag wins over the variable, the variable over the "
      "file.\n"
      "Exit status: 0 after a stop that was asked for, 1 when stopped by a failure, 2 for bad "
      "input.\n\n"
      "Examples:\n",
      program_.examples));
  app.add_option("--config", config_file_, "read keys from this YAML file")
      ->type_name("FILE")
      ->envname("FAILBACK_CONFIG");
  app.add_flag("--validate-config", validate_only_, "check the configuration and exit");
  std::map<std::string, std::vector<std::string>> flags;
  for (const ConfigKey& key : keys_) {
    MakeRepeated(app.add_option(key.flag, flags[key.path], HelpText(key))
                     ->type_name(ValueName(key.field())));
  }
  const auto fail = [this](const std::string& problem) {
    return Fail(absl::InvalidArgumentError(problem));
  };
  if (const auto status = ParseArguments(&app, argc, argv, fail)) return status;
  for (const ConfigKey& key : keys_) {
    if (app.count(key.flag) == 0) continue;
    std::vector<std::string>& texts = flags[key.path];
    if (texts.size() > 1 && !key.field()->is_repeated()) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(key.flag, ": given twice")));
    }
    flags_[key.path] = std::move(texts);
  }
  return std::nullopt;
}

absl::Status ConfigLoader::Load(Message* config) {
  absl::Status status;
  for (const ConfigKey& key : keys_) {
    const std::string& text = key.options().default_();
    if (text.empty()) continue;
    status = SetKey(key, {text}, absl::StrCat("default of ", key.path), config, &origins_);
    if (!status.ok()) return status;
  }
  origins_.clear();  // a default is no place to correct
  if (!config_file_.empty()) {
    status = ParseYamlFile(config_file_, config, &origins_);
    if (!status.ok()) return status;
  }
  for (const ConfigKey& key : keys_) {
    const char* const value = std::getenv(key.env.c_str());
    if (value == nullptr) continue;
    std::vector<std::string> texts = {value};
    if (key.field()->is_repeated()) {
      texts = absl::StrSplit(value, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    }
    status = SetKey(key, texts, key.env, config, &origins_);
    if (!status.ok()) return status;
  }
  for (const ConfigKey& key : keys_) {
    const auto found = flags_.find(key.path);
    if (found == flags_.end()) continue;
    status = SetKey(key, found->second, key.flag, config, &origins_);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ConfigLoader::ErrorAt(const std::string& path, const std::string& problem) const {
  // What is missing has no place of its own: that of the nearest thing around it.
  std::string place = path;
  auto origin = origins_.find(place);
  while (origin == origins_.end() && place.find_last_of(".[") != std::string::npos) {
    place.resize(place.find_last_of(".["));
    origin = origins_.find(place);
  }
  std::string where;
  if (origin != origins_.end()) {
    where = absl::StrCat(origin->second, ": ");
  } else if (!config_file_.empty()) {
    where = absl::StrCat(config_file_, ": ");
  }
  // A flag or a variable names the key well enough.
  const bool named = where.rfind("--", 0) == 0 || where.rfind("FAILBACK_", 0) == 0;
  return absl::InvalidArgumentError(
      absl::StrCat(where, named ? "" : absl::StrCat(path, ": "), problem));
}

int ConfigLoader::Fail(const absl::Status& status) const {
  std::fprintf(stderr, "%s: %s\n", program_.name.c_str(), std::string(status.message()).c_str());
  return kExitBadInput;
}

}  // namespace failback
