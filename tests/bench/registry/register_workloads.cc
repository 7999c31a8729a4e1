// Registrations, one by one, in batches, and on streams.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bare.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/registry/calls.h"
#include "tests/bench/registry/workload_groups.h"
#include "tests/bench/secured.h"
#include "tests/bench/subject.h"
#include "tests/bench/synced_file.h"

namespace failback {
namespace {

using registry::v1::RegisterStreamResponse;
using registry::v1::ServiceInstance;

// Whether all items of a streamed Register have been: results may be left out.
bool StreamAcknowledged(const grpc::ByteBuffer& bytes) {
  const auto response = Parsed<RegisterStreamResponse>(bytes);
  return !response.has_status() && response.revision() > 0 && NoneRefused(response);
}

bool NotEmpty(const grpc::ByteBuffer& bytes) { return bytes.Length() > 0; }

constexpr char kBareUnary[] = "bare-grpc-unary";

// A subject, and a channel to it.
class Served {
 public:
  explicit Served(const std::string& name) {
    Subject::Options options;
    if (name == kFailbackTokens || name == kFailbackPolicy) {
      secured_.emplace(name == kFailbackPolicy);
      options.more_args = secured_->ServerArgs();
    }
    server_.emplace(secured_.has_value() ? kFailbackMemory
                    : name == kBareUnary ? kBareGrpc
                                         : name,
                    options);
    channel_ = secured_.has_value() ? secured_->NewChannel(server_->address())
                                    : NewChannel(server_->address());
  }

  Subject& server() { return *server_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::optional<Secured> secured_;
  std::optional<Subject> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

void RegisterInCalls(const std::string& name, const Scale& scale, const std::string& subject,
                     Report* report) {
  Served served(subject);
  const std::string session = OpenSession(served.channel(), "bench");
  MeasureUnary(name, subject, served.server(), served.channel(), kRegisterMethod,
               EncodedRegisters(session, "orders", scale.unary_calls, 1), scale.unary_in_flight,
               Acknowledged(1), report);
}

void RegisterUnary(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInCalls("register-unary", scale, subject, report);
}

// What a policy costs where callers have tokens and TLS in any case.
void RegisterUnarySecured(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInCalls("register-unary-secured", scale, subject, report);
}

// What a durable call is set against, where the stores are.
constexpr std::pair<const char*, SyncedFile::Sync> kSyncs[] = {
    {"fdatasync", SyncedFile::Sync::kInPlace},
    {"fdatasync-append", SyncedFile::Sync::kAppend},
    {"fsync-append", SyncedFile::Sync::kFsync},
};

double SyncMedianMicroseconds(int64_t count, SyncedFile::Sync sync) {
  const TempDir dir;
  SyncedFile file(dir.File("synced"), sync);
  std::vector<double> times;
  for (int64_t i = 0; i < count; ++i) {
    const double began = NowSeconds();
    if (!file.Write()) Die("cannot write and sync a file in the temporary folder");
    times.push_back((NowSeconds() - began) * 1e6);
  }
  return Median(times);
}

void RegisterSerial(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  const auto requests = EncodedRegisters(session, "orders", scale.serial_calls, 1);
  const LoadResult load = RunUnary(channel, kRegisterMethod, requests, 1, Acknowledged(1));
  const std::string name = "register-serial";
  report->Add(name, subject, "p50_us", Percentile(load.latencies_us, 0.5), "us");
  report->Add(name, subject, "p99_us", Percentile(load.latencies_us, 0.99), "us");
  if (subject == kFailbackFull) {
    for (const auto& [reference, sync] : kSyncs) {
      report->Add(name, reference, "p50_us", SyncMedianMicroseconds(scale.serial_calls, sync),
                  "us");
    }
  }
}

// The same instances as opaque items.
std::vector<grpc::ByteBuffer> EncodedCarries(int64_t count, int batch) {
  std::vector<grpc::ByteBuffer> requests;
  for (int64_t begin = 0; begin < count; begin += batch) {
    bench::CarryRequest request;
    for (int64_t i = begin; i < std::min(count, begin + batch); ++i) {
      const ServiceInstance instance = NumberedInstance("orders", i);
      bench::Item& item = *request.add_items();
      item.set_key(
          absl::StrCat("default/", instance.key().service(), "/", instance.key().instance_id()));
      item.set_value(instance.SerializeAsString());
    }
    requests.push_back(Encode(request));
  }
  return requests;
}

// Whether the registry gets its batches on a RegisterStream or in calls.
enum class Way { kCalls, kStream };

// bare-grpc is one stream of opaque items into a map; bare-grpc-unary the very calls of the
// registry, parsed and put in a map.
void RegisterInBatches(const std::string& name, Way way, int64_t instances, int batch,
                       const Scale& scale, const std::string& subject, Report* report) {
  const bool bare_stream = subject == kBareGrpc;
  Served served(subject);
  Subject& server = served.server();
  const auto& channel = served.channel();
  const std::string session = OpenSession(channel, "bench");
  const std::vector<grpc::ByteBuffer> requests =
      bare_stream ? EncodedCarries(instances, batch)
                  : EncodedRegisters(session, "orders", instances, batch);
  const double cpu = server.CpuSeconds();
  const int window = scale.batches_in_flight;
  const LoadResult load =
      bare_stream ? RunStreams(channel, kCarryMethod, requests, 1, window, NotEmpty)
      : way == Way::kStream
          ? RunStreams(channel, kRegisterStreamMethod, requests, 1, window, StreamAcknowledged)
          : RunUnary(channel, kRegisterMethod, requests, window, Acknowledged(batch));
  const auto count = static_cast<double>(instances);
  report->Add(name, subject, "instances_per_s", count / load.seconds, "1/s");
  report->Add(name, subject, "p99_us", Percentile(load.latencies_us, 0.99), "us");
  report->Add(name, subject, "server_cpu_us_per_instance",
              (server.CpuSeconds() - cpu) / count * 1e6, "us");
}

// As an agent sends what is large.
void RegisterBatch(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-batch", Way::kStream, scale.batch_instances, scale.batch, scale,
                    subject, report);
}

// What a policy costs, likewise.
void RegisterBatchSecured(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-batch-secured", Way::kStream, scale.batch_instances, scale.batch,
                    scale, subject, report);
}

// And as many to a message.
void RegisterBatch250(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-batch-250", Way::kStream, scale.batch_instances, scale.agent_batch,
                    scale, subject, report);
}

// For seconds instead of a third of one: more of what is registered is out of the caches, and less
// of the time is the start's.
void RegisterBatchLong(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-batch-1m", Way::kStream, scale.many_instances, scale.batch, scale,
                    subject, report);
}

void RegisterCalls(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-calls", Way::kCalls, scale.batch_instances, scale.batch, scale,
                    subject, report);
}

}  // namespace

std::vector<Workload> RegisterWorkloads() {
  return {
      {"register-unary",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterUnary,
       {"calls_per_s", "p99_us", "server_cpu_us_per_call"}},
      {"register-unary-secured", {kFailbackTokens, kFailbackPolicy}, RegisterUnarySecured, {}},
      {"register-batch-secured", {kFailbackTokens, kFailbackPolicy}, RegisterBatchSecured, {}},
      {"register-batch",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterBatch,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-batch-250",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterBatch250,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-batch-1m",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       RegisterBatchLong,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-calls",
       {kBareGrpc, kBareUnary, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterCalls,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-serial",
       {kBareGrpc, kBareGrpcSynced, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterSerial,
       {"p50_us"}},
  };
}

}  // namespace failback
