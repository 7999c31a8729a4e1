#include "tests/util/daemons.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/type_resolver.h"
#include "google/protobuf/util/type_resolver_util.h"
#include "tests/util/ports.h"

namespace failback {
namespace {

bool Has(const std::vector<std::string>& args, const std::string& flag) {
  return std::find(args.begin(), args.end(), flag) != args.end();
}

// Finds the details of a status, which have public names, under the names of this project.
class DetailResolver final : public google::protobuf::util::TypeResolver {
 public:
  google::protobuf::util::Status ResolveMessageType(const std::string& url,
                                                    google::protobuf::Type* type) override {
    return pool_->ResolveMessageType(
        absl::StrReplaceAll(url, {{"/google.rpc.", "/failback.rpc.v1."}}), type);
  }
  google::protobuf::util::Status ResolveEnumType(const std::string& url,
                                                 google::protobuf::Enum* type) override {
    return pool_->ResolveEnumType(url, type);
  }

 private:
  const std::unique_ptr<google::protobuf::util::TypeResolver> pool_{
      google::protobuf::util::NewTypeResolverForDescriptorPool(
          "type.googleapis.com", google::protobuf::DescriptorPool::generated_pool())};
};

bool ParseJson(const std::string& json, google::protobuf::Message* message) {
  DetailResolver resolver;
  std::string bytes;
  return google::protobuf::util::JsonToBinaryString(
             &resolver, absl::StrCat("type.googleapis.com/", message->GetTypeName()), json, &bytes)
             .ok() &&
         message->ParseFromString(bytes);
}

// The field `list` of a message, from the JSON array that failbackctl prints.
template <typename Message>
Message ParseArray(const std::string& field, const std::string& array) {
  Message message;
  const std::string json = absl::StrCat("{\"", field, "\":", array, "}");
  if (!ParseJson(json, &message)) {
    Fatal(absl::StrCat("not the JSON of a list: ", array));
  }
  return message;
}

}  // namespace

std::string RegistryBinary() { return RunfilePath("registry/failback-registry"); }
std::string AgentBinary() { return RunfilePath("agent/failback-agent"); }
std::string CtlBinary() { return RunfilePath("agent/failbackctl"); }

Daemon::Daemon(const std::string& name, const std::vector<std::string>& args)
    : process_(Process::Start(args)) {
  const std::string marker = name + " listening on ";
  const std::optional<std::string> line = process_->WaitForLine(marker);
  if (!line) Fatal(process_->Describe());
  address_ = line->substr(marker.size());
  const std::string admin = ", admin http://";
  if (const size_t at = address_.find(admin); at != std::string::npos) {
    admin_ = address_.substr(at + admin.size());
    admin_ = admin_.substr(0, admin_.find(", "));
  }
  address_ = address_.substr(0, address_.find(", "));
  address_ = address_.substr(0, address_.find(" and "));
}

Daemon Daemon::Registry(std::vector<std::string> args) {
  args.insert(args.begin(), RegistryBinary());
  if (!Has(args, "--listen")) args.insert(args.end(), {"--listen", ReservedAddress()});
  if (!Has(args, "--admin")) args.insert(args.end(), {"--admin", ""});
  return Daemon("failback-registry", args);
}

Daemon Daemon::Agent(const std::string& registry, std::vector<std::string> args) {
  args.insert(args.begin(), AgentBinary());
  const bool is_uri = absl::StrContains(registry, "://") || absl::StartsWith(registry, "unix:");
  args.insert(args.end(), {"--registry", is_uri ? registry : absl::StrCat("grpc://", registry)});
  if (!Has(args, "--listen")) args.insert(args.end(), {"--listen", ReservedAddress()});
  if (!Has(args, "--admin")) args.insert(args.end(), {"--admin", ""});
  return Daemon("failback-agent", args);
}

int Daemon::Stop() {
  process_->Signal(SIGTERM);
  return process_->WaitForExit().value_or(-1);
}

RunResult Ctl(const std::string& target, const std::vector<std::string>& args) {
  std::vector<std::string> all = {CtlBinary(), "--target", target};
  // Far above its own default: a test of what happens when time is over names the time.
  if (!Has(args, "--timeout")) {
    all.insert(all.end(), {"--timeout", absl::FormatDuration(kProcessTimeout)});
  }
  all.insert(all.end(), args.begin(), args.end());
  return RunProcess(all, {}, 2 * kProcessTimeout);
}

std::vector<std::string> ListedIds(const std::string& target, const std::string& service) {
  const RunResult result = Ctl(target, {"list", service, "-o", "json"});
  if (result.status != 0) return {"?"};
  const auto list = ParseArray<registry::v1::ListResponse>("records", result.out);
  std::vector<std::string> ids;
  for (const auto& record : list.records()) ids.push_back(record.instance().key().instance_id());
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<agent::v1::PendingOperation> PendingAt(const std::string& target) {
  const RunResult result = Ctl(target, {"pending", "-o", "json"});
  if (result.status != 0) Fatal(result.err);
  const auto list = ParseArray<agent::v1::ListPendingResponse>("operations", result.out);
  return {list.operations().begin(), list.operations().end()};
}

std::vector<registry::v1::SubscribeResponse> ParseEvents(const std::string& out) {
  std::vector<registry::v1::SubscribeResponse> events;
  const std::string complete = out.substr(0, out.rfind('\n') + 1);
  const std::vector<std::string> lines = absl::StrSplit(complete, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    if (!ParseJson(line, &events.emplace_back())) {
      Fatal(absl::StrCat("not the JSON of an event: ", line));
    }
  }
  return events;
}

}  // namespace failback
