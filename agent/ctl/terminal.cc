#include "agent/ctl/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace failback {
namespace {

constexpr char kReset[] = "\x1b[0m";
constexpr absl::Duration kFrame = absl::Milliseconds(100);

const char* Escape(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kBusy:
      return "\x1b[33m";
    case Tone::kBad:
      return "\x1b[31m";
    case Tone::kTitle:
      return "\x1b[1m";
    case Tone::kPlain:
      break;
  }
  return "";
}

Tone ToneOf(const std::string& state) {
  static const char* const kGood[] = {"healthy", "ready",   "acknowledged",
                                      "passing", "serving", "alive"};
  static const char* const kBusy[] = {"in flight", "waiting", "queued",     "accepted", "draining",
                                      "resyncing", "offline", "connecting", "unknown",  "pending"};
  static const char* const kBad[] = {"unhealthy",   "parked",        "critical",
                                     "not_serving", "superseded",    "lapsed",
                                     "held",        "offline, held", "connecting, refused"};
  const auto has = [&state](const auto& words) {
    return std::find(std::begin(words), std::end(words), state) != std::end(words);
  };
  return has(kGood)   ? Tone::kGood
         : has(kBusy) ? Tone::kBusy
         : has(kBad)  ? Tone::kBad
                      : Tone::kPlain;
}

// The length of the escape sequence that begins at `at`; 0 when none does.
size_t EscapeLength(const std::string& text, size_t at) {
  if (text.compare(at, 2, "\x1b[") != 0) return 0;
  const size_t end = text.find_first_not_of("0123456789;", at + 2);
  return end == std::string::npos ? text.size() - at : end + 1 - at;
}

bool BeginsCodePoint(char c) { return (c & 0xC0) != 0x80; }

std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(at, ",");
  return text;
}

}  // namespace

std::optional<TerminalSize> TerminalAt(int fd) {
  if (isatty(fd) == 0) return std::nullopt;
  TerminalSize size;
  winsize window = {};
  if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_row > 0 && window.ws_col > 0) {
    size = {window.ws_row, window.ws_col};
  }
  return size;
}

Palette Palette::For(int fd) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  return Palette(isatty(fd) != 0 && variable("NO_COLOR").empty() && variable("TERM") != "dumb");
}

std::string Palette::Paint(const std::string& text, Tone tone) const {
  if (!coloured_ || tone == Tone::kPlain || text.empty()) return text;
  return absl::StrCat(Escape(tone), text, kReset);
}

std::string Palette::State(const std::string& word) const { return Paint(word, ToneOf(word)); }

std::string CutLine(const std::string& line, size_t columns) {
  std::string result;
  size_t used = 0;
  for (size_t at = 0; at < line.size();) {
    if (const size_t escape = EscapeLength(line, at); escape > 0) {
      result.append(line, at, escape);
      at += escape;
      continue;
    }
    if (BeginsCodePoint(line[at])) ++used;
    if (used <= columns) result += line[at];
    ++at;
  }
  return result;
}

void Screen::Draw(const std::string& text, TerminalSize size) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  // The last row is the cursor's.
  const size_t room = std::max(size.rows - 1, 1);
  if (lines.size() > room) {
    const size_t left_out = lines.size() - room + 1;
    lines.resize(room);
    lines.back() = absl::StrCat("… ", left_out, " more lines");
  }
  // Home; each line with its rest erased; what is below erased. Cleared before the first time.
  std::string frame = drawn_ ? "\x1b[H" : "\x1b[2J\x1b[H";
  for (const std::string& line : lines) {
    absl::StrAppend(&frame, CutLine(line, size.columns), "\x1b[K\r\n");
  }
  absl::StrAppend(&frame, "\x1b[J");
  std::fwrite(frame.data(), 1, frame.size(), stdout);
  std::fflush(stdout);
  drawn_ = true;
}

Progress::Progress(std::string what, int64_t total) : what_(std::move(what)), total_(total) {}

Progress::~Progress() {
  if (drawn_ != absl::InfinitePast()) std::fputs("\r\x1b[K", stderr);
}

void Progress::Set(int64_t done) {
  const absl::Time now = absl::Now();
  if (done >= total_ || now - drawn_ < kFrame) return;
  const std::optional<TerminalSize> size = TerminalAt(STDERR_FILENO);
  if (!size.has_value()) return;
  std::fprintf(stderr, "\r%s\x1b[K", ProgressLine(what_, done, total_, size->columns).c_str());
  drawn_ = now;
}

std::string ProgressLine(const std::string& what, int64_t done, int64_t total, int columns) {
  const std::string figures = absl::StrCat("  ", Grouped(done), " of ", Grouped(total));
  const int room = columns - 1 - static_cast<int>(what.size() + figures.size()) - 4;
  const int width = std::min(room, 40);
  std::string bar;
  if (width >= 10 && total > 0) {
    const int filled = static_cast<int>(width * std::clamp<int64_t>(done, 0, total) / total);
    bar = absl::StrCat("  [", std::string(filled, '#'), std::string(width - filled, ' '), "]");
  }
  return CutLine(absl::StrCat(what, bar, figures), std::max(columns - 1, 1));
}

}  // namespace failback
