// What a transaction writes for one intent, without an etcd.

#include "registry/etcd/instance_writes.h"

#include <string>
#include <utility>

#include "etcd/rpc.pb.h"
#include "gtest/gtest.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/sessions.h"
#include "registry/etcd/stored.h"
#include "registry/model/canonical.h"
#include "registry/model/fencing.h"

namespace failback {
namespace etcd {
namespace {

constexpr int64_t kNow = 5000;
constexpr int64_t kLease = 77;

class InstanceWritesTest : public testing::Test {
 protected:
  InstanceWritesTest() {
    session_.id = "session";
    session_.incarnation = "pod-1";
    session_.client_name = "orders";
    session_.rank = 9;
    InstanceKey key;
    key.set_namespace_("default");
    key.set_service("orders");
    key.set_instance_id("orders-1");
    put_.key = remove_.key = CanonicalKey(key);
    ServiceInstance instance;
    *instance.mutable_key() = key;
    put_.registers = true;
    put_.instance = Blob(instance.SerializeAsString());
    put_.generation = remove_.generation = 3;
    etcd_key_ = keys_.Instance(put_.key);
  }

  // The transaction of one intent. `session` null: detached.
  etcdserverpb::TxnRequest Write(const Session* session, const Intent& intent,
                                 const KnownKey& known, bool drop_index = false) {
    InstanceWrites writes(&keys_, session, absl::Seconds(60), kNow);
    writes.Add(intent, etcd_key_, known, {absl::OkStatus(), 3, true}, kLease);
    if (drop_index) writes.DropIndex(intent, known);
    etcdserverpb::TxnRequest txn;
    EXPECT_TRUE(txn.ParseFromString(std::move(*writes.txn()).Take()));
    return txn;
  }

  // The key as `owner` has registered the instance, at revision 20 and time 4000.
  KnownKey Held(const std::string& owner) const {
    KnownKey known;
    known.read = true;
    known.mod_revision = 20;
    known.lease = kLease;
    known.current.instance = put_.instance;
    known.current.meta.set_owner(owner);
    known.current.meta.set_create_ms(4000);
    known.current.meta.set_modify_ms(4000);
    StoredRecord::SetFence({8, 2, 0, true}, known.current.meta.mutable_fence());
    return known;
  }

  const Keys keys_{"/p"};
  Session session_;
  Intent put_;
  Intent remove_;
  std::string etcd_key_;
};

TEST_F(InstanceWritesTest, NewRegistration_IsPutIfTheKeyIsAbsent) {
  const auto txn = Write(&session_, put_, KnownKey());
  ASSERT_EQ(txn.compare_size(), 1);
  EXPECT_EQ(txn.compare(0).key(), etcd_key_);
  EXPECT_EQ(txn.compare(0).mod_revision(), 0);
  ASSERT_EQ(txn.success_size(), 1);
  const auto& put = txn.success(0).request_put();
  EXPECT_EQ(put.lease(), kLease);
  const StoredRecord stored = DecodeStored(put_.key, put.value());
  EXPECT_EQ(stored.instance, put_.instance);
  EXPECT_EQ(stored.meta.owner(), "pod-1");
  EXPECT_EQ(stored.meta.client_name(), "orders");
  EXPECT_EQ(stored.meta.create_ms(), kNow);
  EXPECT_EQ(stored.meta.retention_ms(), 60000);
  EXPECT_EQ(stored.fence().rank, 9u);
  EXPECT_EQ(stored.fence().generation, 3u);
}

TEST_F(InstanceWritesTest, RegisteredAgainAsItIs_KeepsItsTimesAndItsFirstRevision) {
  const auto txn = Write(&session_, put_, Held("pod-0"));
  EXPECT_EQ(txn.compare(0).mod_revision(), 20);
  const StoredRecord stored = DecodeStored(put_.key, txn.success(0).request_put().value());
  EXPECT_EQ(stored.meta.owner(), "pod-1");
  EXPECT_EQ(stored.meta.create_ms(), 4000);
  EXPECT_EQ(stored.meta.modify_ms(), 4000);
  EXPECT_EQ(stored.meta.create_revision(), 20);
}

TEST_F(InstanceWritesTest, Deregistration_LeavesATombstoneAndEndsTheMark) {
  KnownKey known = Held("pod-1");
  known.mark_revision = 21;
  const auto txn = Write(&session_, remove_, known);
  ASSERT_EQ(txn.compare_size(), 2);
  EXPECT_EQ(txn.compare(1).key(), keys_.Mark(put_.key));
  EXPECT_EQ(txn.compare(1).mod_revision(), 21);
  ASSERT_EQ(txn.success_size(), 2);
  EXPECT_EQ(txn.success(0).request_delete_range().key(), keys_.Mark(put_.key));
  const StoredRecord stored = DecodeStored(put_.key, txn.success(1).request_put().value());
  EXPECT_FALSE(stored.instance);
  EXPECT_EQ(stored.meta.modify_ms(), kNow);
  EXPECT_EQ(stored.meta.owner(), "");
  EXPECT_EQ(stored.fence().rank, 9u);
}

TEST_F(InstanceWritesTest, DetachedDeregistration_KeepsTheFenceThatIsThereAndDeletesElse) {
  const auto fenced = Write(nullptr, remove_, Held("pod-1"));
  ASSERT_TRUE(fenced.success(0).has_request_put());
  const StoredRecord stored = DecodeStored(put_.key, fenced.success(0).request_put().value());
  EXPECT_EQ(stored.fence().rank, 8u);
  EXPECT_EQ(stored.fence().generation, 2u);

  KnownKey without_fence = Held("");
  without_fence.current.meta.clear_fence();
  const auto deleted = Write(nullptr, remove_, without_fence);
  ASSERT_EQ(deleted.success_size(), 1);
  EXPECT_EQ(deleted.success(0).request_delete_range().key(), etcd_key_);
}

TEST_F(InstanceWritesTest, Index_FollowsInstancesWithoutALease) {
  Intent persistent = put_;
  persistent.persistent = true;
  const auto added = Write(&session_, persistent, KnownKey());
  EXPECT_EQ(added.success(0).request_put().key(), keys_.Persistent("pod-1", put_.key));

  KnownKey before = Held("pod-0");
  before.lease = 0;
  const auto moved = Write(&session_, persistent, before, /*drop_index=*/true);
  ASSERT_EQ(moved.success_size(), 3);
  EXPECT_EQ(moved.success(0).request_put().key(), keys_.Persistent("pod-1", put_.key));
  EXPECT_EQ(moved.success(2).request_delete_range().key(), keys_.Persistent("pod-0", put_.key));

  before.current.meta.set_owner("pod-1");
  EXPECT_EQ(Write(&session_, persistent, before, /*drop_index=*/true).success_size(), 1);
}

}  // namespace
}  // namespace etcd
}  // namespace failback
