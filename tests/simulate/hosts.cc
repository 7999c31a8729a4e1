#include "tests/simulate/hosts.h"

#include <array>
#include <map>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "failback/config/v1/access.pb.h"
#include "registry/security/access_rules.h"
#include "registry/store/sqlite/sqlite_storage.h"

namespace failback {

class FailbackRegistryPeer {
 public:
  static std::string CheckInvariants(const FailbackRegistry& registry) {
    return registry.CheckInvariants();
  }
};

namespace simulate {
namespace {

constexpr char kStore[] = "/state/registry.db";

// Tasks run on the timer of a process, and go with it.
class TimerExecutor final : public Executor {
 public:
  explicit TimerExecutor(Process* process) : process_(process) {}
  void Execute(absl::AnyInvocable<void() &&> task) override {
    auto shared = std::make_shared<absl::AnyInvocable<void() &&>>(std::move(task));
    process_->After(absl::ZeroDuration(), [shared] { std::move (*shared)(); });
  }

 private:
  Process* const process_;
};

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

namespace {

// A message has room for one of these.
SubscriptionHub::Options ShortMessages() {
  SubscriptionHub::Options options;
  options.delta.bytes = 150;
  options.delta.most_bytes = 250;
  options.snapshot_part_instances = 2;
  options.snapshot_part_bytes = 150;
  return options;
}

}  // namespace

RegistryHost::RegistryHost(World* world, Truth* truth, FencingCheck* fencing, Options options)
    : world_(world), truth_(truth), fencing_(fencing), options_(std::move(options)) {
  if (options_.disk.has_value()) disk_.emplace(*options_.disk);
}

RegistryHost::~RegistryHost() {
  if (up()) Kill();
}

void RegistryHost::Start() {
  process_ = std::make_shared<Process>("registry", &world_->clock);
  process_->clock().SetWall(wall_);
  options_.etcd == nullptr ? StartStore() : StartOnEtcd();
}

void RegistryHost::StartOnEtcd() {
  EtcdRegistry::Options options;
  options.lease_spread = 0;  // its own numbers would decide it
  options.keys_per_lease = options_.keys_per_lease;
  if (options_.short_messages) options.subscriptions = ShortMessages();
  on_etcd_ = std::make_unique<EtcdRegistry>(
      options, [this](const std::function<void()>&) -> std::unique_ptr<etcd::Client> {
        return std::make_unique<ModelClient>(&world_->network, options_.link, process_,
                                             options_.etcd);
      });
  world_->Tell("    registry: starts, on etcd");
  Serve(on_etcd_.get(), options_.on_etcd);
}

void RegistryHost::StartStore() {
  executor_ = std::make_unique<TimerExecutor>(process_.get());
  StoreRegistry::Options options;
  options.timer = process_->timer();
  options.executor = executor_.get();
  options.commit_inline = true;
  if (options_.short_messages) options.subscriptions = ShortMessages();
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<StoreRegistry>> {
    if (!disk_.has_value()) return StoreRegistry::Open(std::move(options));
    disk_->Begin();
    SqliteStorage::Options storage;
    storage.path = kStore;
    storage.durability = disk_->synced() ? Durability::kFull : Durability::kNormal;
    storage.checkpoint_pages = 8 + disk_->numbers()->Pick(200);
    storage.boot_id = disk_->boot_id();
    storage.executor = executor_.get();
    storage.disk = disk_->disk();
    auto opened = SqliteStorage::Open(std::move(storage));
    if (!opened.ok()) return opened.status();
    return StoreRegistry::OpenOn(std::move(options), *std::move(opened));
  };
  auto store = open();
  if (!store.ok()) {
    return world_->Fail("start", absl::StrCat("the registry: ", store.status().ToString()));
  }
  store_ = *std::move(store);
  if (disk_.has_value()) disk_->Fail();
  world_->Tell(absl::StrCat("    registry: starts, epoch ", store_->epoch()));
  if (epoch_ != 0 && store_->epoch() != epoch_) fencing_->Forget();
  epoch_ = store_->epoch();
  truth_->Attach(store_.get());
  Serve(store_.get(), fencing_);
}

void RegistryHost::Serve(Registry* registry, Witness* witness) {
  access_ =
      options_.secured ? std::make_shared<AccessControl>(RulesWithout(denied_, *world_)) : nullptr;
  server_ = std::make_shared<WireServer>(&world_->network, process_, registry, witness, access_);
  server_->Sweep();
}

void RegistryHost::Kill() {
  server_.reset();
  if (on_etcd_ != nullptr) {
    // Nothing of it is sent any more.
    Link& link = world_->network.link(options_.link);
    const std::array<bool, 2> open = {link.ways[0].open, link.ways[1].open};
    for (Link::State& way : link.ways) way.open = false;
    on_etcd_.reset();
    for (size_t i = 0; i < open.size(); ++i) link.ways[i].open = open[i];
  } else {
    truth_->Detach();
    fencing_->Died();
    if (disk_.has_value()) disk_->End();
    store_.reset();
    executor_.reset();
  }
  process_.reset();
}

absl::Status RegistryHost::CheckInvariants() const {
  return store_ == nullptr ? absl::OkStatus() : store_->CheckInvariants();
}

void RegistryHost::EndDiskSoon() {
  if (up() && disk_.has_value()) disk_->EndSoon();
}

void RegistryHost::HealDisk() {
  if (disk_.has_value()) disk_->Heal();
}

void RegistryHost::Wipe() {
  if (disk_.has_value()) disk_->Replace({});
}

void RegistryHost::Backup() {
  if (!disk_.has_value()) return;
  backup_ = disk_->Read();
  // The mark belongs to the store in its place.
  for (auto it = backup_.begin(); it != backup_.end();) {
    it = it->first.find(".mark") != std::string::npos ? backup_.erase(it) : std::next(it);
  }
}

bool RegistryHost::Restore() {
  if (!disk_.has_value() || backup_.empty()) return false;
  disk_->Replace(backup_);
  return true;
}

void RegistryHost::SetWall(absl::Duration offset) {
  wall_ = offset;
  if (up()) process_->clock().SetWall(offset);
}

void RegistryHost::SetPolicy(const std::map<int, int>& denied) {
  denied_ = denied;
  if (!up() || access_ == nullptr) return;
  // A process that was stopped reads what the file says by then.
  process_->Run([this, access = access_] { access->Update(RulesWithout(denied_, *world_)); });
}

// --- Agents.

AgentHost::AgentHost(World* world, Options options)
    : world_(world), options_(std::move(options)), numbers_(options_.seed) {
  if (options_.journal) disk_.emplace(options_.seed ^ 0xd15c);
}

AgentHost::~AgentHost() {
  gateways_.reset();
  registry_.reset();
}

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
  session_age_ = client->SessionAge();
  FailbackRegistry::Options options = options_.registry;
  options.upstream_name = "sim://registry";
  options.client_name = absl::StrCat("agent-", options_.index);
  options.session_ttl = absl::Seconds(kSessionTtl);
  options.timer = process_->timer();
  options.random = [this] { return numbers_.Unit(); };
  options.on_event = options_.on_event;
  if (disk_.has_value()) {
    disk_->Begin();
    disk_failed_ = false;
    options.state_dir = absl::StrCat(HostDisk::kFolder, "/agent");
    options.manual_journal = true;
    options.full_sync = disk_->synced();
    options.disk = disk_->disk();
  }
  auto registry = FailbackRegistry::Create(std::move(client), std::move(options));
  if (!registry.ok()) {
    return world_->Fail("start",
                        absl::StrCat(process_->name(), ": ", registry.status().ToString()));
  }
  registry_ = *std::move(registry);
  if (disk_.has_value()) disk_->Fail();
  if (options_.gateways_to > 0) {
    gateways_ = std::make_unique<Gateways>(registry_.get(), process_.get(), options_.gateways_to);
  }
}

void AgentHost::Kill(Disk disk) {
  killer_();
  former_calls_ = calls();
  counter_ = nullptr;
  if (disk_.has_value()) disk_failed_ = disk_->End();
  process_->clock().set_stopped(false);
  gateways_.reset();
  registry_.reset();
  process_.reset();
  if (!disk_.has_value()) return;
  if (disk == Disk::kEmpty) disk_->Replace({});
  if (disk == Disk::kOlder) disk_->Replace(backup_);
}

void AgentHost::End() {
  former_calls_ = calls();
  counter_ = nullptr;
  gateways_.reset();
  registry_.reset();
  process_.reset();
}

void AgentHost::Backup() {
  if (disk_.has_value()) backup_ = disk_->Read();
}

void AgentHost::EndDiskSoon() {
  if (up() && disk_.has_value()) disk_->EndSoon();
}

void AgentHost::HealDisk() {
  if (disk_.has_value()) disk_->Heal();
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
