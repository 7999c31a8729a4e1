// Sequences of requests, any content, into the registry on a memory store: as it is, as two callers
// with different permissions may use it, and as an operator asks it. Every call is answered exactly
// once, nothing crashes, and the state's invariants hold at the end. A Register that is read from
// its bytes means what it means when it is parsed.

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "failback/admin/v1/admin.pb.h"
#include "failback/config/v1/access.pb.h"
#include "registry/model/errors.h"
#include "registry/security/access_control.h"
#include "registry/security/guarded_registry.h"
#include "registry/store/store_registry.h"
#include "registry/store_admin.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/registry/model/batch_check.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

class Listener : public NotifyListener {
 public:
  void OnEvent(const EventPtr&) override {
    if (ended_) Die("told something after the end");
  }
  void OnEnd(const absl::Status&) override {
    if (ended_) Die("ended twice");
    ended_ = true;
  }

 private:
  bool ended_ = false;
};

class FuzzSession {
 public:
  FuzzSession() {
    timer_ = NewTimer(&clock_);
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.commit_inline = true;
    options.max_instances = 50;
    options.max_sessions = 10;
    store_ = *StoreRegistry::Open(std::move(options));
    admin_ = NewStoreAdmin(store_.get(), "memory:", absl::UnixEpoch());
    config::v1::Policy policy;
    auto* const rule = policy.add_rules();
    rule->add_certificates("a*");
    rule->add_namespaces("default");
    rule->add_services("*");
    rule->add_allow(config::v1::PERMISSION_REGISTER);
    rule->add_allow(config::v1::PERMISSION_READ);
    access_ = std::make_shared<AccessControl>(*AccessRules::Make(&policy, nullptr));
    for (const char* name : {"a", "b"}) {
      guarded_.push_back(std::make_unique<GuardedRegistry>(
          store_.get(), access_, Identity{Identity::Kind::kCertificate, {name}, ""}));
    }
  }
  ~FuzzSession() {
    streams_.clear();
    if (const absl::Status status = store_->CheckInvariants(); !status.ok()) Die(status.ToString());
  }

  void Step(FuzzInput* input) {
    const uint8_t choice = input->Byte();
    Registry* const registry =
        choice % 3 == 0 ? static_cast<Registry*>(store_.get()) : guarded_[choice % 2].get();
    switch (input->Byte() % 10) {
      case 0:
        return Call(registry, &Registry::OpenSession, input, [this](const auto& response) {
          session_ids_.push_back(response.session_id());
        });
      case 1:
        return Call(registry, &Registry::KeepAlive, input);
      case 2:
        return Call(registry, &Registry::CloseSession, input);
      case 3:
      case 4:
        return Call(registry, &Registry::Register, input);
      case 5:
        return Call(registry, &Registry::Unregister, input);
      case 6:
        return Subscribe(registry, input);
      case 7:
        return Call(registry, &Registry::Unsubscribe, input);
      case 8:
        return WriteBytes(registry, input);
      default:
        return LookOrWait(registry, input);
    }
  }

 private:
  void LookOrWait(Registry* registry, FuzzInput* input) {
    switch (input->Byte() % 8) {
      case 0:
        return Call(registry, &Registry::SetOffline, input);
      case 1:
        return Ask(&Admin::ListServices, input);
      case 2:
        return Ask(&Admin::ListInstances, input);
      case 3:
        return Ask(&Admin::DescribeInstance, input);
      case 4:
        return clock_.Advance(absl::Milliseconds(input->Number()));
      case 5:
        return clock_.Advance(absl::Hours(input->Byte()));
      default:
        return Call(registry, &Registry::List, input);
    }
  }

  // Half of the time a session that is there.
  template <typename Request>
  auto TakeSession(FuzzInput* input, Request* request) -> decltype(request->session_id(), void()) {
    if (input->Byte() % 2 == 0 && !session_ids_.empty()) {
      request->set_session_id(session_ids_[input->Byte() % session_ids_.size()]);
    }
  }
  void TakeSession(FuzzInput*, OpenSessionRequest*) {}
  void TakeSession(FuzzInput*, ListRequest*) {}
  void TakeSession(FuzzInput*, SetOfflineRequest*) {}

  template <typename Request, typename Response>
  void Call(Registry* registry, void (Registry::*method)(const Request&, Callback<Response>),
            FuzzInput* input, std::function<void(const Response&)> on_success = nullptr) {
    Request request;
    input->Fill(&request);
    TakeSession(input, &request);
    Answered<Response>(
        request, [&](Callback<Response> done) { (registry->*method)(request, std::move(done)); },
        on_success);
  }
  template <typename Request, typename Response>
  void Ask(void (Admin::*method)(const Request&, Callback<Response>) const, FuzzInput* input) {
    Request request;
    input->Fill(&request);
    Answered<Response>(
        request, [&](Callback<Response> done) { (*admin_.*method)(request, std::move(done)); },
        nullptr);
  }

  template <typename Response, typename Request, typename Make>
  void Answered(const Request& request, Make make,
                const std::function<void(const Response&)>& on_success) {
    int answers = 0;
    make([&](absl::StatusOr<Response> response) {
      ++answers;
      if (response.ok() && on_success) on_success(*response);
      // Any answer can be sent.
      if (response.ok()) {
        response->SerializeAsString();
      } else {
        StatusToProto(response.status()).SerializeAsString();
      }
    });
    if (answers != 1) Die("a call was not answered once: " + request.ShortDebugString());
  }
  template <typename Request, typename Response, typename OnSuccess>
  void Call(Registry* registry, void (Registry::*method)(const Request&, Callback<Response>),
            FuzzInput* input, OnSuccess on_success) {
    Call(registry, method, input, std::function<void(const Response&)>(std::move(on_success)));
  }

  // A request's bytes, some of them changed.
  void WriteBytes(Registry* registry, FuzzInput* input) {
    RegisterRequest request;
    input->Fill(&request);
    TakeSession(input, &request);
    std::string bytes = request.SerializePartialAsString();
    for (int i = input->Byte() % 4; i > 0 && !bytes.empty(); --i) {
      bytes[input->Number() % bytes.size()] = static_cast<char>(input->Byte());
    }
    if (const std::string difference = DifferenceFromParsed(bytes); !difference.empty()) {
      Die("a Register that is read from its bytes: " + difference);
    }
    absl::StatusOr<Batch> batch = ReadRegister(bytes);
    if (!batch.ok()) return;
    int answers = 0;
    const Batch::Generations asked = batch->generations();
    registry->Write(*std::move(batch), [&](const absl::StatusOr<BatchResult>& result) {
      ++answers;
      if (!result.ok()) return;
      RegisterResponse response;
      if (!response.ParseFromString(EncodeResponse(*result, &asked)) ||
          response.results_size() != static_cast<int>(asked.size())) {
        Die("the bytes of an answer are no RegisterResponse");
      }
    });
    if (answers != 1) Die("a batch was not answered once");
  }

  void Subscribe(Registry* registry, FuzzInput* input) {
    SubscribeRequest request;
    input->Fill(&request);
    TakeSession(input, &request);
    if (streams_.size() >= 4) streams_.pop_front();
    streams_.push_back(registry->Subscribe(request, std::make_shared<Listener>()));
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<RegistryAdmin> admin_;
  std::shared_ptr<AccessControl> access_;
  std::vector<std::unique_ptr<GuardedRegistry>> guarded_;
  std::vector<std::string> session_ids_;
  std::deque<std::unique_ptr<SubscribeStream>> streams_;
};

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  failback::FuzzInput input(data, size);
  failback::FuzzSession session;
  while (!input.empty()) session.Step(&input);
  return 0;
}
