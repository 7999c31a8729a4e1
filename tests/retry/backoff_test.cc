#include "retry/backoff.h"

#include <limits>

#include "gtest/gtest.h"

namespace failback {
namespace {

TEST(BackoffTest, ExactCeilings) {
  BackoffOptions options{absl::Milliseconds(500), 2.0, absl::Seconds(30), 0.0};
  const int64_t expected[] = {500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000};
  for (int times = 1; times <= 9; ++times) {
    EXPECT_EQ(BackoffDelay(options, times, 0.3), absl::Milliseconds(expected[times - 1])) << times;
  }
}

TEST(BackoffTest, JitterIsTheRandomPart) {
  BackoffOptions options{absl::Milliseconds(1000), 2.0, absl::Seconds(30), 1.0};
  EXPECT_EQ(BackoffDelay(options, 1, 0.0), absl::ZeroDuration());
  EXPECT_EQ(BackoffDelay(options, 1, 0.25), absl::Milliseconds(250));
  EXPECT_EQ(BackoffDelay(options, 3, 0.5), absl::Milliseconds(2000));
  options.jitter = 0.5;
  EXPECT_EQ(BackoffDelay(options, 1, 0.0), absl::Milliseconds(500));
  EXPECT_EQ(BackoffDelay(options, 1, 0.5), absl::Milliseconds(750));
}

TEST(BackoffTest, ManyAttemptsDoNotOverflow) {
  BackoffOptions options;
  options.jitter = 0;
  EXPECT_EQ(BackoffDelay(options, std::numeric_limits<int>::max(), 0.5), absl::Seconds(30));
  EXPECT_EQ(BackoffDelay(options, 0, 0.5), absl::Milliseconds(500));
  EXPECT_EQ(BackoffDelay(options, -7, 0.5), absl::Milliseconds(500));
}

TEST(BackoffTest, BadOptionsAreNamed) {
  const auto error = [](BackoffOptions options) {
    return std::string(ValidateBackoff("retry", options).message());
  };
  EXPECT_EQ(error({absl::ZeroDuration(), 2, absl::Seconds(1), 0}),
            "retry.initial: 0 is not above zero");
  EXPECT_EQ(error({absl::Seconds(1), 0.9, absl::Seconds(1), 0}),
            "retry.multiplier: 0.9 is not 1 or more");
  EXPECT_EQ(
      error({absl::Seconds(1), std::numeric_limits<double>::quiet_NaN(), absl::Seconds(1), 0}),
      "retry.multiplier: nan is not 1 or more");
  EXPECT_EQ(error({absl::Seconds(2), 1, absl::Seconds(1), 0}),
            "retry.max: 1s is not at least `initial`");
  EXPECT_EQ(error({absl::Seconds(1), 1, absl::Seconds(1), 1.1}),
            "retry.jitter: 1.1 is not in 0..1");
  EXPECT_EQ(error({}), "");
}

TEST(BackoffTest, SeededRandomRepeats) {
  Random a = SeededRandom(7), b = SeededRandom(7), c = SeededRandom(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const double value = a();
    EXPECT_EQ(value, b());
    differs = differs || value != c();
    EXPECT_GE(value, 0.0);
    EXPECT_LT(value, 1.0);
  }
  EXPECT_TRUE(differs);
}

TEST(StretchedDelayTest, GrowsByARandomShareOfTheRefusalsUpToAMinute) {
  EXPECT_EQ(StretchedDelay(absl::Seconds(1), 0, 0.9), absl::Seconds(1));
  EXPECT_EQ(StretchedDelay(absl::Seconds(1), 4, 0.0), absl::Seconds(1));
  EXPECT_EQ(StretchedDelay(absl::Seconds(1), 4, 0.5), absl::Seconds(3));
  EXPECT_EQ(StretchedDelay(absl::Seconds(1), 1000, 0.5), absl::Minutes(1));
  EXPECT_EQ(StretchedDelay(absl::Minutes(5), 1000, 0.5), absl::Minutes(5)) << "never less";
}

}  // namespace
}  // namespace failback
