#include "registry/etcd/operator_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/etcd/v1/stored.pb.h"
#include "registry/base/proto_time.h"
#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/fleet_query.h"
#include "registry/model/health_change.h"
#include "registry/model/instance_query.h"

namespace failback {
namespace etcd {
namespace {

using admin::v1::InstanceChange;
using admin::v1::InstanceDescription;
using admin::v1::ListAgentsRequest;
using admin::v1::ListAgentsResponse;
using admin::v1::ListServicesRequest;
using admin::v1::ListServicesResponse;
using admin::v1::ListSessionsRequest;
using admin::v1::ListSessionsResponse;
using admin::v1::RegistryOverview;
using admin::v1::ServiceSummary;
using admin::v1::SessionSummary;
using etcdserverpb::LeaseTimeToLiveResponse;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using failback::etcd::v1::IncarnationRecord;
using failback::etcd::v1::SessionRecord;

constexpr int64_t kKeysPerPage = 1000;
// Leases that etcd is asked for at a time.
constexpr int kLeasesAtOnce = 64;

SessionSummary Summarize(const SessionRecord& record, const mvccpb::KeyValue& kv) {
  SessionSummary session;
  session.set_incarnation(record.incarnation());
  session.set_client_name(record.client_name());
  session.set_rank(record.rank() != 0 ? record.rank()
                                      : static_cast<uint64_t>(kv.create_revision()));
  *session.mutable_ttl() = ToProto(absl::Milliseconds(record.ttl_ms()));
  return session;
}

void SetLease(const LeaseTimeToLiveResponse& lease, absl::Time now, SessionSummary* session) {
  if (lease.ttl() <= 0) return;  // it has just ended
  *session->mutable_expire_time() = ToProto(now + absl::Seconds(lease.ttl()));
}

RangeRequest PageOf(std::string begin, const KeyRange& range) {
  RangeRequest read;
  read.set_key(std::move(begin));
  read.set_range_end(range.end);
  read.set_limit(kKeysPerPage);
  return read;
}

// The key after the last of a page.
std::string NextOf(const RangeResponse& page) {
  return absl::StrCat(page.kvs(page.kvs_size() - 1).key(), std::string(1, '\0'));
}

}  // namespace

void OperatorView::ReadContents(Client::Done<ContentsPtr> done) {
  {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(done));
    if (std::exchange(reading_, true)) return;
  }
  StartReading();
}

void OperatorView::StartReading() {
  {
    MutexLock lock(&mu_);
    waiting_for_contents_.swap(waiting_);
  }
  ReadMore(std::make_shared<Contents>(), keys_->AllInstances().begin);
}

void OperatorView::ReadMore(const std::shared_ptr<Contents>& contents, std::string begin) {
  client_->Range(PageOf(std::move(begin), keys_->AllInstances()),
                 [this, contents](absl::StatusOr<RangeResponse> page) {
                   if (!page.ok()) return FinishReading(page.status());
                   for (const mvccpb::KeyValue& kv : page->kvs()) Take(kv, contents.get());
                   if (!page->more()) {
                     TakeLast(nullptr, contents.get());
                     return FinishReading(ContentsPtr(contents));
                   }
                   ReadMore(contents, NextOf(*page));
                 });
}

void OperatorView::Take(const mvccpb::KeyValue& kv, Contents* contents) const {
  if (auto canonical = keys_->ParseInstance(kv.key()); canonical.has_value()) {
    TakeLast(nullptr, contents);
    contents->last = kv;
    contents->last_canonical = *std::move(canonical);
  } else if (const auto marked = keys_->ParseMark(kv.key());
             marked.has_value() && *marked == contents->last_canonical) {
    TakeLast(&kv, contents);
  }
}

void OperatorView::TakeLast(const mvccpb::KeyValue* mark, Contents* contents) {
  if (!contents->last.has_value()) return;
  const mvccpb::KeyValue kv = *std::exchange(contents->last, std::nullopt);
  const StoredRecord stored = DecodeStored(contents->last_canonical, kv.value());
  if (!stored.instance) return;
  const registry::v1::InstanceRecord record =
      MakeRecord(stored, kv, mark == nullptr ? Blob() : DecodeMark(mark->value()));
  failback::Count(StateOf(record), record.instance().persistent(), +1,
                  &contents->services[std::string(ServiceKeyOf(contents->last_canonical))]);
  if (!stored.meta.owner().empty()) ++contents->owned[stored.meta.owner()];
}

void OperatorView::FinishReading(const absl::StatusOr<ContentsPtr>& contents) {
  std::vector<Client::Done<ContentsPtr>> waiting;
  bool again;
  {
    MutexLock lock(&mu_);
    waiting.swap(waiting_for_contents_);
    again = !waiting_.empty();
    reading_ = again;
  }
  for (Client::Done<ContentsPtr>& done : waiting) std::move(done)(contents);
  if (again) StartReading();
}

void OperatorView::ListServices(const ListServicesRequest& request,
                                Callback<ListServicesResponse> done) {
  ReadContents([request, done = std::move(done)](absl::StatusOr<ContentsPtr> contents) mutable {
    if (!contents.ok()) return std::move(done)(contents.status());
    std::vector<ServiceSummary> services;
    services.reserve((*contents)->services.size());
    for (const auto& [key, counts] : (*contents)->services) {
      ServiceSummary& service = services.emplace_back();
      const size_t end = key.find('\0');
      service.set_namespace_(key.substr(0, end));
      service.set_name(key.substr(end + 1));
      *service.mutable_instances() = counts;
    }
    std::move(done)(QueryServices(request, std::move(services)));
  });
}

struct OperatorView::SessionListing {
  struct Found {
    SessionSummary session;
    int64_t create_revision = 0;
    int64_t lease = 0;
  };

  ListSessionsRequest request;
  Callback<ListSessionsResponse> done;
  ContentsPtr contents;
  // By incarnation: of one that has just opened a new session the old one may still be there.
  absl::flat_hash_map<std::string, Found> found;
  Mutex mu;
  ListSessionsResponse response;
};

void OperatorView::ListSessions(const ListSessionsRequest& request,
                                Callback<ListSessionsResponse> done) {
  auto listing = std::make_shared<SessionListing>();
  listing->request = request;
  listing->done = std::move(done);
  ReadContents([this, listing](absl::StatusOr<ContentsPtr> contents) {
    if (!contents.ok()) return std::move(listing->done)(contents.status());
    listing->contents = *std::move(contents);
    ReadSessions(listing, keys_->Sessions().begin);
  });
}

void OperatorView::ReadSessions(const std::shared_ptr<SessionListing>& listing, std::string begin) {
  client_->Range(PageOf(std::move(begin), keys_->Sessions()),
                 [this, listing](absl::StatusOr<RangeResponse> page) {
                   if (!page.ok()) return std::move(listing->done)(page.status());
                   for (const mvccpb::KeyValue& kv : page->kvs()) {
                     SessionRecord record;
                     if (!record.ParseFromString(kv.value()) || record.leases_size() == 0) continue;
                     SessionListing::Found& found = listing->found[record.incarnation()];
                     if (found.create_revision > kv.create_revision()) continue;
                     found = {Summarize(record, kv), kv.create_revision(), record.leases(0)};
                   }
                   if (page->more()) return ReadSessions(listing, NextOf(*page));
                   SelectSessions(listing);
                 });
}

void OperatorView::SelectSessions(const std::shared_ptr<SessionListing>& listing) {
  std::vector<SessionSummary> sessions;
  sessions.reserve(listing->found.size());
  for (const auto& [incarnation, found] : listing->found) {
    SessionSummary& session = sessions.emplace_back(found.session);
    const auto owned = listing->contents->owned.find(incarnation);
    if (owned != listing->contents->owned.end()) session.set_instances(owned->second);
  }
  absl::StatusOr<ListSessionsResponse> response =
      QuerySessions(listing->request, std::move(sessions));
  if (!response.ok()) return std::move(listing->done)(response.status());
  listing->response = *std::move(response);
  ReadLeases(listing, 0);
}

void OperatorView::ReadLeases(const std::shared_ptr<SessionListing>& listing, int begin) {
  const int end = std::min(begin + kLeasesAtOnce, listing->response.sessions_size());
  if (begin == end) return std::move(listing->done)(std::move(listing->response));
  auto gather = std::make_shared<Gather>([this, listing, end](const absl::Status& status) {
    if (!status.ok()) return std::move(listing->done)(status);
    ReadLeases(listing, end);
  });
  for (int i = begin; i < end; ++i) {
    const int64_t lease = listing->found[listing->response.sessions(i).incarnation()].lease;
    client_->LeaseTimeToLive(
        lease, /*keys=*/false,
        [this, listing, gather, i](absl::StatusOr<LeaseTimeToLiveResponse> lease) {
          gather->Note(lease.status());
          if (!lease.ok()) return;
          MutexLock lock(&listing->mu);
          SetLease(*lease, client_->WallNow(), listing->response.mutable_sessions(i));
        });
  }
}

void OperatorView::ListAgents(const ListAgentsRequest& request,
                              Callback<ListAgentsResponse> done) const {
  std::move(done)(QueryAgents(request, agents_.All(), client_->WallNow()));
}

struct OperatorView::Description {
  InstanceKey key;
  std::string canonical;
  Callback<InstanceDescription> done;

  struct Version {
    StoredRecord stored;
    ServiceInstance instance;
    int64_t revision;
    bool first;  // of a key that was not there before
  };
  std::vector<Version> versions;  // the newest first
  Blob mark;                      // that is there now
  int64_t mark_revision = 0;

  Mutex mu;
  InstanceDescription result;

  InstanceChange MarkChange() const;
  // What the version at `i` changed; nothing that an operator would see.
  std::optional<InstanceChange> ChangeAt(size_t i) const;
};

void OperatorView::Describe(const InstanceKey& key, Callback<InstanceDescription> done) {
  auto description = std::make_shared<Description>();
  description->key = key;
  description->canonical = CanonicalKey(key);
  description->done = std::move(done);
  ReadVersion(description, 0);
}

void OperatorView::ReadVersion(const std::shared_ptr<Description>& description, int64_t before) {
  RangeRequest read;
  read.set_key(keys_->Instance(description->canonical));
  if (before > 0) {
    read.set_revision(before - 1);
  } else {
    const KeyRange both = keys_->InstanceWithMark(description->canonical);
    read.set_key(both.begin);
    read.set_range_end(both.end);
  }
  client_->Range(
      std::move(read), [this, description, before](absl::StatusOr<RangeResponse> response) {
        // What is compacted is not remembered.
        if (before > 0 && ErrorOf(response.status()) == Error::kCompacted) {
          return ReadOwner(description);
        }
        if (!response.ok()) return std::move(description->done)(response.status());
        const mvccpb::KeyValue* found = nullptr;
        for (const mvccpb::KeyValue& kv : response->kvs()) {
          if (kv.key() == keys_->Instance(description->canonical)) {
            found = &kv;
          } else if (kv.key() == keys_->Mark(description->canonical)) {
            description->mark = DecodeMark(kv.value());
            description->mark_revision = kv.mod_revision();
          }
        }
        if (found == nullptr) return ReadOwner(description);
        const mvccpb::KeyValue& kv = *found;
        Description::Version& version = description->versions.emplace_back();
        version.stored = DecodeStored(description->canonical, kv.value());
        version.revision = kv.mod_revision();
        version.first = kv.version() == 1;
        if (version.stored.instance) {
          version.instance = MakeRecord(version.stored, kv, Blob()).instance();
          if (before == 0) {
            registry::v1::InstanceRecord record = MakeRecord(version.stored, kv, description->mark);
            description->result.mutable_instance()->set_state(StateOf(record));
            *description->result.mutable_instance()->mutable_record() = std::move(record);
            description->result.set_fence_rank(version.stored.fence().rank);
          }
        }
        if (version.first || description->versions.size() > kMaxHistory)
          return ReadOwner(description);
        ReadVersion(description, kv.mod_revision());
      });
}

void OperatorView::ReadOwner(const std::shared_ptr<Description>& description) {
  const std::string& owner = description->result.instance().record().incarnation();
  if (owner.empty()) return FinishDescription(description);
  client_->Get(keys_->Incarnation(owner),
               [this, description](absl::StatusOr<RangeResponse> response) {
                 if (!response.ok()) return std::move(description->done)(response.status());
                 IncarnationRecord incarnation;
                 if (response->kvs_size() > 0)
                   incarnation.ParseFromString(response->kvs(0).value());
                 client_->Get(keys_->Session(incarnation.session_id()),
                              [this, description](absl::StatusOr<RangeResponse> session) {
                                if (!session.ok())
                                  return std::move(description->done)(session.status());
                                if (session->kvs_size() == 0) return FinishDescription(description);
                                ReadOwnersLeases(description, session->kvs(0));
                              });
               });
}

void OperatorView::ReadOwnersLeases(const std::shared_ptr<Description>& description,
                                    const mvccpb::KeyValue& kv) {
  SessionRecord record;
  if (!record.ParseFromString(kv.value()) || record.leases_size() == 0) {
    return FinishDescription(description);
  }
  SessionSummary& session = *description->result.mutable_session();
  session = Summarize(record, kv);
  auto gather = std::make_shared<Gather>([description](const absl::Status& status) {
    if (!status.ok()) return std::move(description->done)(status);
    FinishDescription(description);
  });
  TxnRequest persistent;
  AddCount(keys_->PersistentOf(record.incarnation()), persistent.mutable_success());
  client_->Txn(std::move(persistent), [description, gather](absl::StatusOr<TxnResponse> response) {
    gather->Note(response.status());
    if (!response.ok()) return;
    MutexLock lock(&description->mu);
    SessionSummary& session = *description->result.mutable_session();
    session.set_instances(session.instances() +
                          static_cast<int32_t>(response->responses(0).response_range().count()));
  });
  for (int i = 0; i < record.leases_size(); ++i) {
    client_->LeaseTimeToLive(
        record.leases(i), /*keys=*/true,
        [this, description, gather, i](absl::StatusOr<LeaseTimeToLiveResponse> lease) {
          gather->Note(lease.status());
          if (!lease.ok()) return;
          const auto instances =
              std::count_if(lease->keys().begin(), lease->keys().end(),
                            [&](const auto& key) { return keys_->ParseInstance(key).has_value(); });
          MutexLock lock(&description->mu);
          SessionSummary& session = *description->result.mutable_session();
          session.set_instances(session.instances() + static_cast<int32_t>(instances));
          if (i == 0) SetLease(*lease, client_->WallNow(), &session);
        });
  }
}

InstanceChange OperatorView::Description::MarkChange() const {
  registry::v1::OfflineMark parsed;
  parsed.ParseFromArray(mark.data(), static_cast<int>(mark.size()));
  InstanceChange change;
  change.set_kind(admin::v1::CHANGE_KIND_OFFLINE);
  change.set_by(parsed.by());
  change.set_detail(parsed.reason());
  if (parsed.has_time()) *change.mutable_time() = parsed.time();
  change.set_revision(static_cast<uint64_t>(mark_revision));
  return change;
}

std::optional<InstanceChange> OperatorView::Description::ChangeAt(size_t i) const {
  const Version& now = versions[i];
  const Version* const before = i + 1 < versions.size() ? &versions[i + 1] : nullptr;
  const bool was_there = before != nullptr ? static_cast<bool>(before->stored.instance)
                                           : !now.first && now.stored.meta.create_revision() != 0;
  InstanceChange change;
  change.set_by(now.stored.meta.client_name());
  if (now.stored.meta.modify_ms() != 0) {
    *change.mutable_time() = ToProto(absl::FromUnixMillis(now.stored.meta.modify_ms()));
  }
  change.set_revision(static_cast<uint64_t>(now.revision));
  change.set_generation(now.stored.meta.fence().generation());
  if (!now.stored.instance) {
    if (before != nullptr && !was_there) return std::nullopt;  // another fence
    // What is put in place of an expired instance (registry/etcd/fences.h) has no time.
    const bool expired = now.first && now.stored.meta.modify_ms() == 0;
    change.set_kind(expired ? admin::v1::CHANGE_KIND_EXPIRED : admin::v1::CHANGE_KIND_UNREGISTERED);
  } else if (!was_there) {
    change.set_kind(admin::v1::CHANGE_KIND_REGISTERED);
  } else if (before != nullptr && before->stored.meta.owner() != now.stored.meta.owner()) {
    change.set_kind(admin::v1::CHANGE_KIND_REPLACED);
  } else {
    // Of a new session of its owner, or of a lease.
    if (before != nullptr && before->stored.instance == now.stored.instance) return std::nullopt;
    change.set_kind(admin::v1::CHANGE_KIND_UPDATED);
    if (before != nullptr) SetHealthChange(before->instance, now.instance, &change);
  }
  return change;
}

void OperatorView::FinishDescription(const std::shared_ptr<Description>& description) {
  const std::vector<Description::Version>& versions = description->versions;
  if (versions.empty() && !description->mark) {
    return std::move(description->done)(
        Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                absl::StrCat("key: ", KeyText(description->key),
                             " is not registered, and etcd remembers nothing of what has ended")));
  }
  bool marked = static_cast<bool>(description->mark);
  const auto add_mark = [&](int64_t older_than) {
    if (!marked || description->mark_revision < older_than) return;
    *description->result.add_history() = description->MarkChange();
    marked = false;
  };
  for (size_t i = 0; i < versions.size() && i < kMaxHistory; ++i) {
    add_mark(versions[i].revision);
    std::optional<InstanceChange> change = description->ChangeAt(i);
    if (change.has_value()) *description->result.add_history() = *std::move(change);
  }
  add_mark(0);
  std::move(description->done)(std::move(description->result));
}

void OperatorView::Count(Callback<RegistryOverview> done) {
  TxnRequest read;
  identity_->AddTo(&read);
  AddCount(keys_->Sessions(), read.mutable_success());
  AddCount(keys_->Incarnations(), read.mutable_success());
  client_->Txn(std::move(read),
               [this, done = std::move(done)](absl::StatusOr<TxnResponse> response) mutable {
                 if (!response.ok()) return std::move(done)(response.status());
                 const Store store = identity_->Take(*response);
                 const auto count = [&](int place) {
                   return static_cast<int32_t>(
                       response->responses(Identity::kGets + place).response_range().count());
                 };
                 RegistryOverview overview;
                 overview.set_store_id(store.store_id);
                 overview.set_epoch(store.epoch);
                 overview.set_revision(static_cast<uint64_t>(response->header().revision()));
                 overview.set_sessions(count(0));
                 overview.set_incarnations(count(1));
                 for (const auto& agent : agents_.All()) {
                   overview.set_agents(overview.agents() + 1);
                   if (!TroublesOf(agent.session(), agent.report(), client_->WallNow()).empty()) {
                     overview.set_agents_in_trouble(overview.agents_in_trouble() + 1);
                   }
                 }
                 std::move(done)(std::move(overview));
               });
}

}  // namespace etcd
}  // namespace failback
