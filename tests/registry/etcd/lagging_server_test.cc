// Two servers on a model of etcd, one of which is behind and then receives several revisions at
// once: who followed the service at the other, and was at a revision in between, goes on here.

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/model/errors.h"
#include "tests/registry/registry_calls.h"
#include "tests/simulate/etcd/model_client.h"
#include "tests/simulate/network.h"
#include "tests/simulate/process.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using simulate::Way;

class LaggingServerTest : public testing::Test {
 protected:
  LaggingServerTest() {
    for (size_t i = 0; i < servers_.size(); ++i) {
      Server& server = servers_[i];
      server.process = std::make_shared<simulate::Process>(absl::StrCat("server ", i), &clock_);
      server.registry = std::make_unique<EtcdRegistry>(
          EtcdRegistry::Options(),
          [&](const std::function<void()>&) -> std::unique_ptr<etcd::Client> {
            return std::make_unique<simulate::ModelClient>(&network_, static_cast<int>(i),
                                                           server.process, etcd_);
          });
    }
    session_ = Session("owner", 60);
  }

  std::string Session(const std::string& name, int ttl_seconds) {
    OpenSessionRequest open;
    open.set_client_name(name);
    open.set_incarnation(name);
    open.mutable_ttl()->set_seconds(ttl_seconds);
    std::string session;
    here().OpenSession(open, [&session](const absl::StatusOr<OpenSessionResponse>& response) {
      ASSERT_TRUE(response.ok()) << response.status();
      session = response->session_id();
    });
    Settle();
    EXPECT_NE(session, "");
    return session;
  }
  void Settle() { clock_.Advance(absl::Seconds(1)); }
  // Of the namespace `where`.
  absl::Status Register(const std::string& session, const std::string& id,
                        const std::string& where = "default") {
    RegisterRequest request;
    request.set_session_id(session);
    ServiceInstance* const instance = request.add_registrations()->mutable_instance();
    *instance = MakeInstance("s", id, 80);
    instance->mutable_key()->set_namespace_(where);
    request.mutable_registrations(0)->set_generation(++generation_);
    absl::Status status = absl::UnknownError("no answer");
    here().Register(request, [&status](const absl::StatusOr<RegisterResponse>& response) {
      status = response.ok() ? StatusFromProto(response->results(0).status()) : response.status();
    });
    Settle();
    return status;
  }
  void Put(const std::string& id) { EXPECT_EQ(Register(session_, id), absl::OkStatus()); }
  void PutElsewhere() { EXPECT_EQ(Register(session_, "1", "else"), absl::OkStatus()); }
  void Remove(const std::string& id) {
    UnregisterRequest request;
    request.set_session_id(session_);
    *request.add_deregistrations()->mutable_key() = MakeInstance("s", id, 80).key();
    request.mutable_deregistrations(0)->set_generation(++generation_);
    here().Unregister(request, [](const absl::StatusOr<UnregisterResponse>& response) {
      EXPECT_TRUE(response.ok()) << response.status();
    });
    Settle();
  }
  // Goes on from where the subscriber is.
  std::unique_ptr<SubscribeStream> Follow(EtcdRegistry& registry,
                                          const std::shared_ptr<FakeSubscriber>& subscriber,
                                          const std::string& service = "s") {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    if (!subscriber->events().empty()) {
      request.set_epoch(subscriber->epoch());
      request.set_revision(subscriber->revision());
      subscriber->BeginAgain();
    }
    auto stream = registry.Subscribe(request, subscriber);
    Settle();
    return stream;
  }
  void SetBehind(bool behind) {
    network_.SetClogged(1, Way::kToClient, behind);
    if (!behind) Settle();
  }
  EtcdRegistry& here() { return *servers_[0].registry; }
  EtcdRegistry& there() { return *servers_[1].registry; }

  using Ids = std::vector<std::string>;
  struct Server {
    std::shared_ptr<simulate::Process> process;
    std::unique_ptr<EtcdRegistry> registry;
  };
  SimulatedClock clock_;
  simulate::Network network_{&clock_, 1, 2};
  const std::shared_ptr<simulate::EtcdHost> etcd_ = std::make_shared<simulate::EtcdHost>(&clock_);
  std::array<Server, 2> servers_;
  std::string session_;
  uint64_t generation_ = 0;
  const std::shared_ptr<FakeSubscriber> subscriber_ = std::make_shared<FakeSubscriber>();
  const std::shared_ptr<FakeSubscriber> other_ = std::make_shared<FakeSubscriber>();
};

TEST_F(LaggingServerTest, APositionWithinWhatCameAtOnce_GoesOnWithWhatItMissed) {
  Put("1");
  Put("2");
  const auto others = Follow(there(), other_);
  SetBehind(true);
  Put("3");  // this comes alone
  Remove("2");
  auto stream = Follow(here(), subscriber_);
  ASSERT_EQ(subscriber_->ids(), (Ids{"1", "3"}));
  stream.reset();
  Put("2");
  SetBehind(false);
  stream = Follow(there(), subscriber_);
  EXPECT_EQ(subscriber_->ids(), (Ids{"1", "2", "3"}));
  ASSERT_EQ(subscriber_->events().size(), 1u);
  EXPECT_TRUE(subscriber_->events()[0]->has_delta());
}

// A subscriber that was ahead has moved the server's position past what it has not received.
TEST_F(LaggingServerTest, APositionBeforeOneThatWasConfirmed_GoesOnWithWhatItMissed) {
  Put("1");
  Put("2");
  const auto others = Follow(there(), other_);
  network_.SetOpen(1, Way::kToClient, false);
  Remove("2");
  auto stream = Follow(here(), subscriber_);
  ASSERT_EQ(subscriber_->ids(), Ids{"1"});
  stream.reset();
  Put("2");
  const auto ahead = std::make_shared<FakeSubscriber>();
  stream = Follow(here(), ahead);
  stream.reset();
  // What it asks is answered before its stream goes on.
  network_.SetOpen(1, Way::kToClient, true);
  const auto confirmed = Follow(there(), ahead);
  stream = Follow(there(), subscriber_);
  EXPECT_EQ(ahead->ids(), (Ids{"1", "2"}));
  EXPECT_EQ(subscriber_->ids(), (Ids{"1", "2"}));
}

// etcd has forgotten what the subscriber had: it cannot be told the difference.
TEST_F(LaggingServerTest, APositionThatIsCompacted_IsASnapshot) {
  Put("1");
  Put("2");
  const auto others = Follow(there(), other_);
  SetBehind(true);
  Put("3");
  Remove("2");
  auto stream = Follow(here(), subscriber_);
  stream.reset();
  Put("2");
  etcd_->model().Compact(etcd_->model().revision());
  SetBehind(false);
  clock_.Advance(absl::Seconds(5));
  stream = Follow(there(), subscriber_);
  EXPECT_EQ(subscriber_->ids(), (Ids{"1", "2", "3"}));
  ASSERT_EQ(subscriber_->events().size(), 1u);
  EXPECT_TRUE(subscriber_->events()[0]->has_snapshot());
}

// Nothing happens to the service, etcd goes on and forgets: a server that has followed the service
// for longer than another knows an earlier revision of it, and is asked to go on from a later one.
TEST_F(LaggingServerTest, APositionAheadThatIsCompacted_IsConfirmedNoEarlier) {
  for (const std::string service : {"s", ""}) {  // empty: the namespace's services
    const auto first = std::make_shared<FakeSubscriber>();
    const auto others = Follow(there(), first, service);
    Put("1");
    Remove("1");
    // What changes is another namespace.
    PutElsewhere();
    const auto subscriber = std::make_shared<FakeSubscriber>();
    auto stream = Follow(here(), subscriber, service);
    const uint64_t position = subscriber->revision();
    ASSERT_GT(position, first->revision());
    stream.reset();
    PutElsewhere();
    etcd_->model().Compact(etcd_->model().revision());
    stream = Follow(there(), subscriber, service);
    ASSERT_EQ(subscriber->events().size(), 1u) << service;
    EXPECT_GE(subscriber->events()[0]->revision(), position);
    EXPECT_EQ(subscriber->ids(), Ids());
    // And on.
    Put("2");
    EXPECT_EQ(subscriber->ids().size(), 1u);
    EXPECT_EQ(first->ids().size(), 1u);
    Remove("2");
  }
}

// A server that has caught up by reading leaves a fence of what came and went in what it read past.
TEST_F(LaggingServerTest, WhatExpiredMeanwhile_LeavesItsFence) {
  const std::string later = Session("later", 2);
  const auto others = Follow(there(), other_);
  network_.SetOpen(1, Way::kToClient, false);
  ASSERT_EQ(Register(later, "1"), absl::OkStatus());
  clock_.Advance(absl::Seconds(4));  // and it has expired
  // At this server the service had no follower until then.
  const auto ahead = std::make_shared<FakeSubscriber>();
  auto stream = Follow(here(), ahead);
  ASSERT_EQ(ahead->ids(), Ids());
  stream.reset();
  network_.SetOpen(1, Way::kToClient, true);
  stream = Follow(there(), ahead);
  ASSERT_EQ(ahead->events().size(), 1u);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(ReasonOf(Register(session_, "1")), registry::v1::ERROR_REASON_SUPERSEDED);
}

}  // namespace
}  // namespace failback
