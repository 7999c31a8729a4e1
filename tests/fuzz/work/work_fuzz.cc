// Bytes in shapes that are many times as much work as they are long, if anything is: a piece that
// is repeated, with numbers that go up or down inside of it, nested in fields, at each place where
// bytes of a caller's choice are looked at first. Work per byte is bounded; it is counted in
// branches, not in time.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/work/edges.h"
#include "tests/util/wire_field.h"

namespace failback {
namespace {

constexpr size_t kMostBytes = 100000;

// `piece`, again and again; some of its bytes count up or down from one to the next.
std::string Repeated(const std::string& piece, size_t counted_from, int step, size_t times) {
  std::string all;
  uint32_t number = step < 0 ? 0xffffffffu : 0;
  for (size_t i = 0; i < times; ++i, number += static_cast<uint32_t>(step)) {
    std::string copy = piece;
    for (size_t k = 0; k < 4 && counted_from + k < copy.size(); ++k) {
      copy[counted_from + k] = static_cast<char>(' ' + (number >> (6 * (3 - k)) & 63));
    }
    all += copy;
  }
  return all;
}

void Run(FuzzInput* input) {
  const auto edge = static_cast<Edge>(input->Byte() % kEdges);
  const int depth = input->Byte() % 5;
  int fields[4];
  for (int& field : fields) field = 1 + input->Byte() % 8;
  const std::string before = input->Text(64);
  const size_t counted_from = input->Byte() % 16;
  const int step = input->Byte() % 2 == 0 ? 1 : -1;
  const std::string piece = input->Text(32);
  std::string bytes = piece;
  if (!piece.empty()) {
    const size_t times = std::min<size_t>(1 + input->Number(), kMostBytes / piece.size());
    bytes = Repeated(piece, counted_from, step, times);
  }
  bytes += input->Rest();
  for (int i = 0; i < depth; ++i) bytes = WireField(fields[i % 4], bytes);
  bytes.insert(0, before);
  if (const std::string wrong = TooMuchWork(edge, bytes); !wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::abort();
  }
}

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  failback::FuzzInput input(data, size);
  failback::Run(&input);
  return 0;
}
