#include "tests/registry/failback/model_story.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

constexpr int kServices = 2;
constexpr int kKeysPerService = 3;
constexpr int kSteps = 50;
constexpr uint32_t kPorts = 4;  // that are registered: less than these
constexpr char kRival[] = "rival";

std::string Service(int index) { return absl::StrCat("s", index / kKeysPerService); }
ServiceInstance Instance(int index, uint32_t port) {
  return MakeInstance(absl::StrCat("i", index % kKeysPerService), port, Service(index));
}

// An instance as a batch has it, made once: a seed needs hundreds.
struct Canonical {
  std::string key;
  std::array<Blob, kPorts> by_port;
};
const Canonical& CanonicalOf(int index) {
  static const std::vector<Canonical>* const all = [] {
    auto* const made = new std::vector<Canonical>(kServices * kKeysPerService);
    for (int i = 0; i < kServices * kKeysPerService; ++i) {
      Canonical& one = (*made)[static_cast<size_t>(i)];
      one.key = CanonicalKey(Instance(i, 1).key());
      for (uint32_t port = 1; port < kPorts; ++port) {
        one.by_port[port] = Blob(CanonicalInstance(Instance(i, port)));
      }
    }
    return made;
  }();
  return (*all)[static_cast<size_t>(index)];
}
const std::string& KeyOf(int index) { return CanonicalOf(index).key; }

// Those of one service.
std::map<std::string, uint32_t> Of(const std::string& service,
                                   const std::map<std::string, uint32_t>& ports) {
  std::map<std::string, uint32_t> found;
  for (int index = 0; index < kServices * kKeysPerService; ++index) {
    const auto port = ports.find(KeyOf(index));
    if (port != ports.end() && Service(index) == service) found.insert(*port);
  }
  return found;
}

}  // namespace

void Target::Rival(const ServiceInstance& instance, uint64_t generation) {
  const std::string session = RenewRival();
  if (instance.port() != 0) {
    RegisterRequest request;
    request.set_session_id(session);
    *request.add_registrations()->mutable_instance() = instance;
    request.mutable_registrations(0)->set_generation(generation);
    registry()->Register(request, [](const absl::StatusOr<RegisterResponse>&) {});
  } else {
    UnregisterRequest request;
    request.set_session_id(session);
    *request.add_deregistrations()->mutable_key() = instance.key();
    request.mutable_deregistrations(0)->set_generation(generation);
    registry()->Unregister(request, [](const absl::StatusOr<UnregisterResponse>&) {});
  }
}

std::string Target::RenewRival() {
  OpenSessionRequest open;
  open.set_incarnation(kRival);
  open.mutable_ttl()->set_seconds(60);
  std::string session;
  registry()->OpenSession(open, [&](absl::StatusOr<OpenSessionResponse> response) {
    if (response.ok()) session = response->session_id();
  });
  return session;
}

void Target::EndRival() {
  CloseSessionRequest close;
  close.set_session_id(RenewRival());
  registry()->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
}

std::map<std::string, uint32_t> ModelTarget::Ports(const std::string& incarnation) {
  std::map<std::string, uint32_t> ports;
  for (const auto& [key, held] : model_.instances()) {
    if (incarnation.empty() || held.incarnation == incarnation) ports[key] = held.port;
  }
  return ports;
}

Story::Story(uint32_t seed, Subject* subject, bool real_store)
    : traced_(std::getenv("FAILBACK_SEED") != nullptr),
      real_store_(real_store),
      subject_(subject),
      random_(seed) {
  LinkWorld& world = subject_->world;
  world.target = [this] { return subject_->target()->registry(); };
  world.random = &random_;
  world.fault_percent = Pick(3) == 0 ? 0 : 5 + Pick(60);
  if (traced_) world.trace = [this](const std::string& line) { Tell(line); };
  FailbackOptions& options = subject_->options;
  options.upstream_name = "model";
  options.incarnation = "inc";
  options.max_local_ttl = absl::Hours(1);
  options.random = [this] { return static_cast<double>(Pick(1000)) / 1000; };
  options.max_calls_in_flight = 1 + Pick(4);
  world.max_calls_in_flight = options.max_calls_in_flight;
  options.max_batch = 1 + Pick(5);
  // Without comparisons nothing hides what went wrong before. Then nothing happens that only they
  // find out: no other hand (the real store's sessions are ended by one), no rival, no other store,
  // which knows no fences, and no crash, which forgets a checked intent under way.
  alone_ = !real_store_ && Pick(4) == 0;
  options.anti_entropy_interval = alone_ ? absl::ZeroDuration() : absl::Seconds(10);
  options.empty_snapshot_hold = Pick(2) == 0 ? absl::ZeroDuration() : absl::Seconds(5);
  options.stale_grace = absl::Milliseconds(Pick(2000));
  options.session_ttl = absl::Seconds(10);
  if (Pick(3) == 0) options.retry.retry_period = absl::Seconds(1);
  if (Pick(4) == 0) options.retry.retry_times = Pick(3);
  if (Pick(4) == 0) {
    options.retries_per_second = 5;
    options.retry_burst = 2;
  }
  world.down = Pick(4) == 0;
  rivals_ = Pick(4) == 0 && !alone_;
  if (rivals_ && Pick(2) == 0) options.superseded_period = absl::Seconds(2);
  subject_->journal = Pick(12) == 0 && !alone_;
  subject_->on_event = [this](const IntentEvent& event) {
    if (event.kind != IntentEvent::Kind::kSuperseded) return;
    Tell(absl::StrCat("  superseded: ", event.id));
    EXPECT_TRUE(rivals_) << event.id << " lost to nobody";
  };
  subject_->Start();
}

void Story::Run() {
  for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
    Operate();
    subject_->Advance(absl::Milliseconds(Pick(4) == 0 ? Pick(5000) : Pick(200)));
    CheckInvariants();
  }
  Tell("faults stop");
  subject_->world.fault_percent = 0;
  subject_->world.down = false;
  rival_gone_ = rivals_ && Pick(2) == 0;
  if (rival_gone_) subject_->target()->EndRival();
  subject_->RetryAll();
  // Late calls land for 20 s, a stream is retried after at most 30 s, the comparison comes every
  // 12.5 s at the latest; what parked while the faults still echoed is asked for once more.
  Settle(absl::Seconds(30));
  subject_->RetryAll();
  subject_->target()->ForgetFences();
  // A rival's fence is there for a minute, and what it has refused is tried again within 35 s. What
  // holds before stays so: every eighth story goes on for the whole time.
  const bool whole = Pick(8) == 0;
  for (int seconds = rivals_ ? 110 : 70; seconds > 0 && (whole || !HasConverged()); seconds -= 10) {
    Settle(absl::Seconds(10));
  }
  CheckInvariants();
  CheckConverged();
  if (Pick(4) == 0) {
    bool drained = false;
    subject_->Drain(absl::Seconds(10), [&] { drained = true; });
    subject_->Advance(absl::Seconds(11));
    EXPECT_TRUE(drained);
    // What a concurrent writer has registered has no owner, and stays.
    if (!real_store_) {
      EXPECT_EQ(subject_->target()->Ports(""), subject_->target()->Ports(kRival))
          << "drained, and something is left";
    }
  }
  subject_->End();
  EXPECT_EQ(waiting_, 0) << "callbacks that never ran";
}

void Story::Settle(absl::Duration duration) {
  for (; duration > absl::ZeroDuration(); duration -= absl::Seconds(10)) {
    if (rivals_ && !rival_gone_) subject_->target()->RenewRival();
    subject_->Advance(absl::Seconds(10));
  }
}

void Story::CheckInvariants() {
  EXPECT_EQ(subject_->CheckInvariants(), "");
  EXPECT_EQ(subject_->world.violation, "");
}

void Story::Tell(const std::string& line) {
  if (!traced_) return;
  std::cerr << absl::FormatDuration(absl::Nanoseconds(subject_->NowNanos())) << " " << line << "\n";
}

void Story::Operate() {
  const int key = Pick(kServices * kKeysPerService);
  const int operation = Pick(22);
  static const char* const kNames[] = {
      "register",          "register",        "register",   "register",       "register all",
      "unregister",        "unregister",      "unregister", "subscribe",      "end a subscription",
      "open a session",    "close a session", "down or up", "lose sessions",  "wipe",
      "backup or restore", "break streams",   "retry",      "a hand removes", "a hand changes",
      "a rival",           "a crash"};
  if (traced_)
    Tell(absl::StrCat(kNames[operation], " ", Service(key), "/i", key % kKeysPerService));
  switch (operation) {
    case 0:
    case 1:
    case 2:
    case 3:
      return State({key}, 1 + Pick(3));
    case 4:
      return State({0, 1, 2, 3, 4, 5}, 1 + Pick(3));
    case 5:
    case 6:
    case 7:
      return State({key}, std::nullopt);
    case 8:
      return Subscribe(key);
    case 9:
      return EndASubscription();
    case 10:
      ++last_session_;
      sessions_[last_session_] = OpenSession(last_session_);
      return;
    case 11:
      return CloseSession();
    case 12:
      subject_->world.down = !subject_->world.down;
      return;
    case 13:
      if (Pick(2) == 0) subject_->target()->LoseSessions();
      return;
    case 14:
      if (!alone_ && Pick(3) == 0) subject_->target()->Wipe();
      return;
    case 15:
      if (alone_) return;
      return Pick(2) == 0 ? subject_->target()->Backup() : subject_->target()->Restore();
    case 16:
      return subject_->target()->BreakStreams(Pick(2) == 0 ? absl::UnavailableError("reset")
                                                           : absl::InternalError("broken"));
    case 17:
      subject_->RetryAll();
      return;
    case 18:
      if (alone_) return;
      return subject_->target()->HandRemove(Instance(key, 1).key());
    case 19:
      if (alone_) return;
      // A rival does not repair what is its own.
      if (subject_->target()->Ports(kRival).count(KeyOf(key)) > 0) return;
      return subject_->target()->HandChange(Instance(key, 1).key(), 7);
    case 20:
      if (rivals_)
        subject_->target()->Rival(Instance(key, Pick(3) == 0 ? 0 : 9), ++rival_generation_);
      return;
    case 21:
      if (subject_->journal) Crash();
      return;
  }
}

void Story::EndASubscription() {
  if (subscriptions_.empty()) return;
  auto& subscription = subscriptions_[Pick(static_cast<int>(subscriptions_.size()))];
  subscription.stream.reset();
  subscription.model->gone = true;
}

void Story::Crash() {
  subscriptions_.clear();
  subject_->Crash();
  for (auto& [key, want] : wants_) {
    if (!std::exchange(want.checking, false)) continue;
    want.port = want.before;  // a checked intent under way was never accepted
    want.owner = want.before_owner;
    want.version = ++last_version_;
  }
  // Local clients come back with the same names.
  for (auto& [number, id] : sessions_) id = OpenSession(number);
}

void Story::State(const std::vector<int>& keys, std::optional<uint32_t> port) {
  int owner = 0;
  if (!sessions_.empty() && Pick(2) == 0) {
    owner = std::next(sessions_.begin(), Pick(static_cast<int>(sessions_.size())))->first;
  }
  // The answer to a batch tells too late when each of its items was decided.
  const bool check = keys.size() == 1 && Pick(6) == 0;
  const bool wait = check || Pick(4) == 0;
  std::vector<uint64_t> versions;
  for (const int key : keys) {
    Want& want = wants_[key];
    if (!check) {
      want.checking = false;
    } else if (!want.checking) {
      want.checking = true;
      want.before = want.port;
      want.before_owner = want.owner;
    }
    want.port = port;
    want.owner = owner;
    versions.push_back(want.version = ++last_version_);
    if (traced_) {
      Tell(absl::StrCat("  ", Service(key), "/i", key % kKeysPerService, " port ", port.value_or(0),
                        " owner ", owner, check ? " checked" : ""));
    }
  }
  const auto numbered = [&] { return owner != 0 && Pick(2) == 0 ? ++client_generation_ : 0; };
  const auto address = [&](auto request) {
    if (owner != 0) request.set_session_id(sessions_[owner]);
    request.set_check(check);
    if (wait) request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    return Batch::Of(request);
  };
  Batch batch = port.has_value() ? address(RegisterRequest()) : address(UnregisterRequest());
  for (const int key : keys) {
    if (port.has_value()) {
      batch.Put(KeyOf(key), CanonicalOf(key).by_port[*port], /*persistent=*/false, numbered());
    } else {
      batch.Remove(KeyOf(key), numbered());
    }
  }
  ++waiting_;
  subject_->Write(std::move(batch), [this, keys, versions, check](
                                        const absl::Status& call,
                                        const std::vector<registry::v1::IntentResult>& results) {
    --waiting_;
    if (!call.ok() && call.code() != absl::StatusCode::kCancelled) {
      ADD_FAILURE() << call;
    }
    if (!check || !call.ok()) return;
    Checked(keys[0], versions[0], StatusFromProto(results[0].status()));
  });
}

void Story::Checked(int key, uint64_t version, const absl::Status& status) {
  if (traced_) Tell(absl::StrCat("  checked, ", status.ToString()));
  Want& want = wants_[key];
  if (want.version != version || !want.checking) return;
  want.checking = false;
  // An unregister of what a rival holds is done.
  const bool gone = !want.port && ReasonOf(status) == registry::v1::ERROR_REASON_SUPERSEDED;
  if (status.ok() || gone) return;
  const bool orphan = want.before_owner != 0 && sessions_.count(want.before_owner) == 0;
  want.port = orphan ? std::nullopt : want.before;
  want.owner = orphan ? 0 : want.before_owner;
}

void Story::Subscribe(int key) {
  SubscribeRequest request;
  request.mutable_selector()->set_service(Service(key));
  Subscription subscription;
  subscription.service = Service(key);
  subscription.model = std::make_shared<SubscriberModel>();
  subscription.stream = subject_->Subscribe(request, subscription.model);
  subscriptions_.push_back(std::move(subscription));
}

std::string Story::OpenSession(int number) {
  OpenSessionRequest request;
  request.set_incarnation(absl::StrCat("client-", number));
  request.mutable_ttl()->set_seconds(3600);
  std::string id = subject_->OpenSession(request);
  EXPECT_NE(id, "");
  return id;
}

void Story::CloseSession() {
  if (sessions_.empty()) return;
  const auto [number, id] = *std::next(sessions_.begin(), Pick(static_cast<int>(sessions_.size())));
  sessions_.erase(number);
  for (auto& [key, want] : wants_) {
    if (want.owner != number) continue;
    want.owner = 0;
    if (!want.port.has_value()) continue;
    want.port.reset();
    want.checking = false;
    want.version = ++last_version_;
  }
  EXPECT_EQ(subject_->CloseSession(id), absl::OkStatus());
}

std::map<std::string, uint32_t> Story::Wanted(std::set<std::string>* lost) {
  std::map<std::string, uint32_t> wanted;
  for (const auto& [key, want] : wants_) {
    if (want.port.has_value()) wanted[KeyOf(key)] = *want.port;
  }
  // What a rival holds is the rival's, and waited for by those of ours who lost it.
  if (!rivals_) return wanted;
  for (const auto& [key, port] : subject_->target()->Ports(kRival)) {
    if (wanted.count(key) > 0) lost->insert(key);
    wanted[key] = port;
  }
  return wanted;
}

bool Story::HasConverged() {
  std::set<std::string> lost;
  const auto wanted = Wanted(&lost);
  if (waiting_ > 0 || subject_->target()->Ports("") != wanted) return false;
  size_t superseded = 0;
  for (const auto& row : subject_->Pending()) {
    if (row.state() != agent::v1::PENDING_STATE_SUPERSEDED) return false;
    ++superseded;
  }
  if (superseded != lost.size() || (rival_gone_ && superseded > 0)) return false;
  return std::all_of(subscriptions_.begin(), subscriptions_.end(), [&](const auto& one) {
    return one.stream == nullptr || (one.model->known() && !one.model->stale() &&
                                     one.model->state() == Of(one.service, wanted));
  });
}

void Story::CheckConverged() {
  std::set<std::string> lost;
  const auto wanted = Wanted(&lost);
  if (rival_gone_) {
    EXPECT_TRUE(subject_->target()->Ports(kRival).empty());
  }
  EXPECT_EQ(subject_->target()->Ports(""), wanted);
  for (const auto& row : subject_->Pending()) {
    const bool superseded = row.state() == agent::v1::PENDING_STATE_SUPERSEDED &&
                            lost.erase(CanonicalKey(row.key())) > 0;
    EXPECT_TRUE(superseded) << "pending: " << row.ShortDebugString();
  }
  for (const auto& key : lost) ADD_FAILURE() << key << " is a rival's, and not waited for";
  EXPECT_EQ(waiting_, 0) << "callbacks that never ran";
  CheckSubscribers(wanted);
}

void Story::CheckSubscribers(const std::map<std::string, uint32_t>& wanted) {
  for (const auto& subscription : subscriptions_) {
    if (subscription.stream == nullptr) continue;
    EXPECT_TRUE(subscription.model->known());
    EXPECT_FALSE(subscription.model->stale());
    EXPECT_FALSE(subscription.model->ended);
    EXPECT_EQ(subscription.model->state(), Of(subscription.service, wanted));
  }
}

}  // namespace failback
