// FollowFlow, alone and against WatchFlow: the two ends of a Watch stream without a network.
#include "registry/client/follow_flow.h"

#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/messages.h"
#include "registry/watch/watch_flow.h"

namespace failback {
namespace {

struct Follower {
  int number = 0;
};
using Flow = FollowFlow<Follower>;

std::shared_ptr<Follower> New(int number) { return std::make_shared<Follower>(Follower{number}); }

std::string RequestFor(const std::string& service) {
  SubscribeRequest request;
  request.mutable_selector()->set_service(service);
  return request.SerializeAsString();
}

WatchRequest Parsed(const std::string& message) {
  WatchRequest request;
  EXPECT_TRUE(request.ParseFromString(message));
  return request;
}

TEST(FollowFlowTest, CommandsDuringAWrite_ShareTheNextMessage) {
  Flow flow;
  EXPECT_EQ(flow.Join(New(1), RequestFor("a")), 1u);
  const auto first = flow.StartWrite();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(Parsed(*first).commands_size(), 1);
  EXPECT_EQ(flow.Join(New(2), RequestFor("b")), 2u);
  EXPECT_EQ(flow.Join(New(3), RequestFor("c")), 3u);
  EXPECT_FALSE(flow.Leave(2, /*notify=*/true));
  EXPECT_FALSE(flow.StartWrite().has_value()) << "one is being written";
  flow.EndWrite();
  const auto second = flow.StartWrite();
  ASSERT_TRUE(second.has_value());
  const WatchRequest request = Parsed(*second);
  ASSERT_EQ(request.commands_size(), 3);
  EXPECT_EQ(request.commands(1).subscribe().selector().service(), "c");
  EXPECT_TRUE(request.commands(2).has_unsubscribe());
  EXPECT_EQ(request.commands(2).watch_id(), 2u);
}

TEST(FollowFlowTest, MessagesAreBounded) {
  Flow flow;
  const std::string large = RequestFor(std::string(Flow::kFullBytes - 100, 'x'));
  for (int i = 0; i < 250; ++i) flow.Join(New(i), RequestFor("s"));
  flow.Join(New(250), large);
  flow.Join(New(251), large);
  std::vector<int> sizes;
  while (const auto message = flow.StartWrite()) {
    EXPECT_LE(message->size(), Flow::kFullBytes);
    sizes.push_back(Parsed(*message).commands_size());
    flow.EndWrite();
  }
  EXPECT_EQ(sizes, std::vector<int>({100, 100, 50, 1, 1}));
}

TEST(FollowFlowTest, TheLastThatLeaves_EndsTheStream) {
  Flow flow;
  flow.Join(New(1), RequestFor("a"));
  flow.Join(New(2), RequestFor("b"));
  EXPECT_FALSE(flow.Leave(1, /*notify=*/false));
  EXPECT_EQ(flow.Find(1), nullptr);
  EXPECT_FALSE(flow.Leave(1, /*notify=*/true)) << "it has left already";
  EXPECT_TRUE(flow.Leave(2, /*notify=*/true));
  EXPECT_EQ(flow.Join(New(3), RequestFor("c")), 0u);
}

TEST(FollowFlowTest, BrokenStream_SendsNothingAndReturnsAllInOrder) {
  Flow flow;
  for (int i = 1; i <= 20; ++i) flow.Join(New(i), RequestFor("a"));
  flow.Break();
  EXPECT_FALSE(flow.StartWrite().has_value());
  EXPECT_EQ(flow.Join(New(21), RequestFor("a")), 0u);
  int number = 0;
  for (const auto& follower : flow.TakeAll()) EXPECT_EQ(follower->number, ++number);
  EXPECT_EQ(number, 20);
  EXPECT_TRUE(flow.TakeAll().empty());
}

struct Handle : SubscribeStream {};

// Whatever joins and leaves, and in whatever pieces it goes: the server takes each message, and has
// open what the client has.
TEST(FollowFlowTest, ServerHasOpen_WhatTheClientHas) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    Flow client;
    WatchFlow server(WatchFlow::Framing::kWatch, WatchFlow::Limits());
    std::set<Flow::Id> open;
    const Flow::Id stays = client.Join(New(0), RequestFor("stays"));
    std::optional<std::string> on_the_way;
    const auto carry = [&] {
      if (on_the_way.has_value()) {
        const absl::Status status = server.Receive(Parsed(*on_the_way));
        ASSERT_TRUE(status.ok()) << status;
        on_the_way.reset();
        client.EndWrite();
      }
      on_the_way = client.StartWrite();
      while (auto step = server.NextStep()) {
        if (step->subscribe.has_value()) server.Begun(step->id, std::make_unique<Handle>());
      }
    };
    for (int i = 0; i < 300; ++i) {
      const uint64_t choice = random() % 3;
      if (choice == 0) {
        open.insert(client.Join(New(i), RequestFor("s")));
      } else if (choice == 1 && !open.empty()) {
        const auto it = std::next(open.begin(), static_cast<long>(random() % open.size()));
        ASSERT_FALSE(client.Leave(*it, /*notify=*/true));
        open.erase(it);
      } else {
        carry();
      }
    }
    do {
      carry();
    } while (on_the_way.has_value());
    while (!server.Take().empty()) {
    }
    EXPECT_EQ(server.open(), open.size() + 1);
    EXPECT_NE(client.Find(stays), nullptr);
  }
}

}  // namespace
}  // namespace failback
