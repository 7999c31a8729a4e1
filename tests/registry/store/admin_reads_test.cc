// What an operator reads beside commits. For ThreadSanitizer too.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/registry_calls.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

constexpr int kCommits = 400;
constexpr int kInstances = 250;  // in each
constexpr int kReaders = 2;

TEST(AdminReads, SeeWhatIsThereBesideCommits) {
  const auto timer = NewTimer();
  StoreRegistry::Options options;
  options.timer = timer.get();
  options.default_ttl = absl::Minutes(10);
  auto registry = StoreRegistry::Open(options).value();
  OpenSessionRequest open;
  open.set_incarnation("a");
  const std::string session = CallAndWait(*registry, &Registry::OpenSession, open)->session_id();
  RegisterRequest first;
  first.set_session_id(session);
  *first.add_registrations()->mutable_instance() = MakeInstance("orders", "known");
  ASSERT_TRUE(CallAndWait(*registry, &Registry::Register, first).ok());

  std::atomic<bool> done{false};
  std::atomic<int> reads{0};
  std::atomic<int> wrong{0};
  const InstanceKey known = MakeInstance("orders", "known").key();
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] {
      int seen = 0;
      while (!done) {
        const auto described = registry->Describe(known);
        if (!described.ok() || described->session().incarnation() != "a") ++wrong;
        if (++seen % 100 == 0) {
          if (registry->ServiceSummaries().empty()) ++wrong;
          if (registry->Stats().sessions != 1) ++wrong;
          ListRequest list;
          list.set_incarnation("a");
          list.set_page_size(10);
          const auto listed = CallAndWait(*registry, &Registry::List, list);
          if (!listed.ok() || listed->records_size() == 0) ++wrong;
        }
      }
      reads += seen;
    });
  }
  // New keys make the table of keys grow, those that go make it shrink.
  for (int commit = 0; commit < kCommits; ++commit) {
    RegisterRequest request;
    request.set_session_id(session);
    for (int i = 0; i < kInstances; ++i) {
      *request.add_registrations()->mutable_instance() =
          MakeInstance("orders", absl::StrCat(commit, "-", i));
    }
    ASSERT_TRUE(CallAndWait(*registry, &Registry::Register, request).ok());
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(reads, 0);
  EXPECT_EQ(wrong, 0) << "of " << reads << " reads";
}

}  // namespace
}  // namespace failback
