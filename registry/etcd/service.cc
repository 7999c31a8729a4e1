#include "registry/etcd/service.h"

#include <utility>

#include "registry/etcd/error.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/model/canonical.h"
#include "registry/model/offline_mark.h"

namespace failback {
namespace etcd {

using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

void Services::Stream::Attach(std::unique_ptr<SubscribeStream> inner) {
  MutexLock lock(&mu_);
  // If it is closed `inner` goes with the caller's frame, after the lock.
  if (!closed_) inner_ = std::move(inner);
}

void Services::Stream::Close() {
  std::unique_ptr<SubscribeStream> inner;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    inner = std::move(inner_);
  }
}

bool Services::Stream::closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

Services::Service::Service(Services* services, std::string key)
    : services_(services),
      key_(std::move(key)),
      is_namespace_(key_.back() == '\0'),
      range_(is_namespace_ ? services->keys_->Namespace(key_.substr(0, key_.size() - 1))
                           : services->keys_->Service(key_)) {}

void Services::Service::Load() {
  TxnRequest read;
  services_->identity_->AddTo(&read);
  auto* range = read.mutable_success()->Add()->mutable_request_range();
  range->set_key(range_.begin);
  range->set_range_end(range_.end);
  range->set_limit(services_->options_.page_size);
  services_->client_->Txn(
      std::move(read), [self = shared_from_this()](absl::StatusOr<TxnResponse> response) {
        if (!response.ok()) return self->OnLoadFailed(response.status());
        const Store store = self->services_->identity_->Take(*response);
        if (!store.known()) {
          // A store without a name yet gets one, and then is read.
          return self->services_->identity_->Ensure([self](const absl::StatusOr<Store>& made) {
            if (!made.ok()) return self->OnLoadFailed(made.status());
            self->Load();
          });
        }
        const RangeResponse& page = response->responses(Identity::kGets).response_range();
        auto contents = std::make_shared<Contents>();
        for (const mvccpb::KeyValue& kv : page.kvs()) self->Take(kv, contents.get());
        const int64_t revision = response->header().revision();
        if (!page.more()) return self->OnLoaded(std::move(*contents), revision, store);
        self->LoadMore(contents, revision, page.kvs(page.kvs_size() - 1).key(), store);
      });
}

// The pages after the first, of the same revision.
void Services::Service::LoadMore(const std::shared_ptr<Contents>& contents, int64_t revision,
                                 const std::string& after, const Store& store) {
  RangeRequest read;
  read.set_key(after + '\0');
  read.set_range_end(range_.end);
  read.set_limit(services_->options_.page_size);
  read.set_revision(revision);
  services_->client_->Range(std::move(read), [self = shared_from_this(), contents, revision,
                                              store](absl::StatusOr<RangeResponse> page) mutable {
    if (ErrorOf(page.status()) == Error::kCompacted) return self->Load();
    if (!page.ok()) return self->OnLoadFailed(page.status());
    for (const mvccpb::KeyValue& kv : page->kvs()) self->Take(kv, contents.get());
    if (!page->more()) return self->OnLoaded(std::move(*contents), revision, store);
    self->LoadMore(contents, revision, page->kvs(page->kvs_size() - 1).key(), store);
  });
}

void Services::Service::Take(const mvccpb::KeyValue& kv, Contents* contents) const {
  if (const auto canonical = services_->keys_->ParseInstance(kv.key()); canonical.has_value()) {
    StoredRecord record = DecodeStored(*canonical, kv.value());
    if (!record.instance) return;
    contents->instances.insert_or_assign(*canonical, Kept(std::move(record)));
  } else if (const auto marked = services_->keys_->ParseMark(kv.key());
             marked.has_value() && !is_namespace_) {
    contents->marks.insert_or_assign(*marked, DecodeMark(kv.value()));
  }
}

Services::Service::Held Services::Service::Kept(StoredRecord record) const {
  static const Blob* const there = new Blob(std::string_view());
  if (!record.instance) return Held();
  if (is_namespace_) return {*there};
  return {std::move(record.instance), record.fence().rank};
}

void Services::Service::OnLoaded(Contents&& contents, int64_t revision, const Store& store) {
  const std::shared_ptr<SubscriptionHub> hub = services_->Hub(store.epoch);
  if (hub == nullptr) return OnLoadFailed(absl::UnavailableError("etcd has begun a new epoch"));
  SubscriptionHub::Deliveries deliveries;
  SubscriptionHub::Due due;
  {
    MutexLock lock(&mu_);
    if (dropped_) return;
    // What was there and is not any more, and what is there now.
    Blobs before;
    const auto gone = [](const auto& known, const auto& now) {
      std::vector<std::string> keys;
      for (const auto& [key, value] : known) {
        if (!now.contains(key)) keys.push_back(key);
      }
      return keys;
    };
    for (const std::string& key : gone(copy_, contents.instances)) SetInstance(key, {}, &before);
    for (const std::string& key : gone(marked_, contents.marks)) SetMark(key, {}, &before);
    for (auto& [key, held] : contents.instances) SetInstance(key, std::move(held), &before);
    for (auto& [key, mark] : contents.marks) SetMark(key, std::move(mark), &before);
    const bool first = hub_ == nullptr;
    hub_ = hub;
    if (first) {
      Changes(before);  // counts
      epoch_ = store.epoch;
      began_ = revision_ = static_cast<uint64_t>(revision);
      for (const auto& stream : waiting_) Join(stream, &deliveries);
      waiting_.clear();
    } else {
      Publish(static_cast<uint64_t>(revision), before, &deliveries, &due);
      began_ = revision_;
    }
    watch_ = services_->watcher_.Watch(range_.begin, range_.end, revision + 1, shared_from_this());
  }
  Compare(hub.get(), due, &deliveries);
  SubscriptionHub::Deliver(deliveries);
}

void Services::Service::OnLoadFailed(const absl::Status& status) {
  services_->Drop(shared_from_this());
  Drop(status);
}

void Services::Service::OnEvents(int64_t revision, std::vector<mvccpb::Event> events) {
  std::shared_ptr<SubscriptionHub> hub;
  SubscriptionHub::Deliveries deliveries;
  SubscriptionHub::Due due;
  std::vector<Fences::Gone> gone;
  {
    MutexLock lock(&mu_);
    if (dropped_) return;
    Blobs before;
    for (const mvccpb::Event& event : events) {
      const bool put = event.type() == mvccpb::Event::PUT;
      const std::string& key = event.kv().key();
      if (static_cast<uint64_t>(event.kv().mod_revision()) <= skip_until_) {
        NotePassed(event, &gone);
      } else if (const auto canonical = services_->keys_->ParseInstance(key);
                 canonical.has_value()) {
        if (!put) NoteGone(*canonical, event.kv().mod_revision(), &gone);
        SetInstance(*canonical, put ? Kept(DecodeStored(*canonical, event.kv().value())) : Held(),
                    &before);
      } else if (const auto marked = services_->keys_->ParseMark(key);
                 marked.has_value() && !is_namespace_) {
        SetMark(*marked, put ? DecodeMark(event.kv().value()) : Blob(), &before);
      }
    }
    if (static_cast<uint64_t>(revision) > skip_until_) {
      passed_.clear();
      Publish(static_cast<uint64_t>(revision), before, &deliveries, &due);
    }
    // Of several revisions the hub has what they come to: another server published those between.
    if (!events.empty() && events.front().kv().mod_revision() != revision) began_ = revision_;
    hub = hub_;
  }
  // Before any listener is notified that it has gone.
  services_->fences_->Add(std::move(gone));
  Compare(hub.get(), due, &deliveries);
  SubscriptionHub::Deliver(deliveries);
}

// An instance that is deleted, not unregistered: its session has ended.
void Services::Service::NoteGone(const std::string& key, int64_t revision,
                                 std::vector<Fences::Gone>* gone) const {
  const auto it = copy_.find(key);
  if (it != copy_.end() && it->second.rank != 0) gone->push_back({key, it->second.rank, revision});
}

// The copy has what it led to. What came and went again meanwhile has gone all the same.
void Services::Service::NotePassed(const mvccpb::Event& event, std::vector<Fences::Gone>* gone) {
  const auto canonical = services_->keys_->ParseInstance(event.kv().key());
  if (!canonical.has_value()) return;
  const auto passed = passed_.find(*canonical);
  if (event.type() == mvccpb::Event::PUT) {
    passed_[*canonical] = Kept(DecodeStored(*canonical, event.kv().value())).rank;
  } else if (passed == passed_.end()) {
    NoteGone(*canonical, event.kv().mod_revision(), gone);
    passed_[*canonical] = 0;
  } else if (const uint64_t rank = std::exchange(passed->second, 0); rank != 0) {
    gone->push_back({*canonical, rank, event.kv().mod_revision()});
  }
}

void Services::Service::OnEnd(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    watch_ = 0;
    if (dropped_) return;
  }
  // What has happened meanwhile is in the difference; if etcd is unavailable, that has it.
  if (ErrorOf(status) == Error::kCompacted) return Load();
  services_->client_->After(services_->client_->timing().round_delay,
                            [self = shared_from_this()] { self->Load(); });
}

void Services::Service::SetInstance(const std::string& key, Held held, Blobs* before) {
  const auto it = marked_.find(key);
  if (it == marked_.end()) return Set(key, std::move(held), before);
  Marked& marked = it->second;
  if (marked.held.instance && !held.instance) marked.absent = services_->client_->Now();
  marked.held = std::move(held);
  Set(key, {WithMark(marked.held.instance, marked.mark), marked.held.rank}, before);
}

void Services::Service::SetMark(const std::string& key, Blob mark, Blobs* before) {
  const auto it = marked_.find(key);
  if (!mark) {
    if (it == marked_.end()) return;
    Held held = std::move(it->second.held);
    marked_.erase(it);
    return Set(key, std::move(held), before);
  }
  Marked* marked = nullptr;
  if (it != marked_.end()) {
    marked = &it->second;
  } else {
    const auto known = copy_.find(key);
    marked = &marked_[key];
    if (known != copy_.end()) marked->held = known->second;
    marked->absent = services_->client_->Now();
  }
  marked->mark = std::move(mark);
  Set(key, {WithMark(marked->held.instance, marked->mark), marked->held.rank}, before);
}

std::vector<std::string> Services::Service::StaleMarks(SteadyTime since) {
  std::vector<std::string> stale;
  MutexLock lock(&mu_);
  for (const auto& [key, marked] : marked_) {
    if (!marked.held.instance && marked.absent < since) stale.push_back(key);
  }
  return stale;
}

void Services::Service::Set(const std::string& key, Held now, Blobs* before) {
  const auto it = copy_.find(key);
  before->try_emplace(key, it == copy_.end() ? Blob() : it->second.instance);
  if (now.instance) {
    copy_.insert_or_assign(key, std::move(now));
  } else if (it != copy_.end()) {
    copy_.erase(it);
  }
}

void Services::Service::Publish(uint64_t revision, const Blobs& before,
                                SubscriptionHub::Deliveries* deliveries,
                                SubscriptionHub::Due* due) {
  revision_ = revision;
  std::vector<InstanceChange> changes = Changes(before);
  if (changes.empty()) return;
  CommitResult commit;
  commit.revision = revision;
  commit.services.push_back({key_, std::move(changes), static_cast<int64_t>(copy_.size())});
  const auto contents = [this](const std::string&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return SubscriptionHub::Present{Entries(), revision_};
  };
  hub_->Publish(std::move(commit), contents, deliveries, due);
}

void Services::Service::Compare(SubscriptionHub* hub, const SubscriptionHub::Due& due,
                                SubscriptionHub::Deliveries* deliveries) {
  const auto contents = [this](const std::string&) {
    MutexLock lock(&mu_);
    return SubscriptionHub::Present{Entries(), revision_};
  };
  for (const auto& topic : due) {
    while (hub->Compare(topic, contents, deliveries)) {
    }
  }
}

std::vector<InstanceChange> Services::Service::Changes(const Blobs& before) {
  if (is_namespace_) return NamespaceChanges(before);
  std::vector<InstanceChange> changes;
  for (const auto& [key, old] : before) {
    const auto it = copy_.find(key);
    const Blob now = it == copy_.end() ? Blob() : it->second.instance;
    if (now != old) changes.push_back({old, now});
  }
  return changes;
}

// Takes the services' new counts, too.
std::vector<InstanceChange> Services::Service::NamespaceChanges(const Blobs& before) {
  absl::btree_map<std::string, int64_t> more;
  for (const auto& [key, old] : before) {
    const int64_t now = copy_.contains(key) ? 1 : 0;
    more[std::string(ServiceKeyOf(key))] += now - (old ? 1 : 0);
  }
  std::vector<InstanceChange> changes;
  for (const auto& [service, change] : more) {
    if (change == 0) continue;
    int64_t& count = counts_[service];
    changes.push_back(
        {MakeServiceEntry(service, count), MakeServiceEntry(service, count + change)});
    count += change;
    if (count == 0) counts_.erase(service);
  }
  return changes;
}

std::vector<Blob> Services::Service::Entries() const {
  std::vector<Blob> entries;
  if (is_namespace_) {
    for (const auto& [service, count] : counts_)
      entries.push_back(MakeServiceEntry(service, count));
    return entries;
  }
  entries.reserve(copy_.size());
  for (const auto& [key, held] : copy_) entries.push_back(held.instance);
  return entries;
}

void Services::Service::Join(const std::shared_ptr<Stream>& stream,
                             SubscriptionHub::Deliveries* deliveries) {
  if (stream->closed()) return;
  idle_ = false;
  if (!IsFromElsewhere(stream->request())) {
    return Enter(stream, stream->request(), stream->listener(), deliveries);
  }
  if (stream->request().revision() > revision_) return CatchUp(stream);
  if (!is_namespace_ && Resume(stream)) return;
  EnterWithSnapshot(stream, deliveries);
}

void Services::Service::EnterWithSnapshot(const std::shared_ptr<Stream>& stream,
                                          SubscriptionHub::Deliveries* deliveries) {
  SubscribeRequest request = stream->request();
  request.clear_epoch();
  request.clear_revision();
  Enter(stream, request, stream->listener(), deliveries);
}

void Services::Service::Enter(const std::shared_ptr<Stream>& stream,
                              const SubscribeRequest& request,
                              std::shared_ptr<NotifyListener> listener,
                              SubscriptionHub::Deliveries* deliveries) {
  if (stream->closed()) return;
  idle_ = false;
  hub_->Begin(key_, revision_);
  stream->Attach(hub_->Subscribe(
      request, revision_,
      [this](const std::string&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return SubscriptionHub::Present{Entries(), revision_};
      },
      std::move(listener), deliveries));
}

bool Services::Service::Add(const std::shared_ptr<Stream>& stream,
                            SubscriptionHub::Deliveries* deliveries) {
  MutexLock lock(&mu_);
  if (dropped_) return false;
  if (hub_ == nullptr) {
    waiting_.push_back(stream);
  } else {
    Join(stream, deliveries);
  }
  return true;
}

void Services::Service::Drop(const absl::Status& status) {
  std::vector<std::shared_ptr<Stream>> waiting;
  SubscriptionHub::Deliveries deliveries;
  {
    MutexLock lock(&mu_);
    if (dropped_) return;
    dropped_ = true;
    waiting.swap(waiting_);
    waiting.insert(waiting.end(), ahead_.begin(), ahead_.end());
    ahead_.clear();
    for (auto& [position, streams] : std::exchange(resuming_, {})) {
      waiting.insert(waiting.end(), streams.begin(), streams.end());
    }
    if (watch_ != 0) services_->watcher_.Cancel(watch_);
    if (hub_ != nullptr) {
      hub_->EndTopic(key_, status, &deliveries);
      hub_->Forget(key_);
    }
  }
  for (const auto& stream : waiting) Services::Refuse(stream, status);
  SubscriptionHub::Deliver(deliveries);
}

bool Services::Service::DropIfIdle() {
  MutexLock lock(&mu_);
  if (dropped_) return true;
  if (hub_ == nullptr) return false;
  if (hub_->IsFollowed(key_) || !resuming_.empty() || !ahead_.empty()) {
    idle_ = false;
    return false;
  }
  if (!std::exchange(idle_, true)) return false;
  dropped_ = true;
  hub_->Forget(key_);
  if (watch_ != 0) services_->watcher_.Cancel(watch_);
  return true;
}

}  // namespace etcd
}  // namespace failback
