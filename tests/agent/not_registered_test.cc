// Why a registry may not tell of what an agent carries.

#include "agent/not_registered.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using registry::v1::IntentState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CarriedRecord Record(const std::string& id, IntentState state, const std::string& upstream,
                     absl::Status last_status = absl::OkStatus()) {
  const registry::v1::ServiceInstance instance = MakeInstance(id, 8080);
  return {CanonicalKey(instance.key()), Blob(CanonicalInstance(instance)), state, 1, upstream,
          std::move(last_status)};
}

std::vector<std::string> ReasonsOf(const std::vector<CarriedRecord>& carried) {
  std::vector<std::string> reasons;
  for (const dns::NotRegistered& one : NotRegisteredOf(carried)) {
    reasons.push_back((one.acknowledged ? "acknowledged " : "not ") + one.why);
  }
  return reasons;
}

TEST(NotRegisteredTest, EachStateHasItsReason) {
  EXPECT_THAT(
      ReasonsOf({Record("a", registry::v1::INTENT_STATE_PARKED, "",
                        absl::PermissionDeniedError("no rule")),
                 Record("b", registry::v1::INTENT_STATE_SUPERSEDED, ""),
                 Record("c", registry::v1::INTENT_STATE_LAPSED, ""),
                 Record("d", registry::v1::INTENT_STATE_ACCEPTED, ""),
                 Record("e", registry::v1::INTENT_STATE_ACKNOWLEDGED, "")}),
      ElementsAre(HasSubstr("not parked: the registry refuses it: PERMISSION_DENIED: no rule"),
                  HasSubstr("not superseded"), HasSubstr("not lapsed"), HasSubstr("not accepted"),
                  HasSubstr("acknowledged acknowledged, and the registry tells no such instance")));
}

TEST(NotRegisteredTest, OfSeveralRegistriesTheFirstThatHasNotAcknowledgedGivesTheReason) {
  EXPECT_THAT(ReasonsOf({Record("a", registry::v1::INTENT_STATE_ACKNOWLEDGED, "one"),
                         Record("a", registry::v1::INTENT_STATE_PARKED, "two"),
                         Record("a", registry::v1::INTENT_STATE_LAPSED, "three"),
                         Record("b", registry::v1::INTENT_STATE_ACKNOWLEDGED, "one"),
                         Record("b", registry::v1::INTENT_STATE_ACKNOWLEDGED, "two")}),
              ElementsAre(HasSubstr("not parked"), HasSubstr("acknowledged acknowledged")));
}

}  // namespace
}  // namespace failback
