// What failbackctl does only for a person at a terminal: colours, a screen that is redrawn, a bar
// that shows the progress.
//
// Elsewhere (a pipe, a file, a log) nothing of it is written: no escape sequence, no line that is
// written over. Colours are also left out where the environment variable NO_COLOR is not empty, or
// TERM is `dumb`.
//
// Thread safety: none; the functions without state are pure but for what they ask of the terminal.

#ifndef FAILBACK_AGENT_CTL_TERMINAL_H_
#define FAILBACK_AGENT_CTL_TERMINAL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace failback {

struct TerminalSize {
  int rows = 24;
  int columns = 80;
};

// The size of the terminal at `fd`; nullopt when none is there.
std::optional<TerminalSize> TerminalAt(int fd);

// How a text is meant.
enum class Tone { kPlain, kGood, kBusy, kBad, kTitle };

// Paints texts, or leaves them as they are. Painted texts have the same columns.
class Palette {
 public:
  // Paints nothing.
  Palette() = default;
  // For what is written to `fd`.
  static Palette For(int fd);
  static Palette Coloured() { return Palette(true); }

  std::string Paint(const std::string& text, Tone tone) const;
  // The word for a state, as `ready` or `parked`, in the tone of its meaning.
  std::string State(const std::string& word) const;

 private:
  explicit Palette(bool coloured) : coloured_(coloured) {}

  bool coloured_ = false;
};

// The first `columns` of a line; escape sequences are kept.
std::string CutLine(const std::string& line, size_t columns);

// A screen on stdout. Draw replaces what was drawn before; lines that do not fit are cut, and the
// last line says how many are left out. The cursor stays below the text, so that a program that is
// interrupted leaves the terminal as it should be.
class Screen {
 public:
  void Draw(const std::string& text, TerminalSize size);

 private:
  bool drawn_ = false;
};

// "registering  [#######          ]  3,500 of 10,000" on stderr, when that is a terminal; wiped
// away at the end. Work of one step has none.
class Progress {
 public:
  Progress(std::string what, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Set(int64_t done);

 private:
  const std::string what_;
  const int64_t total_;
  absl::Time drawn_ = absl::InfinitePast();
};

// The line of a Progress, for a terminal of so many columns.
std::string ProgressLine(const std::string& what, int64_t done, int64_t total, int columns);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_TERMINAL_H_
