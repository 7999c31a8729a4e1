// BoundedCall without a network: who calls is judged before anything is looked at, what came is
// counted before it is parsed, and parsed before it is carried out.

#include "registry/rpc/bounded_call.h"

#include <optional>
#include <string>
#include <utility>

#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/test/default_reactor_test_peer.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

// A request that is seen to be parsed and to go.
struct FakeRequest {
  ~FakeRequest() { ++gone; }
  static const google::protobuf::Descriptor* descriptor() { return ListRequest::descriptor(); }
  bool ParseFromArray(const char* data, int size) {
    ++parsed;
    return message.ParseFromArray(data, size);
  }

  ListRequest message;
  inline static int parsed = 0;
  inline static int gone = 0;
};

class BoundedCallTest : public ::testing::Test {
 protected:
  BoundedCallTest() { FakeRequest::parsed = FakeRequest::gone = 0; }

  // Makes the call, which is to end at once.
  void Call(const grpc::ByteBuffer& bytes, const absl::Status& judged = absl::OkStatus(),
            absl::StatusOr<ListResponse> result = ListResponse()) {
    BoundedCall<FakeRequest, ListResponse>(
        &context_, bytes, &response_, judged,
        [&](const FakeRequest& request, Callback<ListResponse> done) {
          carried_out_ = request.message;
          std::move(done)(std::move(result));
        });
  }
  absl::Status ended() const {
    EXPECT_TRUE(peer_.test_status_set());
    return StatusFromGrpc(peer_.test_status());
  }

  static grpc::ByteBuffer Bytes(const std::string& text) {
    const grpc::Slice slice(text);
    return grpc::ByteBuffer(&slice, 1);
  }
  static ListRequest Request() {
    ListRequest request;
    request.mutable_selector()->set_service("orders");
    return request;
  }

  grpc::CallbackServerContext context_;
  grpc::ByteBuffer response_;
  size_t bytes_at_end_ = 0;
  grpc::testing::DefaultReactorTestPeer peer_{
      &context_, [this](const grpc::Status&) { bytes_at_end_ = response_.Length(); }};
  std::optional<ListRequest> carried_out_;
};

TEST_F(BoundedCallTest, WhatIsCarriedOutIsAnswered) {
  ListResponse result;
  result.set_epoch(7);
  Call(Bytes(Request().SerializeAsString()), absl::OkStatus(), result);
  EXPECT_EQ(ended(), absl::OkStatus());
  ASSERT_TRUE(carried_out_.has_value());
  EXPECT_EQ(carried_out_->selector().service(), "orders");
  EXPECT_EQ(bytes_at_end_, result.ByteSizeLong()) << "the end may free the response";
  ListResponse told;
  grpc::ByteBuffer copy = response_;
  ASSERT_TRUE(grpc::SerializationTraits<ListResponse>::Deserialize(&copy, &told).ok());
  EXPECT_EQ(told.epoch(), 7);
}

TEST_F(BoundedCallTest, AMessageInSeveralPiecesIsOne) {
  const std::string bytes = Request().SerializeAsString();
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, 3)), grpc::Slice(bytes.substr(3))};
  Call(grpc::ByteBuffer(slices, 2));
  EXPECT_EQ(ended(), absl::OkStatus());
  ASSERT_TRUE(carried_out_.has_value());
  EXPECT_EQ(carried_out_->SerializeAsString(), bytes);
}

TEST_F(BoundedCallTest, ACallerWhoMayNotLearnsNothingOfTheRequest) {
  for (const std::string& bytes :
       {Request().SerializeAsString(), std::string("\xff"), std::string(1 << 20, 'x')}) {
    grpc::CallbackServerContext context;
    grpc::testing::DefaultReactorTestPeer peer(&context);
    grpc::ByteBuffer response;
    BoundedCall<FakeRequest, ListResponse>(
        &context, Bytes(bytes), &response, absl::PermissionDeniedError("not you"),
        [](const FakeRequest&, Callback<ListResponse>) { ADD_FAILURE() << "carried out"; });
    ASSERT_TRUE(peer.test_status_set());
    EXPECT_EQ(StatusFromGrpc(peer.test_status()), absl::PermissionDeniedError("not you"));
  }
  EXPECT_EQ(FakeRequest::parsed, 0);
}

TEST_F(BoundedCallTest, TooManyBytesAreNotParsed) {
  Call(Bytes(std::string(kSmallRequest.max_bytes + 1, 'x')));
  EXPECT_EQ(ReasonOf(ended()), registry::v1::ERROR_REASON_TOO_LARGE) << ended();
  EXPECT_THAT(std::string(ended().message()), HasSubstr("bytes"));
  EXPECT_EQ(FakeRequest::parsed, 0);
  EXPECT_FALSE(carried_out_.has_value());
}

TEST_F(BoundedCallTest, TooManyFieldsAreNotParsed) {
  ListRequest request;
  for (size_t i = 0; i <= kSmallRequest.max_fields; ++i) request.mutable_selector()->add_zones("");
  Call(Bytes(request.SerializeAsString()));
  EXPECT_EQ(ReasonOf(ended()), registry::v1::ERROR_REASON_TOO_LARGE) << ended();
  EXPECT_THAT(std::string(ended().message()), HasSubstr("fields"));
  EXPECT_EQ(FakeRequest::parsed, 0);
  EXPECT_FALSE(carried_out_.has_value());
}

TEST_F(BoundedCallTest, WhatIsNoRequestIsRefusedByName) {
  Call(Bytes("\xff"));
  EXPECT_EQ(ended(),
            Refusal(registry::v1::ERROR_REASON_INVALID_FIELD, "the request is no ListRequest"));
  EXPECT_FALSE(carried_out_.has_value());
}

TEST_F(BoundedCallTest, ARefusalHasItsDetailsAndNoResponse) {
  const absl::Status refused =
      Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED, "full", {{"limit", "7"}});
  Call(Bytes(""), absl::OkStatus(), refused);
  EXPECT_EQ(ReasonOf(ended()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_EQ(ReasonMetadata(ended(), "limit"), "7");
  EXPECT_EQ(response_.Length(), 0u);
}

TEST_F(BoundedCallTest, TheRequestLivesUntilItIsAnswered) {
  const FakeRequest* request = nullptr;
  std::optional<Callback<ListResponse>> later;
  BoundedCall<FakeRequest, ListResponse>(
      &context_, Bytes(Request().SerializeAsString()), &response_, absl::OkStatus(),
      [&](const FakeRequest& parsed, Callback<ListResponse> done) {
        request = &parsed;
        later = std::move(done);
      });
  EXPECT_FALSE(peer_.test_status_set());
  ASSERT_EQ(FakeRequest::gone, 0);
  EXPECT_EQ(request->message.selector().service(), "orders");
  std::move (*later)(ListResponse());
  EXPECT_EQ(ended(), absl::OkStatus());
  later.reset();
  EXPECT_EQ(FakeRequest::gone, 1);
}

}  // namespace
}  // namespace failback
