#include "registry/conflator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/canonical.h"

namespace failback {
namespace {

uint64_t KeyDigest(const InstanceKey& key) { return Digest64(CanonicalKey(key)); }

// An operation beside its bytes: a map's node and the heap's own.
constexpr size_t kOperationBytes = 112;

uint64_t ContentDigest(const ServiceInstance& instance) {
  return std::max<uint64_t>(1, Digest64(CanonicalInstance(instance)));
}

}  // namespace

Conflator::Changes Conflator::ChangesOf(const SubscribeResponse& message) {
  auto changes = std::make_shared<std::vector<Change>>();
  const auto& instances =
      message.has_snapshot() ? message.snapshot().instances() : message.delta().upserts();
  changes->reserve(instances.size() + message.delta().removals_size());
  for (const auto& instance : instances) {
    changes->push_back({KeyDigest(instance.key()), ContentDigest(instance)});
  }
  for (const auto& key : message.delta().removals()) changes->push_back({KeyDigest(key), 0});
  return changes;
}

void Conflator::State::Apply(const std::vector<Change>& changes) {
  if (contents.size() + changes.size() > kMaxContents) {
    absl::flat_hash_map<uint64_t, uint64_t>().swap(contents);
    complete = false;
    if (changes.size() > kMaxContents) return;
  }
  for (const Change& change : changes) {
    if (change.content == 0) {
      contents.erase(change.key);
    } else {
      contents[change.key] = change.content;
    }
  }
}

void Conflator::State::MoveTo(const SubscribeResponse& message) {
  known = true;
  stale = message.stale();
  epoch = message.epoch();
  revision = message.revision();
}

std::optional<uint64_t> Conflator::State::ContentOf(uint64_t key) const {
  const auto it = contents.find(key);
  if (it != contents.end()) return it->second;
  if (complete) return 0;
  return std::nullopt;
}

size_t Conflator::State::bytes() const {
  return contents.capacity() * (sizeof(std::pair<uint64_t, uint64_t>) + 1);
}

Conflator::Conflator(uint64_t epoch, uint64_t revision) : order_(epoch, revision) {
  written_.known = order_.known();
  written_.epoch = epoch;
  written_.revision = revision;
}

absl::Status Conflator::Add(Event event, Changes changes) {
  const bool continues = order_.in_snapshot();
  if (absl::Status status = order_.Check(*event); !status.ok()) return status;
  if (changes == nullptr) changes = ChangesOf(*event);
  if (!event->has_snapshot()) return AddToRest(std::move(event), std::move(changes));

  if (!continues) {
    rest_.reset();
    next_ = std::make_unique<Snapshot>();
    next_->after.complete = true;
  }
  next_->after.MoveTo(*event);
  next_->after.Apply(*changes);
  next_->whole = !event->snapshot().more();
  next_->parts.push_back(std::move(event));
  return absl::OkStatus();
}

absl::Status Conflator::AddToRest(Event event, Changes changes) {
  if (rest_ == nullptr) {
    rest_ = std::make_unique<Rest>();
    rest_->revision = event->has_delta() ? event->revision() : Base().revision;
    rest_->stale = event->stale();
    rest_->single = std::move(event);
    rest_->changes = std::move(changes);
    return absl::OkStatus();
  }
  Unfold();
  Merge(*event, *changes);
  if (bytes() > kMaxBytes) {
    return absl::AbortedError(absl::StrCat("the subscriber is ", rest_->operations.size(),
                                           " changes behind: a snapshot is shorter"));
  }
  return absl::OkStatus();
}

void Conflator::Merge(const SubscribeResponse& message, const std::vector<Change>& changes) {
  rest_->stale = message.stale();
  if (!message.has_delta()) return;
  rest_->revision = message.revision();
  const auto& upserts = message.delta().upserts();
  for (int i = 0; i < static_cast<int>(changes.size()); ++i) {
    const auto [key, content] = changes[i];
    if (const auto it = rest_->operations.find(key); it != rest_->operations.end()) {
      rest_->operation_bytes -= kOperationBytes + it->second.bytes.size();
      rest_->operations.erase(it);
    }
    if (Base().ContentOf(key) == content) continue;
    Operation& operation = rest_->operations[key];
    operation.content = content;
    operation.bytes = content != 0
                          ? upserts[i].SerializeAsString()
                          : message.delta().removals(i - upserts.size()).SerializeAsString();
    rest_->operation_bytes += kOperationBytes + operation.bytes.size();
  }
}

void Conflator::Unfold() {
  if (rest_->single == nullptr) return;
  const Event single = std::move(rest_->single);
  const Changes changes = std::move(rest_->changes);
  Merge(*single, *changes);
}

Conflator::Event Conflator::Take() {
  if (parts_.empty() && next_ != nullptr) {
    if (!next_->whole) return nullptr;
    const State& after = next_->after;
    const bool same = told_ && written_.complete && written_.epoch == after.epoch &&
                      written_.stale == after.stale && written_.contents == after.contents;
    if (!same) {
      written_ = std::move(next_->after);
      parts_ = std::move(next_->parts);
      std::reverse(parts_.begin(), parts_.end());
    }
    next_.reset();
  }
  if (!parts_.empty()) {
    Event part = std::move(parts_.back());
    parts_.pop_back();
    return Told(std::move(part));
  }
  return rest_ != nullptr ? TakeRest() : nullptr;
}

Conflator::Event Conflator::TakeRest() {
  if (const Event single = rest_->single; single != nullptr) {
    const bool on_base = single->has_delta()
                             ? single->delta().base_revision() == written_.revision
                             : single->revision() == written_.revision || !written_.known;
    const bool news = single->has_delta() || !told_ || single->stale() != written_.stale;
    if (on_base && news) {
      if (single->has_delta()) {
        written_.Apply(*rest_->changes);
        written_.MoveTo(*single);
      }
      written_.stale = single->stale();
      rest_.reset();
      return Told(single);
    }
  }
  Unfold();
  const Rest rest = std::move(*std::exchange(rest_, nullptr));
  if (rest.operations.empty() && told_ && rest.stale == written_.stale) return nullptr;

  auto message = std::make_shared<SubscribeResponse>();
  message->set_epoch(written_.epoch);
  message->set_revision(written_.revision);
  message->set_stale(rest.stale);
  if (!rest.operations.empty() || (!told_ && written_.known)) {
    auto* delta = message->mutable_delta();
    delta->set_base_revision(written_.revision);
    message->set_revision(rest.revision);
    std::vector<Change> changes;
    for (const auto& [key, operation] : rest.operations) {
      changes.push_back({key, operation.content});
      if (operation.content != 0) {
        delta->add_upserts()->ParseFromString(operation.bytes);
      } else {
        delta->add_removals()->ParseFromString(operation.bytes);
      }
    }
    written_.Apply(changes);
    written_.MoveTo(*message);
  } else {
    written_.stale = rest.stale;
  }
  return Told(std::move(message));
}

Conflator::Event Conflator::Told(Event event) {
  told_ = true;
  return event;
}

size_t Conflator::pending() const {
  size_t pending = parts_.size();
  if (next_ != nullptr) pending += next_->parts.size();
  if (rest_ != nullptr) pending += rest_->single != nullptr ? 1 : rest_->operations.size();
  return pending;
}

size_t Conflator::bytes() const {
  size_t bytes = sizeof(*this) + written_.bytes();
  if (next_ != nullptr) bytes += sizeof(*next_) + next_->after.bytes();
  if (rest_ != nullptr) bytes += sizeof(*rest_) + rest_->operation_bytes;
  return bytes;
}

}  // namespace failback
