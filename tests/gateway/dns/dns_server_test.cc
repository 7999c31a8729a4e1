// The server on real sockets: UDP and TCP, what waits, and its bounds.

#include "gateway/dns/dns_server.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/config/v1/access.pb.h"
#include "gateway/dns/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/security/access_control.h"
#include "registry/security/access_rules.h"
#include "tests/gateway/dns/dns_client.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/eventually.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback::dns {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kOrders[] = "orders.service.failback";

SubscribeResponse Snapshot(int count, const std::string& service = "orders") {
  SubscribeResponse event;
  event.set_epoch(1);
  event.set_revision(1);
  event.mutable_snapshot();
  for (int i = 1; i <= count; ++i) {
    ServiceInstance& instance = *event.mutable_snapshot()->add_instances();
    instance = MakeInstance(absl::StrCat(10000 + i), 8000 + i, service);
    instance.set_address(absl::StrCat("10.0.", i / 250, ".", i % 250));
  }
  return event;
}

class DnsServerTest : public ::testing::Test {
 protected:
  DnsServerTest() {
    options_.table.timer = timer_.get();
    options_.listen = {"127.0.0.1:0"};
  }

  void Start() {
    auto server = DnsServer::Bind(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Start(&registry_);
  }
  const std::string& address() const { return server_->addresses().front(); }

  // Has the server follow `orders`, with so many instances.
  void Have(int count) {
    UdpClient client(address());
    client.Send(QueryBytes(kOrders, type::kA));
    registry_.WaitForSubscription(0)->Push(Snapshot(count));
    EXPECT_TRUE(ReadMessage(client.Receive()).readable);
  }

  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(absl::Milliseconds(10));
  FakeRegistry registry_;
  DnsServer::Options options_{Zone{*Domain::Parse("failback")}};
  std::unique_ptr<DnsServer> server_;
};

TEST_F(DnsServerTest, AQuery_WaitsForTheRegistry_AndIsAnswered) {
  Start();
  UdpClient udp(address());
  TcpClient tcp(address());
  udp.Send(QueryBytes(kOrders, type::kA));
  tcp.Send(QueryBytes(kOrders, type::kA));
  const auto subscription = registry_.WaitForSubscription(0);
  ASSERT_TRUE(Eventually([&] { return server_->Stats().waiting == 2; }));
  subscription->Push(Snapshot(1));
  for (const Message& message : {ReadMessage(udp.Receive()), ReadMessage(tcp.Receive())}) {
    EXPECT_THAT(message.answer, ElementsAre(absl::StrCat(kOrders, ". 1 IN A 10.0.0.1")));
  }
  EXPECT_TRUE(Eventually([&] { return server_->Stats().waiting == 0; }));
  EXPECT_THAT(registry_.subscriptions(), SizeIs(1));
  EXPECT_THAT(udp.Ask(kOrders, type::kA).answer, SizeIs(1));
}

TEST_F(DnsServerTest, WithoutTheRegistry_TheAnswerIsServFail) {
  options_.table.first_wait = absl::Milliseconds(200);
  Start();
  EXPECT_EQ(UdpClient(address()).Ask(kOrders, type::kA).rcode, 2);
  EXPECT_EQ(TcpClient(address()).Ask(kOrders, type::kA).rcode, 2);
  EXPECT_EQ(server_->Stats().serv_fail, 2);
}

TEST_F(DnsServerTest, Explain_WaitsForTheRegistry_AsAQueryDoes) {
  Start();
  std::promise<absl::StatusOr<Explanation>> promise;
  std::future<absl::StatusOr<Explanation>> future = promise.get_future();
  server_->Explain(kOrders, [&](absl::StatusOr<Explanation> explained) {
    promise.set_value(std::move(explained));
  });
  const auto subscription = registry_.WaitForSubscription(0);
  EXPECT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  subscription->Push(Snapshot(1));
  const absl::StatusOr<Explanation> explained = future.get();
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->rcode, "NOERROR");
  EXPECT_EQ(explained->records.front().data, "10.0.0.1");
  EXPECT_EQ(server_->Stats().udp_queries + server_->Stats().tcp_queries, 0) << "it is no query";
}

TEST_F(DnsServerTest, Explain_WithoutTheRegistry_IsServFailAfterTheWait) {
  options_.table.first_wait = absl::Milliseconds(200);
  Start();
  std::promise<absl::StatusOr<Explanation>> promise;
  server_->Explain(kOrders, [&](absl::StatusOr<Explanation> explained) {
    promise.set_value(std::move(explained));
  });
  EXPECT_EQ(promise.get_future().get()->rcode, "SERVFAIL");
}

TEST_F(DnsServerTest, Explain_IsBounded_AndEndsWithTheServer) {
  options_.table.first_wait = absl::Hours(1);
  Start();
  const auto code_of = [](absl::StatusOr<Explanation> explained) {
    return explained.status().code();
  };
  absl::StatusCode code = absl::StatusCode::kOk;
  const auto keep = [&](absl::StatusOr<Explanation> explained) { code = code_of(explained); };
  server_->Explain(std::string(kMaxExplainedName + 1, 'a'), keep);
  EXPECT_EQ(code, absl::StatusCode::kInvalidArgument);
  server_->Explain("", keep);
  EXPECT_EQ(code, absl::StatusCode::kInvalidArgument);
  std::atomic<int> ended = 0;
  std::atomic<int> refused = 0;
  // Those that wait, and as many that the thread may have in its hands.
  for (int i = 0; i < 100; ++i) {
    server_->Explain(kOrders, [&](absl::StatusOr<Explanation> explained) {
      if (code_of(explained) == absl::StatusCode::kUnavailable) ++ended;
      if (code_of(explained) == absl::StatusCode::kResourceExhausted) ++refused;
    });
  }
  EXPECT_GE(refused, 50);
  server_->Stop();
  EXPECT_EQ(ended + refused, 100);
  server_->Explain(kOrders, keep);
  EXPECT_EQ(code, absl::StatusCode::kUnavailable);
}

TEST_F(DnsServerTest, QueriesThatWait_AreBounded) {
  options_.max_waiting = 3;
  options_.table.first_wait = absl::Hours(1);
  Start();
  UdpClient client(address());
  for (int i = 0; i < 3; ++i) client.Send(QueryBytes(absl::StrCat("s", i, ".service.failback"), 1));
  ASSERT_TRUE(Eventually([&] { return server_->Stats().waiting == 3; }));
  EXPECT_EQ(client.Ask("s4.service.failback", type::kA).rcode, 2) << "answered at once";
}

TEST_F(DnsServerTest, QueriesThatWait_AreBoundedForEachNetwork) {
  options_.listen = {"127.0.0.1:0", "[::1]:0"};
  options_.max_waiting_of_network = 3;
  options_.table.first_wait = absl::Hours(1);
  Start();
  const auto waiting = [&](int64_t count) {
    return Eventually([&] { return server_->Stats().waiting == count; });
  };
  UdpClient udp(address());
  TcpClient tcp(address());
  udp.Send(QueryBytes("s1.service.failback", type::kA));
  ASSERT_TRUE(waiting(1));
  udp.Send(QueryBytes("s2.service.failback", type::kA));
  tcp.Send(QueryBytes("s3.service.failback", type::kA));
  ASSERT_TRUE(waiting(3));
  EXPECT_EQ(udp.Ask("s4.service.failback", type::kA).rcode, 2) << "answered at once";
  EXPECT_EQ(TcpClient(address()).Ask("s5.service.failback", type::kA).rcode, 2);
  UdpClient of_another_network(server_->addresses()[1]);
  of_another_network.Send(QueryBytes("s6.service.failback", type::kA));
  ASSERT_TRUE(waiting(4));
  // One that is answered makes room.
  registry_.WaitForSubscription(0)->Push(Snapshot(1, "s1"));
  EXPECT_EQ(ReadMessage(udp.Receive()).rcode, 0);
  ASSERT_TRUE(waiting(3));
  udp.Send(QueryBytes("s7.service.failback", type::kA));
  EXPECT_TRUE(waiting(4));
}

TEST_F(DnsServerTest, TruncatedByUdp_WholeByTcp) {
  Start();
  Have(200);
  UdpClient udp(address());
  EXPECT_TRUE(udp.Ask(kOrders, type::kSrv).truncated);
  const Message whole = TcpClient(address()).Ask(kOrders, type::kSrv);
  EXPECT_FALSE(whole.truncated);
  EXPECT_THAT(whole.answer, SizeIs(200));
  EXPECT_THAT(whole.additional, SizeIs(200));
}

// RFC 7766.
TEST_F(DnsServerTest, PipelinedQueries_AreAllAnswered) {
  Start();
  Have(3);
  TcpClient client(address());
  std::string all;
  for (uint16_t id = 1; id <= 100; ++id) {
    QueryShape shape;
    shape.id = id;
    all += TcpClient::Framed(QueryBytes(kOrders, type::kA, shape));
  }
  // In pieces that end anywhere.
  for (size_t at = 0; at < all.size(); at += 777) client.SendRaw(all.substr(at, 777));
  std::set<uint16_t> ids;
  for (int i = 0; i < 100; ++i) {
    const Message message = ReadMessage(client.Receive());
    EXPECT_THAT(message.answer, SizeIs(3));
    ids.insert(message.id);
  }
  EXPECT_THAT(ids, SizeIs(100));
}

TEST_F(DnsServerTest, AQueryThatWaits_HoldsUpNoOther) {
  options_.table.first_wait = absl::Hours(1);
  Start();
  Have(1);
  TcpClient client(address());
  QueryShape first;
  first.id = 1;
  client.Send(QueryBytes("other.service.failback", type::kA, first));
  QueryShape second;
  second.id = 2;
  client.Send(QueryBytes(kOrders, type::kA, second));
  EXPECT_EQ(ReadMessage(client.Receive()).id, 2);
  registry_.WaitForSubscription(1)->Push(Snapshot(1, "other"));
  EXPECT_EQ(ReadMessage(client.Receive()).id, 1);
}

TEST_F(DnsServerTest, AClientThatTakesNothing_IsReadNoFurther) {
  options_.idle_timeout = absl::Hours(1);
  Start();
  Have(1000);
  TcpClient greedy(address());
  // Some 60 KB for each: 60 MB, if they were all made.
  for (int i = 0; i < 1000; ++i) greedy.SendRaw(TcpClient::Framed(QueryBytes(kOrders, type::kSrv)));
  UdpClient udp(address());
  // The server has turned to its sockets many times, and took no query of the greedy client's.
  int64_t answered = -1;
  for (int turns = 0; turns < 100; ++turns) {
    ASSERT_THAT(udp.Ask(kOrders, type::kAny).answer, SizeIs(1));
    const int64_t before = std::exchange(answered, server_->Stats().tcp_queries);
    if (before != answered) turns = 0;
  }
  // What the kernel takes, and 128 KiB.
  EXPECT_LT(answered, 500);
  // And goes on where it stopped.
  for (int i = 0; i < 1000; ++i) {
    ASSERT_GT(greedy.Receive().size(), 50000u) << i;
  }
}

// A half close.
TEST_F(DnsServerTest, AClientThatSendsNothingMore_GetsAllAnswers) {
  options_.idle_timeout = absl::Hours(1);
  options_.table.first_wait = absl::Hours(1);
  Start();
  Have(1000);
  TcpClient client(address());
  client.Send(QueryBytes("other.service.failback", type::kA));
  for (int i = 0; i < 200; ++i) client.Send(QueryBytes(kOrders, type::kSrv));
  client.EndSending();
  for (int i = 0; i < 200; ++i) ASSERT_GT(client.Receive().size(), 50000u) << i;
  registry_.WaitForSubscription(1)->Push(Snapshot(1, "other"));
  EXPECT_THAT(ReadMessage(client.Receive()).answer, SizeIs(1));
  EXPECT_EQ(client.Receive(), "") << "closed";
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
}

TEST_F(DnsServerTest, WhatIsNoQueryByTcp_EndsTheConnection) {
  Start();
  for (const std::string& bytes :
       {std::string("\0\0", 2), std::string("\0\5hello", 7), std::string("\xff\xff", 2),
        std::string("GET / HTTP/1.1\r\n\r\n")}) {
    TcpClient client(address());
    client.SendRaw(bytes);
    EXPECT_EQ(client.Receive(), "");
  }
}

TEST_F(DnsServerTest, Connections_AreBounded_AndTheIdleMakeRoom) {
  options_.max_connections = 4;
  Start();
  Have(1);
  std::vector<std::unique_ptr<TcpClient>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<TcpClient>(address()));
    EXPECT_THAT(clients.back()->Ask(kOrders, type::kA).answer, SizeIs(1));
  }
  EXPECT_EQ(clients[0]->Receive(), "") << "it was the first to fall silent";
  EXPECT_THAT(clients[1]->Ask(kOrders, type::kA).answer, SizeIs(1));
  EXPECT_EQ(server_->Stats().connections, 4);
  EXPECT_EQ(server_->Stats().closed_connections, 1);
}

TEST_F(DnsServerTest, Connections_OfTheNetworkThatHasMost_MakeRoom) {
  options_.listen = {"127.0.0.1:0", "[::1]:0"};
  options_.max_connections = 4;
  Start();
  Have(1);
  // The first to fall silent, and the only one of its network.
  TcpClient modest(server_->addresses()[1]);
  EXPECT_THAT(modest.Ask(kOrders, type::kA).answer, SizeIs(1));
  std::vector<std::unique_ptr<TcpClient>> greedy;
  for (int i = 0; i < 20; ++i) {
    greedy.push_back(std::make_unique<TcpClient>(address()));
    EXPECT_THAT(greedy.back()->Ask(kOrders, type::kA).answer, SizeIs(1));
  }
  EXPECT_EQ(server_->Stats().closed_connections, 17);
  EXPECT_THAT(modest.Ask(kOrders, type::kA).answer, SizeIs(1)) << "it still has its place";
  EXPECT_THAT(greedy.back()->Ask(kOrders, type::kA).answer, SizeIs(1));
  EXPECT_EQ(greedy.front()->Receive(), "") << "closed";
}

TEST_F(DnsServerTest, ASilentConnection_IsClosed) {
  options_.idle_timeout = absl::Milliseconds(100);
  Start();
  TcpClient client(address());
  EXPECT_EQ(client.Receive(), "");
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
}

TEST_F(DnsServerTest, MisshapenPackets_AreAnsweredInKind) {
  Start();
  UdpClient client(address());
  client.Send("hello");
  client.Send(std::string(4000, 'x'));
  EXPECT_EQ(ReadMessage(client.Receive()).rcode, 1) << "too long to be looked at";
  QueryShape notify;
  notify.flags = 4 << 11;
  EXPECT_EQ(client.Ask("failback", type::kSoa, notify).rcode, 4);
  std::string cut = QueryBytes(kOrders, type::kA);
  cut.pop_back();
  client.Send(cut);
  const Message message = ReadMessage(client.Receive());
  EXPECT_EQ(message.rcode, 1);
  EXPECT_THAT(message.question, IsEmpty());
  EXPECT_EQ(client.Ask("example.com", type::kA).rcode, 5);
  EXPECT_GE(server_->Stats().ignored, 1);
}

TEST_F(DnsServerTest, ACookie_IsGivenAndTaken) {
  Start();
  Have(1);
  UdpClient client(address());
  QueryShape shape;
  shape.udp_bytes = 1232;
  shape.cookie = "01234567";
  const Message first = client.Ask(kOrders, type::kA, shape);
  EXPECT_THAT(first.cookie, SizeIs(24));
  EXPECT_EQ(first.cookie.substr(0, 8), "01234567");
  shape.cookie = first.cookie;
  EXPECT_EQ(client.Ask(kOrders, type::kA, shape).rcode, 0);
}

TEST_F(DnsServerTest, Ipv6) {
  options_.listen = {"[::1]:0"};
  Start();
  Have(2);
  EXPECT_THAT(UdpClient(address()).Ask(kOrders, type::kA).answer, SizeIs(2));
  EXPECT_THAT(TcpClient(address()).Ask(kOrders, type::kA).answer, SizeIs(2));
  EXPECT_THAT(UdpClient(address()).Ask("failback", type::kNs).additional,
              ElementsAre("ns.failback. 1 IN AAAA ::1"));
}

TEST_F(DnsServerTest, BoundToAllAddresses_AnswersLeaveFromTheOneThatWasAsked) {
  options_.listen = {"0.0.0.0:0"};
  options_.allow_remote = true;
  Start();
  const std::string port = address().substr(address().rfind(':'));
  for (const char* const host : {"127.0.0.1", "127.0.0.2"}) {
    // A connected socket takes answers from nowhere else.
    UdpClient client(host + port);
    EXPECT_EQ(client.Ask("failback", type::kSoa).answer.size(), 1u) << host;
  }
}

TEST_F(DnsServerTest, OtherMachines_AreNotServedUnlessAllowed) {
  options_.listen = {"0.0.0.0:0"};
  EXPECT_EQ(DnsServer::Bind(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DnsServerTest, AnAddressInUse_IsSaid) {
  Start();
  options_.listen = {address()};
  const auto second = DnsServer::Bind(options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
}

TEST_F(DnsServerTest, WhatTheReaderMayNotRead_IsRefused) {
  config::v1::Policy policy;
  config::v1::Rule& rule = *policy.add_rules();
  rule.add_certificates("dns");
  rule.add_allow(config::v1::PERMISSION_READ);
  rule.add_namespaces("default");
  rule.add_services("orders");
  options_.access = std::make_shared<AccessControl>(AccessRules::Make(&policy, nullptr).value());
  options_.reader.kind = Identity::Kind::kCertificate;
  options_.reader.names = {"dns"};
  Start();
  Have(1);
  UdpClient client(address());
  EXPECT_EQ(client.Ask("payments.service.failback", type::kA).rcode, 5);
  EXPECT_THAT(registry_.subscriptions(), SizeIs(1));
  // The rules change.
  rule.set_services(0, "other");
  options_.access->Update(AccessRules::Make(&policy, nullptr).value());
  EXPECT_TRUE(Eventually([&] { return client.Ask(kOrders, type::kA).rcode == 5; }));
}

TEST_F(DnsServerTest, ItStops_WhileQueriesWait) {
  options_.table.first_wait = absl::Hours(1);
  Start();
  TcpClient tcp(address());
  tcp.Send(QueryBytes(kOrders, type::kA));
  const auto subscription = registry_.WaitForSubscription(0);
  ASSERT_TRUE(Eventually([&] { return server_->Stats().waiting == 1; }));
  server_->Stop();
  EXPECT_TRUE(subscription->cancelled());
  EXPECT_EQ(tcp.Receive(), "");
}

TEST_F(DnsServerTest, LimitsThatCannotBeKept_AreRefused) {
  options_.zone.max_udp_bytes = 511;
  EXPECT_EQ(DnsServer::Bind(options_).status().message(), "max_udp_bytes: 511 is below 512");
  options_.zone.max_udp_bytes = 512;
  options_.max_connections = 0;
  EXPECT_EQ(DnsServer::Bind(options_).status().message(), "max_connections: 0 is below 1");
}

}  // namespace
}  // namespace failback::dns
