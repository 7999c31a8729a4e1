#include "daemon/config.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/command_line.h"
#include "daemon/config_file.h"
#include "registry/base/version.h"

namespace failback {
namespace {

using google::protobuf::Message;

// Sets the key from `texts`, in place of what was there.
absl::Status SetKey(const ConfigKey& key, const std::vector<std::string>& texts,
                    const std::string& origin, Message* config) {
  Message* const parent = MutableParent(config, key);
  parent->GetReflection()->ClearField(parent, key.field());
  for (const std::string& text : texts) {
    absl::Status status = SetFromText(parent, key.field(), text);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

// Whether `path` is that of a key, or of something inside it.
bool IsWithin(const std::string& path, const std::string& key) {
  return path.compare(0, key.size(), key) == 0 &&
         (path.size() == key.size() || path[key.size()] == '.' || path[key.size()] == '[');
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
    status = SetKey(key, {text}, absl::StrCat("default of ", key.path), config);
    if (!status.ok()) return status;
  }
  if (!config_file_.empty()) {
    const absl::StatusOr<std::string> text = ReadWholeFile(config_file_);
    if (!text.ok()) return text.status();
    file_hash_ = std::hash<std::string>()(*text);
    status = ParseYaml(config_file_, *text, config);
    if (!status.ok()) return status;
  }
  for (const ConfigKey& key : keys_) {
    const char* const value = std::getenv(key.env.c_str());
    if (value == nullptr) continue;
    std::vector<std::string> texts = {value};
    if (key.field()->is_repeated()) {
      texts = absl::StrSplit(value, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    }
    status = SetKey(key, texts, key.env, config);
    if (!status.ok()) return status;
  }
  for (const ConfigKey& key : keys_) {
    const auto found = flags_.find(key.path);
    if (found == flags_.end()) continue;
    status = SetKey(key, found->second, key.flag, config);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string ConfigLoader::NameOutsideTheFile(const std::string& path) const {
  for (const ConfigKey& key : keys_) {
    if (!IsWithin(path, key.path)) continue;
    if (flags_.count(key.path) > 0) return key.flag;
    if (std::getenv(key.env.c_str()) != nullptr) return key.env;
  }
  return "";
}

absl::Status ConfigLoader::ErrorAt(const std::string& path, const std::string& problem) const {
  // A flag or a variable names the key well enough.
  if (const std::string name = NameOutsideTheFile(path); !name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", problem));
  }
  std::string where = config_file_;
  if (!config_file_.empty()) {
    // The lines of another text than the one that was loaded would be wrong.
    const absl::StatusOr<std::string> text = ReadWholeFile(config_file_);
    if (text.ok() && std::hash<std::string>()(*text) == file_hash_) {
      const std::string place = PlaceInYaml(config_file_, *text, path);
      if (!place.empty()) where = place;
    }
    where += ": ";
  }
  return absl::InvalidArgumentError(absl::StrCat(where, path, ": ", problem));
}

int ConfigLoader::Fail(const absl::Status& status) const {
  std::fprintf(stderr, "%s: %s\n", program_.name.c_str(), std::string(status.message()).c_str());
  return kExitBadInput;
}

}  // namespace failback
