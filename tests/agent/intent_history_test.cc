// What an agent remembers of an instance, for an operator who asks.

#include "agent/intent_history.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class IntentHistoryTest : public ::testing::Test {
 protected:
  void Add(IntentEvent::Kind kind, const std::string& id,
           const absl::Status& status = absl::OkStatus()) {
    IntentEvent event;
    event.kind = kind;
    event.operation = OperationKind::kRegister;
    event.id = id;
    event.upstream = "r";
    event.times = 1;
    event.status = status;
    history_.Add(event, absl::FromUnixSeconds(++seconds_));
  }
  std::vector<std::string> Of(const std::string& id) const {
    registry::v1::InstanceKey key;
    key.set_namespace_("default");
    key.set_service("orders");
    key.set_instance_id(id);
    admin::v1::InstanceDescription description;
    history_.AddTo(key, &description);
    std::vector<std::string> told;
    for (const auto& change : description.history()) {
      told.push_back(admin::v1::ChangeKind_Name(change.kind()).substr(12) + ": " + change.detail());
    }
    return told;
  }

  IntentHistory history_{5};
  int64_t seconds_ = 0;
};

TEST_F(IntentHistoryTest, TheLeaseIsAPartOfWhatBefellAnInstance) {
  Add(IntentEvent::Kind::kAcknowledged, "register default/orders/a");
  Add(IntentEvent::Kind::kLapsed, "", absl::UnauthenticatedError("revoked"));
  Add(IntentEvent::Kind::kRenewed, "");
  Add(IntentEvent::Kind::kRetrying, "register default/orders/b", absl::AbortedError("not now"));
  Add(IntentEvent::Kind::kAcknowledged, "register default/orders/a");
  EXPECT_THAT(Of("a"), ElementsAre("ACKNOWLEDGED: register", "ACKNOWLEDGED: the lease is renewed",
                                   "LAPSED: the lease has run out: UNAUTHENTICATED: revoked",
                                   "ACKNOWLEDGED: register"));
  EXPECT_THAT(Of("b"), ElementsAre("RETRYING: register, attempt 1: ABORTED: not now"));
  EXPECT_THAT(Of("c"), IsEmpty());
  // The oldest is forgotten, and what was before an instance's first event is not its own.
  Add(IntentEvent::Kind::kParked, "register default/orders/a", absl::AbortedError("no"));
  EXPECT_THAT(Of("a"),
              ElementsAre("PARKED: register, attempt 1: ABORTED: no", "ACKNOWLEDGED: register"));
}

TEST_F(IntentHistoryTest, WhatIsRefusedAndWhatIsCancelledHasItsCause) {
  IntentEvent event;
  event.kind = IntentEvent::Kind::kParked;
  event.id = "register default/orders/a";
  event.times = 1;
  event.refused = true;
  event.status = absl::PermissionDeniedError("not yours");
  history_.Add(event, absl::FromUnixSeconds(++seconds_));
  Add(IntentEvent::Kind::kCancelled, "register default/orders/a",
      absl::PermissionDeniedError("not yours"));
  Add(IntentEvent::Kind::kCancelled, "register default/orders/b");
  EXPECT_THAT(Of("a"), ElementsAre("CANCELLED: register, given up by an operator, attempt 1: "
                                   "PERMISSION_DENIED: not yours",
                                   "REFUSED: register, attempt 1: PERMISSION_DENIED: not yours"));
  EXPECT_THAT(Of("b"), ElementsAre("CANCELLED: register, given up by an operator"));
  Add(IntentEvent::Kind::kCancelled, "register default/orders/c",
      absl::CancelledError("it had been sent, and may still take effect"));
  EXPECT_THAT(Of("c"), ElementsAre("CANCELLED: register, given up by an operator; it had been "
                                   "sent, and may still take effect"));
}

}  // namespace
}  // namespace failback
