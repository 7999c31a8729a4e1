#include "tests/simulate/accumulated.h"

#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace failback::simulate {
namespace {

// The first line: which program, by its bytes (FNV-1a), and which stories.
std::string TitleOf(bool large) {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  uint64_t digest = 0xcbf29ce484222325u;
  for (auto it = std::istreambuf_iterator<char>(program); it != std::istreambuf_iterator<char>();
       ++it) {
    digest = (digest ^ static_cast<unsigned char>(*it)) * 0x100000001b3u;
  }
  return absl::StrFormat("%s stories of build %016x", large ? "large" : "small", digest);
}

}  // namespace

absl::StatusOr<Accumulated> Accumulated::Open(const std::string& path, bool large) {
  Accumulated told(path);
  const std::string title = TitleOf(large);
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) {
    std::ofstream out(path, std::ios::app);
    out << title << "\n" << std::flush;
    if (!out.good()) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
    return told;
  }
  if (line != title) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is of ", line, ", and these are ", title, ": name another file"));
  }
  while (std::getline(in, line)) {
    // "told 1000", "failed 17 liveness: …".
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    uint64_t number = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &number) ||
        (words[0] != "told" && words[0] != "failed")) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read the line: ", line));
    }
    if (words[0] == "told") {
      told.next_ = number + 1;
    } else {
      told.failures_.emplace_back(number, words.size() > 2 ? words[2] : "");
    }
  }
  return told;
}

absl::Status Accumulated::Add(uint64_t count, const std::vector<Failure>& failures) {
  std::ofstream out(path_, std::ios::app);
  for (const auto& [seed, what] : failures) out << "failed " << seed << " " << what << "\n";
  out << "told " << next_ + count - 1 << "\n" << std::flush;
  if (!out.good()) return absl::UnavailableError(absl::StrCat(path_, ": cannot be written"));
  next_ += count;
  failures_.insert(failures_.end(), failures.begin(), failures.end());
  return absl::OkStatus();
}

}  // namespace failback::simulate
