#include "tests/simulate/hosts.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "failback/config/v1/access.pb.h"
#include "registry/security/access_rules.h"

namespace failback {

class FailbackRegistryPeer {
 public:
  static std::string CheckInvariants(const FailbackRegistry& registry) {
    return registry.CheckInvariants();
  }
};

namespace simulate {

namespace {

AccessRules RulesWithout(const std::map<int, int>& denied, World& world) {
  config::v1::Policy policy;
  const auto allow = [&](config::v1::Permission permission, int least) {
    config::v1::Rule& rule = *policy.add_rules();
    rule.add_allow(permission);
    rule.add_namespaces("*");
    rule.add_services("*");
    for (int link = 0; link < world.network.links(); ++link) {
      const auto it = denied.find(link);
      if (it == denied.end() || it->second < least) {
        rule.add_certificates(WireServer::NameOf(link));
      }
    }
  };
  allow(config::v1::PERMISSION_REGISTER, 1);
  allow(config::v1::PERMISSION_READ, 2);
  return AccessRules::Make(&policy, nullptr).value();
}

}  // namespace

// --- The registry.

RegistryHost::RegistryHost(World* world, Truth* truth, FencingCheck* fencing,
                           const std::string& folder, bool secured)
    : world_(world), truth_(truth), fencing_(fencing), secured_(secured) {
  if (!folder.empty()) folder_.emplace(folder);
}

RegistryHost::~RegistryHost() {
  truth_->Detach();
  server_.reset();
  store_.reset();
}

void RegistryHost::Start() {
  process_ = std::make_shared<Process>("registry", &world_->clock);
  process_->clock().SetWall(wall_);
  StoreRegistry::Options options;
  if (folder_.has_value()) options.uri = absl::StrCat("sqlite://", folder_->path(), "/registry.db");
  options.timer = process_->timer();
  options.commit_inline = true;
  auto store = StoreRegistry::Open(std::move(options));
  if (!store.ok()) {
    return world_->Fail("start", absl::StrCat("the registry: ", store.status().ToString()));
  }
  store_ = *std::move(store);
  world_->Tell(absl::StrCat("    registry: starts, epoch ", store_->epoch()));
  if (epoch_ != 0 && store_->epoch() != epoch_) fencing_->Forget();
  epoch_ = store_->epoch();
  truth_->Attach(store_.get());
  access_ = secured_ ? std::make_shared<AccessControl>(RulesWithout(denied_, *world_)) : nullptr;
  server_ =
      std::make_shared<WireServer>(&world_->network, process_, store_.get(), fencing_, access_);
}

void RegistryHost::Kill() {
  truth_->Detach();
  server_.reset();
  Folder::Files files;
  if (folder_.has_value()) files = folder_->Read();
  store_.reset();
  process_.reset();
  if (folder_.has_value()) folder_->Write(files, /*in_place=*/true);
}

void RegistryHost::Wipe() {
  if (folder_.has_value()) folder_->Write({}, /*in_place=*/false);
}

void RegistryHost::Backup() {
  if (!folder_.has_value()) return;
  backup_ = folder_->Read();
  // The mark belongs to the store in its place.
  for (auto it = backup_.begin(); it != backup_.end();) {
    it = it->first.find(".mark") != std::string::npos ? backup_.erase(it) : std::next(it);
  }
}

bool RegistryHost::Restore() {
  if (!folder_.has_value() || backup_.empty()) return false;
  folder_->Write(backup_, /*in_place=*/false);
  return true;
}

void RegistryHost::SetWall(absl::Duration offset) {
  wall_ = offset;
  if (up()) process_->clock().SetWall(offset);
}

void RegistryHost::SetPolicy(const std::map<int, int>& denied) {
  denied_ = denied;
  if (!up() || access_ == nullptr) return;
  process_->Run(
      [access = access_, rules = RulesWithout(denied, *world_)] { access->Update(rules); });
}

// --- Agents.

AgentHost::AgentHost(World* world, Options options)
    : world_(world), options_(std::move(options)), numbers_(options_.seed) {
  if (!options_.folder.empty()) folder_.emplace(options_.folder);
}

AgentHost::~AgentHost() { registry_.reset(); }

void AgentHost::Start() {
  ++life_;
  process_ = std::make_shared<Process>(absl::StrCat("agent ", options_.index), &world_->clock);
  process_->clock().SetWall(wall_);
  auto client =
      std::make_unique<WireRegistry>(&world_->network, process_, options_.index, options_.server);
  breaker_ = [whole = client->Breaker(true), streams = client->Breaker(false)](bool connection) {
    connection ? whole() : streams();
  };
  killer_ = client->Killer();
  counter_ = client->Counter();
  FailbackRegistry::Options options = options_.registry;
  options.upstream_name = "sim://registry";
  options.client_name = absl::StrCat("agent-", options_.index);
  options.session_ttl = absl::Seconds(kSessionTtl);
  options.timer = process_->timer();
  options.random = [this] { return numbers_.Unit(); };
  options.on_event = options_.on_event;
  if (folder_.has_value()) {
    options.state_dir = absl::StrCat(folder_->path());
    options.manual_journal = true;
  }
  auto registry = FailbackRegistry::Create(std::move(client), std::move(options));
  if (!registry.ok()) {
    return world_->Fail("start",
                        absl::StrCat(process_->name(), ": ", registry.status().ToString()));
  }
  registry_ = *std::move(registry);
}

void AgentHost::Kill(Disk disk) {
  killer_();
  former_calls_ = calls();
  counter_ = nullptr;
  Folder::Files files;
  if (folder_.has_value()) files = folder_->Read();
  process_->clock().set_stopped(false);
  registry_.reset();
  process_.reset();
  if (!folder_.has_value()) return;
  if (disk == Disk::kSame) folder_->Write(files, /*in_place=*/true);
  if (disk == Disk::kEmpty) folder_->Write({}, /*in_place=*/false);
  if (disk == Disk::kOlder) folder_->Write(backup_, /*in_place=*/false);
}

void AgentHost::End() {
  former_calls_ = calls();
  counter_ = nullptr;
  registry_.reset();
  process_.reset();
}

void AgentHost::Backup() {
  if (folder_.has_value()) backup_ = folder_->Read();
}

void AgentHost::SetWall(absl::Duration offset) {
  wall_ = offset;
  if (up()) process_->clock().SetWall(offset);
}

void AgentHost::Break(bool connection) {
  if (!up()) return;
  world_->network.SendNews(options_.index, Way::kToClient, process_,
                           [breaker = breaker_, connection] { breaker(connection); });
}

std::string AgentHost::CheckInvariants() const {
  return registry_ == nullptr ? "" : FailbackRegistryPeer::CheckInvariants(*registry_);
}

}  // namespace simulate
}  // namespace failback
