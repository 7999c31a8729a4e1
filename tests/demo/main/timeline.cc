#include "tests/demo/main/timeline.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

namespace failback {
namespace {

constexpr char kGreen[] = "\033[32m";
constexpr char kRed[] = "\033[1;31m";
constexpr char kBold[] = "\033[1m";
constexpr char kPlain[] = "\033[0m";

}  // namespace

Timeline::Timeline(bool colour) : colour_(colour), start_(absl::Now()) {}

void Timeline::Line(const std::string& who, const std::string& what, const char* colour) {
  // Further lines stand below the first.
  const std::string text =
      absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(what), {{"\n", "\n            "}});
  const bool coloured = colour_ && colour != nullptr;
  const std::string line =
      absl::StrFormat("%7.2fs  %s%-11s%s %s\n", absl::ToDoubleSeconds(elapsed()),
                      coloured ? colour : "", who, coloured ? kPlain : "", text);
  MutexLock lock(&mu_);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

void Timeline::Chapter(const std::string& title) {
  MutexLock lock(&mu_);
  std::printf("\n%s%s%s\n", colour_ ? kBold : "", title.c_str(), colour_ ? kPlain : "");
  std::fflush(stdout);
}

void Timeline::Event(const std::string& who, const std::string& what) { Line(who, what, nullptr); }

bool Timeline::Check(bool held, const std::string& what) {
  {
    MutexLock lock(&mu_);
    ++checks_;
    if (!held) ++failures_;
  }
  Line(held ? "ok" : "FAILED", what, held ? kGreen : kRed);
  return held;
}

int Timeline::checks() const {
  MutexLock lock(&mu_);
  return checks_;
}

int Timeline::failures() const {
  MutexLock lock(&mu_);
  return failures_;
}

absl::Duration Timeline::elapsed() const { return absl::Now() - start_; }

}  // namespace failback
