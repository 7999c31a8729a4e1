// The commands of failbackctl: each adds itself, with its flags and its help, to the command line.
//
// Thread safety: none; all belongs to main().

#ifndef FAILBACK_AGENT_CTL_COMMANDS_H_
#define FAILBACK_AGENT_CTL_COMMANDS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/ctl/output.h"
#include "agent/ctl/terminal.h"
#include "failback/admin/v1/admin.grpc.pb.h"
#include "failback/agent/v1/agent.grpc.pb.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "registry/model/errors.h"
#include "registry/security/client_security.h"

namespace CLI {
class App;
}  // namespace CLI

namespace failback {

// Exit statuses.
inline constexpr int kCtlOk = 0;
inline constexpr int kCtlFailed = 1;       // the target refused, or the wait ended without success
inline constexpr int kCtlUsage = 2;        // wrong flags or arguments
inline constexpr int kCtlUnreachable = 3;  // no answer from the target

// What all commands share: the global flags, and the connection to the target.
class CtlContext {
 public:
  // Global flags.
  std::string target;
  OutputFormat format = OutputFormat::kTable;
  // For tables on stdout.
  Palette palette = Palette::For(1);
  absl::Duration timeout = absl::Seconds(5);
  ClientSecurity::Options security;

  // Checks the target and reads the files of `security`; INVALID_ARGUMENT names the flag and says
  // what is allowed.
  absl::Status Connect();

  registry::v1::RegistryService::StubInterface& registry() { return *registry_; }
  agent::v1::AgentService::StubInterface& agent() { return *agent_; }
  admin::v1::AdminService::StubInterface& admin() { return *admin_; }
  // For other services.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // For a unary call: with the deadline of --timeout, and with the token.
  std::unique_ptr<grpc::ClientContext> NewCall() const;
  // For a stream: without deadline.
  std::unique_ptr<grpc::ClientContext> NewStream() const;

  // Calls `take(&response)` with every page of a list, as
  //
  //   EachPage(agent(), &AgentService::StubInterface::ListPending, request, take)
  template <typename Stub, typename Request, typename Response, typename Take>
  absl::Status EachPage(Stub& stub,
                        grpc::Status (Stub::*list)(grpc::ClientContext*, const Request&, Response*),
                        Request request, Take take) const {
    do {
      Response response;
      const grpc::Status status = (stub.*list)(NewCall().get(), request, &response);
      if (!status.ok()) return StatusFromGrpc(status);
      request.set_page_token(response.next_page_token());
      take(&response);
    } while (!request.page_token().empty());
    return absl::OkStatus();
  }

  // The rows of all pages; `rows` is the page's `&Response::mutable_rows`.
  template <typename Stub, typename Request, typename Response, typename Row>
  absl::StatusOr<std::vector<Row>> ListAll(
      Stub& stub, grpc::Status (Stub::*list)(grpc::ClientContext*, const Request&, Response*),
      const Request& request, google::protobuf::RepeatedPtrField<Row>* (Response::*rows)()) const {
    std::vector<Row> all;
    const absl::Status status = EachPage(stub, list, request, [&](Response* page) {
      for (Row& row : *(page->*rows)()) all.push_back(std::move(row));
    });
    if (!status.ok()) return status;
    return all;
  }

  // Whether the connection stands, to distinguish a slow target from one that is not there.
  bool connected() const;

  // Between two looks at a target that may not be there yet: waits so long; without a connection no
  // longer than until there is one. gRPC works on a connection attempt while something waits for
  // it, and between calls that fail at once only every 5 s.
  void Pause(absl::Duration duration) const;

  // Prints what a command found, as --output wants it, and returns the exit status: a failure when
  // it has no such form.
  int Show(const std::string& command, const std::string& table,
           const google::protobuf::Message& message) const;
  template <typename M>
  int ShowList(const std::string& command, const std::string& table,
               const std::vector<M>& messages) const {
    return Shown(command, format == OutputFormat::kTable
                              ? absl::StatusOr<std::string>(table)
                              : FormatList(format, MessagePointers(messages)));
  }
  // Prints the text; the exit status.
  int Shown(const std::string& command, const absl::StatusOr<std::string>& text) const;

  // Prints `failbackctl: COMMAND: …` for a failed call, with what to do next where that helps, and
  // returns the exit status.
  int Report(const std::string& command, const absl::Status& status) const;

 private:
  std::shared_ptr<ClientSecurity> security_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<registry::v1::RegistryService::StubInterface> registry_;
  std::unique_ptr<agent::v1::AgentService::StubInterface> agent_;
  std::unique_ptr<admin::v1::AdminService::StubInterface> admin_;
};

// For people: who asks, when the server does not know.
std::string Operator();

// What the chosen command does; returns the exit status. Set by the subcommand that was parsed.
using CtlAction = std::function<int(CtlContext*)>;

// register, unregister, list, subscribe: at a registry or an agent.
void AddRegistryCommands(CLI::App* app, CtlAction* action);
void AddListCommand(CLI::App* app, CtlAction* action);
void AddSubscribeCommand(CLI::App* app, CtlAction* action);
// pending, retry, cancel, drain: at an agent.
void AddAgentCommands(CLI::App* app, CtlAction* action);
// status, wait-ready: at an agent or a registry.
void AddStatusCommands(CLI::App* app, CtlAction* action);
// sessions, agents, guard: at a registry.
void AddFleetCommands(CLI::App* app, CtlAction* action);
// describe, offline, online: at a registry or an agent.
void AddAdminCommands(CLI::App* app, CtlAction* action);
// dns: at a registry or an agent.
void AddDnsCommand(CLI::App* app, CtlAction* action);
// health: at a registry or an agent; report-health: at an agent.
void AddHealthCommands(CLI::App* app, CtlAction* action);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_COMMANDS_H_
