#include "tests/bench/registry/calls.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace failback {
namespace {

using registry::v1::KeepAliveResponse;
using registry::v1::OpenSessionRequest;
using registry::v1::OpenSessionResponse;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::SubscribeRequest;

bool AllAcknowledged(const RegisterResponse& response, int batch) {
  return response.results_size() > 0 && response.results_size() <= batch && NoneRefused(response);
}

}  // namespace

std::string OpenSession(const std::shared_ptr<grpc::Channel>& channel,
                        const std::string& incarnation, int64_t ttl_seconds) {
  OpenSessionRequest request;
  request.set_incarnation(incarnation);
  request.mutable_ttl()->set_seconds(ttl_seconds);
  return Parsed<OpenSessionResponse>(CallOnce(channel, kOpenSessionMethod, Encode(request)))
      .session_id();
}

std::vector<grpc::ByteBuffer> EncodedOpens(const std::string& prefix, int64_t first, int64_t count,
                                           int64_t ttl_seconds) {
  std::vector<grpc::ByteBuffer> requests;
  for (int64_t i = first; i < first + count; ++i) {
    OpenSessionRequest request;
    request.set_incarnation(absl::StrCat(prefix, i));
    request.mutable_ttl()->set_seconds(ttl_seconds);
    requests.push_back(Encode(request));
  }
  return requests;
}

AnswerCheck Acknowledged(int batch) {
  return [batch, results = std::string()](const grpc::ByteBuffer& bytes) mutable {
    grpc::Slice answer;
    if (!bytes.TrySingleSlice(&answer).ok() && !bytes.DumpToSingleSlice(&answer).ok()) return false;
    if (!results.empty() && answer.size() >= results.size() &&
        std::memcmp(answer.begin(), results.data(), results.size()) == 0) {
      return true;
    }
    RegisterResponse response;
    if (!Decode(bytes, &response) || !AllAcknowledged(response, batch)) return false;
    if (response.results_size() == batch) {
      response.clear_epoch();
      response.clear_revision();
      results = response.SerializeAsString();
    }
    return true;
  };
}

void RegisterAll(const std::shared_ptr<grpc::Channel>& channel, const std::string& session_id,
                 const std::string& prefix, int64_t count) {
  constexpr int kBatch = 250;
  constexpr int kInFlight = 8;
  RunUnary(channel, kRegisterMethod, EncodedRegisters(session_id, prefix, count, kBatch), kInFlight,
           Acknowledged(kBatch));
}

void MeasureUnary(const std::string& name, const std::string& subject, Subject& server,
                  const std::shared_ptr<grpc::Channel>& channel, const char* method,
                  const std::vector<grpc::ByteBuffer>& requests, int in_flight,
                  const std::function<bool(const grpc::ByteBuffer&)>& accept, Report* report) {
  const double cpu = server.CpuSeconds();
  const LoadResult load = RunUnary(channel, method, requests, in_flight, accept);
  report->Add(name, subject, "calls_per_s", requests.size() / load.seconds, "1/s");
  report->Add(name, subject, "p50_us", Percentile(load.latencies_us, 0.5), "us");
  report->Add(name, subject, "p99_us", Percentile(load.latencies_us, 0.99), "us");
  report->Add(name, subject, "server_cpu_us_per_call",
              (server.CpuSeconds() - cpu) / requests.size() * 1e6, "us");
}

RenewalPace PacedRenewals(int streams, int connections, absl::Duration time, const Subject& server,
                          const std::vector<grpc::ByteBuffer>& renewals) {
  constexpr double kRenewalsPerSessionAndSecond = 0.3;
  int64_t answered = 0;
  Streams all(server.address(), kKeepAliveMethod, streams, connections, nullptr,
              [&](int, const grpc::ByteBuffer& bytes) {
                if (++answered % 100 == 1 && Parsed<KeepAliveResponse>(bytes).has_status()) {
                  Die("a renewal was refused");
                }
              });
  const double rate = static_cast<double>(renewals.size()) * kRenewalsPerSessionAndSecond;
  int64_t sent = 0;
  const double cpu = server.CpuSeconds();
  const double began = NowSeconds();
  while (NowSeconds() - began < absl::ToDoubleSeconds(time)) {
    const auto due = static_cast<int64_t>((NowSeconds() - began) * rate);
    for (; sent < due; ++sent) {
      all.Send(static_cast<int>(sent % streams),
               renewals[sent % static_cast<int64_t>(renewals.size())]);
    }
    all.RunFor(absl::Milliseconds(2));
  }
  if (!all.RunUntil([&] { return answered == sent; }, kLongest)) Die("renewals got lost");
  const double took = NowSeconds() - began;
  return {static_cast<double>(answered) / took, (server.CpuSeconds() - cpu) / took};
}

grpc::ByteBuffer EncodedSubscribe(const std::string& service) {
  SubscribeRequest request;
  request.mutable_selector()->set_service(service);
  return Encode(request);
}

grpc::ByteBuffer EncodedChange(const std::string& session_id, uint64_t generation) {
  RegisterRequest request;
  request.set_session_id(session_id);
  registry::v1::Registration& registration = *request.add_registrations();
  *registration.mutable_instance() = NumberedInstance("fanout", 0);
  (*registration.mutable_instance()->mutable_metadata())["build"] =
      absl::StrCat(100000000000 + generation);
  registration.set_generation(generation);
  return Encode(request);
}

}  // namespace failback
