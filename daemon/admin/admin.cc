#include "daemon/admin/admin.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"
#include "registry/base/version.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/instance_query.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

// A quote in `text` ends nothing: what follows the closing one is not the text's.
std::string InQuotes(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

}  // namespace

std::string NameOperator(std::string claimed, std::string known) {
  CutUtf8(kMaxOperatorBytes, &known);
  CutUtf8(kMaxOperatorBytes, &claimed);
  const std::string suffix = absl::StrCat(" by ", known);
  while (!claimed.empty() && InQuotes(claimed).size() + suffix.size() > kMaxOperatorBytes) {
    CutUtf8(claimed.size() - 1, &claimed);
  }
  return claimed.empty() ? known : absl::StrCat(InQuotes(claimed), suffix);
}

namespace {

using admin::v1::DescribeInstanceRequest;
using admin::v1::InstanceDescription;
using admin::v1::ListInstancesRequest;
using admin::v1::ListInstancesResponse;
using admin::v1::ListServicesRequest;
using admin::v1::ListServicesResponse;
using admin::v1::ServiceSummary;
using admin::v1::SetOfflineRequest;
using admin::v1::SetOfflineResponse;

Selector SelectorOf(const std::string& name_space, const std::string& service) {
  Selector selector;
  selector.set_namespace_(name_space);
  selector.set_service(service);
  NormalizeSelector(&selector);
  return selector;
}

// Of records that are sorted by key.
std::vector<ServiceSummary> Summarize(const std::vector<InstanceRecord>& records) {
  std::vector<ServiceSummary> services;
  for (const InstanceRecord& record : records) {
    const InstanceKey& key = record.instance().key();
    if (services.empty() || services.back().name() != key.service() ||
        services.back().namespace_() != key.namespace_()) {
      services.emplace_back();
      services.back().set_namespace_(key.namespace_());
      services.back().set_name(key.service());
    }
    Count(StateOf(record), record.instance().persistent(), +1, services.back().mutable_instances());
  }
  return services;
}

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// The error of what only a registry knows.
absl::Status OnlyAtRegistry(const char* what) {
  return Refusal(registry::v1::ERROR_REASON_UNSUPPORTED,
                 absl::StrCat(what, " are a registry's: ask failback-registry, not the agent"));
}

}  // namespace

Admin::Admin(admin::v1::DaemonKind kind, Registry* registry, absl::Time start_time)
    : kind_(kind), registry_(registry), start_time_(start_time) {}

admin::v1::Overview Admin::GetOverview() const {
  admin::v1::Overview overview;
  overview.set_kind(kind_);
  overview.set_version(kVersion);
  overview.set_name(name_);
  overview.set_host(HostName());
  *overview.mutable_start_time() = ToProto(start_time_);
  *overview.mutable_time() = ToProto(absl::Now());
  *overview.mutable_readiness() = GetReadiness();
  AddOverview(&overview);
  if (add_ != nullptr) add_(&overview);
  return overview;
}

void Admin::AnswerOverview(const admin::v1::GetOverviewRequest& request,
                           Callback<admin::v1::Overview> done) const {
  std::move(done)(GetOverview());
}

void Admin::ListAll(const Selector& selector, Callback<Listing> done) const {
  ListRequest request;
  *request.mutable_selector() = selector;
  ListPages(std::move(request), Listing(), std::move(done));
}

void Admin::ListPages(ListRequest request, Listing so_far, Callback<Listing> done) const {
  registry_->List(request, [this, request, so_far = std::move(so_far),
                            done = std::move(done)](absl::StatusOr<ListResponse> page) mutable {
    if (!page.ok()) return std::move(done)(page.status());
    for (InstanceRecord& record : *page->mutable_records()) {
      so_far.records.push_back(std::move(record));
    }
    so_far.stale |= page->stale();
    if (page->next_page_token().empty()) return std::move(done)(std::move(so_far));
    request.set_page_token(page->next_page_token());
    ListPages(std::move(request), std::move(so_far), std::move(done));
  });
}

// Says how far an answer is to be trusted.
template <typename Response>
void Admin::SetTrust(const Listing& listing, Response* response) {
  response->set_stale(listing.stale);
  if (!listing.unread.ok()) *response->mutable_unread() = StatusToProto(listing.unread);
}

void Admin::ListServices(const ListServicesRequest& request,
                         Callback<ListServicesResponse> done) const {
  const Selector selector = SelectorOf(request.namespace_(), "");
  if (auto status = ValidateSelector(FieldPath(), selector); !status.ok()) {
    return std::move(done)(status);
  }
  ListAll(selector, [request, done = std::move(done)](absl::StatusOr<Listing> listing) mutable {
    if (!listing.ok()) return std::move(done)(listing.status());
    auto response = QueryServices(request, Summarize(listing->records));
    if (response.ok()) SetTrust(*listing, &*response);
    std::move(done)(std::move(response));
  });
}

void Admin::ListInstances(const ListInstancesRequest& request,
                          Callback<ListInstancesResponse> done) const {
  if (request.service().empty()) return std::move(done)(InvalidField("service", "is required"));
  const Selector selector = SelectorOf(request.namespace_(), request.service());
  if (auto status = ValidateSelector(FieldPath(), selector); !status.ok()) {
    return std::move(done)(status);
  }
  ListAll(selector, [request, done = std::move(done)](absl::StatusOr<Listing> listing) mutable {
    if (!listing.ok()) return std::move(done)(listing.status());
    auto response = QueryInstances(request, std::move(listing->records));
    if (response.ok()) SetTrust(*listing, &*response);
    std::move(done)(std::move(response));
  });
}

absl::StatusOr<InstanceDescription> UnlessUnknown(const InstanceKey& key,
                                                  absl::StatusOr<InstanceDescription> description) {
  if (!description.ok() || description->has_instance() || description->history_size() > 0 ||
      description->pending_size() > 0) {
    return description;
  }
  return Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                 absl::StrCat("key: ", KeyText(key),
                              " is not registered, and nothing is remembered of it since "
                              "the daemon started"));
}

void Admin::DescribeInstance(const DescribeInstanceRequest& request,
                             Callback<InstanceDescription> done) const {
  FindInstance(request.key(), [key = request.key(), done = std::move(done)](
                                  absl::StatusOr<InstanceDescription> found) mutable {
    std::move(done)(UnlessUnknown(key, std::move(found)));
  });
}

void Admin::FindInstance(const InstanceKey& named, Callback<InstanceDescription> done) const {
  InstanceKey key = named;
  NormalizeKey(&key);
  if (auto status = ValidateKey(FieldPath("key"), key); !status.ok()) {
    return std::move(done)(status);
  }
  ListAll(SelectorOf(key.namespace_(), key.service()),
          [key, done = std::move(done)](absl::StatusOr<Listing> listing) mutable {
            if (!listing.ok()) return std::move(done)(listing.status());
            InstanceDescription description;
            SetTrust(*listing, &description);
            for (InstanceRecord& record : listing->records) {
              if (record.instance().key().instance_id() != key.instance_id()) continue;
              description.mutable_instance()->set_state(StateOf(record));
              *description.mutable_instance()->mutable_record() = std::move(record);
            }
            std::move(done)(std::move(description));
          });
}

void Admin::SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) const {
  registry_->SetOffline(request, std::move(done));
}

void Admin::ExplainDnsName(const admin::v1::ExplainDnsNameRequest& request,
                           Callback<admin::v1::DnsExplanation> done) const {
  if (explain_dns_ != nullptr) return explain_dns_(request, std::move(done));
  std::move(done)(
      Refusal(registry::v1::ERROR_REASON_UNSUPPORTED, "this program has no DNS server"));
}

void Admin::ListSessions(const admin::v1::ListSessionsRequest& request,
                         Callback<admin::v1::ListSessionsResponse> done) const {
  std::move(done)(OnlyAtRegistry("sessions"));
}

void Admin::ListAgents(const admin::v1::ListAgentsRequest& request,
                       Callback<admin::v1::ListAgentsResponse> done) const {
  std::move(done)(OnlyAtRegistry("agents"));
}

void Admin::SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                             Callback<admin::v1::SetEvictionGuardResponse> done) const {
  std::move(done)(OnlyAtRegistry("held sessions"));
}

}  // namespace failback
