#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ctl/commands.h"
#include "grpcpp/grpcpp.h"
#include "registry/base/address.h"
#include "registry/model/errors.h"
#include "registry/rpc/reconnect_backoff.h"

namespace failback {
namespace {

// What to do next; empty when the message says enough.
std::string Advice(const absl::Status& status) {
  switch (ReasonOf(status)) {
    case registry::v1::ERROR_REASON_DRAINING:
      return "the agent was drained or is stopping: use another, or restart it";
    case registry::v1::ERROR_REASON_STORE_READ_ONLY:
      return "the message names the file: its disk may be full or read-only, or another process "
             "may have it locked";
    case registry::v1::ERROR_REASON_SHUTTING_DOWN:
      return "try again when it has started";
    case registry::v1::ERROR_REASON_CREDENTIALS_NEEDED:
      return "show a token with --token-file, or a certificate with --tls-cert and --tls-key";
    case registry::v1::ERROR_REASON_ACCESS_DENIED:
      return "the server's policy file says who may";
    case registry::v1::ERROR_REASON_SUPERSEDED:
      return "`failbackctl describe` at the registry shows who has it. An agent tries to register "
             "on, and gets it when that one has gone; an unregister is over";
    case registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE:
      return "`failbackctl status` there says what does not answer";
    default:
      return "";
  }
}

// Commands that only an agent knows.
bool IsAgentCommand(const std::string& command) {
  static const char* const kCommands[] = {"pending", "intents", "retry",
                                          "cancel",  "drain",   "report-health"};
  return std::find(std::begin(kCommands), std::end(kCommands), command) != std::end(kCommands);
}

// What to do where a Unix socket is there and is not for this user; else empty.
std::string SocketAdvice(const Address& address) {
  struct stat info;
  if (!address.is_unix() || access(address.path.c_str(), W_OK) == 0 || errno != EACCES ||
      stat(address.path.c_str(), &info) != 0) {
    return "";
  }
  const passwd* user = getpwuid(geteuid());
  const std::string name = user == nullptr ? "USER" : user->pw_name;
  if ((info.st_mode & S_IWGRP) != 0 && info.st_gid != 0) {
    const group* group = getgrgid(info.st_gid);
    const std::string members =
        group == nullptr ? std::to_string(info.st_gid) : std::string(group->gr_name);
    return absl::StrCat("the socket is for root and the group ", members, ": `adduser ", name, " ",
                        members, "` as root, then log in again");
  }
  const passwd* owner = getpwuid(info.st_uid);
  return absl::StrCat("the socket is for root and the user ",
                      owner == nullptr ? std::to_string(info.st_uid) : owner->pw_name);
}

bool Connects(const addrinfo& to) {
  const int fd = socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  pollfd wait = {fd, POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  constexpr int kPatienceMillis = 500;
  const bool done = (connect(fd, to.ai_addr, to.ai_addrlen) == 0 || errno == EINPROGRESS) &&
                    poll(&wait, 1, kPatienceMillis) == 1 &&
                    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  close(fd);
  return done;
}

// Whether a process accepts TCP connections there, whatever it speaks.
bool Listens(const Address& address) {
  if (address.is_unix()) return false;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) !=
      0) {
    return false;
  }
  bool listens = false;
  for (const addrinfo* to = found; to != nullptr && !listens; to = to->ai_next) {
    listens = Connects(*to);
  }
  freeaddrinfo(found);
  return listens;
}

// An error of ClientSecurity, "option: problem", by the name of the flag.
absl::Status AtFlag(const absl::Status& status) {
  const std::string message(status.message());
  const std::string option = message.substr(0, message.find(": "));
  const std::string flag = option == "token_file"    ? "--token-file"
                           : option == "server_name" ? "--tls-server-name"
                                                     : absl::StrCat("--tls-", option);
  return absl::InvalidArgumentError(absl::StrCat(flag, message.substr(option.size())));
}

}  // namespace

std::string Operator() {
  const char* const user = std::getenv("USER");
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(user == nullptr || *user == '\0' ? absl::StrCat("uid ", getuid()) : user, "@",
                      host);
}

absl::Status CtlContext::Connect() {
  const absl::StatusOr<Address> address = ParseAddress(target);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--target: ", address.status().message()));
  }
  absl::StatusOr<std::shared_ptr<ClientSecurity>> made = ClientSecurity::Create(security);
  if (!made.ok()) return AtFlag(made.status());
  security_ = *std::move(made);
  if (security_->has_token() && !security_->encrypted() && !address->is_local()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file: the token would go to ", target,
                     " in plain text; use TLS with --tls-ca, or a target on this machine"));
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  SetReconnectBackoff(timeout, absl::Milliseconds(500), &arguments);
  if (!security.server_name.empty()) arguments.SetSslTargetNameOverride(security.server_name);
  const bool tls = security_->encrypted() && !address->is_unix();
  channel_ = grpc::CreateCustomChannel(
      address->ToString(),
      tls ? security_->Current().credentials : grpc::InsecureChannelCredentials(), arguments);
  registry_ = registry::v1::RegistryService::NewStub(channel_);
  agent_ = agent::v1::AgentService::NewStub(channel_);
  admin_ = admin::v1::AdminService::NewStub(channel_);
  return absl::OkStatus();
}

std::unique_ptr<grpc::ClientContext> CtlContext::NewCall() const {
  auto context = NewStream();
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  return context;
}

std::unique_ptr<grpc::ClientContext> CtlContext::NewStream() const {
  auto context = std::make_unique<grpc::ClientContext>();
  // The file was there a moment ago; without it the target says that a token is needed.
  security_->Authenticate(context.get()).IgnoreError();
  return context;
}

bool CtlContext::connected() const {
  return channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
}

void CtlContext::Pause(absl::Duration duration) const {
  if (connected()) return absl::SleepFor(duration);
  channel_->WaitForConnected(absl::ToChronoTime(absl::Now() + duration));
}

int CtlContext::Show(const std::string& command, const std::string& table,
                     const google::protobuf::Message& message) const {
  const absl::Status status = PrintResult(format, table, message);
  return status.ok() ? kCtlOk : Report(command, status);
}

int CtlContext::Shown(const std::string& command, const absl::StatusOr<std::string>& text) const {
  const absl::Status status = PrintText(text);
  return status.ok() ? kCtlOk : Report(command, status);
}

int CtlContext::Report(const std::string& command, const absl::Status& status) const {
  int exit_status = kCtlFailed;
  std::string text = FormatMessage(status.ToString(absl::StatusToStringMode::kWithNoExtraData));
  if (const auto holder = ReasonMetadata(status, "holder"); holder.has_value()) {
    absl::StrAppend(&text, ", held by ", FormatMessage(*holder));
  }
  std::string advice = Advice(status);
  const bool plain = ReasonOf(status) == registry::v1::ERROR_REASON_UNSPECIFIED;
  if (plain && !connected() && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))) {
    exit_status = kCtlUnreachable;
    const std::string why = absl::StrCat(" (", FormatMessage(std::string(status.message())), ")");
    if (absl::IsUnavailable(status) && Listens(*ParseAddress(target))) {
      text = absl::StrCat("UNAVAILABLE: ", target, " takes no such connection", why);
      advice = security_->encrypted()
                   ? "does it speak TLS, under that name, with a certificate of --tls-ca, and does "
                     "it ask for --tls-cert?"
                   : "is it the gRPC address of an agent or a registry, and does it ask for TLS, "
                     "that is --tls-ca?";
    } else {
      text = absl::StrCat("UNAVAILABLE: no answer from ", target, why);
      advice = SocketAdvice(*ParseAddress(target));
      if (advice.empty()) {
        advice =
            "is failback-agent or failback-registry running there? --target says where to look";
      }
    }
  } else if (absl::IsUnimplemented(status) && IsAgentCommand(command)) {
    text = absl::StrCat("UNIMPLEMENTED: ", target, " is a registry, not an agent");
    advice = absl::StrCat("`failbackctl ", command, "` asks an agent; name one with --target");
  } else if (absl::IsDeadlineExceeded(status)) {
    advice = "give it more time with --timeout";
  }
  std::fprintf(stderr, "failbackctl: %s: %s%s%s\n", command.c_str(), text.c_str(),
               advice.empty() ? "" : "; ", advice.c_str());
  return exit_status;
}

}  // namespace failback
