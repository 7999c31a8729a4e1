#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/list_scope.h"
#include "registry/model/page_token.h"
#include "registry/model/selector.h"
#include "registry/store/store_operations.h"
#include "registry/store/store_registry.h"

namespace failback {
namespace {

// A page of a filtered listing looks at no more records than this; it may be shorter than asked
// for.
constexpr size_t kMaxFiltered = 5000;

// Instances that are sorted while others wait.
constexpr size_t kSortedAtOnce = 2000;

// The instances of a page. With `filtered` the page is left with what the selector means and the
// scopes show, as far as `page_size` goes.
std::vector<ServiceInstance> ParseShown(const Selector& selector, const ListScopes& scopes,
                                        bool filtered, size_t page_size, ListPage* page) {
  std::vector<ServiceInstance> instances;
  std::vector<ListItem> shown;
  size_t bytes = 0;
  for (ListItem& item : page->items) {
    ServiceInstance instance;
    instance.ParseFromArray(item.instance.data(), static_cast<int>(item.instance.size()));
    if (filtered) {
      if (HasFilter(selector) && !SelectorMatches(selector, instance)) continue;
      if (!scopes.Shows(instance.key().namespace_(), instance.key().service())) continue;
      bytes += item.instance.size();
      if (shown.size() == page_size || (!shown.empty() && bytes > ListQuery().max_bytes)) {
        page->next_after = CanonicalKey(instances.back().key());
        break;
      }
    }
    instances.push_back(std::move(instance));
    shown.push_back(std::move(item));
  }
  page->items = std::move(shown);
  return instances;
}

}  // namespace

InstanceRecord StoreRegistry::ToRecord(const ListItem& item, ServiceInstance instance) {
  InstanceRecord record;
  *record.mutable_instance() = std::move(instance);
  record.set_incarnation(item.incarnation);
  record.set_rank(item.rank);
  record.set_generation(item.generation);
  record.set_client_name(item.client_name);
  record.set_create_revision(item.create_revision);
  record.set_modify_revision(item.modify_revision);
  *record.mutable_create_time() = ToProto(absl::FromUnixMillis(item.create_ms));
  *record.mutable_modify_time() = ToProto(absl::FromUnixMillis(item.modify_ms));
  record.set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  return record;
}

std::vector<std::string> StoreRegistry::StreamSessions() const {
  std::vector<std::string> ids;
  MutexLock lock(&mu_);
  for (const Session* session : state_->Sessions()) {
    if (session->ends_with_stream) ids.push_back(session->id);
  }
  return ids;
}

std::unique_ptr<SubscribeStream> StoreRegistry::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  SubscriptionHub::Deliveries deliveries;
  std::unique_ptr<SubscribeStream> stream;
  if (auto status = ValidateSubscribe(request); !status.ok()) {
    stream = SubscriptionHub::Refuse(std::move(listener), status, &deliveries);
  } else {
    SubscribeRequest canonical = request;
    NormalizeSelector(canonical.mutable_selector());
    const std::string& session_id = request.session_id();
    if (!session_id.empty() && !HasSession(session_id)) {
      stream = SubscriptionHub::Refuse(std::move(listener), SessionUnknown(), &deliveries);
    } else {
      stream = hub_->Subscribe(
          canonical, std::nullopt, [this](const std::string& topic) { return Present(topic); },
          std::move(listener), &deliveries);
      // It may have ended before the hub knew of the name.
      if (!session_id.empty() && !HasSession(session_id)) {
        hub_->ForgetSession(session_id, &deliveries);
      }
    }
  }
  SubscriptionHub::Deliver(deliveries);
  return stream;
}

SubscriptionHub::Present StoreRegistry::Present(const std::string& topic) const {
  MutexLock lock(&mu_);
  return {state_->ContentsOf(topic), state_->revision()};
}

bool StoreRegistry::HasSession(const std::string& session_id) const {
  MutexLock lock(&mu_);
  return state_->FindSession(session_id) != nullptr;
}

void StoreRegistry::Unsubscribe(const UnsubscribeRequest& request,
                                Callback<UnsubscribeResponse> done) {
  if (auto status = ValidateUnsubscribe(request); !status.ok()) return std::move(done)(status);
  SubscriptionHub::Deliveries deliveries;
  absl::Status status;
  // A session that has ended took its subscriptions with it.
  if (HasSession(request.session_id())) {
    status = hub_->Unsubscribe(request, &deliveries);
    if (!HasSession(request.session_id())) hub_->ForgetSession(request.session_id(), &deliveries);
  }
  SubscriptionHub::Deliver(deliveries);
  if (!status.ok()) return std::move(done)(status);
  std::move(done)(UnsubscribeResponse());
}

void StoreRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  std::move(done)(ListNow(request));
}

absl::StatusOr<ListResponse> StoreRegistry::ListNow(const ListRequest& request) const {
  if (auto status = ValidateList(request); !status.ok()) return status;
  absl::StatusOr<ListPlace> place = ListPlaceOf(request);
  if (!place.ok()) return place.status();
  std::optional<std::string> owner;
  if (!request.incarnation().empty() && request.scopes_size() > 0) {
    MutexLock lock(&mu_);
    owner = state_->OwnerOf(request.incarnation());
  }
  const ListScopes scopes(request, std::move(owner));
  ListQuery query;
  query.ranges = scopes.ranges();
  query.incarnation = request.incarnation();
  query.after = std::move(place->after);
  query.with_sessions = leases_->Stats().held > 0;
  query.max_items = place->page_size;
  const bool filtered = HasFilter(request.selector()) || !scopes.exact();
  if (filtered) {
    // The page is cut when it is known what is shown.
    query.max_items = kMaxFiltered;
    query.max_bytes = std::numeric_limits<size_t>::max();
  }
  for (bool ready = query.incarnation.empty(); !ready;) {
    MutexLock lock(&mu_);
    ready = state_->PrepareList(query.incarnation, kSortedAtOnce);
  }
  ListResponse response;
  response.set_epoch(epoch_);
  if (!request.incarnation().empty()) response.set_coverage(scopes.coverage());
  ListPage page;
  {
    MutexLock lock(&mu_);
    page = state_->List(query);
    response.set_revision(state_->revision());
  }
  std::vector<ServiceInstance> instances =
      ParseShown(request.selector(), scopes, filtered, place->page_size, &page);
  for (size_t i = 0; i < instances.size(); ++i) {
    const ListItem& item = page.items[i];
    InstanceRecord& record = *response.add_records();
    record = ToRecord(item, std::move(instances[i]));
    if (item.session_id.empty()) continue;
    const auto lease = leases_->Look(item.session_id);
    if (lease.has_value() && lease->held) record.set_held(true);
  }
  response.set_next_page_token(ListPageToken(page.next_after));
  return response;
}

int64_t StoreRegistry::SetEvictionGuard(bool on, std::string_view by) {
  return leases_->SetGuard(on, by);
}

State::Holdings StoreRegistry::SetRevoked(const std::string& owner, const std::string& name) {
  MutexLock lock(&mu_);
  return state_->SetRevoked(owner, name.empty() ? Blob() : Blob(name));
}

int64_t StoreRegistry::ReleaseHeldSessions(std::string_view by) { return leases_->Release(by); }

StoreRegistry::Statistics StoreRegistry::Stats() const {
  Statistics stats;
  stats.store_id = store_id_;
  stats.epoch = epoch_;
  stats.groups = groups_;
  stats.intents = intents_;
  stats.expired_sessions = expired_sessions_;
  stats.leases = leases_->Stats();
  stats.subscribers = hub_->subscribers();
  stats.files = storage_->Files();
  // All that a commit changes under mu_.
  MutexLock lock(&mu_);
  stats.revision = state_->revision();
  stats.instances = state_->instances();
  stats.services = state_->services();
  stats.tombstones = state_->tombstones();
  stats.sessions = state_->sessions();
  stats.incarnations = state_->incarnations();
  stats.write_status = write_status_;
  stats.write_nanos = write_nanos_;
  stats.group_intents = group_intents_;
  return stats;
}

absl::Status StoreRegistry::CheckInvariants() const {
  MutexLock writer(&writer_mu_);
  MutexLock lock(&mu_);
  return state_->CheckInvariants();
}

}  // namespace failback
