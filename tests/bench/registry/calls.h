// The calls that the workloads of the registry share.

#ifndef FAILBACK_TESTS_BENCH_REGISTRY_CALLS_H_
#define FAILBACK_TESTS_BENCH_REGISTRY_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/report.h"
#include "tests/bench/subject.h"

namespace failback {

// Longer than anything takes that comes at all.
constexpr absl::Duration kLongest = absl::Seconds(120);

template <typename Response>
Response Parsed(const grpc::ByteBuffer& bytes) {
  Response response;
  if (!Decode(bytes, &response)) Die("an answer that cannot be parsed");
  return response;
}

std::string OpenSession(const std::shared_ptr<grpc::Channel>& channel,
                        const std::string& incarnation, int64_t ttl_seconds = 600);

// OpenSessions of `count` incarnations, numbered from `first` on.
std::vector<grpc::ByteBuffer> EncodedOpens(const std::string& prefix, int64_t first, int64_t count,
                                           int64_t ttl_seconds);

template <typename Response>
bool NoneRefused(const Response& response) {
  for (const registry::v1::IntentResult& result : response.results()) {
    if (result.has_status() && result.status().code() != 0) return false;
    if (result.state() != registry::v1::INTENT_STATE_ACKNOWLEDGED) return false;
  }
  return true;
}

// Whether all items of a Register have been acknowledged. The first answer is read. Those of later
// calls begin with the same results; one that does not is read as well.
AnswerCheck Acknowledged(int batch);

void RegisterAll(const std::shared_ptr<grpc::Channel>& channel, const std::string& session_id,
                 const std::string& prefix, int64_t count);

// Unary calls as fast as they go.
void MeasureUnary(const std::string& name, const std::string& subject, Subject& server,
                  const std::shared_ptr<grpc::Channel>& channel, const char* method,
                  const std::vector<grpc::ByteBuffer>& requests, int in_flight,
                  const std::function<bool(const grpc::ByteBuffer&)>& accept, Report* report);

// Renewals of all sessions in turn, over `streams` on so many connections, at the pace of a TTL of
// 10 s. Dies when one is refused.
struct RenewalPace {
  double renewals_per_s = 0;
  double server_cores = 0;
};
RenewalPace PacedRenewals(int streams, int connections, absl::Duration time, const Subject& server,
                          const std::vector<grpc::ByteBuffer>& renewals);

grpc::ByteBuffer EncodedSubscribe(const std::string& service);
grpc::ByteBuffer EncodedChange(const std::string& session_id, uint64_t generation);

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_REGISTRY_CALLS_H_
