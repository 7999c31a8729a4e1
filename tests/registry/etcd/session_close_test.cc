// The end of a session on one real member of etcd: nothing of it is left, whatever happens meanwhile.

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/time.h"
#include "failback/etcd/v1/stored.pb.h"
#include "gtest/gtest.h"
#include "registry/etcd/keys.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/registry/etcd/raw_etcd.h"

namespace failback {
namespace {

using failback::etcd::v1::SessionRecord;

class SessionCloseTest : public EtcdTest {
 protected:
  // A lease has room for two keys, so that a session needs further ones all the time.
  static void Open(EtcdHarness* registry) {
    registry->options().keys_per_lease = 2;
    registry->Open();
  }
  // A session that has several leases, by the value of its key.
  static SessionRecord Fill(EtcdHarness* registry, const std::string& session, int instances) {
    for (int i = 0; i < instances; ++i) {
      EXPECT_TRUE(registry->Register(session, MakeInstance("s", absl::StrCat("i", i)), 1).ok());
    }
    SessionRecord record;
    record.ParseFromString(
        RawEtcd(etcd()).Get(etcd::Keys(registry->prefix()).Session(session)).value());
    EXPECT_GT(record.leases_size(), 2);
    return record;
  }
  static void ExpectNothingLeft(EtcdHarness* registry, const SessionRecord& record) {
    EXPECT_TRUE(Eventually([&] { return registry->Ids("s").empty(); }));
    RawEtcd raw(etcd());
    for (const int64_t lease : record.leases()) EXPECT_FALSE(raw.Lives(lease)) << lease;
  }
};

// One server gives the session leases while another closes it.
TEST_F(SessionCloseTest, WhileItGrows_LeavesNothing) {
  constexpr int kInstances = 60;
  EtcdHarness closer(etcd(), NewPrefix());
  Open(&closer);
  EtcdHarness writer(etcd(), closer.prefix());
  Open(&writer);
  for (int round = 0; round < 10; ++round) {
    const std::string session = closer.Session(absl::StrCat("a", round), absl::Hours(1));
    // Some are there when it is closed, and some on their way.
    const int there = 3 + 4 * round;
    std::atomic<int> answers{0};
    absl::BlockingCounter some_answered(there);
    absl::BlockingCounter answered(kInstances);
    for (int i = 0; i < kInstances; ++i) {
      RegisterRequest request;
      request.set_session_id(session);
      auto* registration = request.add_registrations();
      *registration->mutable_instance() = MakeInstance("s", absl::StrCat("i", i));
      registration->set_generation(1);
      writer->Register(request, [&](const absl::StatusOr<RegisterResponse>&) {
        if (answers.fetch_add(1) < there) some_answered.DecrementCount();
        answered.DecrementCount();
      });
    }
    some_answered.Wait();
    ASSERT_TRUE(closer.CloseSession(session).ok());
    answered.Wait();
    EXPECT_TRUE(Eventually([&] { return closer.Ids("s").empty(); })) << "round " << round;
    EXPECT_EQ(ReasonOf(writer.Register(session, MakeInstance("s", "late"), 1).status),
              registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  }
}

// A server has written down that the session is closed, and is gone.
TEST_F(SessionCloseTest, HalfClosed_IsOverAndCanBeClosedAgain) {
  EtcdHarness registry(etcd(), NewPrefix());
  Open(&registry);
  const std::string session = registry.Session("a", absl::Hours(1));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(registry.Register(session, MakeInstance("s", absl::StrCat("i", i)), 1).ok());
  }
  RawEtcd raw(etcd());
  const etcd::Keys keys(registry.prefix());
  const mvccpb::KeyValue before = raw.Get(keys.Session(session));
  SessionRecord record;
  ASSERT_TRUE(record.ParseFromString(before.value()));
  ASSERT_GT(record.leases_size(), 1);
  record.set_closed(true);
  raw.Put(keys.Session(session), record.SerializeAsString(), before.lease());

  EtcdHarness other(etcd(), registry.prefix());
  EXPECT_EQ(ReasonOf(other.KeepAlive(session)), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_EQ(ReasonOf(other.Register(session, MakeInstance("s", "late"), 1).status),
            registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  const OpenSessionResponse next = other.OpenSession("a", absl::Hours(1));
  EXPECT_NE(next.session_id(), session);
  EXPECT_FALSE(next.resumed());
  EXPECT_EQ(other.Ids("s").size(), 5u);
  ASSERT_TRUE(other.CloseSession(session).ok());
  EXPECT_TRUE(Eventually([&] { return other.Ids("s").empty(); }));
  for (const int64_t lease : record.leases()) EXPECT_FALSE(raw.Lives(lease)) << lease;
  EXPECT_TRUE(other.KeepAlive(next.session_id()).ok());
}

// Leases end one by one, and the session's key with the first.
TEST_F(SessionCloseTest, WhenItsFirstLeaseHasEnded_LeavesNothing) {
  EtcdHarness registry(etcd(), NewPrefix());
  Open(&registry);
  const std::string session = registry.Session("a", absl::Hours(1));
  const SessionRecord record = Fill(&registry, session, 7);
  RawEtcd(etcd()).Revoke(record.leases(0));
  ASSERT_GT(registry.Ids("s").size(), 3u) << "what is on the others stays";
  EtcdHarness other(etcd(), registry.prefix());
  Open(&other);
  ASSERT_TRUE(other.CloseSession(session).ok());
  ExpectNothingLeft(&other, record);
  ASSERT_TRUE(other.CloseSession(session).ok());
}

// The server that notices it ends the session.
TEST_F(SessionCloseTest, WhenAnotherOfItsLeasesHasEnded_LeavesNothing) {
  EtcdHarness registry(etcd(), NewPrefix());
  Open(&registry);
  const std::string session = registry.Session("a", absl::Hours(1));
  const SessionRecord record = Fill(&registry, session, 7);
  RawEtcd raw(etcd());
  raw.Revoke(record.leases(1));
  EXPECT_EQ(ReasonOf(registry.KeepAlive(session)), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_TRUE(raw.Lives(record.leases(0)));
  ASSERT_TRUE(registry.CloseSession(session).ok());
  ExpectNothingLeft(&registry, record);
}

// Whose next session is closed before all was written again.
TEST_F(SessionCloseTest, OfAnIncarnationWhoseSessionWasLost_LeavesNothing) {
  EtcdHarness registry(etcd(), NewPrefix());
  Open(&registry);
  const SessionRecord record = Fill(&registry, registry.Session("a", absl::Hours(1)), 7);
  RawEtcd raw(etcd());
  raw.Revoke(record.leases(0));
  // Once more: what was left by the first is left by the second.
  std::string session = registry.OpenSession("a", absl::Hours(1)).session_id();
  raw.Revoke(raw.Get(etcd::Keys(registry.prefix()).Session(session)).lease());
  const OpenSessionResponse next = registry.OpenSession("a", absl::Hours(1));
  EXPECT_FALSE(next.resumed());
  const size_t left = registry.Ids("s").size();
  ASSERT_GT(left, 3u) << "until they are written again, or their leases end";
  ASSERT_TRUE(registry.Register(next.session_id(), MakeInstance("s", "i6"), 2).ok());
  EXPECT_EQ(registry.Ids("s").size(), left);
  ASSERT_TRUE(registry.CloseSession(next.session_id()).ok());
  ExpectNothingLeft(&registry, record);
}

}  // namespace
}  // namespace failback
