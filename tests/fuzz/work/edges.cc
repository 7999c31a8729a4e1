#include "tests/fuzz/work/edges.h"

#include "absl/strings/str_cat.h"
#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "gateway/dns/message.h"
#include "gateway/dns/names.h"
#include "gateway/xds/service_name.h"
#include "grpc/health/v1/health.pb.h"
#include "registry/base/log.h"
#include "registry/failback/merged_pages.h"
#include "registry/model/batch.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"
#include "registry/model/wire_bounds.h"
#include "tests/fuzz/work/steps.h"

namespace failback {
namespace {

// As the largest that the server takes.
constexpr size_t kMaxBytes = 16 << 20;

template <typename Request>
bool Parse(std::string_view bytes, const WireBounds& bounds, Request* request) {
  return CheckWire(*Request::descriptor(), bytes, bounds).ok() &&
         request->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

void TakeBatch(Batch::Kind kind, std::string_view bytes) {
  const Batch::Limits limits{BatchRequest(kMaxBytes, kDefaultMaxBatch), kDefaultMaxBatch};
  absl::StatusOr<Batch> batch = Batch::Read(kind, bytes, limits);
  if (batch.ok()) batch->Check(kDefaultMaxBatch).IgnoreError();
}

// A filter is followed, and asked about an instance.
void TakeSelector(const Selector& selector) {
  CanonicalSelector(selector);
  static const auto* const instance = new ServiceInstance;
  SelectorMatches(selector, *instance);
}

template <typename Request>
void TakeSmall(std::string_view bytes, absl::Status (*validate)(const Request&)) {
  Request request;
  if (!Parse(bytes, kSmallRequest, &request) || validate == nullptr) return;
  validate(request).IgnoreError();
}

void Take(Edge edge, std::string_view bytes) {
  switch (edge) {
    case Edge::kOpenSession:
      return TakeSmall<OpenSessionRequest>(bytes, ValidateOpenSession);
    case Edge::kKeepAlive:
      return TakeSmall<KeepAliveRequest>(bytes, ValidateKeepAlive);
    case Edge::kSetOffline:
      return TakeSmall<SetOfflineRequest>(bytes, ValidateSetOffline);
    case Edge::kRegister:
      return TakeBatch(Batch::Kind::kRegister, bytes);
    case Edge::kUnregister:
      return TakeBatch(Batch::Kind::kUnregister, bytes);
    case Edge::kSubscribe: {
      SubscribeRequest request;
      if (Parse(bytes, kSmallRequest, &request) && ValidateSubscribe(request).ok()) {
        TakeSelector(request.selector());
      }
      return;
    }
    case Edge::kList: {
      ListRequest request;
      if (Parse(bytes, kSmallRequest, &request) && ValidateList(request).ok()) {
        TakeSelector(request.selector());
      }
      return;
    }
    case Edge::kAdmin:
      return TakeSmall<admin::v1::ListInstancesRequest>(bytes, nullptr);
    case Edge::kAgent:
      return TakeSmall<agent::v1::RetryRequest>(bytes, nullptr);
    case Edge::kHealth:
      return TakeSmall<grpc::health::v1::HealthCheckRequest>(bytes, nullptr);
    case Edge::kPageToken:
      return MergedPlace::Parse(std::string(bytes), 2).status().IgnoreError();
    case Edge::kXdsName:
      return xds::ParseServiceName(std::string(bytes)).status().IgnoreError();
    case Edge::kDnsQuery: {
      static const auto* const domain = new dns::Domain(dns::Domain::Parse("failback").value());
      dns::Query query;
      if (dns::ReadQuery(bytes, &query).answer) domain->MeaningOf(query.name);
      return;
    }
    case Edge::kLogLine:
      FormatLogLine("event", CutFields({{"name", std::string(bytes)}}));
      return;
  }
}

}  // namespace

int64_t WorkAt(Edge edge, std::string_view bytes) {
  const int64_t before = Steps();
  Take(edge, bytes);
  return Steps() - before;
}

int64_t MostWork(size_t bytes) { return 50000 + 256 * static_cast<int64_t>(bytes); }

std::string TooMuchWork(Edge edge, std::string_view bytes) {
  const int64_t work = WorkAt(edge, bytes);
  if (work <= MostWork(bytes.size())) return "";
  return absl::StrCat("edge ", static_cast<int>(edge), ": ", bytes.size(), " bytes make ", work,
                      " steps, at most ", MostWork(bytes.size()), " are allowed");
}

}  // namespace failback
