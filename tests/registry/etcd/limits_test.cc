// limits.max_instances, max_instances_per_session and max_sessions over one real member of etcd.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_LIMIT_REACHED;
using registry::v1::ERROR_REASON_UNSPECIFIED;

class EtcdLimitsTest : public EtcdTest {
 protected:
  // A batch; why each was refused.
  static std::vector<registry::v1::ErrorReason> Register(EtcdHarness& registry,
                                                         const std::string& session,
                                                         const std::vector<std::string>& ids,
                                                         uint64_t generation) {
    RegisterRequest request;
    request.set_session_id(session);
    for (const std::string& id : ids) {
      auto* registration = request.add_registrations();
      *registration->mutable_instance() =
          MakeInstance("s", id, static_cast<uint32_t>(1000 + generation));
      registration->set_generation(generation);
    }
    const auto response = CallAndWait(*registry, &Registry::Register, request);
    EXPECT_TRUE(response.ok()) << response.status();
    std::vector<registry::v1::ErrorReason> reasons;
    if (!response.ok()) return reasons;
    for (const auto& result : response->results()) {
      const absl::Status status = StatusFromProto(result.status());
      reasons.push_back(status.ok() ? ERROR_REASON_UNSPECIFIED : ReasonOf(status));
    }
    return reasons;
  }
};

constexpr auto kOk = ERROR_REASON_UNSPECIFIED;
constexpr auto kFull = ERROR_REASON_LIMIT_REACHED;
using Reasons = std::vector<registry::v1::ErrorReason>;

TEST_F(EtcdLimitsTest, Instances) {
  EtcdHarness registry(etcd(), NewPrefix());
  registry.options().max_instances = 5;
  registry.Open();
  const std::string session = registry.Session("a");
  EXPECT_EQ(Register(registry, session, {"1", "2", "3", "4", "5", "6", "7"}, 1),
            Reasons({kOk, kOk, kOk, kOk, kOk, kFull, kFull}));
  EXPECT_EQ(registry.List("s").size(), 5u);
  const Outcome beyond = registry.Register(session, MakeInstance("s", "6"), 2);
  EXPECT_EQ(ReasonMetadata(beyond.status, "limit"), "5") << beyond.status;
  EXPECT_EQ(ReasonMetadata(beyond.status, "name"), "limits.max_instances");
  // What is there may change, and be said again in a session that expects nothing to be there.
  EXPECT_EQ(Register(registry, session, {"5", "6"}, 3), Reasons({kOk, kFull}));
  EXPECT_EQ(Register(registry, registry.Session("b"), {"8", "1", "2"}, 1),
            Reasons({kFull, kOk, kOk}));
  EXPECT_EQ(ReasonOf(registry.Register("", MakeInstance("s", "9")).status), kFull);
  // A tombstone has its place until it ends, and may be an instance again.
  ASSERT_TRUE(registry.Unregister(session, MakeInstance("s", "5").key(), 4).ok());
  EXPECT_EQ(Register(registry, session, {"6", "5"}, 5), Reasons({kFull, kOk}));

  // Another server counts the same.
  EtcdHarness other(etcd(), registry.prefix());
  other.options().max_instances = 5;
  other.Open();
  int next = 100;
  EXPECT_TRUE(Eventually([&] {
    return ReasonOf(other.Register(session, MakeInstance("s", absl::StrCat(++next)), 1).status) ==
           kFull;
  }));
  EXPECT_LE(registry.List("s").size(), 10u) << "of its own it knows before it has counted";
  // What is removed makes room.
  ASSERT_TRUE(registry.CloseSession(session).ok());
  EXPECT_TRUE(Eventually([&] { return registry.Register("", MakeInstance("s", "9")).ok(); }));
}

TEST_F(EtcdLimitsTest, Sessions) {
  EtcdHarness registry(etcd(), NewPrefix());
  registry.options().max_sessions = 2;
  registry.Open();
  const std::string first = registry.Session("a");
  registry.Session("b");
  OpenSessionRequest request;
  request.set_incarnation("c");
  const auto third = CallAndWait(*registry, &Registry::OpenSession, request);
  EXPECT_EQ(ReasonOf(third.status()), kFull) << third.status();
  EXPECT_EQ(ReasonMetadata(third.status(), "name"), "limits.max_sessions");
  EXPECT_TRUE(registry.OpenSession("a").resumed());
  ASSERT_TRUE(registry.CloseSession(first).ok());
  EXPECT_TRUE(CallAndWait(*registry, &Registry::OpenSession, request).ok());
}

TEST_F(EtcdLimitsTest, InstancesOfASession) {
  EtcdHarness registry(etcd(), NewPrefix());
  registry.options().max_instances_per_session = 3;
  registry.Open();
  EtcdHarness other(etcd(), registry.prefix());
  other.options().max_instances_per_session = 3;
  other.Open();
  const std::string session = registry.Session("a");
  EXPECT_EQ(Register(registry, session, {"1", "2", "3", "4"}, 1), Reasons({kOk, kOk, kOk, kFull}));
  // A server that knows nothing of the session's leases has them counted.
  EXPECT_EQ(Register(other, session, {"4", "1"}, 2), Reasons({kFull, kOk}));
  EXPECT_EQ(Register(other, other.Session("b"), {"4"}, 1), Reasons({kOk}));
  ASSERT_TRUE(registry.Unregister(session, MakeInstance("s", "3").key(), 3).ok());
  EXPECT_EQ(Register(registry, session, {"5", "6"}, 4), Reasons({kOk, kFull}));
  const Outcome beyond = registry.Register(session, MakeInstance("s", "6"), 5);
  EXPECT_EQ(ReasonMetadata(beyond.status, "name"), "limits.max_instances_per_session")
      << beyond.status;
}

}  // namespace
}  // namespace failback
