// Pages of what an agent carries: complete, without repetition, and none larger than a page of the
// registry. And its drain.

#include "agent/agent_service.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/failback/failback_group.h"
#include "registry/failback/merged_pages.h"
#include "registry/model/errors.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

class AgentServiceTest : public testing::Test {
 protected:
  AgentServiceTest() {
    timer_ = NewTimer(&clock_);
    // A registry that is unavailable, so that everything is pending.
    auto upstream = std::make_unique<FakeRegistry>();
    fake_ = upstream.get();
    upstream->opens.AnswerWith([](const auto&) { return Away(); });
    upstream->keep_alives.AnswerWith([](const auto&) { return Away(); });
    std::vector<FailbackGroup::Upstream> upstreams;
    upstreams.push_back({"upstream", "grpc://upstream", std::move(upstream)});
    FailbackRegistry::Options options;
    options.timer = timer_.get();
    group_ = FailbackGroup::Create(std::move(upstreams), options).value();
    service_ = std::make_unique<AgentService>(group_.get(), timer_.get(), absl::Now());
  }

  void Register(const ServiceInstance& instance) {
    Answer<RegisterResponse> answer;
    group_->Register(MakeRegister({instance}), answer.Catch());
    ASSERT_TRUE(answer.get().ok()) << answer.get().status();
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRegistry* fake_ = nullptr;
  std::unique_ptr<FailbackGroup> group_;
  std::unique_ptr<AgentService> service_;
};

// Reads all pages that `read` has. They are more than one, none is larger than a page of the
// registry and a row, and the rows that `ids_of` names in them are `rows` different ones.
template <typename Request, typename Read, typename IdsOf>
void ExpectPages(Request request, size_t rows, Read read, IdsOf ids_of) {
  constexpr size_t kRow = 64 << 10;
  std::set<std::string> ids;
  int pages = 0;
  do {
    const auto page = read(request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LE(page->ByteSizeLong(), kPageBytes + kRow);
    for (const std::string& id : ids_of(*page)) EXPECT_TRUE(ids.insert(id).second) << id;
    request.set_page_token(page->next_page_token());
    ASSERT_LT(++pages, 100);
  } while (!request.page_token().empty());
  EXPECT_EQ(ids.size(), rows);
  EXPECT_GT(pages, 1);
}

TEST_F(AgentServiceTest, PendingWithoutPageSize_EndsAPageByItsBytes) {
  constexpr int kRows = 12000;
  for (int i = 0; i < kRows; ++i) {
    Register(MakeInstance(absl::StrCat(std::string(100, 'i'), 100000 + i)));
  }
  agent::v1::ListPendingRequest request;
  ExpectPages(
      request, kRows, [&](const auto& page) { return service_->Pending(page); },
      [](const agent::v1::ListPendingResponse& page) {
        std::vector<std::string> ids;
        for (const auto& row : page.operations()) ids.push_back(row.id());
        return ids;
      });

  request.set_page_size(3);
  EXPECT_EQ(service_->Pending(request)->operations_size(), 3);
}

// Pages smaller and larger than the portions that they are made of, the last one full or not.
TEST_F(AgentServiceTest, PendingByPages_ShowsEachRowOnceInOrder) {
  constexpr int kRows = 1500;
  for (int i = 0; i < kRows; ++i) Register(MakeInstance(absl::StrCat("i", 100000 + i * 7 % kRows)));
  for (const int size : {1, 499, 500, 501, 750, kRows, kRows + 1}) {
    agent::v1::ListPendingRequest request;
    request.set_page_size(size);
    std::vector<std::string> ids;
    int pages = 0;
    do {
      const auto page = service_->Pending(request);
      ASSERT_TRUE(page.ok()) << page.status();
      EXPECT_LE(page->operations_size(), size);
      for (const auto& row : page->operations()) ids.push_back(row.id());
      request.set_page_token(page->next_page_token());
      ASSERT_LE(++pages, kRows);
    } while (!request.page_token().empty());
    EXPECT_EQ(pages, (kRows + size - 1) / size);
    EXPECT_EQ(ids.size(), static_cast<size_t>(kRows)) << size;
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  }
}

TEST_F(AgentServiceTest, Intents_EndAPageByItsBytesAndItsRows) {
  constexpr int kRows = 200;
  for (int i = 0; i < kRows; ++i) {
    ServiceInstance instance = MakeInstance(absl::StrCat("i", 1000 + i));
    for (int entry = 0; entry < 15; ++entry) {
      (*instance.mutable_metadata())[absl::StrCat("key", entry)] = std::string(1000, 'x');
    }
    Register(instance);
  }
  agent::v1::ListIntentsRequest request;
  ExpectPages(
      request, kRows, [&](const auto& page) { return service_->Intents(page); },
      [](const agent::v1::ListIntentsResponse& page) {
        std::vector<std::string> ids;
        for (const auto& row : page.intents()) ids.push_back(row.instance().key().instance_id());
        return ids;
      });

  request.set_page_size(3);
  EXPECT_EQ(service_->Intents(request)->intents_size(), 3);
}

TEST_F(AgentServiceTest, DrainOnce_IsWaitedForAgainWhenSomethingRemained) {
  fake_->opens.AnswerWith([](const auto&) {
    OpenSessionResponse response;
    response.set_session_id("session");
    response.mutable_ttl()->set_seconds(9);
    return response;
  });
  fake_->keep_alives.AnswerWith([](const auto&) { return KeepAliveResponse(); });
  clock_.Advance(absl::Seconds(5));
  Register(MakeInstance("a"));
  fake_->closes.Hold();
  std::string log;
  SetLogSink(LogLevel::kInfo, [&](LogLevel, const std::string& event, const LogFields& fields) {
    log += FormatLogLine(event, fields) + "\n";
  });
  int begun = 0;
  service_->OnDrain([&] { ++begun; });
  std::vector<agent::v1::DrainResponse> answers;
  const auto drain = [&] {
    service_->DrainOnce(absl::Seconds(1), "a test", [&](const auto& response) {
      ASSERT_TRUE(response.ok()) << response.status();
      answers.push_back(*response);
    });
  };
  drain();
  drain();  // joins the first
  EXPECT_EQ(answers.size(), 0);
  clock_.Advance(absl::Seconds(2));
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(answers[0].remaining(), 1);
  EXPECT_EQ(answers[1].remaining(), 1);
  ASSERT_EQ(answers[0].left_size(), 1);
  EXPECT_FALSE(answers[0].left(0).has_last_status()) << "an answer is awaited";
  EXPECT_THAT(log, testing::HasSubstr("drained unregistered=0 remaining=1 persistent=0 "
                                      "by=\"a test\" first=default/orders/a upstream=upstream "
                                      "error=\"not answered yet\"\n"));
  drain();
  EXPECT_EQ(answers.size(), 2) << "the session is not over";
  fake_->closes.Release();
  ASSERT_EQ(answers.size(), 3);
  EXPECT_EQ(answers[2].unregistered(), 1);
  EXPECT_EQ(answers[2].remaining(), 0);
  drain();
  ASSERT_EQ(answers.size(), 4);
  EXPECT_EQ(answers[3].unregistered(), 1);
  EXPECT_EQ(begun, 1);
  SetLogSink(LogLevel::kInfo, nullptr);
}

TEST_F(AgentServiceTest, ATokenThatIsNoPlaceIsRefused) {
  for (const char* id : {"a", "b", "c"}) Register(MakeInstance(id));
  agent::v1::ListPendingRequest pending;
  agent::v1::ListIntentsRequest intents;
  pending.set_page_size(1);
  intents.set_page_size(1);
  const std::string of_pending = service_->Pending(pending)->next_page_token();
  const std::string of_intents = service_->Intents(intents)->next_page_token();
  const absl::Status refused = InvalidField("page_token", "is not a token of an earlier page");
  for (const std::string& token : {std::string(50, '\0'), std::string("zz"), of_intents}) {
    pending.set_page_token(token);
    EXPECT_EQ(service_->Pending(pending).status(), refused) << token;
  }
  for (const std::string& token : {std::string(50, '\0'), std::string("zz"), of_pending}) {
    intents.set_page_token(token);
    EXPECT_EQ(service_->Intents(intents).status(), refused) << token;
  }
}

}  // namespace
}  // namespace failback
