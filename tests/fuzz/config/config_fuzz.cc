// Any text as a configuration, a policy, a file of tokens or an address: it is taken, or refused in
// one line.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "daemon/config_file.h"
#include "failback/agent/v1/config.pb.h"
#include "failback/config/v1/access.pb.h"
#include "failback/registry/v1/config.pb.h"
#include "registry/base/address.h"
#include "registry/security/access_rules.h"
#include "tests/fuzz/fuzz_input.h"

namespace failback {
namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  if (!absl::IsInvalidArgument(status) || message.empty() ||
      message.find('\n') != std::string::npos) {
    std::fprintf(stderr, "an odd error: %s\n", status.ToString().c_str());
    std::abort();
  }
}

absl::Status Parse(const std::string& text, google::protobuf::Message* message) {
  absl::Status status = ParseYaml("fuzz.yaml", text, message);
  Check(status);
  return status;
}

void CheckRules(const config::v1::Policy* policy, const config::v1::Tokens* tokens) {
  const absl::StatusOr<AccessRules> rules = AccessRules::Make(policy, tokens);
  Check(rules.status());
  if (!rules.ok()) return;
  for (const auto kind : {Identity::Kind::kAnonymous, Identity::Kind::kCertificate}) {
    Identity who;
    who.kind = kind;
    who.names = {"a"};
    rules->Judge(who, config::v1::PERMISSION_READ, "default", "orders").IgnoreError();
    rules->JudgeAll(who, config::v1::PERMISSION_ADMINISTER, std::nullopt).IgnoreError();
  }
  rules->BearerOf("a").status().IgnoreError();
}

// An address that is accepted is accepted again in its canonical form.
void CheckAddress(const std::string& text) {
  const absl::StatusOr<Address> address = ParseAddress(text);
  Check(address.status());
  if (!address.ok()) return;
  const absl::StatusOr<Address> again = ParseAddress(address->ToString());
  if (!again.ok() || again->ToString() != address->ToString()) {
    std::fprintf(stderr, "not taken again: %s\n", address->ToString().c_str());
    std::abort();
  }
  address->is_local();
}

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace failback;
  FuzzInput input(data, size);
  const uint8_t kind = input.Byte();
  const std::string text = input.Rest();
  switch (kind % 5) {
    case 0: {
      registry::v1::RegistryConfig config;
      Parse(text, &config).IgnoreError();
      break;
    }
    case 1: {
      agent::v1::AgentConfig config;
      Parse(text, &config).IgnoreError();
      break;
    }
    case 2: {
      config::v1::Policy policy;
      if (Parse(text, &policy).ok()) CheckRules(&policy, nullptr);
      break;
    }
    case 3: {
      CheckAddress(text);
      break;
    }
    default: {
      config::v1::Tokens tokens;
      if (Parse(text, &tokens).ok()) CheckRules(nullptr, &tokens);
    }
  }
  return 0;
}
