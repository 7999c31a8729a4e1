#include "registry/etcd/watcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "registry/base/steady_time.h"
#include "registry/etcd/error.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::WatchRequest;
using etcdserverpb::WatchResponse;

constexpr absl::Duration kCheckInterval = absl::Milliseconds(500);
// Of the answer to a progress request, and of the refusal of a watch that was asked for.
constexpr int64_t kNoWatch = -1;

}  // namespace

void Watcher::SendCreate(int64_t id, const Entry& entry) {
  WatchRequest request;
  auto* create = request.mutable_create_request();
  create->set_key(entry.key);
  create->set_range_end(entry.range_end);
  create->set_start_revision(entry.next_revision);
  create->set_progress_notify(true);
  create->set_watch_id(id);
  create->set_fragment(true);
  unanswered_.push_back(id);
  stream_->Send(std::move(request));
}

int64_t Watcher::Watch(std::string key, std::string range_end, int64_t start_revision,
                       std::shared_ptr<Sink> sink) {
  int64_t id;
  bool check = false;
  std::shared_ptr<Client::WatchStream> opened;
  {
    MutexLock lock(&mu_);
    check = !std::exchange(checking_, true);
    if (check) last_received_ = client_->Now();
    id = ++last_id_;
    const Entry& entry =
        entries_
            .emplace(
                id,
                Entry{std::move(key), std::move(range_end), start_revision, std::move(sink), {}})
            .first->second;
    if (stream_ != nullptr) {
      SendCreate(id, entry);
    } else if (!reopening_) {
      opened = NewStream();
    }
  }
  if (opened != nullptr) opened->Start();
  if (check) client_->After(kCheckInterval, [this] { CheckLife(); });
  return id;
}

void Watcher::Cancel(int64_t id) {
  Entry cancelled;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  cancelled = std::move(it->second);
  entries_.erase(it);
  if (stream_ == nullptr) return;
  WatchRequest request;
  request.mutable_cancel_request()->set_watch_id(id);
  stream_->Send(std::move(request));
}

std::shared_ptr<Client::WatchStream> Watcher::NewStream() {
  stream_ = client_->NewWatch({[this](WatchResponse response) { OnMessage(std::move(response)); },
                               [this](const absl::Status& status) { OnStreamEnd(status); }});
  asked_ = SteadyPast();
  unanswered_.clear();
  for (auto& [id, entry] : entries_) {
    entry.parts.clear();
    SendCreate(id, entry);
  }
  return stream_;
}

void Watcher::Reopen() {
  std::shared_ptr<Client::WatchStream> opened;
  {
    MutexLock lock(&mu_);
    reopening_ = false;
    if (stream_ == nullptr && !entries_.empty()) opened = NewStream();
  }
  if (opened != nullptr) opened->Start();
}

// What a message completes: the events of one or more revisions, or nothing.
std::vector<mvccpb::Event> Watcher::TakeEvents(WatchResponse* response, Entry* entry) {
  std::move(response->mutable_events()->begin(), response->mutable_events()->end(),
            std::back_inserter(entry->parts));
  if (response->fragment()) return {};
  std::vector<mvccpb::Event> events = std::exchange(entry->parts, {});
  if (events.empty()) {
    // Progress: nothing up to here is missing.
    if (!response->created()) {
      entry->next_revision = std::max(entry->next_revision, response->header().revision() + 1);
    }
    return events;
  }
  // A stream that was replaced may have delivered some of it.
  const auto delivered = [&](const mvccpb::Event& event) {
    return event.kv().mod_revision() < entry->next_revision;
  };
  events.erase(std::remove_if(events.begin(), events.end(), delivered), events.end());
  if (!events.empty()) entry->next_revision = events.back().kv().mod_revision() + 1;
  return events;
}

void Watcher::OnMessage(WatchResponse response) {
  std::shared_ptr<Sink> sink;
  std::vector<mvccpb::Event> events;
  absl::Status end;
  std::shared_ptr<Client::WatchStream> refused;
  int64_t revision = 0;
  {
    MutexLock lock(&mu_);
    last_received_ = client_->Now();
    asked_ = SteadyPast();
    int64_t id = response.watch_id();
    if (id == kNoWatch && !response.canceled()) return;  // a sign of life
    if ((response.created() || id == kNoWatch) && !unanswered_.empty()) {
      // etcd answers in order; a refusal names no watch.
      if (id == kNoWatch) id = unanswered_.front();
      unanswered_.pop_front();
    }
    const auto it = entries_.find(id);
    if (it == entries_.end()) return;  // cancelled meanwhile
    Entry& entry = it->second;
    sink = entry.sink;
    if (response.canceled() || response.compact_revision() != 0) {
      end = response.compact_revision() != 0
                ? FromEtcdText("etcdserver: mvcc: required revision has been compacted")
                : FromEtcdText(response.cancel_reason());
      // A stream keeps the token that it was opened with, also when that has ended. The next stream
      // has a new one. Some versions of etcd say "permission denied" then.
      if (response.compact_revision() == 0) refused = stream_;
      if (ErrorOf(end) == Error::kInvalidToken) {
        end = absl::OkStatus();
        sink = nullptr;
      } else {
        entries_.erase(it);
      }
    } else {
      events = TakeEvents(&response, &entry);
      if (events.empty()) return;
      revision = events.back().kv().mod_revision();
    }
  }
  if (refused != nullptr) refused->Abandon(FromEtcdText("etcdserver: invalid auth token"));
  if (sink == nullptr) return;
  if (end.ok()) {
    sink->OnEvents(revision, std::move(events));
  } else {
    sink->OnEnd(end);
  }
}

void Watcher::OnStreamEnd(const absl::Status& status) {
  const bool closed = client_->closed();
  absl::flat_hash_map<int64_t, Entry> over;
  bool reopen;
  {
    MutexLock lock(&mu_);
    stream_ = nullptr;
    const bool again = IsTransient(status) || ErrorOf(status) == Error::kInvalidToken;
    if (closed || !again || client_->Now() - last_received_ > outage_limit_) over.swap(entries_);
    reopen = !entries_.empty() && !std::exchange(reopening_, true);
  }
  for (auto& [id, entry] : over) entry.sink->OnEnd(status);
  if (reopen) client_->After(client_->timing().round_delay, [this] { Reopen(); });
}

// Asks a silent stream for an answer, and ends one that gives none.
void Watcher::CheckLife() {
  std::shared_ptr<Client::WatchStream> stuck;
  {
    MutexLock lock(&mu_);
    const SteadyTime now = client_->Now();
    const absl::Duration limit = client_->timing().attempt_timeout;
    checking_ = !entries_.empty() && !client_->closed();
    if (stream_ != nullptr && checking_) {
      if (asked_ != SteadyPast() && now - asked_ > limit) {
        stuck = stream_;
      } else if (asked_ == SteadyPast() && now - last_received_ > limit) {
        asked_ = now;
        WatchRequest request;
        request.mutable_progress_request();
        stream_->Send(std::move(request));
      }
    }
    if (!checking_) return;
  }
  if (stuck != nullptr) {
    stuck->Abandon(
        absl::UnavailableError("the member of etcd does not answer on its watch stream"));
  }
  client_->After(kCheckInterval, [this] { CheckLife(); });
}

}  // namespace etcd
}  // namespace failback
