#include "registry/model/instance_query.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"
#include "registry/model/page_token.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using admin::v1::InstanceState;
using admin::v1::InstanceSummary;
using admin::v1::ListInstancesRequest;
using admin::v1::ListInstancesResponse;
using admin::v1::ListServicesRequest;
using admin::v1::ListServicesResponse;
using admin::v1::ServiceSummary;

constexpr int kDefaultPage = 1000;
constexpr int kMaxServicesPage = 1000;
constexpr int kMaxInstancesPage = 10000;
constexpr size_t kMaxQuery = 1024;

std::vector<std::string> Words(const std::string& query) {
  return absl::StrSplit(absl::AsciiStrToLower(query), absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
}

bool ValueMatches(const std::string& value, const std::string& wanted) {
  if (!wanted.empty() && wanted.back() == '*') {
    return absl::StartsWithIgnoreCase(value, wanted.substr(0, wanted.size() - 1));
  }
  return absl::EqualsIgnoreCase(value, wanted);
}

// `word` is in lower case.
bool WordMatches(const std::string& word, const InstanceRecord& record) {
  const ServiceInstance& instance = record.instance();
  if (const size_t equals = word.find('='); equals != std::string::npos && equals > 0) {
    const std::string key = word.substr(0, equals);
    const std::string value = word.substr(equals + 1);
    return std::any_of(
        instance.metadata().begin(), instance.metadata().end(), [&](const auto& entry) {
          return absl::EqualsIgnoreCase(entry.first, key) && ValueMatches(entry.second, value);
        });
  }
  const auto has = [&](const std::string& text) {
    return absl::StrContains(absl::AsciiStrToLower(text), word);
  };
  return has(instance.key().instance_id()) ||
         has(absl::StrCat(instance.address(), ":", instance.port())) || has(instance.zone()) ||
         has(record.client_name()) ||
         std::any_of(instance.metadata().begin(), instance.metadata().end(),
                     [&](const auto& entry) { return has(entry.first) || has(entry.second); });
}

std::string TimeKey(const google::protobuf::Timestamp& time) {
  return absl::StrCat(absl::Dec(absl::ToUnixMicros(FromProto(time)), absl::kZeroPad20));
}

// Text that sorts as the field does.
using SortKey = std::string (*)(const InstanceSummary&);

SortKey SortKeyOf(const std::string& field) {
  static const std::pair<const char*, SortKey> kKeys[] = {
      {"instance_id", [](const InstanceSummary&) { return std::string(); }},
      {"address",
       [](const InstanceSummary& row) {
         const ServiceInstance& instance = row.record().instance();
         return absl::StrCat(instance.address(), ":", absl::Dec(instance.port(), absl::kZeroPad5));
       }},
      {"state", [](const InstanceSummary& row) { return absl::StrCat(int{row.state()}); }},
      {"zone", [](const InstanceSummary& row) { return row.record().instance().zone(); }},
      {"weight",
       [](const InstanceSummary& row) {
         const ServiceInstance& instance = row.record().instance();
         return absl::StrCat(
             absl::Dec(instance.has_weight() ? instance.weight() : 100, absl::kZeroPad6));
       }},
      {"client_name", [](const InstanceSummary& row) { return row.record().client_name(); }},
      {"create_time",
       [](const InstanceSummary& row) { return TimeKey(row.record().create_time()); }},
      {"modify_time",
       [](const InstanceSummary& row) { return TimeKey(row.record().modify_time()); }},
  };
  for (const auto& [name, key] : kKeys) {
    if (field == name) return key;
  }
  return nullptr;
}

struct Row {
  std::string sort_key;
  std::string id;
  InstanceSummary* summary;
};

// Listings, in page tokens.
constexpr char kInstancePages[] = "instances";
constexpr char kServicePages[] = "services";

// A page's place: what the last row sorts by.
std::string Token(const char* listing, const Row& row) {
  return PageToken(listing, absl::StrCat(row.sort_key, std::string(1, '\0'), row.id));
}

absl::Status ParseToken(const char* listing, const std::string& token, Row* row) {
  const absl::StatusOr<std::string> place = ParsePageToken(listing, token);
  if (!place.ok()) return place.status();
  const size_t end = place->find('\0');
  if (end == std::string::npos) return InvalidPageToken();
  row->sort_key = place->substr(0, end);
  row->id = place->substr(end + 1);
  return absl::OkStatus();
}

absl::Status CheckPage(int page_size, const std::string& query) {
  if (page_size < 0) {
    return InvalidField("page_size", absl::StrCat(page_size, " is negative"));
  }
  if (query.size() > kMaxQuery) {
    return InvalidField("query",
                        absl::StrCat(query.size(), " bytes; at most ", kMaxQuery, " are allowed"));
  }
  return absl::OkStatus();
}

bool Wanted(const ListInstancesRequest& request, const std::vector<std::string>& words,
            const InstanceSummary& row) {
  const ServiceInstance& instance = row.record().instance();
  const auto wanted = [&](InstanceState state) {
    return std::find(request.states().begin(), request.states().end(), state) !=
           request.states().end();
  };
  // One that an operator has marked may be held as well.
  const bool held = row.record().held() && wanted(admin::v1::INSTANCE_STATE_HELD);
  if (!request.states().empty() && !wanted(row.state()) && !held) return false;
  if (request.has_persistent() && request.persistent() != instance.persistent()) return false;
  return std::all_of(words.begin(), words.end(),
                     [&](const std::string& word) { return WordMatches(word, row.record()); });
}

}  // namespace

InstanceState StateOf(const ServiceInstance& instance) {
  if (instance.has_offline()) return admin::v1::INSTANCE_STATE_OFFLINE;
  switch (instance.status()) {
    case registry::v1::HEALTH_STATUS_UNHEALTHY:
      return admin::v1::INSTANCE_STATE_UNHEALTHY;
    case registry::v1::HEALTH_STATUS_DRAINING:
      return admin::v1::INSTANCE_STATE_DRAINING;
    default:
      return admin::v1::INSTANCE_STATE_HEALTHY;
  }
}

InstanceState StateOf(const InstanceRecord& record) {
  switch (record.state()) {
    case registry::v1::INTENT_STATE_ACCEPTED:
      return admin::v1::INSTANCE_STATE_PENDING;
    case registry::v1::INTENT_STATE_SUPERSEDED:
      return admin::v1::INSTANCE_STATE_SUPERSEDED;
    case registry::v1::INTENT_STATE_LAPSED:
      return admin::v1::INSTANCE_STATE_LAPSED;
    case registry::v1::INTENT_STATE_PARKED:
      return admin::v1::INSTANCE_STATE_PARKED;
    default:
      break;
  }
  const InstanceState state = StateOf(record.instance());
  const bool held = record.held() && state != admin::v1::INSTANCE_STATE_OFFLINE;
  return held ? admin::v1::INSTANCE_STATE_HELD : state;
}

void Count(InstanceState state, bool persistent, int by, admin::v1::InstanceCounts* counts) {
  counts->set_total(counts->total() + by);
  switch (state) {
    case admin::v1::INSTANCE_STATE_OFFLINE:
      counts->set_offline(counts->offline() + by);
      break;
    case admin::v1::INSTANCE_STATE_UNHEALTHY:
      counts->set_unhealthy(counts->unhealthy() + by);
      break;
    case admin::v1::INSTANCE_STATE_DRAINING:
      counts->set_draining(counts->draining() + by);
      break;
    case admin::v1::INSTANCE_STATE_PENDING:
      counts->set_pending(counts->pending() + by);
      break;
    case admin::v1::INSTANCE_STATE_SUPERSEDED:
      counts->set_superseded(counts->superseded() + by);
      break;
    case admin::v1::INSTANCE_STATE_LAPSED:
      counts->set_lapsed(counts->lapsed() + by);
      break;
    case admin::v1::INSTANCE_STATE_HELD:
      counts->set_held(counts->held() + by);
      break;
    case admin::v1::INSTANCE_STATE_PARKED:
      counts->set_parked(counts->parked() + by);
      break;
    default:
      counts->set_healthy(counts->healthy() + by);
      break;
  }
  if (persistent) counts->set_persistent(counts->persistent() + by);
}

void Add(const admin::v1::InstanceCounts& part, admin::v1::InstanceCounts* whole) {
  whole->set_total(whole->total() + part.total());
  whole->set_healthy(whole->healthy() + part.healthy());
  whole->set_unhealthy(whole->unhealthy() + part.unhealthy());
  whole->set_draining(whole->draining() + part.draining());
  whole->set_offline(whole->offline() + part.offline());
  whole->set_persistent(whole->persistent() + part.persistent());
  whole->set_pending(whole->pending() + part.pending());
  whole->set_superseded(whole->superseded() + part.superseded());
  whole->set_lapsed(whole->lapsed() + part.lapsed());
  whole->set_held(whole->held() + part.held());
  whole->set_parked(whole->parked() + part.parked());
}

absl::StatusOr<ListInstancesResponse> QueryInstances(const ListInstancesRequest& request,
                                                     std::vector<InstanceRecord> records) {
  if (auto status = CheckPage(request.page_size(), request.query()); !status.ok()) return status;
  if (request.states_size() > kMaxSelectorValues) {
    return InvalidField("states", absl::StrCat("has ", request.states_size(), " entries, at most ",
                                               kMaxSelectorValues, " are allowed"));
  }
  std::string field = request.order_by().empty() ? "instance_id" : request.order_by();
  const bool descending = absl::EndsWith(field, " desc");
  if (descending) field.resize(field.size() - sizeof(" desc") + 1);
  const SortKey sort_key = SortKeyOf(field);
  if (sort_key == nullptr) {
    return InvalidField("order_by",
                        absl::StrCat("'", request.order_by(),
                                     "' is not one of instance_id, address, state, zone, "
                                     "weight, client_name, create_time, modify_time"));
  }
  const auto before = [descending](const Row& a, const Row& b) {
    const auto ascending = [](const Row& a, const Row& b) {
      return a.sort_key != b.sort_key ? a.sort_key < b.sort_key : a.id < b.id;
    };
    return descending ? ascending(b, a) : ascending(a, b);
  };
  Row after;
  if (!request.page_token().empty()) {
    if (auto status = ParseToken(kInstancePages, request.page_token(), &after); !status.ok())
      return status;
  }
  const std::vector<std::string> words = Words(request.query());
  ListInstancesResponse response;
  std::vector<InstanceSummary> summaries(records.size());
  std::vector<Row> rows;
  for (size_t i = 0; i < records.size(); ++i) {
    InstanceSummary& summary = summaries[i];
    *summary.mutable_record() = std::move(records[i]);
    const ServiceInstance& instance = summary.record().instance();
    summary.set_state(StateOf(summary.record()));
    Count(summary.state(), instance.persistent(), +1, response.mutable_counts());
    if (!Wanted(request, words, summary)) continue;
    rows.push_back({sort_key(summary), instance.key().instance_id(), &summary});
  }
  response.set_total_instances(static_cast<int>(rows.size()));
  std::sort(rows.begin(), rows.end(), before);
  auto it = request.page_token().empty()
                ? rows.begin()
                : std::upper_bound(rows.begin(), rows.end(), after, before);
  const auto size = static_cast<size_t>(
      request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMaxInstancesPage));
  for (size_t n = 0; n < size && it != rows.end(); ++n, ++it) {
    *response.add_instances() = std::move(*it->summary);
  }
  if (it != rows.end()) response.set_next_page_token(Token(kInstancePages, *(it - 1)));
  return response;
}

absl::StatusOr<ListServicesResponse> QueryServices(const ListServicesRequest& request,
                                                   std::vector<ServiceSummary> services) {
  if (auto status = CheckPage(request.page_size(), request.query()); !status.ok()) return status;
  Row after;
  if (!request.page_token().empty()) {
    if (auto status = ParseToken(kServicePages, request.page_token(), &after); !status.ok())
      return status;
  }
  const std::vector<std::string> words = Words(request.query());
  const int size =
      request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMaxServicesPage);
  ListServicesResponse response;
  int wanted = 0;
  bool more = false;
  for (ServiceSummary& service : services) {
    if (response.namespaces().empty() || *response.namespaces().rbegin() != service.namespace_()) {
      response.add_namespaces(service.namespace_());
    }
    if (!request.namespace_().empty() && request.namespace_() != service.namespace_()) continue;
    const std::string text =
        absl::AsciiStrToLower(absl::StrCat(service.namespace_(), "/", service.name()));
    if (!std::all_of(words.begin(), words.end(),
                     [&](const std::string& word) { return absl::StrContains(text, word); })) {
      continue;
    }
    ++wanted;
    const Row row = {service.namespace_(), service.name(), nullptr};
    if (std::pair(row.sort_key, row.id) <= std::pair(after.sort_key, after.id)) continue;
    if (response.services_size() == size) {
      more = true;
      continue;
    }
    *response.add_services() = std::move(service);
  }
  response.set_total_services(wanted);
  if (more) {
    const ServiceSummary& last = *response.services().rbegin();
    response.set_next_page_token(Token(kServicePages, {last.namespace_(), last.name(), nullptr}));
  }
  return response;
}

}  // namespace failback
