// An operator's mark over etcd: told, listed, kept and ended as by the embedded store.

#include "registry/etcd/marks.h"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/etcd/grpc_client.h"
#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "registry/model/validation.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_INVALID_FIELD;
using registry::v1::ERROR_REASON_NOT_FOUND;

class MarksTest : public EtcdTest {
 protected:
  static SetOfflineRequest Request(const std::string& id, bool offline,
                                   const std::string& reason = "disk") {
    SetOfflineRequest request;
    *request.mutable_key() = MakeInstance("orders", id).key();
    request.set_offline(offline);
    request.set_reason(reason);
    request.set_by("alice");
    return request;
  }
  static absl::StatusOr<SetOfflineResponse> Set(EtcdHarness& registry, const std::string& id,
                                                bool offline, const std::string& reason = "disk") {
    return CallAndWait(*registry, &Registry::SetOffline, Request(id, offline, reason));
  }

  // The ids of what is listed and has a mark.
  static std::vector<std::string> Marked(EtcdHarness& registry) {
    std::vector<std::string> ids;
    for (const auto& record : registry.List("orders")) {
      if (record.instance().has_offline()) ids.push_back(record.instance().key().instance_id());
    }
    return ids;
  }
  static bool HasMarkKey(const EtcdHarness& registry) {
    const RunResult result = etcd().Ctl({"get", "--prefix", "--keys-only", registry.prefix()});
    return result.out.find(" offline\n") != std::string::npos;
  }
};

using Ids = std::vector<std::string>;

TEST_F(MarksTest, IsToldInOneRevisionByEveryServerAndLeavesWhatTheOwnerSaid) {
  EtcdHarness registry(etcd(), NewPrefix());
  EtcdHarness other(etcd(), registry.prefix());
  ServiceInstance instance = MakeInstance("orders", "1");
  (*instance.mutable_metadata())["version"] = "1.2.3";
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, instance, 1).ok());
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1!"), 1).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = other.Subscribe(subscriber, "orders");
  ASSERT_TRUE(Eventually([&] { return subscriber->ids() == Ids({"1", "1!"}); }));

  const auto offline = Set(registry, "1", true);
  ASSERT_TRUE(offline.ok()) << offline.status();
  EXPECT_EQ(offline->offline().reason(), "disk");
  EXPECT_EQ(offline->offline().by(), "alice");
  EXPECT_TRUE(offline->offline().has_time());
  EXPECT_FALSE(offline->unchanged());
  EXPECT_GT(offline->epoch(), 0u);
  ASSERT_TRUE(Eventually([&] { return subscriber->revision() == offline->revision(); }));
  const auto delta = subscriber->events().back()->delta();
  ASSERT_EQ(delta.upserts_size(), 1);
  EXPECT_EQ(delta.upserts(0).key().instance_id(), "1");
  EXPECT_EQ(delta.upserts(0).offline().reason(), "disk");
  EXPECT_EQ(delta.upserts(0).metadata().at("version"), "1.2.3");
  EXPECT_EQ(Marked(other), Ids({"1"}));
  // A server that begins to follow afterwards sees it in its snapshot.
  EtcdHarness late(etcd(), registry.prefix());
  auto late_subscriber = std::make_shared<FakeSubscriber>();
  const auto late_stream = late.Subscribe(late_subscriber, "orders");
  ASSERT_TRUE(Eventually([&] { return late_subscriber->instances() == subscriber->instances(); }));

  const auto again = Set(other, "1", true);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->unchanged());
  EXPECT_EQ(again->offline().time().seconds(), offline->offline().time().seconds());
  EXPECT_FALSE(Set(other, "1", true, "still the disk")->unchanged());
  const auto online = Set(other, "1", false);
  ASSERT_TRUE(online.ok()) << online.status();
  EXPECT_FALSE(online->has_offline());
  ASSERT_TRUE(Eventually([&] { return subscriber->revision() == online->revision(); }));
  EXPECT_FALSE(subscriber->events().back()->delta().upserts(0).has_offline());
  EXPECT_TRUE(Set(registry, "1", false)->unchanged());
  EXPECT_EQ(Marked(registry), Ids());
  EXPECT_FALSE(HasMarkKey(registry));
}

TEST_F(MarksTest, StaysThroughUpdatesAndTheSessionsEndAndEndsWithAnUnregister) {
  EtcdHarness registry(etcd(), NewPrefix());
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = registry.Subscribe(subscriber, "orders");
  std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1"), 1).ok());
  ASSERT_TRUE(Set(registry, "1", true).ok());
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1", 81), 2).ok());
  EXPECT_EQ(Marked(registry), Ids({"1"}));
  EXPECT_EQ(registry.List("orders")[0].instance().port(), 81u);

  ASSERT_TRUE(registry.CloseSession(session).ok());
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().empty(); }));
  session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1"), 3).ok());
  EXPECT_EQ(Marked(registry), Ids({"1"}));
  ASSERT_TRUE(Eventually([&] { return subscriber->ids() == Ids({"1"}); }));
  ServiceInstance told;
  ASSERT_TRUE(told.ParseFromString(subscriber->instances().begin()->second));
  EXPECT_TRUE(told.has_offline());

  ASSERT_TRUE(registry.Unregister(session, MakeInstance("orders", "1").key(), 4).ok());
  EXPECT_FALSE(HasMarkKey(registry));
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1"), 5).ok());
  EXPECT_EQ(Marked(registry), Ids());
  // By hand as well.
  ASSERT_TRUE(Set(registry, "1", true).ok());
  ASSERT_TRUE(registry.Unregister("", MakeInstance("orders", "1").key()).ok());
  EXPECT_FALSE(HasMarkKey(registry));
}

TEST_F(MarksTest, OfWhatIsNotThereIsRefusedAndBadTextIsNamed) {
  EtcdHarness registry(etcd(), NewPrefix());
  const auto unknown = Set(registry, "1", true);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound) << unknown.status();
  EXPECT_EQ(ReasonOf(unknown.status()), ERROR_REASON_NOT_FOUND);
  EXPECT_EQ(ReasonOf(Set(registry, "1", false).status()), ERROR_REASON_NOT_FOUND);
  // A tombstone is no instance.
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Unregister(session, MakeInstance("orders", "1").key(), 1).ok());
  EXPECT_EQ(ReasonOf(Set(registry, "1", true).status()), ERROR_REASON_NOT_FOUND);
  EXPECT_EQ(ReasonOf(Set(registry, "1", false).status()), ERROR_REASON_NOT_FOUND);
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1"), 2).ok());
  EXPECT_TRUE(Set(registry, "1", false)->unchanged());
  // A mark that is left can be taken off.
  ASSERT_TRUE(Set(registry, "1", true).ok());
  ASSERT_TRUE(registry.CloseSession(session).ok());
  EXPECT_FALSE(Set(registry, "1", false)->unchanged());
  EXPECT_EQ(ReasonOf(Set(registry, "1", false).status()), ERROR_REASON_NOT_FOUND);
  ASSERT_TRUE(registry.Register("", MakeInstance("orders", "1")).ok());
  for (const std::string& text :
       {std::string("\xff"), std::string(kMaxOfflineReasonBytes + 1, 'x')}) {
    EXPECT_EQ(ReasonOf(Set(registry, "1", true, text).status()), ERROR_REASON_INVALID_FIELD);
  }
  EXPECT_FALSE(HasMarkKey(registry));
}

// Transactions of a real etcd. Between the first one that only reads and its answer something
// happens.
class InterruptedKv final : public etcdserverpb::KV::Service {
 public:
  InterruptedKv(const std::string& endpoint, std::function<void()> interrupt)
      : etcd_(etcdserverpb::KV::NewStub(
            grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()))),
        interrupt_(std::move(interrupt)) {}

  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
    const grpc::Status status = etcd_->Txn(&context, *request, response);
    if (request->compare().empty()) std::call_once(once_, interrupt_);
    return status;
  }

 private:
  const std::unique_ptr<etcdserverpb::KV::Stub> etcd_;
  const std::function<void()> interrupt_;
  std::once_flag once_;
};

TEST_F(MarksTest, OfWhatIsUnregisteredMeanwhileIsRefused) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1"), 1).ok());
  InterruptedKv kv(etcd().endpoints()[0], [&] {
    EXPECT_TRUE(registry.Unregister(session, MakeInstance("orders", "1").key(), 2).ok());
  });
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&kv);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  etcd::GrpcClient::Options options;
  options.endpoints = {absl::StrCat("127.0.0.1:", port)};
  options.attempt_timeout = options.call_timeout = kProcessTimeout;
  options.timer = registry.timer();
  etcd::GrpcClient client(std::move(options));
  const etcd::Keys keys(registry.prefix());
  etcd::Identity identity(&client, &keys, [](const etcd::Store&) {});
  etcd::Marks marks(&client, &keys, &identity);
  std::promise<absl::Status> done;
  marks.Set(Request("1", true), [&](const absl::StatusOr<SetOfflineResponse>& response) {
    done.set_value(response.status());
  });
  EXPECT_EQ(ReasonOf(done.get_future().get()), ERROR_REASON_NOT_FOUND);
  EXPECT_FALSE(HasMarkKey(registry));
  client.Close();
  server->Shutdown();
}

TEST_F(MarksTest, EndsADayAfterItsInstanceWhereTheServiceIsFollowed) {
  EtcdHarness registry(etcd(), NewPrefix());
  registry.options().offline_memory = absl::Milliseconds(200);
  registry.options().sweep_interval = absl::Milliseconds(100);
  registry.Open();
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = registry.Subscribe(subscriber, "orders");
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("orders", "1"), 1).ok());
  ASSERT_TRUE(registry.Register("", MakeInstance("orders", "2")).ok());
  ASSERT_TRUE(Set(registry, "1", true).ok());
  ASSERT_TRUE(Set(registry, "2", true).ok());
  ASSERT_TRUE(registry.CloseSession(session).ok());
  ASSERT_TRUE(Eventually([&] {
    return etcd().Ctl({"get", "--prefix", "--keys-only", registry.prefix() + "/v1/default"}).out ==
           absl::StrCat(registry.prefix(), "/v1/default/orders/2\n\n", registry.prefix(),
                        "/v1/default/orders/2 offline\n\n");
  }));
  EXPECT_EQ(Marked(registry), Ids({"2"}));
}

// However small the pages are, and whatever else is in the range.
TEST_F(MarksTest, PagesHaveTheMarksOfTheirInstances) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  for (const char* id : {"a", "a!", "b", "c", "d"}) {
    ASSERT_TRUE(registry.Register(session, MakeInstance("orders", id), 1).ok());
  }
  for (const char* id : {"a", "b", "d"}) ASSERT_TRUE(Set(registry, id, true).ok());
  for (const char* key :
       {"a%", "a%1", "a%2", "0 offline", "1 offline", "2 offline", "cc offline"}) {
    ASSERT_TRUE(etcd().Put(absl::StrCat(registry.prefix(), "/v1/default/orders/", key), "").ok());
  }
  for (const bool by_incarnation : {false, true}) {
    for (uint32_t page_size = 1; page_size < 8; ++page_size) {
      SCOPED_TRACE(
          absl::StrCat(page_size, by_incarnation ? " of an incarnation" : " of a service"));
      ListRequest request;
      if (by_incarnation) {
        request.set_incarnation("a");
      } else {
        request.mutable_selector()->set_service("orders");
      }
      request.set_page_size(page_size);
      Ids ids;
      for (int pages = 0; pages < 100; ++pages) {
        const auto page = CallAndWait(*registry, &Registry::List, request);
        ASSERT_TRUE(page.ok()) << page.status();
        EXPECT_LE(static_cast<uint32_t>(page->records_size()), page_size);
        for (const auto& record : page->records()) {
          ids.push_back(record.instance().key().instance_id());
          if (record.instance().has_offline()) ids.back() += " offline";
        }
        request.set_page_token(page->next_page_token());
        if (page->next_page_token().empty()) break;
      }
      EXPECT_EQ(ids, Ids({"a offline", "a!", "b offline", "c", "d offline"}));
    }
  }
}

// One call unregisters as many as before, marks and index and all.
TEST_F(MarksTest, ABatchOfMarkedAndPersistentInstancesIsUnregistered) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  RegisterRequest request;
  UnregisterRequest removal;
  request.set_session_id(session);
  removal.set_session_id(session);
  for (int i = 0; i < 150; ++i) {
    auto* registration = request.add_registrations();
    *registration->mutable_instance() = MakeInstance("orders", absl::StrCat("i", i));
    registration->mutable_instance()->set_persistent(true);
    registration->set_generation(1);
    auto* deregistration = removal.add_deregistrations();
    *deregistration->mutable_key() = registration->instance().key();
    deregistration->set_generation(2);
  }
  ASSERT_TRUE(CallAndWait(*registry, &Registry::Register, request).ok());
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(Set(registry, absl::StrCat("i", i), true).ok());
  EXPECT_EQ(Marked(registry).size(), 150u);
  const auto removed = CallAndWait(*registry, &Registry::Unregister, removal);
  ASSERT_TRUE(removed.ok()) << removed.status();
  for (const auto& result : removed->results()) EXPECT_EQ(result.status().code(), 0);
  EXPECT_TRUE(registry.List("orders").empty());
  EXPECT_FALSE(HasMarkKey(registry));
}

}  // namespace
}  // namespace failback
