#include "registry/watch/conflator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/watch/keyed_hash.h"

namespace failback {
namespace {

// An operation's bytes beside themselves: their count, and the heap's own.
constexpr size_t kBlobBytes = 24;

// What a subscriber alone may still hold of a snapshot for each instance that has changed
// since: the old one, of about the size of the new, and the list that it is in.
constexpr size_t kOldListBytes = 320;

// Of a shared message that is being written no more than this is counted: changes to come would end
// the stream of one who is just busy reading it.
constexpr size_t kMostSharedBytes = 256 << 10;

// 0 is kept for instances that go.
uint64_t ContentDigest(const Blob& instance) {
  return std::max<uint64_t>(1, KeyedHash(instance.view()));
}

}  // namespace

Conflator::Changes Conflator::ChangesOf(const Event& event) {
  std::vector<Change> changes;
  if (event.is_snapshot() && event.instances() > kMaxContents) {
    return std::make_shared<ChangeList>(std::move(changes), 0);
  }
  changes.reserve(event.instances() + event.removals().size());
  event.ForEachInstance([&](const Blob& instance) {
    changes.push_back({KeyedHash(KeyOf(instance)), ContentDigest(instance)});
  });
  for (const std::string& key : event.removals()) changes.push_back({KeyedHash(key), 0});
  return std::make_shared<ChangeList>(std::move(changes),
                                      event.is_snapshot() ? 0 : event.PartBytes(0));
}

void Conflator::State::Apply(const KnownSet::Changes& changes) {
  const size_t count = changes.list().size();
  if (SizeOf(contents) + count > kMaxContents) {
    contents.reset();
    complete = false;
    if (count > kMaxContents) return;
  }
  contents = changes.After(contents);
}

void Conflator::State::MoveTo(const Event& event) {
  known = true;
  flags = event.flags();
  epoch = event.epoch();
  revision = event.revision();
}

std::optional<uint64_t> Conflator::State::ContentOf(uint64_t key) const {
  const uint64_t content = failback::ContentOf(contents, key);
  if (content == 0 && !complete) return std::nullopt;
  return content;
}

size_t Conflator::State::bytes() const { return contents == nullptr ? 0 : contents->bytes(); }

Conflator::Conflator(uint64_t epoch, uint64_t revision) : order_(epoch, revision) {
  written_.known = resuming_ = order_.known();
  written_.epoch = epoch;
  written_.revision = revision;
}

absl::Status Conflator::CheckForward(const Event& snapshot) {
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

absl::Status Conflator::Add(EventPtr event, Changes changes) {
  if (absl::Status status = order_.Check(*event); !status.ok()) return status;
  if (!event->is_snapshot()) {
    if (changes == nullptr) changes = ChangesOf(*event);
    return AddToRest(std::move(event), std::move(changes));
  }
  if (absl::Status status = CheckForward(*event); !status.ok()) return status;
  if (changes == nullptr) changes = ChangesOf(*event);
  // It takes the place of all that waits.
  rest_.reset();
  next_ = std::make_unique<NextSnapshot>();
  next_->after.MoveTo(*event);
  next_->after.complete = event->instances() <= kMaxContents;
  next_->after.Apply(changes->changes);
  next_->event = std::move(event);
  return absl::OkStatus();
}

absl::Status Conflator::AddToRest(EventPtr event, Changes changes) {
  if (event->is_delta()) resuming_ = false;
  if (rest_ == nullptr) {
    rest_ = std::make_unique<Rest>();
    rest_->revision = event->is_delta() ? event->revision() : Base().revision;
    rest_->flags = event->flags();
    rest_->single = std::move(event);
    rest_->changes = std::move(changes);
    if (!busy_ || rest_->changes->bytes <= kSharedBytes) return absl::OkStatus();
    Unfold();
  } else {
    Unfold();
    Merge(*event, changes->changes.list());
  }
  if (bytes() > kMaxBytes) {
    return Refusal(registry::v1::ERROR_REASON_SUBSCRIBER_SLOW,
                   absl::StrCat("the subscriber is ", rest_->operations.size(),
                                " changes behind: a snapshot is shorter"));
  }
  return absl::OkStatus();
}

void Conflator::Merge(const Event& event, const std::vector<Change>& changes) {
  rest_->flags = event.flags();
  if (!event.is_delta()) return;
  rest_->revision = event.revision();
  const auto put = [&](const Change& change, Blob bytes) {
    const size_t size = kBlobBytes + bytes.size();
    rest_->operations[change.key] = {change.content, std::move(bytes)};
    rest_->operation_bytes += size;
  };
  // False: the subscriber has it so, or will have.
  const auto is_news = [&](const Change& change) {
    if (const auto it = rest_->operations.find(change.key); it != rest_->operations.end()) {
      rest_->operation_bytes -= kBlobBytes + it->second.bytes.size();
      rest_->operations.erase(it);
    }
    return Base().ContentOf(change.key) != change.content;
  };
  auto change = changes.begin();
  event.ForEachInstance([&](const Blob& instance) {
    if (is_news(*change)) put(*change, instance);
    ++change;
  });
  for (const std::string& key : event.removals()) {
    if (is_news(*change)) put(*change, Blob(key));
    ++change;
  }
}

void Conflator::Unfold() {
  if (rest_->single == nullptr) return;
  const EventPtr single = std::move(rest_->single);
  const Changes changes = std::move(rest_->changes);
  Merge(*single, changes->changes.list());
}

void Conflator::StartNext() {
  const State& after = next_->after;
  const bool same = told_ && written_.complete && after.complete && written_.epoch == after.epoch &&
                    written_.flags == after.flags && HaveSame(written_.contents, after.contents);
  if (!same) {
    written_ = std::move(next_->after);
    snapshot_ = std::move(next_->event);
    part_ = 0;
  }
  next_.reset();
}

Conflator::Message Conflator::Take() {
  Written();
  if (snapshot_ == nullptr && next_ != nullptr) StartNext();
  Message message;
  if (snapshot_ != nullptr) {
    message.event = snapshot_;
    message.part = part_++;
    taken_bytes_ = snapshot_->PartBytes(message.part);
    if (part_ == snapshot_->parts()) snapshot_.reset();
  } else if (rest_ != nullptr) {
    message.event = TakeRest();
  }
  busy_ = static_cast<bool>(message);
  told_ = told_ || busy_;
  return message;
}

EventPtr Conflator::TakeRest() {
  if (EventPtr single = rest_->single; single != nullptr) {
    const bool on_base = single->is_delta()
                             ? single->base_revision() == written_.revision
                             : single->revision() == written_.revision || !written_.known;
    const bool news = single->is_delta() || !told_ || single->flags() != written_.flags;
    if (on_base && news) {
      taken_bytes_ = std::min(rest_->changes->bytes, kMostSharedBytes);
      if (single->is_delta()) {
        written_.Apply(rest_->changes->changes);
        written_.MoveTo(*single);
      }
      written_.flags = single->flags();
      rest_.reset();
      return single;
    }
  }
  Unfold();
  return TakeMerged();
}

EventPtr Conflator::TakeMerged() {
  Rest rest = std::move(*std::exchange(rest_, nullptr));
  if (rest.operations.empty()) {
    if (told_ && rest.flags == written_.flags) return nullptr;
    if (told_ || !written_.known) {
      written_.flags = rest.flags;
      return Event::Flags(written_.epoch, written_.revision, rest.flags);
    }
  }
  std::vector<Change> changes;
  changes.reserve(rest.operations.size());
  std::vector<Blob> upserts;
  std::vector<std::string> removals;
  for (auto& [key, operation] : rest.operations) {
    changes.push_back({key, operation.content});
    if (operation.content != 0) {
      upserts.push_back(std::move(operation.bytes));
    } else {
      removals.emplace_back(operation.bytes.view());
    }
  }
  EventPtr event = Event::Delta(written_.epoch, written_.revision, rest.revision, rest.flags,
                                std::move(upserts), std::move(removals));
  taken_bytes_ = rest.operation_bytes;
  written_.Apply(KnownSet::Changes(std::move(changes)));
  written_.MoveTo(*event);
  return event;
}

size_t Conflator::pending() const {
  size_t pending = 0;
  if (snapshot_ != nullptr) pending += snapshot_->parts() - part_;
  if (next_ != nullptr) pending += next_->event->parts();
  if (rest_ != nullptr) pending += rest_->single != nullptr ? 1 : rest_->operations.size();
  return pending;
}

size_t Conflator::waiting_bytes() const {
  size_t bytes = 0;
  // Parts are about as large as the first that is left.
  if (snapshot_ != nullptr) bytes += snapshot_->PartBytes(part_) * (snapshot_->parts() - part_);
  if (next_ != nullptr) bytes += next_->event->PartBytes(0) * next_->event->parts();
  if (rest_ != nullptr) {
    bytes += rest_->single != nullptr ? rest_->changes->bytes : rest_->operation_bytes;
  }
  return bytes;
}

size_t Conflator::bytes() const {
  size_t bytes = sizeof(*this) + written_.bytes() + held_bytes();
  if (next_ != nullptr) bytes += next_->after.bytes();
  return bytes;
}

size_t Conflator::held_bytes() const {
  size_t bytes = taken_bytes_;
  if (snapshot_ != nullptr) bytes += snapshot_->bytes();
  if (next_ != nullptr) bytes += sizeof(*next_) + next_->event->bytes();
  if (rest_ != nullptr) {
    const size_t count = rest_->operations.size();
    bytes += sizeof(*rest_) + rest_->operation_bytes +
             rest_->operations.capacity() * (sizeof(std::pair<uint64_t, Operation>) + 1);
    // The snapshot that it follows may keep the old ones.
    const bool old = snapshot_ != nullptr || next_ != nullptr;
    if (old) bytes += rest_->operation_bytes + count * kOldListBytes;
  }
  return bytes;
}

}  // namespace failback
