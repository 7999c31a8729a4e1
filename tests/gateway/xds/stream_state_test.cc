#include "gateway/xds/stream_state.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"

namespace failback::xds {
namespace {

using Kind = StreamState::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A stream, and the resources that there are.
class StreamStateTest : public ::testing::Test {
 protected:
  // The client's words. The nonce is that of the last response of the type, unless told otherwise.
  StreamState::Step Request(ResourceType type, const std::vector<std::string>& names) {
    StreamState::DiscoveryRequest request;
    request.set_type_url(TypeUrl(type));
    *request.mutable_resource_names() = {names.begin(), names.end()};
    const StreamState::Response& last = last_[type];
    request.set_response_nonce(last.nonce);
    request.set_version_info(last.version);
    return state_.OnRequest(request);
  }

  // "Type: contents", and remembers it as the newest of its type; empty when there is nothing.
  std::string Next() {
    const auto response = state_.Next([this](ResourceType type, const std::string& name) {
      if (type != ResourceType::kEndpoints) return StreamState::Found{Fixed(type, name)};
      const auto it = endpoints_.find(name);
      return it == endpoints_.end() ? StreamState::Found() : it->second;
    });
    if (!response.has_value()) return "";
    last_[response->type] = *response;
    std::string text = absl::StrCat(TypeName(response->type), ":");
    for (const ResourcePtr& resource : response->resources) {
      absl::StrAppend(&text, " ", resource->encoded);
    }
    return text;
  }

  void Set(const std::string& name, const std::string& content, bool placeholder = false) {
    endpoints_[name] = {Make(content), placeholder};
    state_.Changed(name);
  }

  ResourcePtr Make(const std::string& content) {
    auto resource = std::make_shared<Resource>();
    resource->version = ++version_;
    resource->encoded = content;
    return resource;
  }

  ResourcePtr Fixed(ResourceType type, const std::string& name) {
    ResourcePtr& resource = fixed_[{type, name}];
    if (resource == nullptr) resource = Make(name);
    return resource;
  }

  static constexpr ResourceType kCds = ResourceType::kCluster;
  static constexpr ResourceType kEds = ResourceType::kEndpoints;
  static constexpr ResourceType kLds = ResourceType::kListener;
  static constexpr ResourceType kRds = ResourceType::kRoute;

  StreamState state_{"test-"};
  uint64_t version_ = 0;
  std::map<std::string, StreamState::Found> endpoints_;
  std::map<std::pair<ResourceType, std::string>, ResourcePtr> fixed_;
  std::map<ResourceType, StreamState::Response> last_;
};

TEST_F(StreamStateTest, ASubscriptionIsAnsweredOnce) {
  const StreamState::Step step = Request(kLds, {"a"});
  EXPECT_EQ(step.kind, Kind::kSubscribe);
  EXPECT_THAT(step.follow, ElementsAre("a"));
  EXPECT_EQ(Next(), "Listener: a");
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(Request(kLds, {"a"}).kind, Kind::kAck);
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, NodeAndClientAreThoseOfTheFirstRequest) {
  StreamState::DiscoveryRequest request;
  request.set_type_url(TypeUrl(kLds));
  request.mutable_node()->set_id("n");
  request.mutable_node()->mutable_locality()->set_zone("z");
  request.mutable_node()->set_user_agent_name("gRPC");
  request.mutable_node()->set_user_agent_version("1.51");
  state_.OnRequest(request);
  request.mutable_node()->set_id("other");
  state_.OnRequest(request);
  EXPECT_EQ(state_.node_id(), "n");
  EXPECT_EQ(state_.zone(), "z");
  EXPECT_EQ(state_.user_agent(), "gRPC 1.51");
}

TEST_F(StreamStateTest, WhatNamesComesAfterWhatIsNamed) {
  Set("a", "endpoints");
  Request(kRds, {"a"});
  Request(kLds, {"a"});
  Request(kEds, {"a"});
  Request(kCds, {"a"});
  EXPECT_EQ(Next(), "Cluster: a");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: endpoints");
  EXPECT_EQ(Next(), "Listener: a");
  EXPECT_EQ(Next(), "RouteConfiguration: a");
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, EndpointsAreToldWhenKnownAndWhenChanged) {
  Request(kEds, {"a", "b"});
  EXPECT_EQ(Next(), "");
  Set("b", "b1");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: b1");
  Request(kEds, {"a", "b"});
  Set("a", "a1");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a1");
  Set("b", "b2");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: b2");
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, TheNewestStateWins) {
  Set("a", "a1");
  Request(kEds, {"a"});
  Next();
  for (int i = 2; i < 10; ++i) Set("a", absl::StrCat("a", i));
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a9");
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, AChangeThatLeavesTheResourceIsNotSent) {
  Set("a", "a1");
  Request(kEds, {"a"});
  Next();
  state_.Changed("a");
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, AChangeOfWhatIsNotSubscribedIsNotSent) {
  Request(kCds, {"a"});
  Next();
  Set("a", "a1");
  Set("b", "b1");
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, ListenersAndClustersAreToldWhole) {
  for (const ResourceType type : {kLds, kCds}) {
    Request(type, {"a"});
    EXPECT_EQ(Next(), absl::StrCat(TypeName(type), ": a"));
    Request(type, {"a", "b"});
    EXPECT_EQ(Next(), absl::StrCat(TypeName(type), ": a b"));
    Request(type, {"b"});
    EXPECT_EQ(Next(), "") << "nobody waits for an answer to an unsubscription";
    Request(type, {"b", "c"});
    EXPECT_EQ(Next(), absl::StrCat(TypeName(type), ": b c"));
  }
}

TEST_F(StreamStateTest, ServicesAreFollowedWhileAnyTypeWantsThem) {
  EXPECT_THAT(Request(kLds, {"a", "b"}).follow, UnorderedElementsAre("a", "b"));
  EXPECT_THAT(Request(kCds, {"a"}).follow, IsEmpty());
  EXPECT_THAT(Request(kLds, {"b"}).unfollow, IsEmpty());
  StreamState::Step step = Request(kCds, {"c"});
  EXPECT_THAT(step.follow, ElementsAre("c"));
  EXPECT_THAT(step.unfollow, ElementsAre("a"));
  step = Request(kLds, {});
  EXPECT_THAT(step.unfollow, ElementsAre("b"));
}

TEST_F(StreamStateTest, WhatIsSubscribedAnewIsSentAnew) {
  Set("a", "a1");
  Request(kEds, {"a"});
  Next();
  Request(kEds, {});
  Set("a", "a2");
  EXPECT_EQ(Next(), "");
  Request(kEds, {"a"});
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a2");
  Request(kEds, {});
  Request(kEds, {"a"});
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a2") << "unchanged, but the client has dropped it";
}

TEST_F(StreamStateTest, ARefusedResponseIsNotRepeated) {
  Set("a", "a1");
  Request(kEds, {"a"});
  Next();
  StreamState::DiscoveryRequest nack;
  nack.set_type_url(TypeUrl(kEds));
  nack.add_resource_names("a");
  nack.set_response_nonce(last_[kEds].nonce);
  nack.mutable_error_detail()->set_message("no");
  EXPECT_EQ(state_.OnRequest(nack).kind, Kind::kNack);
  EXPECT_EQ(Next(), "");
  Set("a", "a2");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a2");
}

TEST_F(StreamStateTest, AnswersToOlderResponsesAreIgnored) {
  Set("a", "a1");
  Request(kEds, {"a"});
  Next();
  const StreamState::Response old = last_[kEds];
  Set("a", "a2");
  Next();
  StreamState::DiscoveryRequest late;
  late.set_type_url(TypeUrl(kEds));
  late.add_resource_names("b");
  late.set_response_nonce(old.nonce);
  const StreamState::Step step = state_.OnRequest(late);
  EXPECT_EQ(step.kind, Kind::kStale);
  EXPECT_THAT(step.follow, IsEmpty());
  Set("a", "a3");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a3") << "still subscribed";
}

TEST_F(StreamStateTest, NoncesAreOfAType) {
  Request(kLds, {"a"});
  Next();
  Request(kCds, {"a"});
  Next();
  EXPECT_NE(last_[kLds].nonce, last_[kCds].nonce);
  EXPECT_EQ(Request(kLds, {"a"}).kind, Kind::kAck);
  EXPECT_EQ(Request(kCds, {"a"}).kind, Kind::kAck);
}

TEST_F(StreamStateTest, RequestsBeforeTheFirstResponseAllCount) {
  Request(kEds, {"a"});
  EXPECT_EQ(Request(kEds, {"a", "b"}).kind, Kind::kSubscribe);
  Set("a", "a1");
  Set("b", "b1");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a1 b1");
}

TEST_F(StreamStateTest, TheWildcardOfOldIsAnsweredWithNothing) {
  EXPECT_THAT(Request(kLds, {}).follow, IsEmpty());
  EXPECT_EQ(Next(), "Listener:");
  Request(kLds, {});
  EXPECT_EQ(Next(), "");
  Request(kEds, {});
  EXPECT_EQ(Next(), "") << "endpoints have no wildcard";
}

TEST_F(StreamStateTest, AStarIsAWildcardToo) {
  EXPECT_THAT(Request(kCds, {"*"}).follow, IsEmpty());
  EXPECT_EQ(Next(), "Cluster:");
  EXPECT_THAT(Request(kCds, {"*", "a"}).follow, ElementsAre("a"));
  EXPECT_EQ(Next(), "Cluster: a");
}

TEST_F(StreamStateTest, NoNamesAfterSomeIsAnUnsubscription) {
  Request(kLds, {"a"});
  Next();
  EXPECT_THAT(Request(kLds, {}).unfollow, ElementsAre("a"));
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, OtherTypesAreIgnored) {
  StreamState::DiscoveryRequest request;
  request.set_type_url("type.googleapis.com/envoy.service.runtime.v3.Runtime");
  request.add_resource_names("x");
  const StreamState::Step step = state_.OnRequest(request);
  EXPECT_EQ(step.kind, Kind::kIgnored);
  EXPECT_TRUE(step.error.ok());
  EXPECT_EQ(Next(), "");
}

TEST_F(StreamStateTest, ARequestWithoutATypeEndsTheStream) {
  EXPECT_EQ(ReasonOf(state_.OnRequest({}).error), registry::v1::ERROR_REASON_INVALID_FIELD);
}

TEST_F(StreamStateTest, NamesAreBounded) {
  EXPECT_EQ(ReasonOf(Request(kLds, {std::string(StreamState::kMaxNameBytes + 1, 'x')}).error),
            registry::v1::ERROR_REASON_INVALID_FIELD);
  std::vector<std::string> names;
  for (size_t i = 0; i < StreamState::kMaxNames; ++i) names.push_back(absl::StrCat("s", i));
  EXPECT_TRUE(Request(kLds, names).error.ok());
  names.emplace_back("one more");
  const StreamState::Step step = Request(kLds, names);
  EXPECT_EQ(step.error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(step.error), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_THAT(std::string(step.error.message()), HasSubstr("1001 of Listener, more than 1000"));
}

TEST_F(StreamStateTest, APlaceholderIsForClientsThatHaveNothing) {
  Request(kEds, {"a"});
  Set("a", "none", /*placeholder=*/true);
  EXPECT_EQ(Next(), "ClusterLoadAssignment: none");
  Set("a", "a1");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a1");
}

TEST_F(StreamStateTest, AClientThatComesBackKeepsWhatItHasUntilMoreIsKnown) {
  // The version that the client accepted on its stream before.
  last_[kEds].version = "older-7";
  Request(kEds, {"a"});
  Set("a", "none", /*placeholder=*/true);
  EXPECT_EQ(Next(), "");
  // What it asks for only now it cannot have.
  last_[kEds].nonce = "";
  Request(kEds, {"a", "b"});
  Set("b", "none", /*placeholder=*/true);
  EXPECT_EQ(Next(), "ClusterLoadAssignment: none");
  Set("a", "a1");
  EXPECT_EQ(Next(), "ClusterLoadAssignment: a1");
}

TEST_F(StreamStateTest, LargeAnswersAreSplit) {
  const std::string half(StreamState::kResponseBytes / 2, 'x');
  for (const char* name : {"a", "b", "c"}) Set(name, half);
  Set("d", std::string(StreamState::kResponseBytes * 2, 'y'));
  Request(kEds, {"a", "b", "c", "d"});
  std::vector<size_t> resources;
  while (!Next().empty()) resources.push_back(last_[kEds].resources.size());
  EXPECT_THAT(resources, ElementsAre(2, 1, 1));
}

TEST_F(StreamStateTest, VersionsNameTheProcessAndGrow) {
  Set("a", "a1");
  Request(kEds, {"a"});
  Next();
  EXPECT_EQ(last_[kEds].version, "test-1");
  Set("a", "a2");
  Next();
  EXPECT_EQ(last_[kEds].version, "test-2");
}

}  // namespace
}  // namespace failback::xds
