// The places where bytes of a caller's choice are looked at first, each to be called with any
// bytes, and how much work it may be.

#ifndef FAILBACK_TESTS_FUZZ_WORK_EDGES_H_
#define FAILBACK_TESTS_FUZZ_WORK_EDGES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace failback {

enum class Edge {
  kOpenSession,
  kKeepAlive,
  kRegister,
  kUnregister,
  kSubscribe,
  kList,
  kSetOffline,
  kPageToken,
  kXdsName,
  kDnsQuery,
  kLogLine,
  kAdmin,
  kAgent,
  kHealth,
};
inline constexpr int kEdges = static_cast<int>(Edge::kHealth) + 1;

// Takes `bytes` as that edge does. The steps (tests/fuzz/work/steps.h) that it took.
int64_t WorkAt(Edge edge, std::string_view bytes);

// Steps that so many bytes may cost: a fixed number, and so many for each byte.
int64_t MostWork(size_t bytes);

// Empty, or what is wrong with the work that `bytes` make at `edge`.
std::string TooMuchWork(Edge edge, std::string_view bytes);

}  // namespace failback

#endif  // FAILBACK_TESTS_FUZZ_WORK_EDGES_H_
