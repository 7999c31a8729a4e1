// A session that is resumed with another TTL, on one real member of etcd.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "failback/etcd/v1/stored.pb.h"
#include "gtest/gtest.h"
#include "registry/base/proto_time.h"
#include "registry/etcd/keys.h"
#include "registry/model/canonical.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/registry/etcd/raw_etcd.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

constexpr int kInstances = 500;

class SessionTtlTest : public EtcdTest {
 protected:
  // Several leases: each has room for one transaction, and a bit.
  static void Open(EtcdHarness* registry) {
    registry->options().keys_per_lease = 130;
    registry->Open();
  }

  static void RegisterAll(EtcdHarness& registry, const std::string& session) {
    RegisterRequest request;
    request.set_session_id(session);
    for (int i = 0; i < kInstances; ++i) {
      auto* registration = request.add_registrations();
      *registration->mutable_instance() = MakeInstance("s", absl::StrCat("i", i));
      registration->set_generation(1);
    }
    const auto response = CallAndWait(*registry, &Registry::Register, request);
    ASSERT_TRUE(response.ok()) << response.status();
  }
  static std::map<std::string, uint64_t> CreateRevisions(EtcdHarness& registry) {
    std::map<std::string, uint64_t> revisions;
    for (const auto& record : registry.List("s")) {
      revisions[record.instance().key().instance_id()] = record.create_revision();
    }
    return revisions;
  }
  // All that etcd has.
  static std::set<std::string> Leases() {
    const std::vector<std::string> lines =
        absl::StrSplit(etcd().Ctl({"lease", "list"}).out, '\n', absl::SkipEmpty());
    return {lines.begin(), lines.end()};
  }
};

TEST_F(SessionTtlTest, AShorterOneHoldsForEverythingWithoutAGap) {
  EtcdHarness registry(etcd(), NewPrefix());
  Open(&registry);
  EtcdHarness other(etcd(), registry.prefix());
  Open(&other);
  const std::set<std::string> others = Leases();
  const OpenSessionResponse first = registry.OpenSession("a", absl::Hours(1));
  RegisterAll(registry, first.session_id());
  ServiceInstance stays = MakeInstance("s", "stays");
  stays.set_persistent(true);
  // The other server knows the session as it is now.
  ASSERT_TRUE(other.Register(first.session_id(), stays, 1).ok());
  const auto before = CreateRevisions(registry);
  ASSERT_EQ(before.size(), kInstances + 1u);
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = registry.Subscribe(subscriber, "s");
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().size() == before.size(); }));
  const std::set<std::string> leases = Leases();

  const OpenSessionResponse again = registry.OpenSession("a", absl::Seconds(5));
  EXPECT_TRUE(again.resumed());
  EXPECT_EQ(again.session_id(), first.session_id());
  EXPECT_EQ(again.rank(), first.rank());
  EXPECT_EQ(FromProto(again.ttl()), absl::Seconds(5));
  // In the middle of it, at a server that has not been notified.
  const Outcome late = other.Register(first.session_id(), MakeInstance("s", "late"), 1);
  EXPECT_TRUE(late.ok()) << late.status;
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(registry.KeepAlive(first.session_id()).ok());
    EXPECT_TRUE(other.KeepAlive(first.session_id()).ok());
    // Of the session's old leases none is left, but that of its incarnation.
    const std::set<std::string> now = Leases();
    const auto left = std::count_if(leases.begin(), leases.end(), [&](const std::string& lease) {
      return lease.rfind("found", 0) != 0 && others.count(lease) == 0 && now.count(lease) != 0;
    });
    return left == 1 && subscriber->ids().size() == before.size() + 1;
  }));
  auto after = CreateRevisions(other);
  EXPECT_EQ(after.erase("late"), 1u);
  EXPECT_EQ(after, before);
  for (const auto& event : subscriber->events()) {
    EXPECT_EQ(event->delta().removals_size(), 0) << event->ShortDebugString();
  }
  // Nothing is on a lease of an hour.
  ASSERT_TRUE(Eventually([&] { return registry.Ids("s") == std::vector<std::string>({"stays"}); }));
  EXPECT_EQ(ReasonOf(registry.KeepAlive(first.session_id())),
            registry::v1::ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(SessionTtlTest, ALongerOneHoldsForEverything) {
  EtcdHarness registry(etcd(), NewPrefix());
  Open(&registry);
  const OpenSessionResponse first = registry.OpenSession("a", absl::Seconds(4));
  RegisterAll(registry, first.session_id());
  const OpenSessionResponse again = registry.OpenSession("a", absl::Hours(1));
  EXPECT_TRUE(again.resumed());
  EXPECT_EQ(FromProto(again.ttl()), absl::Hours(1));
  // Longer than the first one lives, by etcd's own clock.
  for (int i = 0; i < 2; ++i) {
    const std::string witness = registry.Session("witness", absl::Seconds(3));
    ASSERT_TRUE(registry.Register(witness, MakeInstance("w", "1"), 1).ok());
    ASSERT_TRUE(Eventually([&] { return registry.Ids("w").empty(); }));
  }
  EXPECT_EQ(registry.Ids("s").size(), static_cast<size_t>(kInstances));
  EXPECT_TRUE(registry.KeepAlive(first.session_id()).ok());
  EXPECT_TRUE(registry.Register(first.session_id(), MakeInstance("s", "i0", 81), 2).ok());
}

TEST_F(SessionTtlTest, ARenewalGoesOnWithWhatAServerThatIsGoneHasBegun) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a", absl::Hours(1));
  const ServiceInstance instance = MakeInstance("s", "1");
  ASSERT_TRUE(registry.Register(session, instance, 1).ok());
  registry.Close();
  // The key is on its new lease, and nothing has been moved yet.
  RawEtcd raw(etcd());
  const etcd::Keys keys(registry.prefix());
  const mvccpb::KeyValue before = raw.Get(keys.Session(session));
  failback::etcd::v1::SessionRecord record;
  ASSERT_TRUE(record.ParseFromString(before.value()));
  ASSERT_EQ(record.leases_size(), 1);
  const int64_t old_lease = record.leases(0);
  const int64_t new_lease = raw.Grant(absl::Minutes(30));
  record.set_ttl_ms(absl::ToInt64Milliseconds(absl::Minutes(30)));
  *record.mutable_retiring() = record.leases();
  record.clear_leases();
  record.add_leases(new_lease);
  record.add_leases(old_lease);
  raw.Put(keys.Session(session), record.SerializeAsString(), new_lease);

  EtcdHarness other(etcd(), registry.prefix());
  const auto lease_of_instance = [&] {
    return raw.Get(keys.Instance(CanonicalKey(instance.key()))).lease();
  };
  ASSERT_EQ(lease_of_instance(), old_lease);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(other.KeepAlive(session).ok());
    return !raw.Lives(old_lease);
  }));
  EXPECT_EQ(lease_of_instance(), new_lease);
}

// Back and forth while it is written: nothing is lost, and the session is the same.
TEST_F(SessionTtlTest, ManyChangesWhileItIsWritten) {
  EtcdHarness registry(etcd(), NewPrefix());
  Open(&registry);
  EtcdHarness other(etcd(), registry.prefix());
  Open(&other);
  const std::string session = registry.Session("a", absl::Seconds(60));
  RegisterAll(registry, session);
  for (int i = 0; i < 10; ++i) {
    EtcdHarness& asked = i % 2 == 0 ? registry : other;
    EtcdHarness& writer = i % 2 == 0 ? other : registry;
    const OpenSessionResponse again = asked.OpenSession("a", absl::Seconds(61 + i));
    ASSERT_EQ(again.session_id(), session);
    ASSERT_EQ(FromProto(again.ttl()), absl::Seconds(61 + i));
    const Outcome written = writer.Register(session, MakeInstance("s", absl::StrCat("n", i)), 1);
    ASSERT_TRUE(written.ok()) << written.status;
    const Outcome updated = writer.Register(session, MakeInstance("s", "i1", 100u + i), 2u + i);
    ASSERT_TRUE(updated.ok()) << updated.status;
    ASSERT_TRUE(asked.KeepAlive(session).ok());
  }
  EXPECT_EQ(registry.Ids("s").size(), kInstances + 10u);
  ASSERT_TRUE(registry.CloseSession(session).ok());
  EXPECT_TRUE(Eventually([&] { return other.Ids("s").empty(); }));
}

}  // namespace
}  // namespace failback
