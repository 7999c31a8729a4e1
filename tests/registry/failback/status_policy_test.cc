#include "registry/failback/status_policy.h"

#include <set>

#include "gtest/gtest.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

constexpr OperationKind kKinds[] = {OperationKind::kRegister, OperationKind::kUnregister,
                                    OperationKind::kSubscribe, OperationKind::kUnsubscribe};

struct CodeRow {
  absl::StatusCode code;
  NextStep on_register, on_unregister, on_subscribe, on_unsubscribe;
  bool may_have_landed;
};

constexpr auto D = NextStep::kDone;
constexpr auto R = NextStep::kRetry;
constexpr auto P = NextStep::kPark;
constexpr auto N = NextStep::kNewGeneration;
constexpr auto S = NextStep::kSuperseded;
constexpr auto Y = NextStep::kResync;

const CodeRow kCodes[] = {
    {absl::StatusCode::kOk, D, D, D, D, false},
    {absl::StatusCode::kCancelled, R, R, R, R, true},
    {absl::StatusCode::kUnknown, R, R, R, R, true},
    {absl::StatusCode::kInvalidArgument, P, P, P, P, false},
    {absl::StatusCode::kDeadlineExceeded, R, R, R, R, true},
    {absl::StatusCode::kNotFound, P, D, P, D, false},
    {absl::StatusCode::kAlreadyExists, P, P, P, P, false},
    {absl::StatusCode::kPermissionDenied, P, P, P, P, false},
    {absl::StatusCode::kResourceExhausted, P, P, P, P, false},
    {absl::StatusCode::kFailedPrecondition, P, P, P, P, false},
    {absl::StatusCode::kAborted, R, R, R, R, true},
    {absl::StatusCode::kOutOfRange, P, P, P, P, false},
    {absl::StatusCode::kUnimplemented, P, P, P, P, false},
    {absl::StatusCode::kInternal, R, R, R, R, true},
    {absl::StatusCode::kUnavailable, R, R, R, R, true},
    {absl::StatusCode::kDataLoss, P, P, P, P, false},
    {absl::StatusCode::kUnauthenticated, R, R, R, R, false},
};

TEST(StatusPolicyTest, EveryCode) {
  std::set<int> tested;
  for (const CodeRow& row : kCodes) {
    const absl::Status status(row.code, "text");
    SCOPED_TRACE(status.ToString());
    tested.insert(static_cast<int>(row.code));
    EXPECT_EQ(DecideNextStep(OperationKind::kRegister, status), row.on_register);
    EXPECT_EQ(DecideNextStep(OperationKind::kUnregister, status), row.on_unregister);
    EXPECT_EQ(DecideNextStep(OperationKind::kSubscribe, status), row.on_subscribe);
    EXPECT_EQ(DecideNextStep(OperationKind::kUnsubscribe, status), row.on_unsubscribe);
    EXPECT_EQ(MayHaveLanded(status), row.may_have_landed);
    EXPECT_EQ(IsConnectionFailure(status), row.code == absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(tested.size(), 17) << "gRPC has the codes 0 to 16";
}

TEST(StatusPolicyTest, ACodeThatDoesNotExistIsParked) {
  const absl::Status status(static_cast<absl::StatusCode>(42), "from another planet");
  // Abseil reads unknown codes as UNKNOWN.
  EXPECT_EQ(DecideNextStep(OperationKind::kRegister, status), R);
}

struct ReasonRow {
  ErrorReason reason;
  NextStep on_register, on_unregister, on_subscribe, on_unsubscribe;
  bool connection;
  // A reason says that nothing was applied, unless it is one of what the server itself depends on.
  bool may_have_landed = false;
};

const ReasonRow kReasons[] = {
    {registry::v1::ERROR_REASON_INVALID_FIELD, P, P, P, P, false},
    {registry::v1::ERROR_REASON_SESSION_UNKNOWN, Y, Y, Y, Y, false},
    {registry::v1::ERROR_REASON_SUPERSEDED, S, S, N, N, false},
    {registry::v1::ERROR_REASON_GENERATION_REUSED, N, N, N, N, false},
    {registry::v1::ERROR_REASON_TOO_LARGE, P, P, P, P, false},
    {registry::v1::ERROR_REASON_LIMIT_REACHED, P, P, P, P, false},
    {registry::v1::ERROR_REASON_OVERLOADED, R, R, R, R, false},
    {registry::v1::ERROR_REASON_STORE_READ_ONLY, R, R, R, R, false},
    {registry::v1::ERROR_REASON_SHUTTING_DOWN, R, R, R, R, true},
    {registry::v1::ERROR_REASON_DRAINING, R, R, R, R, false},
    {registry::v1::ERROR_REASON_REPLACED, R, R, R, R, false},
    {registry::v1::ERROR_REASON_SUBSCRIBER_SLOW, R, R, R, R, false},
    {registry::v1::ERROR_REASON_POSITION_LOST, R, R, R, R, false},
    {registry::v1::ERROR_REASON_NOT_FOUND, P, D, P, D, false},
    {registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE, R, R, R, R, true, true},
    {registry::v1::ERROR_REASON_IDLE, R, R, R, R, false},
    {registry::v1::ERROR_REASON_UNSUPPORTED, P, P, P, P, false},
    {registry::v1::ERROR_REASON_CREDENTIALS_NEEDED, R, R, R, R, false},
    {registry::v1::ERROR_REASON_ACCESS_DENIED, P, P, P, P, false},
    {registry::v1::ERROR_REASON_SESSION_NOT_OWNED, Y, Y, Y, Y, false},
};

TEST(StatusPolicyTest, EveryReason) {
  std::set<int> tested;
  for (const ReasonRow& row : kReasons) {
    const absl::Status status = Refusal(row.reason, "text");
    SCOPED_TRACE(status.ToString());
    tested.insert(row.reason);
    EXPECT_EQ(DecideNextStep(OperationKind::kRegister, status), row.on_register);
    EXPECT_EQ(DecideNextStep(OperationKind::kUnregister, status), row.on_unregister);
    EXPECT_EQ(DecideNextStep(OperationKind::kSubscribe, status), row.on_subscribe);
    EXPECT_EQ(DecideNextStep(OperationKind::kUnsubscribe, status), row.on_unsubscribe);
    EXPECT_EQ(IsConnectionFailure(status), row.connection);
    EXPECT_EQ(MayHaveLanded(status), row.may_have_landed);
  }
  for (int reason = registry::v1::ErrorReason_MIN; reason <= registry::v1::ErrorReason_MAX;
       ++reason) {
    if (!registry::v1::ErrorReason_IsValid(reason) || reason == 0) continue;
    EXPECT_EQ(tested.count(reason), 1)
        << registry::v1::ErrorReason_Name(static_cast<ErrorReason>(reason));
  }
}

TEST(StatusPolicyTest, AReasonOfAnotherDomainIsTakenByItsCode) {
  absl::Status status = Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN, "text");
  rpc::v1::Status proto = StatusToProto(status);
  rpc::v1::ErrorInfo info;
  info.set_reason("SESSION_UNKNOWN");
  info.set_domain("somebody.else");
  proto.mutable_details(0)->set_value(info.SerializeAsString());
  EXPECT_EQ(DecideNextStep(OperationKind::kRegister, StatusFromProto(proto)), P);
}

TEST(StatusPolicyTest, ARetryDelayMakesResourceExhaustedATemporaryState) {
  const absl::Status busy =
      WithRetryDelay(absl::ResourceExhaustedError("busy"), absl::Milliseconds(10));
  EXPECT_EQ(DecideNextStep(OperationKind::kRegister, busy), R);
  EXPECT_FALSE(IsAboutContent(busy));
  EXPECT_TRUE(IsAboutContent(absl::ResourceExhaustedError("too large")));
  EXPECT_TRUE(IsAboutContent(absl::InvalidArgumentError("bad")));
  EXPECT_FALSE(IsAboutContent(absl::PermissionDeniedError("not you")));
}

TEST(StatusPolicyTest, WhatWasNotSentIsRetriedOrParkedAndNeverAnythingElse) {
  for (const OperationKind kind : kKinds) {
    for (const CodeRow& row : kCodes) {
      if (row.code == absl::StatusCode::kOk) continue;
      const NextStep step = DecideUnsent(kind, absl::Status(row.code, ""));
      EXPECT_EQ(step, row.on_register == R ? R : P);
    }
    for (const ReasonRow& row : kReasons) {
      const NextStep step = DecideUnsent(kind, Refusal(row.reason, ""));
      EXPECT_EQ(step, row.on_register == R ? R : P);
    }
  }
}

TEST(StatusPolicyTest, Names) {
  EXPECT_STREQ(OperationName(OperationKind::kRegister), "register");
  EXPECT_STREQ(OperationName(OperationKind::kUnsubscribe), "unsubscribe");
}

}  // namespace
}  // namespace failback
