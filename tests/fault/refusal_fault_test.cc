// A registry that answers every intent with an error, code by code: what the agent makes of it,
// that it does not storm meanwhile, and that all is well once the registry is.

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "tests/fault/fleet.h"
#include "tests/registry/fake_registry.h"

namespace failback {
namespace {

using agent::v1::PENDING_STATE_PARKED;
using agent::v1::PendingOperation;

enum Outcome {
  kTriedAgain,  // until it passes
  kParked,      // until an operator, or a new intent, says so
  // Taken for a loss of the session or of a number: sent again at once, and then not at once.
  kRenewed,
};

struct Refused {
  const char* name;
  absl::Status status;
  Outcome outcome;
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }

absl::Status Code(absl::StatusCode code) { return absl::Status(code, "as the test says"); }

absl::Status Reason(ErrorReason reason) { return Refusal(reason, "as the test says"); }

std::vector<Refused> AllRefusals() {
  using absl::StatusCode;
  const absl::Duration soon = absl::Milliseconds(100);
  return {
      {"Cancelled", Code(StatusCode::kCancelled), kTriedAgain},
      {"Unknown", Code(StatusCode::kUnknown), kTriedAgain},
      {"InvalidArgument", Code(StatusCode::kInvalidArgument), kParked},
      {"DeadlineExceeded", Code(StatusCode::kDeadlineExceeded), kTriedAgain},
      {"AlreadyExists", Code(StatusCode::kAlreadyExists), kParked},
      {"PermissionDenied", Code(StatusCode::kPermissionDenied), kParked},
      {"ResourceExhausted", Code(StatusCode::kResourceExhausted), kParked},
      {"ResourceExhaustedForNow", WithRetryDelay(Code(StatusCode::kResourceExhausted), soon),
       kTriedAgain},
      {"FailedPrecondition", Code(StatusCode::kFailedPrecondition), kParked},
      {"Aborted", Code(StatusCode::kAborted), kTriedAgain},
      {"OutOfRange", Code(StatusCode::kOutOfRange), kParked},
      {"Unimplemented", Code(StatusCode::kUnimplemented), kParked},
      {"Internal", Code(StatusCode::kInternal), kTriedAgain},
      {"Unavailable", Code(StatusCode::kUnavailable), kTriedAgain},
      {"DataLoss", Code(StatusCode::kDataLoss), kParked},
      {"Unauthenticated", Code(StatusCode::kUnauthenticated), kTriedAgain},
      {"InvalidField", InvalidField("instance.port", "not liked"), kParked},
      {"TooLarge", Reason(registry::v1::ERROR_REASON_TOO_LARGE), kParked},
      {"LimitReached", Reason(registry::v1::ERROR_REASON_LIMIT_REACHED), kParked},
      {"Overloaded", WithRetryDelay(Reason(registry::v1::ERROR_REASON_OVERLOADED), soon),
       kTriedAgain},
      {"StoreReadOnly", WithRetryDelay(Reason(registry::v1::ERROR_REASON_STORE_READ_ONLY), soon),
       kTriedAgain},
      {"ShuttingDown", Reason(registry::v1::ERROR_REASON_SHUTTING_DOWN), kTriedAgain},
      {"Draining", Reason(registry::v1::ERROR_REASON_DRAINING), kTriedAgain},
      {"SessionUnknown", Reason(registry::v1::ERROR_REASON_SESSION_UNKNOWN), kRenewed},
      {"GenerationReused", Reason(registry::v1::ERROR_REASON_GENERATION_REUSED), kRenewed},
  };
}

class RefusalFaultTest : public ::testing::TestWithParam<Refused> {
 protected:
  RefusalFaultTest() : fleet_(Refusing()) {}

  static Fleet::Options Refusing() {
    Fleet::Options options;
    options.registry = Fleet::RegistryKind::kRefusing;
    return options;
  }

  // Whether the four intents stand as this refusal should leave them.
  bool StandAsExpected(const std::vector<PendingOperation>& pending) {
    const Refused& refused = GetParam();
    if (pending.size() != 4) return false;
    return std::all_of(pending.begin(), pending.end(), [&](const PendingOperation& operation) {
      const bool parked = operation.state() == PENDING_STATE_PARKED;
      if (parked != (refused.outcome == kParked)) return false;
      if (refused.outcome == kRenewed) return true;
      return operation.last_status().code() == static_cast<int>(refused.status.code());
    });
  }

  // One round of refusals, which end, and what comes of it.
  void RefuseAndServe(RefusingRegistry::Landing landing, const std::string& suffix) {
    fleet_.Register("kept" + suffix);
    fleet_.Register("leaves" + suffix);
    ASSERT_TRUE(fleet_.Converged());

    const int64_t before = fleet_.refusing().refused();
    const absl::Time start = absl::Now();
    fleet_.refusing().Refuse(GetParam().status, landing);
    fleet_.Register("joins" + suffix);
    fleet_.Unregister("leaves" + suffix);
    fleet_.Register("kept" + suffix, 9090);
    SubscribeRequest subscribe;
    subscribe.mutable_selector()->set_service("payments" + suffix);
    const auto listener = std::make_shared<RecordingListener>();
    const auto subscription = fleet_.client()->Subscribe(subscribe, listener);
    std::vector<PendingOperation> pending;
    EXPECT_TRUE(Eventually([&] {
      pending = fleet_.Pending();
      return StandAsExpected(pending);
    })) <<
        [&] {
          std::string text = absl::StrCat(pending.size(), " pending:\n");
          for (const PendingOperation& operation : pending)
            text += operation.ShortDebugString() + "\n";
          return text;
        }();
    // A storm would show while the agent answers these.
    for (int i = 0; i < 50; ++i) fleet_.Pending();
    // A batch and a subscribe at least; most come again.
    const int64_t enough = GetParam().outcome == kParked ? 2 : 4;
    EXPECT_TRUE(Eventually([&] { return fleet_.refusing().refused() - before >= enough; }));
    const int64_t calls = fleet_.refusing().refused() - before;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    EXPECT_LT(calls, 50 + 50 * seconds) << "a storm, in " << seconds << " s";

    fleet_.refusing().Serve();
    if (GetParam().outcome == kParked) {
      EXPECT_TRUE(StandAsExpected(fleet_.Pending())) << "it stays parked";
      fleet_.RetryAll();
    }
    EXPECT_TRUE(fleet_.Converged());
    EXPECT_TRUE(listener->WaitForEvents(1, absl::Seconds(30))) << "the new subscription";
  }

  Fleet fleet_;
};

TEST_P(RefusalFaultTest, IsHandledByItsCode) {
  RefuseAndServe(RefusingRegistry::kNothingLands, "-1");
  RefuseAndServe(RefusingRegistry::kLands, "-2");
}

INSTANTIATE_TEST_SUITE_P(Codes, RefusalFaultTest, ::testing::ValuesIn(AllRefusals()),
                         [](const auto& info) { return info.param.name; });

// What is not there need not be removed.
TEST(RefusalTest, NotFoundIsAsGoodAsUnregistered) {
  Fleet::Options options;
  options.registry = Fleet::RegistryKind::kRefusing;
  Fleet fleet(options);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());
  fleet.refusing().Refuse(absl::NotFoundError("gone already"), RefusingRegistry::kLands);
  fleet.Unregister("leaves");
  EXPECT_TRUE(fleet.Converged());
  EXPECT_EQ(fleet.refusing().refused(), 1);
}

}  // namespace
}  // namespace failback
