// A FakeRegistry behind a real RegistryServer, and real clients of it, on loopback TCP or a Unix
// socket.

#ifndef FAILBACK_TESTS_REGISTRY_SERVER_WIRE_FIXTURE_H_
#define FAILBACK_TESTS_REGISTRY_SERVER_WIRE_FIXTURE_H_

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "registry/client/grpc_registry.h"
#include "registry/server/registry_server.h"
#include "retry/mutex.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/eventually.h"
#include "tests/util/ports.h"
#include "tests/util/process.h"

namespace failback {

enum class Transport { kTcp, kUnix };

inline std::string TransportName(const testing::TestParamInfo<Transport>& info) {
  return info.param == Transport::kTcp ? "Tcp" : "Unix";
}

// An answer that arrives on another thread. Copies share it.
template <typename Response>
class Answered {
 public:
  Callback<Response> Callback_() {
    return [state = state_](absl::StatusOr<Response> response) {
      MutexLock lock(&state->mu);
      EXPECT_FALSE(state->response.has_value()) << "a callback ran twice";
      state->response = std::move(response);
      state->changed.SignalAll();
    };
  }

  // Waits. DATA_LOSS, which no test uses, when nothing comes.
  absl::StatusOr<Response> Get(absl::Duration timeout = 2 * kProcessTimeout) const {
    const absl::Time deadline = absl::Now() + timeout;
    MutexLock lock(&state_->mu);
    while (!state_->response.has_value()) {
      if (absl::Now() >= deadline) return absl::DataLossError("no answer came");
      state_->changed.WaitFor(&state_->mu, deadline - absl::Now());
    }
    return *state_->response;
  }

  bool has_come() const {
    MutexLock lock(&state_->mu);
    return state_->response.has_value();
  }

 private:
  struct State {
    Mutex mu;
    CondVar changed;
    std::optional<absl::StatusOr<Response>> response;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Calls may have to wait for a machine that is busy with other things.
inline GrpcRegistryOptions Patient() {
  GrpcRegistryOptions options;
  options.call_timeout = kProcessTimeout;
  return options;
}

// Calls a method of `registry` and waits for the answer.
template <typename Request, typename Response>
absl::StatusOr<Response> CallAndWait(Registry& registry,
                                     void (Registry::*method)(const Request&, Callback<Response>),
                                     const Request& request) {
  Answered<Response> answer;
  (registry.*method)(request, answer.Callback_());
  return answer.Get();
}

// As CallAndWait, without waiting.
template <typename Request, typename Response>
Answered<Response> CallAsync(Registry& registry,
                             void (Registry::*method)(const Request&, Callback<Response>),
                             const Request& request) {
  Answered<Response> answer;
  (registry.*method)(request, answer.Callback_());
  return answer;
}

inline KeepAliveRequest RenewalOf(const std::string& session_id) {
  KeepAliveRequest request;
  request.set_session_id(session_id);
  return request;
}

inline SubscribeResponse Snapshot(uint64_t revision) {
  SubscribeResponse event;
  event.set_epoch(1);
  event.set_revision(revision);
  event.mutable_snapshot();
  return event;
}

class WireTest : public testing::Test {
 protected:
  // An address to listen on, again and again: a reserved port, or a socket in the test's folder.
  std::string ListenOn(Transport transport) {
    if (transport == Transport::kTcp) return ReservedAddress();
    return absl::StrCat("unix:", folder_.File(absl::StrCat(++sockets_, ".sock")));
  }

  void StartServer(const std::string& listen) { StartServer(listen, RegistryServer::Options()); }

  void StartServer(const std::string& listen, RegistryServer::Options options) {
    options.listen = {listen};
    auto started = RegistryServer::Start(&fake_, options);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    address_ = server_->addresses()[0];
  }

  std::unique_ptr<GrpcRegistry> NewClient(GrpcRegistryOptions options = Patient()) {
    return std::make_unique<GrpcRegistry>(std::vector<std::string>{address_}, std::move(options));
  }

  TempDir folder_;
  int sockets_ = 0;
  FakeRegistry fake_;
  std::unique_ptr<RegistryServer> server_;
  std::string address_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SERVER_WIRE_FIXTURE_H_
