// RegisterStreams over a store: a message is answered as the call would be, with an access policy
// too. Registries of their own get the same requests in the same order.

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/security/access_control.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/server/register_stream_client.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/seeded_random.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

// A store behind a server of its own.
class Subject {
 public:
  // `policy`: each call is judged, and allowed.
  Subject(const std::string& listen, HashedWheelTimer* timer, bool policy) {
    StoreRegistry::Options options;
    options.timer = timer;
    options.max_batch = 25;
    options.max_instances_per_session = 30;
    store_ = StoreRegistry::Open(std::move(options)).value();
    RegistryServer::Options server;
    server.listen = {listen};
    if (policy) server.access = std::make_shared<AccessControl>(AllowAll());
    server_ = RegistryServer::Start(store_.get(), server).value();
    client_ = std::make_unique<GrpcRegistry>(server_->addresses(), Patient());
    stream_ = std::make_unique<RegisterStreamClient>(server_->addresses()[0]);
    for (const char* name : {"a", "b"}) {
      OpenSessionRequest open;
      open.set_incarnation(name);
      sessions_.push_back(CallAndWait(*client_, &Registry::OpenSession, open).value().session_id());
    }
  }
  ~Subject() { EXPECT_EQ(store_->CheckInvariants(), absl::OkStatus()); }

  absl::StatusOr<RegisterResponse> Call(const RegisterRequest& request) {
    return WithoutEpoch(CallAndWait(*client_, &Registry::Register, Owned(request)));
  }

  // On the stream. What is left out is put back; `left_out` counts.
  absl::StatusOr<RegisterResponse> Stream(RegisterRequest request, int* left_out) {
    request = Owned(request);
    stream_->Send(request);
    const auto answer = stream_->Read();
    if (!answer.has_value()) return absl::DataLossError("no answer came");
    if (answer->has_status()) {
      EXPECT_EQ(answer->results_size(), 0);
      return StatusFromProto(answer->status());
    }
    RegisterResponse response;
    *response.mutable_results() = answer->results();
    response.set_epoch(answer->epoch());
    response.set_revision(answer->revision());
    if (answer->results_size() == 0) {
      ++*left_out;
      for (const auto& registration : request.registrations()) {
        auto* const result = response.add_results();
        result->set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
        result->set_generation(registration.generation());
      }
    }
    return WithoutEpoch(std::move(response));
  }

  // Ends a session and opens another of the same incarnation.
  void Reopen(size_t session, const std::string& incarnation) {
    CloseSessionRequest close;
    close.set_session_id(sessions_[session]);
    EXPECT_TRUE(CallAndWait(*client_, &Registry::CloseSession, close).ok());
    OpenSessionRequest open;
    open.set_incarnation(incarnation);
    sessions_[session] = CallAndWait(*client_, &Registry::OpenSession, open).value().session_id();
  }

 private:
  static AccessRules AllowAll() {
    config::v1::Policy policy;
    auto* const rule = policy.add_rules();
    rule->set_anonymous(true);
    rule->add_namespaces("*");
    rule->add_services("*");
    rule->add_allow(config::v1::PERMISSION_REGISTER);
    rule->add_allow(config::v1::PERMISSION_READ);
    return AccessRules::Make(&policy, nullptr).value();
  }

  // The sessions are "0" and "1" to the test.
  RegisterRequest Owned(RegisterRequest request) const {
    if (request.session_id() == "0" || request.session_id() == "1") {
      request.set_session_id(sessions_[request.session_id() == "1" ? 1 : 0]);
    }
    return request;
  }
  absl::StatusOr<RegisterResponse> WithoutEpoch(absl::StatusOr<RegisterResponse> response) const {
    if (response.ok()) {
      EXPECT_EQ(response->epoch(), store_->epoch());
      response->clear_epoch();
    }
    return response;
  }

  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<GrpcRegistry> client_;
  std::unique_ptr<RegisterStreamClient> stream_;
  std::vector<std::string> sessions_;
};

// Details of a status have entries in no order.
bool Same(const RegisterResponse& a, const RegisterResponse& b) {
  const auto same = [](const registry::v1::IntentResult& x, const registry::v1::IntentResult& y) {
    const absl::Status mine = StatusFromProto(x.status());
    const absl::Status other = StatusFromProto(y.status());
    return x.state() == y.state() && x.generation() == y.generation() &&
           mine.code() == other.code() && mine.message() == other.message() &&
           ReasonOf(mine) == ReasonOf(other);
  };
  return a.revision() == b.revision() && std::equal(a.results().begin(), a.results().end(),
                                                    b.results().begin(), b.results().end(), same);
}

class RegisterStreamStoreTest : public WireTest {
 protected:
  size_t Below(size_t limit) { return static_cast<size_t>(random_.Pick(limit)); }

  RegisterRequest AnyRequest() {
    RegisterRequest request;
    if (Below(6) > 0) request.set_session_id(absl::StrCat(Below(30) == 0 ? 7 : Below(2)));
    const bool large = Below(3) == 0;
    for (size_t items = Below(20) == 0 ? Below(30) : 1 + Below(5); items > 0; --items) {
      auto* const item = request.add_registrations();
      // Mostly a newer one; one that is used already; none.
      const size_t newest = step_ / 4 + 1;
      item->set_generation(Below(8) == 0 ? Below(newest) : newest);
      ServiceInstance& instance = *item->mutable_instance();
      instance.mutable_key()->set_service("orders");
      // Many a key is there twice.
      instance.mutable_key()->set_instance_id(absl::StrCat(Below(40)));
      instance.set_address("10.0.0.1");
      instance.set_port(Below(50) == 0 ? 70000 : 80 + Below(2));
      if (large) (*instance.mutable_metadata())["padding"] = std::string(1000, 'x');
    }
    ++step_;
    return request;
  }

  SeededRandom random_;
  size_t step_ = 0;
};

TEST_F(RegisterStreamStoreTest, AMessageIsAnsweredAsTheCallWouldBe) {
  const auto timer = NewTimer();
  Subject called(ListenOn(Transport::kUnix), timer.get(), /*policy=*/false);
  Subject called_with_policy(ListenOn(Transport::kUnix), timer.get(), /*policy=*/true);
  Subject streamed(ListenOn(Transport::kUnix), timer.get(), /*policy=*/false);
  Subject streamed_with_policy(ListenOn(Transport::kUnix), timer.get(), /*policy=*/true);
  int left_out = 0;
  int left_out_with_policy = 0;
  int refused = 0;
  int partly = 0;
  for (int i = 0; i < 600 && !HasFailure(); ++i) {
    if (Below(60) == 0) {
      const size_t session = Below(2);
      for (Subject* each : {&called, &called_with_policy, &streamed, &streamed_with_policy}) {
        each->Reopen(session, session == 0 ? "a" : "b");
      }
    }
    const RegisterRequest request = AnyRequest();
    const auto expected = called.Call(request);
    for (const auto& answer :
         {called_with_policy.Call(request), streamed.Stream(request, &left_out),
          streamed_with_policy.Stream(request, &left_out_with_policy)}) {
      ASSERT_EQ(answer.status().ToString(absl::StatusToStringMode::kWithNoExtraData),
                expected.status().ToString(absl::StatusToStringMode::kWithNoExtraData))
          << request.DebugString();
      ASSERT_EQ(ReasonOf(answer.status()), ReasonOf(expected.status()));
      if (!expected.ok()) continue;
      EXPECT_TRUE(Same(*answer, *expected))
          << request.DebugString() << answer->DebugString() << expected->DebugString();
    }
    if (!expected.ok()) {
      ++refused;
      continue;
    }
    for (const auto& result : expected->results()) {
      if (result.has_status()) {
        ++partly;
        break;
      }
    }
  }
  std::cout << "left out " << left_out << ", refused " << refused << ", in part " << partly << "\n";
  EXPECT_GT(left_out, 20);
  EXPECT_GT(refused, 5);
  EXPECT_GT(partly, 20);
  EXPECT_EQ(left_out_with_policy, left_out);
}

// Calls, and messages on streams, at once: each is answered, in the end what is there is right.
TEST_F(RegisterStreamStoreTest, ManyStreamsFillOneStore) {
  constexpr int kStreams = 6;
  constexpr int kMessages = 40;
  constexpr int kItems = 20;
  const auto timer = NewTimer();
  StoreRegistry::Options options;
  options.timer = timer.get();
  const auto store = StoreRegistry::Open(std::move(options)).value();
  RegistryServer::Options server_options;
  server_options.listen = {ListenOn(Transport::kUnix)};
  const auto server = RegistryServer::Start(store.get(), server_options).value();
  const auto request_of = [](int stream, int message) {
    RegisterRequest request;
    for (int i = 0; i < kItems; ++i) {
      auto* const item = request.add_registrations();
      item->set_generation(message + 1);
      ServiceInstance& instance = *item->mutable_instance();
      instance.mutable_key()->set_service(absl::StrCat("s", stream));
      instance.mutable_key()->set_instance_id(absl::StrCat(message, "-", i));
      instance.set_address("10.0.0.1");
      instance.set_port(80);
      if (message % 2 == 0) (*instance.mutable_metadata())["padding"] = std::string(300, 'x');
    }
    return request;
  };
  std::vector<std::thread> threads;
  threads.reserve(kStreams);
  for (int s = 0; s < kStreams; ++s) {
    threads.emplace_back([&, s] {
      RegisterStreamClient client(server->addresses()[0]);
      for (int m = 0; m < kMessages; ++m) client.Send(request_of(s, m));
      uint64_t highest = 0;
      for (int m = 0; m < kMessages; ++m) {
        const auto answer = client.Read();
        ASSERT_TRUE(answer.has_value()) << s << ", " << m;
        EXPECT_FALSE(answer->has_status()) << answer->ShortDebugString();
        EXPECT_EQ(answer->epoch(), store->epoch());
        EXPECT_GT(answer->revision(), 0u);
        highest = std::max(highest, answer->revision());
      }
      EXPECT_LE(highest, store->revision());
      client.SendNoMore();
      EXPECT_EQ(client.Finish(), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->Stats().instances, kStreams * kMessages * kItems);
  EXPECT_EQ(store->CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace failback
