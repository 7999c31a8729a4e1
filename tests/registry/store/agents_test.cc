// The agents and sessions that a registry shows.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/proto_time.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using admin::v1::ListAgentsRequest;
using admin::v1::ListAgentsResponse;
using admin::v1::ListSessionsRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AgentsTest : public testing::Test {
 protected:
  AgentsTest() : store_(Options()) {}

  static StoreRegistry::Options Options() {
    StoreRegistry::Options options;
    options.default_ttl = absl::Seconds(9);
    return options;
  }

  std::string Open(const std::string& incarnation, const std::string& client_name = "") {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.set_client_name(client_name.empty() ? absl::StrCat("agent ", incarnation)
                                                : client_name);
    return CallAndWait(*store_, &Registry::OpenSession, request)->session_id();
  }
  bool Renew(const std::string& session, const registry::v1::AgentReport& report) {
    KeepAliveRequest request;
    request.set_session_id(session);
    *request.mutable_report() = report;
    return CallAndWait(*store_, &Registry::KeepAlive, request).ok();
  }
  ListAgentsResponse Agents(bool trouble = false) {
    ListAgentsRequest request;
    request.set_trouble(trouble);
    return store_->ListAgents(request).value();
  }

  StoreHarness store_;
};

registry::v1::AgentReport Report(const std::string& name) {
  registry::v1::AgentReport report;
  report.set_name(name);
  report.set_version("1.2.3");
  report.set_intents(7);
  return report;
}

TEST_F(AgentsTest, LastReport_IsListedUntilTheSessionEnds) {
  const std::string a = Open("a");
  Open("silent");
  ASSERT_TRUE(Renew(a, Report("first")));
  ASSERT_TRUE(Renew(a, Report("host-a")));
  const ListAgentsResponse listed = Agents();
  ASSERT_EQ(listed.agents_size(), 1);
  EXPECT_EQ(listed.agents(0).report().name(), "host-a");
  EXPECT_EQ(listed.agents(0).report().intents(), 7u);
  EXPECT_EQ(listed.agents(0).session().incarnation(), "a");
  EXPECT_EQ(listed.agents(0).troubles_size(), 0);
  EXPECT_EQ(store_->CountAgents().agents, 1);
  CloseSessionRequest close;
  close.set_session_id(a);
  ASSERT_TRUE(CallAndWait(*store_, &Registry::CloseSession, close).ok());
  EXPECT_EQ(Agents().agents_size(), 0);
  EXPECT_FALSE(Renew(a, Report("late")));
  EXPECT_EQ(store_->CountAgents().agents, 0);
}

TEST_F(AgentsTest, ReportOfASessionThatExpires_GoesWithIt) {
  ASSERT_TRUE(Renew(Open("a"), Report("host-a")));
  store_.clock().Advance(absl::Seconds(10));
  EXPECT_EQ(Agents().agents_size(), 0);
}

TEST_F(AgentsTest, ReportOutOfBounds_IsIgnoredAndTheSessionRenewed) {
  const std::string a = Open("a");
  for (const std::string& name : {std::string(600, 'x'), std::string(129, 'x'), std::string("a\nb"),
                                  std::string("a\xc2\x9b"), std::string("\xff")}) {
    EXPECT_TRUE(Renew(a, Report(name)));
    EXPECT_EQ(Agents().agents_size(), 0) << name;
  }
  const auto ignored = [&](void (*change)(registry::v1::AgentReport*)) {
    registry::v1::AgentReport report = Report("host-a");
    change(&report);
    return Renew(a, report) && Agents().agents_size() == 0;
  };
  EXPECT_TRUE(ignored([](auto* report) { report->set_version("\xff"); }));
  EXPECT_TRUE(ignored([](auto* report) { report->set_version(std::string(65, 'x')); }));
  EXPECT_TRUE(ignored([](auto* report) { report->set_journal_error("disk\nfull"); }));
  EXPECT_TRUE(ignored([](auto* report) { report->set_journal_error(std::string(129, 'x')); }));
  // Each is short enough, and all of them are not.
  EXPECT_TRUE(ignored([](auto* report) {
    for (int i = 0; i < 128; ++i) {
      report->mutable_name()->append("€");
      report->mutable_journal_error()->append("€");
    }
  }));
  EXPECT_TRUE(Renew(a, Report(std::string(128, 'x'))));
  EXPECT_EQ(Agents().agents_size(), 1);
}

TEST_F(AgentsTest, Troubles_AreParkedSupersededLongPendingAndOverdue) {
  registry::v1::AgentReport parked = Report("parked");
  parked.set_parked(3);
  *parked.mutable_oldest_pending() = ToProto(store_.clock().WallNow());
  registry::v1::AgentReport superseded = Report("superseded");
  superseded.set_superseded(1);
  registry::v1::AgentReport pending = Report("pending");
  pending.set_pending(2);
  *pending.mutable_oldest_pending() = ToProto(store_.clock().WallNow());
  const std::string p = Open("1"), s = Open("2"), w = Open("3"), o = Open("4");
  ASSERT_TRUE(Renew(o, Report("overdue")));
  const auto renew = [&] {
    ASSERT_TRUE(Renew(p, parked));
    ASSERT_TRUE(Renew(s, superseded));
    ASSERT_TRUE(Renew(w, pending));
  };
  renew();
  ListAgentsResponse listed = Agents();
  EXPECT_EQ(listed.total_agents(), 4);
  EXPECT_EQ(listed.agents_in_trouble(), 2);
  store_.clock().Advance(absl::Seconds(7));
  renew();
  listed = Agents(/*trouble=*/true);
  ASSERT_EQ(listed.agents_size(), 3);  // by name
  EXPECT_EQ(listed.agents(0).report().name(), "overdue");
  EXPECT_THAT(listed.agents(0).troubles(), ElementsAre(HasSubstr("last renewed 7s ago")));
  EXPECT_THAT(listed.agents(1).troubles(), ElementsAre("3 parked operations"));
  EXPECT_THAT(listed.agents(2).troubles(), ElementsAre("1 superseded registration"));
  for (int i = 0; i < 9; ++i) {
    store_.clock().Advance(absl::Seconds(6));
    renew();
  }
  listed = Agents(/*trouble=*/true);
  ASSERT_EQ(listed.agents_size(), 3);
  EXPECT_THAT(listed.agents(1).troubles(),
              ElementsAre("2 operations pending, the oldest for 1m1s"));
  EXPECT_EQ(store_->CountAgents().in_trouble, 3);
}

TEST_F(AgentsTest, Sessions_ArePagedAndFiltered) {
  for (int i = 0; i < 5; ++i) Open(absl::StrCat("inc-", 4 - i));
  ListSessionsRequest request;
  request.set_page_size(2);
  std::string found;
  do {
    const auto page = store_->ListSessions(request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->total_sessions(), 5);
    for (const auto& session : page->sessions())
      absl::StrAppend(&found, session.incarnation(), " ");
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(found, "inc-0 inc-1 inc-2 inc-3 inc-4 ");
  request.set_query("AGENT -3");
  const auto page = store_->ListSessions(request);
  ASSERT_EQ(page->sessions_size(), 1);
  EXPECT_EQ(page->sessions(0).client_name(), "agent inc-3");
  EXPECT_EQ(FromProto(page->sessions(0).ttl()), absl::Seconds(9));
  EXPECT_TRUE(page->sessions(0).has_expire_time());
  request.set_page_token("?");
  EXPECT_FALSE(store_->ListSessions(request).ok());
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_FALSE(store_->ListSessions(request).ok());
}

TEST_F(AgentsTest, History_TellsChangesOfHealth) {
  const std::string session = Open("a");
  uint64_t generation = 0;
  const auto put = [&](registry::v1::HealthStatus status, uint32_t weight) {
    RegisterRequest request;
    request.set_session_id(session);
    auto& registration = *request.add_registrations();
    *registration.mutable_instance() = MakeInstance("orders", "orders-1");
    registration.mutable_instance()->set_status(status);
    registration.mutable_instance()->set_weight(weight);
    registration.set_generation(++generation);
    ASSERT_TRUE(CallAndWait(*store_, &Registry::Register, request).ok());
  };
  put(registry::v1::HEALTH_STATUS_HEALTHY, 1);
  put(registry::v1::HEALTH_STATUS_UNHEALTHY, 1);
  put(registry::v1::HEALTH_STATUS_UNHEALTHY, 2);
  put(registry::v1::HEALTH_STATUS_HEALTHY, 3);
  const auto described = store_->Describe(MakeInstance("orders", "orders-1").key());
  ASSERT_TRUE(described.ok()) << described.status();
  ASSERT_EQ(described->history_size(), 4);
  EXPECT_EQ(described->history(0).kind(), admin::v1::CHANGE_KIND_UPDATED);
  EXPECT_EQ(described->history(0).detail(), "unhealthy → healthy");
  EXPECT_EQ(described->history(1).kind(), admin::v1::CHANGE_KIND_UPDATED);
  EXPECT_EQ(described->history(1).detail(), "");
  EXPECT_EQ(described->history(2).kind(), admin::v1::CHANGE_KIND_HEALTH);
  EXPECT_EQ(described->history(2).detail(), "healthy → unhealthy");
  EXPECT_EQ(described->history(3).kind(), admin::v1::CHANGE_KIND_REGISTERED);
}

TEST_F(AgentsTest, History_NamesWhoItWasAtThatTime) {
  uint64_t generation = 0;
  for (const char* name : {"host-a", "host-b", "host-b", "host-c"}) {
    const std::string session = Open("a", name);
    ASSERT_TRUE(
        store_.Register(session, MakeInstance("orders", "1", 80 + generation), generation + 1)
            .ok());
    ++generation;
  }
  const auto described = store_->Describe(MakeInstance("orders", "1").key());
  ASSERT_TRUE(described.ok()) << described.status();
  std::vector<std::string> by;
  for (const auto& change : described->history()) by.push_back(change.by());
  EXPECT_THAT(by, ElementsAre("host-c", "host-b", "host-b", "host-a"));
  EXPECT_EQ(described->session().client_name(), "host-c");
}

TEST_F(AgentsTest, HeldSessions_AreMarkedCountedAndReleased) {
  for (int i = 0; i < 20; ++i) {
    const std::string session = Open(absl::StrCat("inc-", i));
    RegisterRequest request;
    request.set_session_id(session);
    *request.add_registrations()->mutable_instance() =
        MakeInstance("orders", absl::StrCat("orders-", i));
    ASSERT_TRUE(CallAndWait(*store_, &Registry::Register, request).ok());
  }
  const std::string before = store_->hold_serial();
  store_.clock().Advance(absl::Seconds(10));
  ASSERT_GT(store_->Stats().leases.held, 0);
  EXPECT_NE(store_->hold_serial(), before);
  const int held = static_cast<int>(store_->Stats().leases.held);
  const auto services = store_->ServiceSummaries();
  ASSERT_EQ(services.size(), 1u);
  EXPECT_EQ(services[0].instances().held(), held);
  EXPECT_EQ(services[0].instances().healthy(), services[0].instances().total() - held);
  const auto described = store_->Describe(MakeInstance("orders", "orders-0").key());
  if (described.ok() && described->session().held_back()) {
    EXPECT_EQ(described->instance().state(), admin::v1::INSTANCE_STATE_HELD);
  }
  EXPECT_EQ(store_->ReleaseHeldSessions(), held);
}

}  // namespace
}  // namespace failback
