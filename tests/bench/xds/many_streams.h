// `xds-40000`: a daemon with very many discovery streams, against bare gRPC streams that carry the
// same bytes both ways.

#ifndef FAILBACK_TESTS_BENCH_XDS_MANY_STREAMS_H_
#define FAILBACK_TESTS_BENCH_XDS_MANY_STREAMS_H_

#include "tests/bench/report.h"

namespace failback {

struct ManyStreams {
  int streams = 40000;
  int connections = 40;
  int services = 2000;
  int popular = 20;  // of them: each stream follows one, and four of the others
  int instances = 10;
  double seconds = 10;
  double changes_per_s = 100;   // over all services
  double popular_per_s = 1000;  // over the popular ones
};

// Follows with an agent's xDS server and measures it: time to the first answers, memory of a stream;
// 100 changes a second over all services, from the Register until the last that follows has it; 1,000
// a second on popular ones, where a client is shown the newest: how far behind it is. Returns the
// bytes of a response.
double FollowXds(const ManyStreams& scale, Report* report);

// The same streams and changes with Watch of a bare server, whose messages have as many bytes; it
// does not conflate, so only the changes over all services.
void FollowBare(const ManyStreams& scale, double message_bytes, Report* report);

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_XDS_MANY_STREAMS_H_
