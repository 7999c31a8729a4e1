// `./dev bench memory`: what a registration at rest costs an agent, and what one more subscriber of
// a large set does. Instances of about 200 bytes are registered with a FailbackRegistry whose
// upstream keeps nothing, and when all are acknowledged the heap is compared with before; likewise
// when the subscriptions of an Agent to a set of 10,000 instances know it.

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "registry/failback/failback_registry.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/bench/instances.h"
#include "tests/bench/report.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

constexpr int kBatch = 250;

// Acknowledges everything and keeps nothing.
class ForgetfulRegistry : public Registry {
 public:
  void OpenSession(const OpenSessionRequest&, Callback<OpenSessionResponse> done) override {
    OpenSessionResponse response;
    response.set_session_id("session");
    response.mutable_ttl()->set_seconds(3600);
    std::move(done)(std::move(response));
  }
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override {
    KeepAliveResponse response;
    response.set_session_id(request.session_id());
    std::move(done)(std::move(response));
  }
  void CloseSession(const CloseSessionRequest&, Callback<CloseSessionResponse> done) override {
    std::move(done)(CloseSessionResponse());
  }
  void Write(Batch, Callback<BatchResult> done) override { std::move(done)(BatchResult()); }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest&,
                                             std::shared_ptr<NotifyListener>) override {
    return std::make_unique<SubscribeStream>();
  }
  void Unsubscribe(const UnsubscribeRequest&, Callback<UnsubscribeResponse> done) override {
    std::move(done)(UnsubscribeResponse());
  }
  void List(const ListRequest&, Callback<ListResponse> done) override {
    std::move(done)(ListResponse());
  }
};

// Sends each subscriber the same set.
class SetRegistry final : public ForgetfulRegistry {
 public:
  explicit SetRegistry(int64_t instances) {
    std::vector<Blob> blobs;
    for (int64_t n = 0; n < instances; ++n)
      blobs.emplace_back(CanonicalInstance(NumberedInstance("svc", n)));
    snapshot_ = Event::Snapshot(1, 1, SetFlags(), std::move(blobs));
  }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest&,
                                             std::shared_ptr<NotifyListener> listener) override {
    listener->OnEvent(snapshot_);
    return std::make_unique<SubscribeStream>();
  }

 private:
  EventPtr snapshot_;
};

size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Bytes per registration; nullopt, with a message, when not all were acknowledged.
std::optional<double> Measure(int64_t count, bool in_session) {
  SimulatedClock clock;
  const auto timer = NewTimer(&clock);
  FailbackRegistry::Options options;
  options.upstream_name = "forgetful";
  options.timer = timer.get();
  options.anti_entropy_interval = absl::ZeroDuration();
  const auto registry =
      FailbackRegistry::Create(std::make_unique<ForgetfulRegistry>(), options).value();
  std::string session;
  if (in_session) {
    OpenSessionRequest open;
    open.set_incarnation("client");
    registry->OpenSession(open, [&](absl::StatusOr<OpenSessionResponse> response) {
      session = response.value().session_id();
    });
  }
  const size_t before = HeapBytes();
  for (int64_t i = 0; i < count; i += kBatch) {
    RegisterRequest request;
    request.set_session_id(session);
    for (int64_t n = i; n < std::min(count, i + kBatch); ++n) {
      *request.add_registrations()->mutable_instance() = NumberedInstance("svc", n);
    }
    registry->Register(request, [](const absl::StatusOr<RegisterResponse>&) {});
  }
  const double bytes = static_cast<double>(HeapBytes() - before);
  const auto acknowledged = static_cast<int64_t>(registry->UpstreamStatus().acknowledged());
  if (acknowledged == count) return bytes / static_cast<double>(count);
  std::fprintf(stderr, "memory: %s of %s were acknowledged\n", absl::StrCat(acknowledged).c_str(),
               absl::StrCat(count).c_str());
  return std::nullopt;
}

// Bytes per further subscription of an agent to a set of so many instances; nullopt, with a
// message, when the set did not come.
std::optional<double> MeasureSubscribers(int64_t instances, int count) {
  Agent::Options options;
  options.registry = "set:it";
  options.schemes.push_back([instances](HashedWheelTimer*) {
    return UpstreamScheme{"set", "set:it", [instances](const std::string&) {
                            return absl::StatusOr<std::unique_ptr<Registry>>(
                                std::make_unique<SetRegistry>(instances));
                          }};
  });
  const auto agent = Agent::Create(options).value();
  const auto subscribe = [&]() -> std::optional<Subscription> {
    Subscription subscription = agent->Subscribe("svc", nullptr).value();
    for (int wait = 0; wait < 1000; ++wait) {
      if (subscription.Current().revision == 1) return subscription;
      absl::SleepFor(absl::Milliseconds(10));
    }
    std::fprintf(stderr, "memory: a subscriber did not get its set\n");
    return std::nullopt;
  };
  std::vector<Subscription> subscriptions;
  size_t before = 0;
  for (int i = 0; i <= count; ++i) {
    auto subscription = subscribe();
    if (!subscription.has_value()) return std::nullopt;
    subscriptions.push_back(*std::move(subscription));
    if (i == 0) before = HeapBytes();
  }
  return static_cast<double>(HeapBytes() - before) / count;
}

int Main(int argc, char** argv) {
  CLI::App app("What a registration at rest costs an agent.", "memory");
  Report::Options options{"memory", "", "unknown"};
  int64_t count = 100000;
  int rounds = 5;
  bool quick = false;
  app.add_option("--json", options.json_path, "write JSON lines to this file");
  app.add_option("--revision", options.revision, "of the source");
  app.add_option("--count", count, "registrations [100000]")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "[5]")->check(CLI::PositiveNumber);
  app.add_flag("--quick", quick, "a smoke run");
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    count = 2000;
    rounds = 1;
  }
  Report report(options);
  const char* const workload = "memory-100k";
  for (int round = 0; round < rounds; ++round) {
    for (const bool in_session : {false, true}) {
      const std::optional<double> bytes = Measure(count, in_session);
      if (!bytes.has_value()) return 1;
      report.Add(workload, in_session ? "failback-in-session" : "failback",
                 "bytes_per_registration", *bytes, "B");
    }
    report.Add(workload, "payload", "bytes_per_registration",
               static_cast<double>(CanonicalInstance(NumberedInstance("svc", count / 2)).size()),
               "B");
  }
  report.Ratio(workload, "bytes_per_registration", "failback", "payload");
  constexpr int64_t kSet = 10000;
  constexpr int kSubscribers = 100;
  for (int round = 0; round < rounds; ++round) {
    const std::optional<double> bytes = MeasureSubscribers(kSet, kSubscribers);
    if (!bytes.has_value()) return 1;
    report.Add("subscribers-10k", "failback", "bytes_per_subscriber", *bytes, "B");
  }
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
