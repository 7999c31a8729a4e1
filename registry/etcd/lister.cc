#include "registry/etcd/lister.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "failback/etcd/v1/stored.pb.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/list_scope.h"
#include "registry/model/page_token.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::LeaseTimeToLiveResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr size_t kMaxPageBytes = 2 << 20;
constexpr size_t kKeysPerTxn = 100;
constexpr size_t kRangesPerTxn = 16;
// A page of a filtered listing looks at about so many instances; it may be shorter than asked for.
constexpr size_t kMaxLooked = 5000;
// And reads at least so many at a time.
constexpr size_t kMostlyOthers = 500;
constexpr absl::Duration kRememberKeys = absl::Seconds(30);

}  // namespace

struct Lister::Listing {
  ListRequest request;
  Callback<ListResponse> done;
  bool by_selector = false;
  std::string after;  // canonical
  size_t page_size = 0;

  // Of services. What of ranges[next_range] is before `from` has been read; `last` was returned, or
  // looked at, last.
  std::vector<KeyRange> ranges;
  size_t next_range = 0;
  std::string from;
  std::string last;
  size_t looked = 0;

  // Of an incarnation.
  Mutex mu;
  std::vector<std::string> found ABSL_GUARDED_BY(mu);  // canonical
  OwnedPtr owned;

  ListResponse response;
  size_t bytes = 0;

  void Fail(const absl::Status& status) { std::move(done)(status); }

  size_t records() const { return static_cast<size_t>(response.records_size()); }
  bool IsFull() const { return records() >= page_size || looked >= kMaxLooked; }

  bool Wants(const ServiceInstance& instance) const {
    if (!by_selector) return true;
    const Selector& selector = request.selector();
    const std::string ns =
        selector.namespace_().empty() ? kDefaultNamespace : selector.namespace_();
    return instance.key().namespace_() == ns &&
           (selector.service().empty() || instance.key().service() == selector.service()) &&
           SelectorMatches(selector, instance);
  }

  // Of what the incarnation has: the keys of this page that are shown, and whether there are more.
  std::vector<std::string> KeysOfPage(const ListScopes& scopes, bool* more) const {
    std::vector<std::string> keys;
    const std::vector<std::string>& all = owned->keys;
    for (auto key = std::upper_bound(all.begin(), all.end(), after); key != all.end(); ++key) {
      InstanceKey parsed;
      if (scopes.limited() && !(ParseCanonicalKey(*key, &parsed) &&
                                scopes.Shows(parsed.namespace_(), parsed.service()))) {
        continue;
      }
      *more = keys.size() == page_size;
      if (*more) break;
      keys.push_back(*key);
    }
    return keys;
  }

  // Adds what a key holds, with its mark (null: none), if it is asked for. False when the page is
  // full: the key is for the next.
  bool Take(const std::string& canonical, const mvccpb::KeyValue& kv,
            const mvccpb::KeyValue* mark) {
    const StoredRecord stored = DecodeStored(canonical, kv.value());
    if (!stored.instance) return true;
    if (!request.incarnation().empty() && stored.meta.owner() != request.incarnation()) return true;
    registry::v1::InstanceRecord record =
        MakeRecord(stored, kv, mark == nullptr ? Blob() : DecodeMark(mark->value()));
    if (!Wants(record.instance())) return true;
    if (static_cast<size_t>(response.records_size()) == page_size) return false;
    if (response.records_size() > 0 && bytes + stored.instance.size() > kMaxPageBytes) return false;
    bytes += stored.instance.size();
    *response.add_records() = std::move(record);
    return true;
  }
};

void Lister::List(const ListRequest& request, Callback<ListResponse> done) {
  auto listing = std::make_shared<Listing>();
  listing->request = request;
  listing->done = std::move(done);
  listing->by_selector = request.has_selector() || request.incarnation().empty();
  absl::StatusOr<ListPlace> place = ListPlaceOf(request);
  if (!place.ok()) return listing->Fail(place.status());
  listing->page_size = place->page_size;
  listing->after = std::move(place->after);
  if (!request.incarnation().empty()) return ListIncarnation(listing);
  for (const ServiceRange& range : ListScopes(listing->request, std::nullopt).ranges()) {
    listing->ranges.push_back(range.prefix ? keys_->Beginning(range.text)
                                           : keys_->Service(range.text));
  }
  // A slash in a name sorts elsewhere in etcd.
  std::sort(listing->ranges.begin(), listing->ranges.end(),
            [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; });
  if (!listing->after.empty()) listing->from = keys_->InstanceWithMark(listing->after).end;
  while (listing->next_range < listing->ranges.size() &&
         listing->ranges[listing->next_range].end <= listing->from) {
    ++listing->next_range;
  }
  ListRanges(listing);
}

void Lister::Finish(const std::shared_ptr<Listing>& listing, const std::string& next_after) {
  listing->response.set_next_page_token(ListPageToken(next_after));
  std::move(listing->done)(std::move(listing->response));
}

void Lister::ListRanges(const std::shared_ptr<Listing>& listing) {
  const auto& ranges = listing->ranges;
  const size_t begin = listing->next_range;
  const size_t end = std::min(ranges.size(), begin + kRangesPerTxn);
  TxnRequest read;
  identity_->AddTo(&read);
  size_t room = std::max<size_t>(1, listing->page_size - listing->records());
  if (HasFilter(listing->request.selector())) room = std::max(room, kMostlyOthers);
  for (size_t i = begin; i < end; ++i) {
    auto* get = read.mutable_success()->Add()->mutable_request_range();
    get->set_key(std::max(ranges[i].begin, listing->from));
    get->set_range_end(ranges[i].end);
    // Where a range has more, what was read of those after it is read again. One more than is
    // needed: whether the last one has a mark is in the key after it.
    get->set_limit(static_cast<int64_t>(room / (end - begin) + (end - begin == 1 ? 1 : 2)));
  }
  client_->Txn(std::move(read), [this, listing, begin, end](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return listing->Fail(response.status());
    const uint64_t epoch = identity_->Take(*response).epoch;
    if (listing->response.epoch() == 0) {
      listing->response.set_epoch(epoch);
      listing->response.set_revision(static_cast<uint64_t>(response->header().revision()));
    }
    for (; listing->next_range < end; ++listing->next_range) {
      const auto& part =
          response->responses(Identity::kGets + static_cast<int>(listing->next_range - begin))
              .response_range();
      for (int k = 0; k < part.kvs_size(); ++k) {
        const mvccpb::KeyValue& kv = part.kvs(k);
        const auto canonical = keys_->ParseInstance(kv.key());
        if (!canonical.has_value()) {
          // A key that is not one of ours cannot be the place where a page begins.
          if (auto marked = keys_->ParseMark(kv.key()); marked.has_value()) listing->last = *marked;
          listing->from = kv.key() + '\0';
          continue;
        }
        if (part.more() && k + 1 == part.kvs_size()) break;
        if (listing->looked >= kMaxLooked && !listing->last.empty()) {
          return Finish(listing, listing->last);
        }
        const mvccpb::KeyValue* mark = k + 1 < part.kvs_size() ? &part.kvs(k + 1) : nullptr;
        if (mark != nullptr && mark->key() != keys_->Mark(*canonical)) mark = nullptr;
        ++listing->looked;
        if (!listing->Take(*canonical, kv, mark)) return Finish(listing, listing->last);
        listing->last = *canonical;
        listing->from = keys_->InstanceWithMark(*canonical).end;
      }
      if (part.more()) break;
    }
    if (listing->next_range == listing->ranges.size()) return Finish(listing, "");
    if (listing->IsFull() && !listing->last.empty()) return Finish(listing, listing->last);
    ListRanges(listing);
  });
}

void Lister::ListIncarnation(const std::shared_ptr<Listing>& listing) {
  const std::string& incarnation = listing->request.incarnation();
  if (!listing->after.empty()) {
    MutexLock lock(&mu_);
    const auto it = remembered_.find(incarnation);
    if (it != remembered_.end()) listing->owned = it->second.owned;
  }
  if (listing->owned != nullptr) return ReadKeys(listing);
  TxnRequest read;
  AddGet(keys_->Incarnation(incarnation), read.mutable_success());
  AddGet(keys_->PersistentOf(incarnation), read.mutable_success())->set_keys_only(true);
  client_->Txn(std::move(read), [this, listing](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return listing->Fail(response.status());
    const std::string& incarnation = listing->request.incarnation();
    {
      MutexLock lock(&listing->mu);
      for (const mvccpb::KeyValue& kv : response->responses(1).response_range().kvs()) {
        if (auto key = keys_->ParsePersistent(incarnation, kv.key()); key.has_value()) {
          listing->found.push_back(*std::move(key));
        }
      }
    }
    failback::etcd::v1::IncarnationRecord record;
    if (const auto* kv = Found(*response, 0); kv != nullptr) record.ParseFromString(kv->value());
    ReadLeases(listing, record.session_id());
  });
}

// The keys on the leases of the session, if there is one.
void Lister::ReadLeases(const std::shared_ptr<Listing>& listing, const std::string& session_id) {
  TxnRequest read;
  identity_->AddTo(&read);
  AddGet(keys_->Session(session_id), read.mutable_success());
  client_->Txn(std::move(read), [this, listing, session_id](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return listing->Fail(response.status());
    identity_->Take(*response);
    failback::etcd::v1::SessionRecord record;
    const auto* kv = Found(*response, Identity::kGets);
    if (kv != nullptr) record.ParseFromString(kv->value());
    auto gather = std::make_shared<Gather>([this, listing, session_id](const absl::Status& status) {
      if (!status.ok()) return listing->Fail(status);
      auto owned = std::make_shared<Owned>();
      owned->owner = SessionOwner(session_id);
      std::vector<std::string>& keys = owned->keys;
      {
        MutexLock lock(&listing->mu);
        keys.swap(listing->found);
      }
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      listing->owned = std::move(owned);
      ReadKeys(listing);
    });
    for (const int64_t lease : record.leases()) {
      client_->LeaseTimeToLive(
          lease, /*keys=*/true,
          [this, listing, gather](absl::StatusOr<LeaseTimeToLiveResponse> answer) {
            gather->Note(answer.status());
            if (!answer.ok()) return;
            MutexLock lock(&listing->mu);
            for (const std::string& key : answer->keys()) {
              if (auto canonical = keys_->ParseInstance(key); canonical.has_value()) {
                listing->found.push_back(*std::move(canonical));
              }
            }
          });
    }
  });
}

// One page of what is in listing->owned.
void Lister::ReadKeys(const std::shared_ptr<Listing>& listing) {
  const ListScopes scopes(listing->request, listing->owned->owner);
  listing->response.set_coverage(scopes.coverage());
  bool more = false;
  const std::vector<std::string> keys = listing->KeysOfPage(scopes, &more);
  const size_t end = keys.size();
  const auto answers =
      std::make_shared<std::vector<TxnResponse>>((end + kKeysPerTxn - 1) / kKeysPerTxn + 1);
  auto gather = std::make_shared<Gather>(
      [this, listing, answers, keys, more](const absl::Status& status) mutable {
        if (!status.ok()) return listing->Fail(status);
        std::string last = listing->after;
        for (size_t next = 0; next < keys.size(); ++next) {
          const TxnResponse& answer = (*answers)[next / kKeysPerTxn];
          const auto place = static_cast<int>(next % kKeysPerTxn);
          const auto* kv = Found(answer, place, keys_->Instance(keys[next]));
          const auto* mark = Found(answer, place, keys_->Mark(keys[next]));
          if (kv != nullptr && !listing->Take(keys[next], *kv, mark)) {
            more = true;
            break;
          }
          last = keys[next];
        }
        listing->response.set_epoch(identity_->Take(answers->back()).epoch);
        listing->response.set_revision(static_cast<uint64_t>(answers->back().header().revision()));
        {
          MutexLock lock(&mu_);
          if (more) {
            remembered_[listing->request.incarnation()] = {listing->owned,
                                                           client_->Now() + kRememberKeys};
          } else {
            remembered_.erase(listing->request.incarnation());
          }
        }
        Finish(listing, more ? last : std::string());
      });
  for (size_t i = 0; i < end; i += kKeysPerTxn) {
    TxnRequest read;
    for (size_t k = i; k < std::min(end, i + kKeysPerTxn); ++k) {
      AddGet(keys_->InstanceWithMark(keys[k]), read.mutable_success());
    }
    client_->Txn(std::move(read),
                 [gather, answers, place = i / kKeysPerTxn](absl::StatusOr<TxnResponse> response) {
                   gather->Note(response.status());
                   if (response.ok()) (*answers)[place] = *std::move(response);
                 });
  }
  TxnRequest read;
  identity_->AddTo(&read);
  client_->Txn(std::move(read), [gather, answers](absl::StatusOr<TxnResponse> response) {
    gather->Note(response.status());
    if (response.ok()) answers->back() = *std::move(response);
  });
}

void Lister::Sweep() {
  const SteadyTime now = client_->Now();
  MutexLock lock(&mu_);
  absl::erase_if(remembered_, [&](const auto& entry) { return entry.second.until < now; });
}

}  // namespace etcd
}  // namespace failback
