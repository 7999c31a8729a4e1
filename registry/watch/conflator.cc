#include "registry/watch/conflator.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/instance_view.h"
#include "registry/watch/keyed_hash.h"

namespace failback {
namespace {

uint64_t KeyDigest(const InstanceKey& key) { return KeyedHash(CanonicalKey(key)); }

// An operation's bytes beside themselves: their count, and the heap's own.
constexpr size_t kBlobBytes = 24;

// What a subscriber alone may still hold of a lazy snapshot for each instance that has changed
// since: the old one, of about the size of the new, and the list that it is in.
constexpr size_t kOldListBytes = 320;

// Of a shared message that is being written no more than this is counted: changes to come would end
// the stream of one who is just busy reading it.
constexpr size_t kMostSharedBytes = 256 << 10;

// Of an instance's canonical bytes; 0 is kept for those that go.
uint64_t ContentDigest(const std::string& canonical) {
  return std::max<uint64_t>(1, KeyedHash(canonical));
}

uint64_t ContentDigest(const ServiceInstance& instance) {
  return ContentDigest(CanonicalInstance(instance));
}

}  // namespace

Conflator::Changes Conflator::ChangesOf(const SubscribeResponse& message) {
  auto list = std::make_shared<ChangeList>();
  const auto& instances =
      message.has_snapshot() ? message.snapshot().instances() : message.delta().upserts();
  list->changes.reserve(instances.size() + message.delta().removals_size());
  for (const auto& instance : instances) {
    list->changes.push_back({KeyDigest(instance.key()), ContentDigest(instance)});
  }
  for (const auto& key : message.delta().removals()) list->changes.push_back({KeyDigest(key), 0});
  list->bytes = message.ByteSizeLong();
  return list;
}

Conflator::Changes Conflator::ChangesOf(const LazySnapshot& snapshot) {
  auto list = std::make_shared<ChangeList>();
  if (snapshot.instances() > kMaxContents) return list;
  list->changes.reserve(snapshot.instances());
  EncodedInstance encoded;
  std::string canonical;
  ServiceInstance parsed;
  snapshot.ForEach([&](std::string_view bytes) {
    if (ReadInstance(bytes, &encoded)) {
      const InstanceView& view = encoded.view;
      canonical.resize(encoded.CanonicalSize());
      encoded.WriteCanonical(canonical.data());
      list->changes.push_back(
          {KeyedHash(CanonicalKey(view.name_space, view.service, view.instance_id)),
           ContentDigest(canonical)});
    } else {
      parsed.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
      list->changes.push_back({KeyDigest(parsed.key()), ContentDigest(parsed)});
    }
  });
  return list;
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
  flags = SetFlags::Of(message);
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
  written_.known = resuming_ = order_.known();
  written_.epoch = epoch;
  written_.revision = revision;
}

absl::Status Conflator::CheckForward(const SubscribeResponse& snapshot) {
  if (std::exchange(resuming_, false) && snapshot.epoch() == written_.epoch &&
      snapshot.revision() < written_.revision) {
    written_.known = false;
  }
  if (!written_.known || snapshot.epoch() != written_.epoch ||
      snapshot.revision() >= written_.revision) {
    return absl::OkStatus();
  }
  return Refusal(registry::v1::ERROR_REASON_POSITION_LOST,
                 absl::StrCat("the source is back in epoch ", written_.epoch, " at revision ",
                              snapshot.revision(), ", and revision ", written_.revision,
                              " was sent: subscribe again without a position"));
}

void Conflator::BeginSnapshot() {
  rest_.reset();
  next_ = std::make_unique<NextSnapshot>();
  next_->after.complete = true;
}

absl::Status Conflator::Add(Event event, Changes changes) {
  const bool continues = order_.in_snapshot();
  if (absl::Status status = order_.Check(*event); !status.ok()) return status;
  if (changes == nullptr) changes = ChangesOf(*event);
  if (!event->has_snapshot()) return AddToRest(std::move(event), std::move(changes));

  if (!continues) {
    if (absl::Status status = CheckForward(*event); !status.ok()) return status;
    BeginSnapshot();
  }
  next_->after.MoveTo(*event);
  next_->after.Apply(changes->changes);
  next_->whole = !event->snapshot().more();
  next_->parts.push_back(std::move(event));
  return absl::OkStatus();
}

absl::Status Conflator::Add(Snapshot snapshot, Changes changes) {
  SubscribeResponse position;
  position.set_epoch(snapshot->epoch());
  position.set_revision(snapshot->revision());
  snapshot->flags().Put(&position);
  position.mutable_snapshot();
  if (order_.in_snapshot()) {
    return Refusal(registry::v1::ERROR_REASON_POSITION_LOST, "a snapshot came within another");
  }
  if (absl::Status status = order_.Check(position); !status.ok()) return status;
  if (absl::Status status = CheckForward(position); !status.ok()) return status;
  if (changes == nullptr) changes = ChangesOf(*snapshot);
  BeginSnapshot();
  next_->after.MoveTo(position);
  next_->after.complete = snapshot->instances() <= kMaxContents;
  next_->after.Apply(changes->changes);
  next_->whole = true;
  next_->lazy = std::move(snapshot);
  return absl::OkStatus();
}

absl::Status Conflator::AddToRest(Event event, Changes changes) {
  if (event->has_delta()) resuming_ = false;
  if (rest_ == nullptr) {
    rest_ = std::make_unique<Rest>();
    rest_->revision = event->has_delta() ? event->revision() : Base().revision;
    rest_->flags = SetFlags::Of(*event);
    rest_->single = std::move(event);
    rest_->changes = std::move(changes);
    if (!busy_ || rest_->changes->bytes <= kSharedBytes) return absl::OkStatus();
    Unfold();
  } else {
    Unfold();
    Merge(*event, changes->changes);
  }
  if (bytes() > kMaxBytes) {
    return Refusal(registry::v1::ERROR_REASON_SUBSCRIBER_SLOW,
                   absl::StrCat("the subscriber is ", rest_->operations.size(),
                                " changes behind: a snapshot is shorter"));
  }
  return absl::OkStatus();
}

void Conflator::Merge(const SubscribeResponse& message, const std::vector<Change>& changes) {
  rest_->flags = SetFlags::Of(message);
  if (!message.has_delta()) return;
  rest_->revision = message.revision();
  const auto& upserts = message.delta().upserts();
  for (int i = 0; i < static_cast<int>(changes.size()); ++i) {
    const auto [key, content] = changes[i];
    if (const auto it = rest_->operations.find(key); it != rest_->operations.end()) {
      rest_->operation_bytes -= kBlobBytes + it->second.bytes.size();
      rest_->operations.erase(it);
    }
    if (Base().ContentOf(key) == content) continue;
    const google::protobuf::MessageLite& part =
        content != 0 ? static_cast<const google::protobuf::MessageLite&>(upserts[i])
                     : message.delta().removals(i - upserts.size());
    const size_t size = part.ByteSizeLong();
    Operation& operation = rest_->operations[key];
    operation.content = content;
    operation.bytes = Blob(size, [&](char* bytes) {
      part.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(bytes));
    });
    rest_->operation_bytes += kBlobBytes + size;
  }
}

void Conflator::Unfold() {
  if (rest_->single == nullptr) return;
  const Event single = std::move(rest_->single);
  const Changes changes = std::move(rest_->changes);
  Merge(*single, changes->changes);
}

void Conflator::StartNext() {
  const State& after = next_->after;
  const bool same = told_ && written_.complete && after.complete && written_.epoch == after.epoch &&
                    written_.flags == after.flags && written_.contents == after.contents;
  if (!same) {
    written_ = std::move(next_->after);
    parts_ = std::move(next_->parts);
    std::reverse(parts_.begin(), parts_.end());
    lazy_ = std::move(next_->lazy);
    lazy_part_ = 0;
  }
  next_.reset();
}

Conflator::Message Conflator::Take() {
  busy_ = false;
  taken_bytes_ = 0;
  if (!in_snapshot() && next_ != nullptr) {
    if (!next_->whole) return {};
    StartNext();
  }
  Message message;
  if (!parts_.empty()) {
    message.event = std::move(parts_.back());
    parts_.pop_back();
  } else if (lazy_ != nullptr) {
    message.snapshot = lazy_;
    message.part = lazy_part_++;
    taken_bytes_ = lazy_->PartBytes(message.part);
    if (lazy_part_ == lazy_->parts()) lazy_.reset();
  } else if (rest_ != nullptr) {
    message.event = TakeRest();
  }
  busy_ = static_cast<bool>(message);
  told_ = told_ || busy_;
  return message;
}

Conflator::Event Conflator::TakeRest() {
  if (Event single = rest_->single; single != nullptr) {
    const bool on_base = single->has_delta()
                             ? single->delta().base_revision() == written_.revision
                             : single->revision() == written_.revision || !written_.known;
    const SetFlags flags = SetFlags::Of(*single);
    const bool news = single->has_delta() || !told_ || flags != written_.flags;
    if (on_base && news) {
      taken_bytes_ = std::min(rest_->changes->bytes, kMostSharedBytes);
      if (single->has_delta()) {
        written_.Apply(rest_->changes->changes);
        written_.MoveTo(*single);
      }
      written_.flags = flags;
      rest_.reset();
      return single;
    }
  }
  Unfold();
  return TakeMerged();
}

Conflator::Event Conflator::TakeMerged() {
  const Rest rest = std::move(*std::exchange(rest_, nullptr));
  if (rest.operations.empty() && told_ && rest.flags == written_.flags) return nullptr;

  auto message = std::make_shared<SubscribeResponse>();
  message->set_epoch(written_.epoch);
  message->set_revision(written_.revision);
  rest.flags.Put(message.get());
  if (!rest.operations.empty() || (!told_ && written_.known)) {
    auto* delta = message->mutable_delta();
    delta->set_base_revision(written_.revision);
    message->set_revision(rest.revision);
    std::vector<Change> changes;
    changes.reserve(rest.operations.size());
    for (const auto& [key, operation] : rest.operations) {
      changes.push_back({key, operation.content});
      google::protobuf::MessageLite* const part =
          operation.content != 0 ? static_cast<google::protobuf::MessageLite*>(delta->add_upserts())
                                 : delta->add_removals();
      part->ParseFromArray(operation.bytes.data(), static_cast<int>(operation.bytes.size()));
    }
    taken_bytes_ = rest.operation_bytes;
    written_.Apply(changes);
    written_.MoveTo(*message);
  } else {
    written_.flags = rest.flags;
  }
  return message;
}

size_t Conflator::pending() const {
  size_t pending = parts_.size();
  if (lazy_ != nullptr) pending += lazy_->parts() - lazy_part_;
  if (next_ != nullptr) pending += next_->lazy ? next_->lazy->parts() : next_->parts.size();
  if (rest_ != nullptr) pending += rest_->single != nullptr ? 1 : rest_->operations.size();
  return pending;
}

size_t Conflator::bytes() const {
  size_t bytes = sizeof(*this) + written_.bytes() + taken_bytes_;
  bool lazy = lazy_ != nullptr;
  if (lazy) bytes += lazy_->bytes();
  if (next_ != nullptr) {
    bytes += sizeof(*next_) + next_->after.bytes();
    if (next_->lazy != nullptr) bytes += next_->lazy->bytes();
    lazy = lazy || next_->lazy != nullptr;
  }
  if (rest_ != nullptr) {
    const size_t count = rest_->operations.size();
    bytes += sizeof(*rest_) + rest_->operation_bytes +
             rest_->operations.capacity() * (sizeof(std::pair<uint64_t, Operation>) + 1);
    if (lazy) bytes += rest_->operation_bytes + count * kOldListBytes;
  }
  return bytes;
}

}  // namespace failback
