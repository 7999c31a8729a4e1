// The two ends of a stream of requests that are answered by a message each, against one another:
// AskFlow and AnswerFlow, with a transport in between that carries one message at a time.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/client/ask_flow.h"
#include "registry/server/answer_flow.h"

namespace failback {
namespace {

struct Question {
  int number;
};

constexpr AnswerLimits kLimits = {AnswerOrder::kAsRequested, 3, 100};

class Exchange {
 public:
  explicit Exchange(uint64_t seed, AnswerOrder order, WhenIdle idle)
      : random_(seed), order_(order), client_(idle), server_({order, 3, 100}) {}

  // Asks and answers at random, and says what is wrong.
  void Play() {
    for (int step = 0; step < 400; ++step) {
      switch (random_() % 6) {
        case 0:
          Ask();
          break;
        case 1:
          if (const Question* next = client_.StartWrite()) {
            EXPECT_EQ(next->number, sent_) << "out of order";
            ++sent_;
            on_the_way_.push_back(next->number);
          } else if (client_.Close()) {
            EXPECT_FALSE(closed_) << "closed twice";
            closed_ = true;
          }
          break;
        case 2:
          client_.EndWrite();
          break;
        case 3:
          Read();
          break;
        case 4:
          Answer();
          break;
        default:
          Deliver();
      }
      EXPECT_LE(unanswered_.size() + answered_, size_t{3});
    }
  }

  // All that was asked is answered when everything goes on.
  void Finish() {
    client_.Retire();
    for (int i = 0; i < 2000 && server_.over() == nullptr; ++i) {
      if (const Question* next = client_.StartWrite()) {
        on_the_way_.push_back(next->number);
        ++sent_;
      }
      client_.EndWrite();
      closed_ = client_.Close() || closed_;
      Read();
      Answer();
      Deliver();
    }
    ASSERT_NE(server_.over(), nullptr) << "it does not end";
    EXPECT_TRUE(server_.over()->ok());
    EXPECT_EQ(sent_, asked_);
    EXPECT_EQ(received_.size(), static_cast<size_t>(asked_));
    EXPECT_TRUE(client_.TakeWaiting().empty());
    if (order_ == AnswerOrder::kAsRequested) {
      EXPECT_TRUE(std::is_sorted(received_.begin(), received_.end()));
    }
    std::sort(received_.begin(), received_.end());
    for (int i = 0; i < asked_; ++i) EXPECT_EQ(received_[static_cast<size_t>(i)], i);
  }

 private:
  void Ask() {
    auto question = std::make_shared<Question>(Question{asked_});
    const bool takes = client_.Send(question);
    EXPECT_EQ(takes, !client_.over());
    if (takes) ++asked_;
  }
  void Read() {
    if (!on_the_way_.empty() && !reading_) reading_ = server_.StartRead();
    if (on_the_way_.empty() && closed_) server_.Drain(absl::OkStatus());
    if (!reading_ || on_the_way_.empty()) return;
    const int number = on_the_way_.front();
    on_the_way_.pop_front();
    unanswered_.emplace_back(number, server_.Take(10));
    server_.EndRead();
    reading_ = false;
  }
  void Answer() {
    if (unanswered_.empty()) return;
    const auto it = unanswered_.begin() + static_cast<int>(random_() % unanswered_.size());
    server_.Put(it->second, it->first, 10);
    unanswered_.erase(it);
    ++answered_;
  }
  void Deliver() {
    server_.EndWrite();
    const std::optional<int> answer = server_.StartWrite();
    if (!answer.has_value()) return;
    --answered_;
    const auto question =
        client_.Answered([&](const Question& question) { return question.number == *answer; });
    ASSERT_NE(question, nullptr) << *answer << " is answered, which does not wait";
    received_.push_back(*answer);
  }

  std::mt19937_64 random_;
  const AnswerOrder order_;
  AskFlow<Question> client_;
  AnswerFlow<int> server_;
  std::deque<int> on_the_way_;
  std::vector<std::pair<int, AnswerSlot>> unanswered_;
  std::vector<int> received_;
  size_t answered_ = 0;  // and not delivered
  int asked_ = 0, sent_ = 0;
  bool closed_ = false;
  bool reading_ = false;
};

TEST(ExchangeFlowTest, EachRequestIsAnsweredOnceInOrderAndNoMoreIsReadThanMayBeOpen) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Exchange exchange(seed, seed % 2 == 0 ? AnswerOrder::kAsAnswered : AnswerOrder::kAsRequested,
                      seed % 3 == 0 ? WhenIdle::kEnd : WhenIdle::kStay);
    exchange.Play();
    exchange.Finish();
    if (HasFailure()) return;
  }
}

TEST(ExchangeFlowTest, AStreamThatEndsDropsWhatIsOpenAndWritesNothingMore) {
  AnswerFlow<int> flow(kLimits);
  ASSERT_TRUE(flow.StartRead());
  const AnswerSlot slot = flow.Take(10);
  flow.EndRead();
  flow.End(absl::UnavailableError("first"));
  flow.End(absl::AbortedError("second"));
  flow.Put(slot, 1, 10);
  EXPECT_EQ(flow.StartWrite(), std::nullopt);
  EXPECT_FALSE(flow.StartRead());
  ASSERT_NE(flow.over(), nullptr);
  EXPECT_EQ(flow.over()->message(), "first");
}

TEST(ExchangeFlowTest, AStreamThatDrainsAnswersWhatItHasRead) {
  AnswerFlow<int> flow(kLimits);
  ASSERT_TRUE(flow.StartRead());
  const AnswerSlot slot = flow.Take(10);
  flow.EndRead();
  flow.Drain(absl::AbortedError("old"));
  EXPECT_FALSE(flow.StartRead());
  EXPECT_EQ(flow.over(), nullptr);
  flow.Put(slot, 7, 10);
  EXPECT_EQ(flow.StartWrite(), 7);
  EXPECT_EQ(flow.over(), nullptr) << "a write is under way";
  flow.EndWrite();
  ASSERT_NE(flow.over(), nullptr);
  EXPECT_EQ(flow.over()->message(), "old");
}

TEST(ExchangeFlowTest, TooManyBytesStopTheReaderUntilAnAnswerIsTaken) {
  AnswerFlow<int> flow(kLimits);
  ASSERT_TRUE(flow.StartRead());
  const AnswerSlot slot = flow.Take(500);  // the last one may go beyond
  flow.EndRead();
  EXPECT_FALSE(flow.StartRead());
  flow.Put(slot, 1, 1);
  EXPECT_EQ(flow.StartWrite(), 1);
  EXPECT_TRUE(flow.StartRead());
}

TEST(ExchangeFlowTest, ASweepSeesAnOldASilentAndAStalledStream) {
  using Swept = AnswerFlow<int>::Swept;
  AnswerFlow<int> silent(kLimits);
  ASSERT_TRUE(silent.StartRead());
  EXPECT_EQ(silent.Sweep(2, 2, 100), Swept::kGoesOn);
  EXPECT_EQ(silent.Sweep(2, 2, 100), Swept::kGoesOn);
  EXPECT_EQ(silent.Sweep(2, 2, 100), Swept::kSilent);
  AnswerFlow<int> stalled(kLimits);
  ASSERT_TRUE(stalled.StartRead());
  stalled.Put(stalled.Take(1), 1, 1);
  ASSERT_EQ(stalled.StartWrite(), 1);
  EXPECT_EQ(stalled.Sweep(1, 100, 100), Swept::kGoesOn);
  EXPECT_EQ(stalled.Sweep(1, 100, 100), Swept::kStalled);
  AnswerFlow<int> old(kLimits);
  EXPECT_EQ(old.Sweep(9, 9, 2), Swept::kGoesOn);
  EXPECT_EQ(old.Sweep(9, 9, 2), Swept::kOld);
}

TEST(ExchangeFlowTest, ACallerWithNothingToWaitForClosesTheStreamIfItIsSaidTo) {
  for (const WhenIdle idle : {WhenIdle::kEnd, WhenIdle::kStay}) {
    AskFlow<Question> flow(idle);
    ASSERT_TRUE(flow.Send(std::make_shared<Question>(Question{0})));
    ASSERT_NE(flow.StartWrite(), nullptr);
    flow.EndWrite();
    EXPECT_FALSE(flow.Close()) << "an answer is to come";
    ASSERT_NE(flow.Answered([](const Question&) { return true; }), nullptr);
    EXPECT_EQ(flow.Close(), idle == WhenIdle::kEnd);
    EXPECT_EQ(flow.Send(std::make_shared<Question>(Question{1})), idle == WhenIdle::kStay);
  }
}

TEST(ExchangeFlowTest, WhatStillWaitsAtTheEndIsGivenBackInOrder) {
  AskFlow<Question> flow(WhenIdle::kStay);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(flow.Send(std::make_shared<Question>(Question{i})));
  ASSERT_NE(flow.StartWrite(), nullptr);
  ASSERT_NE(flow.Answered([](const Question& question) { return question.number == 1; }), nullptr);
  flow.Break();
  EXPECT_FALSE(flow.Send(std::make_shared<Question>(Question{3})));
  EXPECT_FALSE(flow.Close()) << "nothing more is sent";
  const auto waiting = flow.TakeWaiting();
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_EQ(waiting[0]->number, 0);
  EXPECT_EQ(waiting[1]->number, 2);
}

}  // namespace
}  // namespace failback
