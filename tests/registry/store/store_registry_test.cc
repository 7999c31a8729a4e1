#include "registry/store/store_registry.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kSessionUnknown = registry::v1::ERROR_REASON_SESSION_UNKNOWN;
constexpr auto kInvalidField = registry::v1::ERROR_REASON_INVALID_FIELD;

TEST(StoreRegistry, RegistersListsAndUnregisters) {
  StoreHarness store;
  const std::string session = store.Session("a");
  const ServiceInstance one = MakeInstance("orders", "1");
  const Outcome registered = store.Register(session, one, 7);
  ASSERT_TRUE(registered.ok()) << registered.status;
  EXPECT_EQ(registered.generation, 7u);
  EXPECT_EQ(registered.revision, 1u);

  const auto records = store.List();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].instance().key().namespace_(), "default");
  EXPECT_EQ(records[0].instance().port(), 80u);
  EXPECT_EQ(records[0].incarnation(), "a");
  EXPECT_EQ(records[0].client_name(), "client of a");
  EXPECT_EQ(records[0].rank(), 1u);
  EXPECT_EQ(records[0].generation(), 7u);
  EXPECT_EQ(records[0].create_revision(), 1u);
  EXPECT_EQ(records[0].modify_revision(), 1u);
  EXPECT_EQ(records[0].create_time().seconds(), 1700000000);
  EXPECT_EQ(records[0].state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);

  store.clock().Advance(absl::Seconds(2));
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1", 81), 8).ok());
  const auto changed = store.List();
  EXPECT_EQ(changed[0].create_revision(), 1u);
  EXPECT_EQ(changed[0].modify_revision(), 2u);
  EXPECT_EQ(changed[0].create_time().seconds(), 1700000000);
  EXPECT_EQ(changed[0].modify_time().seconds(), 1700000002);

  const Outcome unregistered = store.Unregister(session, one.key(), 9);
  EXPECT_TRUE(unregistered.ok()) << unregistered.status;
  EXPECT_EQ(unregistered.revision, 3u);
  EXPECT_THAT(store.List(), IsEmpty());
}

TEST(StoreRegistry, BatchIsDecidedItemByItemInOneRevision) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "old"), 9).ok());
  RegisterRequest request;
  request.set_session_id(session);
  for (const char* id : {"1", "bad", "2", "old", "1"}) {
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", id);
    request.mutable_registrations(request.registrations_size() - 1)->set_generation(3);
  }
  request.mutable_registrations(1)->mutable_instance()->set_port(70000);
  const auto response = CallAndWait(*store, &Registry::Register, request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->results_size(), 5);
  EXPECT_EQ(response->results(0).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(response->results(0).generation(), 3u);
  EXPECT_THAT(response->results(1).status().message(),
              HasSubstr("registrations[1].instance.port: 70000 is not in 1..65535"));
  EXPECT_EQ(response->results(2).status().code(), 0);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(3).status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(4).status())), kInvalidField);
  EXPECT_EQ(response->revision(), 2u);
  EXPECT_EQ(response->epoch(), store->epoch());
  EXPECT_THAT(store.Ids("orders"), ElementsAre("1", "2", "old"));
}

// Without putting back what is left out.
absl::StatusOr<BatchResult> Write(StoreHarness& store, const RegisterRequest& request) {
  absl::StatusOr<BatchResult> answer = absl::DataLossError("no answer");
  store->Write(Batch::Of(request), [&](auto result) { answer = std::move(result); });
  return answer;
}

TEST(StoreRegistry, ResultsAreLeftOutOnlyWhenEachIsAsAsked) {
  StoreHarness store;
  RegisterRequest request;
  request.set_session_id(store.Session("a"));
  for (const char* id : {"1", "2"}) {
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", id);
    request.mutable_registrations(request.registrations_size() - 1)->set_generation(3);
  }
  auto response = Write(store, request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->results.size(), 0u);
  EXPECT_EQ(response->epoch, store->epoch());
  EXPECT_EQ(response->revision, 1u);
  // The same again changes nothing, and is as asked for.
  EXPECT_EQ(Write(store, request)->results.size(), 0u);
  const auto whole = CallAndWait(*store, &Registry::Register, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(whole->results_size(), 2);
  EXPECT_EQ(whole->results(1).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(whole->results(1).generation(), 3u);
  EXPECT_EQ(whole->epoch(), store->epoch());
  // Held under another generation than it came with.
  request.mutable_registrations(0)->set_generation(0);
  request.mutable_registrations(1)->set_generation(4);
  response = Write(store, request);
  ASSERT_EQ(response->results.size(), 2u);
  EXPECT_EQ(response->results[0].generation(), 3u);
  EXPECT_EQ(response->results[1].generation(), 4u);
  // Refused, the last or the first.
  request.mutable_registrations(0)->set_generation(5);
  request.mutable_registrations(1)->set_generation(1);
  response = Write(store, request);
  ASSERT_EQ(response->results.size(), 2u);
  EXPECT_EQ(response->results[0].generation(), 5u);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results[1].status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  request.mutable_registrations(0)->set_generation(1);
  request.mutable_registrations(1)->set_generation(5);
  EXPECT_EQ(Write(store, request)->results.size(), 2u);
  // Of generation 0 where there was none before.
  *request.mutable_registrations(0)->mutable_instance() = MakeInstance("orders", "3");
  request.mutable_registrations(0)->set_generation(0);
  EXPECT_EQ(Write(store, request)->results.size(), 0u);
  // Refused, and of generation 0 as well.
  ASSERT_TRUE(store.Register(store.Session("later"), MakeInstance("orders", "3", 81), 1).ok());
  response = Write(store, request);
  ASSERT_EQ(response->results.size(), 2u);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results[0].status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  request.set_session_id("nobody");
  EXPECT_EQ(ReasonOf(Write(store, request).status()), kSessionUnknown);
}

TEST(StoreRegistry, BadRequestsFailAsAWhole) {
  StoreHarness store;
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::Register, RegisterRequest()).status()),
            kInvalidField);
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::Unregister, UnregisterRequest()).status()),
            kInvalidField);
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::OpenSession, OpenSessionRequest()).status()),
            kInvalidField);
  EXPECT_EQ(ReasonOf(store.KeepAlive("")), kInvalidField);
  EXPECT_EQ(ReasonOf(store.CloseSession("")), kInvalidField);
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = store.Subscribe(subscriber, "not a name!");
  EXPECT_NE(stream, nullptr);
  ASSERT_TRUE(subscriber->ended().has_value());
  EXPECT_EQ(ReasonOf(*subscriber->ended()), kInvalidField);
  RegisterRequest large;
  for (int i = 0; i < 1001; ++i) {
    *large.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(i));
  }
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::Register, large).status()),
            registry::v1::ERROR_REASON_TOO_LARGE);
}

TEST(StoreRegistry, UnknownSessionIsToldApart) {
  StoreHarness store;
  EXPECT_EQ(ReasonOf(store.KeepAlive("gone")), kSessionUnknown);
  EXPECT_EQ(ReasonOf(store.Register("gone", MakeInstance("orders", "1")).status), kSessionUnknown);
  EXPECT_EQ(ReasonOf(store.Unregister("gone", MakeInstance("orders", "1").key()).status),
            kSessionUnknown);
  EXPECT_TRUE(store.CloseSession("gone").ok());
  EXPECT_THAT(store.List(), IsEmpty());
}

// ---- Listing.

TEST(StoreRegistry, ListPagesThroughEverything) {
  StoreHarness store;
  for (int i = 0; i < 25; ++i) {
    ASSERT_TRUE(store.Register("", MakeInstance("orders", "i" + std::to_string(100 + i))).ok());
  }
  ListRequest request;
  request.mutable_selector()->set_service("orders");
  request.set_page_size(10);
  std::vector<int> sizes;
  std::string last;
  for (int page = 0; page < 10; ++page) {
    const auto response = CallAndWait(*store, &Registry::List, request);
    ASSERT_TRUE(response.ok()) << response.status();
    sizes.push_back(response->records_size());
    for (const auto& record : response->records()) {
      EXPECT_LT(last, record.instance().key().instance_id());
      last = record.instance().key().instance_id();
      EXPECT_EQ(record.incarnation(), "");
      EXPECT_EQ(record.rank(), 0u);
    }
    EXPECT_EQ(response->revision(), 25u);
    request.set_page_token(response->next_page_token());
    if (request.page_token().empty()) break;
  }
  EXPECT_THAT(sizes, ElementsAre(10, 10, 5));
  request.set_page_token("nonsense!");
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::List, request).status()), kInvalidField);
}

TEST(StoreRegistry, ListFiltersAndPagesThroughMatches) {
  StoreHarness store;
  for (int i = 0; i < 30; ++i) {
    ServiceInstance instance = MakeInstance("orders", "i" + std::to_string(100 + i));
    instance.set_zone(i % 3 == 0 ? "a" : "b");
    if (i % 2 == 0) instance.set_status(registry::v1::HEALTH_STATUS_DRAINING);
    ASSERT_TRUE(store.Register("", instance).ok());
  }
  ListRequest request;
  request.mutable_selector()->set_service("orders");
  request.mutable_selector()->add_zones("a");
  request.mutable_selector()->add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  request.set_page_size(2);
  std::vector<std::string> ids;
  for (int page = 0; page < 10; ++page) {
    const auto response = CallAndWait(*store, &Registry::List, request);
    ASSERT_TRUE(response.ok()) << response.status();
    for (const auto& record : response->records()) {
      ids.push_back(record.instance().key().instance_id());
    }
    request.set_page_token(response->next_page_token());
    if (request.page_token().empty()) break;
  }
  EXPECT_THAT(ids, ElementsAre("i103", "i109", "i115", "i121", "i127"));
}

TEST(StoreRegistry, ListOfAnIncarnationIsOfAllNamespaces) {
  StoreHarness store;
  const std::string a = store.Session("a");
  const std::string b = store.Session("b");
  ServiceInstance elsewhere = MakeInstance("orders", "2");
  elsewhere.mutable_key()->set_namespace_("prod");
  ASSERT_TRUE(store.Register(a, MakeInstance("orders", "1")).ok());
  ASSERT_TRUE(store.Register(a, elsewhere).ok());
  ASSERT_TRUE(store.Register(b, MakeInstance("orders", "3")).ok());
  ListRequest request;
  request.set_incarnation("a");
  EXPECT_EQ(CallAndWait(*store, &Registry::List, request)->records_size(), 2);
  request.mutable_selector()->set_namespace_("prod");
  EXPECT_EQ(CallAndWait(*store, &Registry::List, request)->records_size(), 1);
  EXPECT_EQ(CallAndWait(*store, &Registry::List, ListRequest())->records_size(), 2);
}

// ---- Callbacks, life and death.

TEST(StoreRegistry, CallbacksMayCallBack) {
  StoreHarness store;
  int depth = 0;
  std::function<void(int)> next = [&](int left) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(left));
    store->Register(request, [&, left](const absl::StatusOr<RegisterResponse>& response) {
      EXPECT_TRUE(response.ok());
      ++depth;
      if (left > 0) next(left - 1);
    });
  };
  next(20);
  EXPECT_EQ(depth, 21);
  EXPECT_THAT(store.Ids(), SizeIs(21));
}

TEST(StoreRegistry, ListenerMayRegisterAndEndItsOwnStream) {
  StoreHarness store;
  class Greedy : public FakeSubscriber {
   public:
    Greedy(StoreHarness* store, std::unique_ptr<SubscribeStream>* stream)
        : store_(store), stream_(stream) {}
    void OnMessage(const MessagePtr& event) override {
      FakeSubscriber::OnMessage(event);
      const int known = static_cast<int>(ids().size());
      if (known < 5) {
        EXPECT_TRUE(store_->Register("", MakeInstance("orders", std::to_string(known))).ok());
      } else {
        stream_->reset();
        EXPECT_TRUE(store_->Register("", MakeInstance("orders", "unheard")).ok());
      }
    }

   private:
    StoreHarness* const store_;
    std::unique_ptr<SubscribeStream>* const stream_;
  };
  std::unique_ptr<SubscribeStream> stream;
  auto subscriber = std::make_shared<Greedy>(&store, &stream);
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "first")).ok());
  // The stream is there from the second event on, as the first is sent before Subscribe returns.
  SubscribeRequest request;
  request.mutable_selector()->set_service("none");
  stream = store->Subscribe(request, std::make_shared<FakeSubscriber>());
  stream = store.Subscribe(subscriber, "orders");
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "more")).ok());
  EXPECT_EQ(store->Stats().subscribers, stream == nullptr ? 0 : 1);
}

TEST(StoreRegistry, DestructionEndsStreams) {
  auto subscriber = std::make_shared<FakeSubscriber>();
  std::unique_ptr<SubscribeStream> stream;
  {
    StoreHarness store;
    stream = store.Subscribe(subscriber, "orders");
  }
  ASSERT_TRUE(subscriber->ended().has_value());
  EXPECT_EQ(subscriber->ended()->code(), absl::StatusCode::kCancelled);
  stream.reset();
}

TEST(StoreRegistry, BadOptionsAreNamed) {
  const auto open = [](const std::string& uri) {
    StoreRegistry::Options options;
    options.uri = uri;
    auto timer = NewTimer();
    options.timer = timer.get();
    return StoreRegistry::Open(options).status();
  };
  for (const char* uri : {"", "memory", "mysql://x", "sqlite:relative.db", "sqlite://relative.db",
                          "sqlite:///", "sqlite:///folder/"}) {
    const absl::Status status = open(uri);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_THAT(std::string(status.message()), HasSubstr("store: '" + std::string(uri) + "'"));
  }
  EXPECT_TRUE(open("memory:").ok());
}

}  // namespace
}  // namespace failback
