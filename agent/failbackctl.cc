// failbackctl: asks registries and agents, from a shell.

#include <sys/stat.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/completion.h"
#include "agent/ctl/flags.h"
#include "daemon/command_line.h"
#include "daemon/logging.h"
#include "registry/base/version.h"

namespace failback {
namespace {

constexpr char kDefaultSocket[] = "/run/failback/agent.sock";
constexpr char kDefaultPort[] = "127.0.0.1:7060";
// A person waits for the shell.
constexpr absl::Duration kCompletionTimeout = absl::Seconds(1);

// The local agent: on its socket if there is one, else on its port.
std::string DefaultTarget() {
  struct stat info;
  if (stat(kDefaultSocket, &info) == 0) return absl::StrCat("unix:", kDefaultSocket);
  return kDefaultPort;
}

// How to prove to the target who asks. The variables are not those of the daemons, whose
// environment this program may share.
void AddSecurity(CLI::App* app, ClientSecurity::Options* security) {
  const struct {
    const char* flag;
    const char* env;
    std::string* value;
    const char* type;
    const char* help;
  } kFlags[] = {{"--tls-ca", "FAILBACK_CTL_TLS_CA", &security->tls.ca, "FILE",
                 "authorities of the target's certificate; unset: no TLS"},
                {"--tls-cert", "FAILBACK_CTL_TLS_CERT", &security->tls.cert, "FILE",
                 "the certificate to show to the target"},
                {"--tls-key", "FAILBACK_CTL_TLS_KEY", &security->tls.key, "FILE",
                 "the private key of that certificate"},
                {"--tls-server-name", "FAILBACK_CTL_TLS_SERVER_NAME", &security->server_name,
                 "NAME", "name in the target's certificate [the target's host]"},
                {"--token-file", "FAILBACK_CTL_TOKEN_FILE", &security->token_file, "FILE",
                 "file of the bearer token to show to the target"}};
  for (const auto& flag : kFlags) {
    app->add_option(flag.flag, *flag.value, flag.help)->type_name(flag.type)->envname(flag.env);
  }
}

void AddGlobalFlags(CLI::App* app, CtlContext* context) {
  app->add_option("--target,-t", context->target,
                  absl::StrCat("the agent or registry: HOST:PORT or unix:/PATH [unix:",
                               kDefaultSocket, " if there, else ", kDefaultPort, "]"))
      ->type_name("ADDRESS")
      ->check([](const std::string& text) {
        // As `--target "$REGISTRY"` without that variable: not for the agent on this machine.
        return text.empty() ? "'' is no address" : "";
      })
      ->envname("FAILBACK_TARGET");
  app->add_option_function<std::string>(
         "--output,-o",
         [context](const std::string& text) {
           static const std::map<std::string, OutputFormat> kFormats = {
               {"table", OutputFormat::kTable},
               {"json", OutputFormat::kJson},
               {"yaml", OutputFormat::kYaml}};
           const auto found = kFormats.find(text);
           if (found == kFormats.end()) {
             throw CLI::ValidationError("--output",
                                        absl::StrCat("'", text, "' is not table, json or yaml"));
           }
           context->format = found->second;
         },
         "how to print results [table]")
      ->type_name("table|json|yaml");
  AddSecurity(app, &context->security);
  AddDuration(app, "--timeout", &context->timeout, "longest wait for an answer [5s]");
}

void AddCommands(CLI::App* app, CtlAction* action) {
  app->set_version_flag("--version", VersionLine("failbackctl"), "print the version and exit");
  app->set_help_flag("--help,-h", "print this help and exit; after a command: that command's help");
  app->get_formatter()->column_width(36);
  app->require_subcommand(1);
  app->fallthrough();
  app->footer(
      "Exit status: 0 done; 1 refused, or not done in time, or in part; 2 wrong usage, or a file\n"
      "that is wrong; 3 no answer from the target. Each command's help says what it adds.\n"
      "Colours and screens that are redrawn are for terminals; NO_COLOR turns the colours "
      "off.\n\n"
      "Examples:\n"
      "  failbackctl --target 127.0.0.1:7070 list\n"
      "  failbackctl register orders --address 10.0.0.7 --port 8080 --id orders-1\n"
      "  failbackctl status --watch\n"
      "  failbackctl pending -o json");
  AddRegistryCommands(app, action);
  AddAgentCommands(app, action);
  AddStatusCommands(app, action);
  AddHealthCommands(app, action);
  AddDnsCommand(app, action);
  AddAdminCommands(app, action);
  AddFleetCommands(app, action);
  AddCompletionCommand(app, action);
}

int UsageError(const std::string& problem) {
  std::fprintf(stderr, "failbackctl: %s\n", problem.c_str());
  return kCtlUsage;
}

absl::Status Connect(CtlContext* context) {
  if (context->target.empty()) context->target = DefaultTarget();
  return context->Connect();
}

// Asks the target that the words name; nothing when it does not answer.
std::vector<Candidate> ValuesAtTarget(const std::string& type_name,
                                      const std::vector<std::string>& words) {
  CtlContext context;
  CLI::App globals;
  globals.allow_extras();
  AddGlobalFlags(&globals, &context);
  try {
    globals.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError&) {
    return {};
  }
  context.timeout = kCompletionTimeout;
  if (!Connect(&context).ok()) return {};
  return AskForValues(&context, type_name, words);
}

int Main(int argc, char** argv) {
  SilenceGrpcLogging();
  CtlContext context;
  CtlAction action;
  CLI::App app("Shows what Failback's registries and agents hold, and changes it.", "failbackctl");
  AddGlobalFlags(&app, &context);
  AddCommands(&app, &action);
  if (argc > 1 && std::string(argv[1]) == "__complete") {
    Print(FormatCompletion(Complete(app, {argv + 2, argv + argc}, ValuesAtTarget)));
    return kCtlOk;
  }
  if (const auto status = ParseArguments(&app, argc, argv, UsageError)) return *status;
  const absl::Status status = Connect(&context);
  if (!status.ok()) return UsageError(std::string(status.message()));
  return action(&context);
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
