// What a client of the JSON door is sent of a service, after what it has.

#include "gateway/json/service_json.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::shared_ptr<const InstanceSet> SetOf(const std::vector<std::string>& ids, uint64_t revision) {
  std::vector<Blob> blobs;
  for (const std::string& id : ids) blobs.emplace_back(CanonicalInstance(MakeInstance(id)));
  InstanceSet set;
  EXPECT_TRUE(set.Apply(*Event::Snapshot(7, revision, SetFlags(), std::move(blobs))).ok());
  return std::make_shared<const InstanceSet>(std::move(set));
}

// {a, b} at 5, made of {a} at 4.
catalog::ServiceView View() {
  const auto before = SetOf({"a"}, 4);
  catalog::ServiceView view;
  view.knowledge = catalog::Knowledge::kKnown;
  view.instances = SetOf({"a", "b"}, 5);
  view.changes = std::make_shared<const InstanceSet::Changes>(
      InstanceSet::Difference(*before, *view.instances));
  view.base_revision = 4;
  view.renderings = std::make_shared<catalog::Renderings>();
  return view;
}

const ServiceName kOrders = {"default", "orders"};

TEST(ServiceJsonTest, AClientThatIsOneChangeBehind_GetsADelta) {
  const std::string event = *NextEvent(kOrders, View(), {7, 4});
  EXPECT_THAT(event, HasSubstr("id: 7.5\nevent: delta\ndata: {"));
  EXPECT_THAT(event, HasSubstr("\"baseRevision\":\"4\""));
  EXPECT_THAT(event, HasSubstr("\"instanceId\":\"b\""));
  EXPECT_THAT(event, Not(HasSubstr("\"instanceId\":\"a\"")));
}

TEST(ServiceJsonTest, AClientThatIsFurtherBehind_OrOfAnotherEpoch_GetsASnapshot) {
  for (const StatePosition& seen : {StatePosition(), StatePosition{7, 3}, StatePosition{6, 4}}) {
    const std::string event = *NextEvent(kOrders, View(), seen);
    EXPECT_THAT(event, HasSubstr("id: 7.5\nevent: snapshot\ndata: {")) << seen.revision;
    EXPECT_THAT(event, HasSubstr("\"instanceId\":\"a\""));
    EXPECT_THAT(event, HasSubstr("\"instanceId\":\"b\""));
  }
}

TEST(ServiceJsonTest, ThatItIsStale_IsADeltaWithoutInstances_AndRenderedApart) {
  catalog::ServiceView view = View();
  const std::string fresh = *StateJson(kOrders, view);
  view.stale_since = absl::UnixEpoch();
  const std::string event = *NextEvent(kOrders, view, {7, 5});
  EXPECT_THAT(event, HasSubstr("event: delta"));
  EXPECT_THAT(event, HasSubstr("\"stale\":true"));
  EXPECT_THAT(event, HasSubstr("\"baseRevision\":\"5\""));
  EXPECT_THAT(event, Not(HasSubstr("instanceId")));
  EXPECT_NE(*StateJson(kOrders, view), fresh) << "the bytes of the state that is not stale";
}

TEST(ServiceJsonTest, AStateIsRenderedOnce) {
  const catalog::ServiceView view = View();
  EXPECT_EQ(StateJson(kOrders, view), StateJson(kOrders, view));
  EXPECT_EQ(NextEvent(kOrders, view, {7, 4}), NextEvent(kOrders, view, {7, 4}));
}

}  // namespace
}  // namespace failback
