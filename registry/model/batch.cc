#include "registry/model/batch.h"

#include <algorithm>
#include <type_traits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/arena.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/hashed_key.h"
#include "registry/model/host_name.h"
#include "registry/model/instance_view.h"
#include "registry/model/validation.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace {

using registry::v1::Deregistration;
using registry::v1::IntentResult;
using registry::v1::Registration;

// Both requests have the same fields, and so have the responses: what is written here is either.
constexpr bool Same(int a, int b) { return a == b; }
template <typename A, typename B>
constexpr bool kSameResponse = Same(A::kResultsFieldNumber, B::kResultsFieldNumber) &&
                               Same(A::kEpochFieldNumber, B::kEpochFieldNumber) &&
                               Same(A::kRevisionFieldNumber, B::kRevisionFieldNumber);
static_assert(kSameResponse<RegisterResponse, UnregisterResponse>);
static_assert(kSameResponse<RegisterResponse, registry::v1::RegisterStreamResponse>);
static_assert(Same(RegisterRequest::kSessionIdFieldNumber,
                   UnregisterRequest::kSessionIdFieldNumber) &&
              Same(RegisterRequest::kRegistrationsFieldNumber,
                   UnregisterRequest::kDeregistrationsFieldNumber) &&
              Same(RegisterRequest::kWaitForFieldNumber, UnregisterRequest::kWaitForFieldNumber) &&
              Same(RegisterRequest::kCheckFieldNumber, UnregisterRequest::kCheckFieldNumber) &&
              Same(Registration::kInstanceFieldNumber, Deregistration::kKeyFieldNumber) &&
              Same(Registration::kGenerationFieldNumber, Deregistration::kGenerationFieldNumber));

const char* ItemsField(Batch::Kind kind) {
  return kind == Batch::Kind::kRegister ? "registrations" : "deregistrations";
}

// Takes the hash of the key, and the digest of the instance if there is one.
void Digest(Intent* intent) {
  intent->key_hash = HashedKey(intent->key).hash;
  if (intent->registers && intent->status.ok()) {
    intent->digest = Digest64(intent->instance.data(), intent->instance.size());
  }
}

// A valid instance, where it is in the bytes of a request.
void Take(const EncodedInstance& instance, Intent* intent) {
  const InstanceView& view = instance.view;
  intent->key = CanonicalKey(view.name_space, view.service, view.instance_id);
  intent->instance =
      Blob(instance.CanonicalSize(), [&](char* out) { instance.WriteCanonical(out); });
  intent->persistent = view.persistent;
  Digest(intent);
}

// The two kinds of item, as messages: valid, or refused with `path` in the words. What is refused
// is kept as it came.
Intent IntentOf(const FieldPath& path, const Registration& item) {
  Intent intent;
  intent.registers = true;
  intent.generation = item.generation();
  intent.key = CanonicalKey(item.instance().key());
  const FieldPath instance_path(path, "instance");
  intent.status = ValidateInstance(instance_path, item.instance());
  if (intent.status.ok()) {
    intent.status =
        ValidateHostName(FieldPath(instance_path, "address"), item.instance().address());
  }
  if (intent.status.ok()) {
    intent.instance = Blob(CanonicalRegistration(item.instance()));
    intent.persistent = item.instance().persistent();
    intent.status = ValidateGeneration(FieldPath(path, "generation"), item.generation());
  } else {
    intent.instance = Blob(item.instance().SerializeAsString());
  }
  return intent;
}
Intent IntentOf(const FieldPath& path, const Deregistration& item) {
  Intent intent;
  intent.generation = item.generation();
  intent.key = CanonicalKey(item.key());
  intent.status = ValidateKey(FieldPath(path, "key"), item.key());
  if (intent.status.ok()) {
    intent.status = ValidateGeneration(FieldPath(path, "generation"), item.generation());
  }
  if (!intent.status.ok()) intent.instance = Blob(item.key().SerializeAsString());
  return intent;
}

// A key that an earlier item has too is an error of the later one.
template <typename Items>
std::vector<Intent> IntentsOf(const Items& items, Batch::Kind kind, const char* key_field) {
  const char* const field = ItemsField(kind);
  std::vector<Intent> intents;
  intents.reserve(static_cast<size_t>(items.size()));  // `seen` refers to keys in it
  absl::flat_hash_map<absl::string_view, int> seen;
  const bool may_repeat = items.size() > 1;
  if (may_repeat) seen.reserve(static_cast<size_t>(items.size()));
  for (int i = 0; i < static_cast<int>(items.size()); ++i) {
    const FieldPath path(field, i);
    Intent& intent = intents.emplace_back(IntentOf(path, items[i]));
    Digest(&intent);
    if (!may_repeat || !intent.status.ok()) continue;
    const auto [it, inserted] = seen.try_emplace(intent.key, i);
    if (inserted) continue;
    intent.status = InvalidField(
        FieldPath(path, key_field).ToString(),
        absl::StrCat(CanonicalKeyText(intent.key), " is in ", field, "[", it->second, "] already"));
  }
  return intents;
}

// Hashes seen so far: open addressing, linear probing, at most half full.
class SeenHashes {
 public:
  explicit SeenHashes(size_t most) {
    size_t slots = 2;
    while (slots < 2 * most) slots *= 2;
    slots_.resize(slots, 0);
  }

  // False if it was there. Zero counts as seen: it marks what is free.
  bool Add(size_t hash) {
    if (hash == 0) return false;
    size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot] == hash) return false;
    }
    slots_[slot] = hash;
    return true;
  }

 private:
  absl::InlinedVector<size_t, 8> slots_;
};

// An IntentResult that is ACKNOWLEDGED.
void AppendAcknowledged(uint64_t generation, std::string* bytes) {
  constexpr uint64_t kState = registry::v1::INTENT_STATE_ACKNOWLEDGED;
  wire::AppendHead(RegisterResponse::kResultsFieldNumber,
                   wire::NumberSize(kState) + (generation == 0 ? 0 : wire::NumberSize(generation)),
                   bytes);
  wire::AppendNumber(IntentResult::kStateFieldNumber, kState, bytes);
  if (generation != 0) {
    wire::AppendNumber(IntentResult::kGenerationFieldNumber, generation, bytes);
  }
}

}  // namespace

absl::StatusOr<Batch> Batch::Read(Kind kind, std::string_view request, const Limits& limits) {
  if (kind == Kind::kUnregister) return Parse<UnregisterRequest>(request, limits);
  Batch batch(kind);
  if (batch.ReadEncoded(request, limits.max_items)) return batch;
  return Parse<RegisterRequest>(request, limits);
}

bool Batch::ReadEncoded(std::string_view request, uint32_t max_items) {
  RegisterReader reader(request);
  if (!reader.ok() ||
      !ValidateBatch(reader.session_id(), reader.wait_for(), static_cast<size_t>(reader.size()),
                     ItemsField(kind_), max_items)
           .ok()) {
    return false;
  }
  session_id_ = std::string(reader.session_id());
  wait_for_ = static_cast<registry::v1::IntentState>(reader.wait_for());
  check_ = reader.check();
  intents_.reserve(static_cast<size_t>(reader.size()));
  // A key that is there twice is refused by the parsed way, which also takes two keys that happen
  // to have the same hash.
  SeenHashes keys(static_cast<size_t>(reader.size()));
  const FieldPath path("registrations");
  EncodedRegistration item;
  for (int i = 0; i < reader.size(); ++i) {
    if (!reader.Next(&item) || !ValidateInstance(path, item.instance.view).ok() ||
        !ValidateHostName(path, item.instance.view.address).ok() ||
        item.generation > kMaxGeneration) {
      return false;
    }
    Intent& intent = intents_.emplace_back();
    intent.registers = true;
    intent.generation = item.generation;
    Take(item.instance, &intent);
    if (!keys.Add(intent.key_hash)) return false;
  }
  return true;
}

template <typename Request>
absl::StatusOr<Batch> Batch::Parse(std::string_view bytes, const Limits& limits) {
  const auto& type = *Request::descriptor();
  if (auto status = CheckWire(type, bytes, limits.bounds); !status.ok()) return status;
  // It has many small parts: an arena costs a third less than the heap.
  google::protobuf::ArenaOptions options;
  options.start_block_size = std::clamp<size_t>(4 * bytes.size(), 1024, 64 << 10);
  options.max_block_size = 64 << 10;
  google::protobuf::Arena arena(options);
  auto* const request = google::protobuf::Arena::CreateMessage<Request>(&arena);
  if (!request->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Refusal(registry::v1::ERROR_REASON_INVALID_FIELD,
                   absl::StrCat("the request is no ", type.name()));
  }
  size_t items;
  if constexpr (std::is_same_v<Request, RegisterRequest>) {
    items = static_cast<size_t>(request->registrations_size());
  } else {
    items = static_cast<size_t>(request->deregistrations_size());
  }
  if (items > limits.max_items) {
    constexpr Kind kKind =
        std::is_same_v<Request, RegisterRequest> ? Kind::kRegister : Kind::kUnregister;
    return ValidateBatch(request->session_id(), request->wait_for(), items, ItemsField(kKind),
                         limits.max_items);
  }
  return Of(*request);
}

template <typename Request>
Batch Batch::OfItems(Kind kind, const Request& request, std::vector<Intent> intents) {
  Batch batch(kind, request.session_id());
  batch.wait_for_ = request.wait_for();
  batch.check_ = request.check();
  batch.intents_ = std::move(intents);
  return batch;
}

Batch Batch::Of(const RegisterRequest& request) {
  return OfItems(Kind::kRegister, request,
                 IntentsOf(request.registrations(), Kind::kRegister, "instance.key"));
}

Batch Batch::Of(const UnregisterRequest& request) {
  return OfItems(Kind::kUnregister, request,
                 IntentsOf(request.deregistrations(), Kind::kUnregister, "key"));
}

void Batch::Put(std::string_view key, Blob instance, bool persistent, uint64_t generation) {
  Intent& intent = intents_.emplace_back();
  intent.registers = true;
  intent.key = std::string(key);
  intent.instance = std::move(instance);
  intent.persistent = persistent;
  intent.generation = generation;
}

void Batch::Remove(std::string_view key, uint64_t generation) {
  Intent& intent = intents_.emplace_back();
  intent.key = std::string(key);
  intent.generation = generation;
}

Batch::Generations Batch::generations() const {
  Generations generations;
  generations.reserve(intents_.size());
  for (const Intent& intent : intents_) generations.push_back(intent.generation);
  return generations;
}

absl::Status Batch::Check(uint32_t max_batch) {
  absl::Status status =
      ValidateBatch(session_id_, wait_for_, intents_.size(), ItemsField(kind_), max_batch);
  if (!status.ok()) return status;
  for (Intent& intent : intents_) {
    if (intent.key_hash == 0) Digest(&intent);
  }
  return absl::OkStatus();
}

Batch::Done Batch::Refuse(std::vector<absl::Status> statuses, Done done) {
  size_t kept = 0;
  for (size_t i = 0; i < intents_.size(); ++i) {
    if (!statuses[i].ok()) continue;
    if (kept != i) intents_[kept] = std::move(intents_[i]);
    ++kept;
  }
  if (kept == intents_.size()) return done;
  intents_.resize(kept);
  return [statuses = std::move(statuses), left = generations(),
          done = std::move(done)](absl::StatusOr<BatchResult> result) mutable {
    if (!result.ok()) return std::move(done)(std::move(result));
    FillIn(left, &*result);
    std::vector<IntentResult> merged(statuses.size());
    size_t next = 0;
    for (size_t i = 0; i < statuses.size(); ++i) {
      if (!statuses[i].ok()) {
        *merged[i].mutable_status() = StatusToProto(statuses[i]);
      } else if (next < result->results.size()) {
        merged[i] = std::move(result->results[next++]);
      }
    }
    result->results = std::move(merged);
    std::move(done)(std::move(result));
  };
}

std::string Batch::Encode() const {
  constexpr size_t kAroundAnItem = 24;  // tags, lengths and the generation
  size_t size = session_id_.size() + kAroundAnItem;
  for (const Intent& intent : intents_) {
    size += (intent.instance ? intent.instance.size() : intent.key.size()) + kAroundAnItem;
  }
  std::string bytes;
  bytes.reserve(size);
  if (!session_id_.empty()) {
    wire::AppendBytes(RegisterRequest::kSessionIdFieldNumber, session_id_, &bytes);
  }
  std::string key;
  for (const Intent& intent : intents_) {
    key.clear();
    if (!intent.instance) AppendEncodedKey(intent.key, &key);
    const std::string_view item = intent.instance ? intent.instance.view() : key;
    const uint64_t generation = intent.generation;
    wire::AppendHead(
        RegisterRequest::kRegistrationsFieldNumber,
        wire::BytesSize(item.size()) + (generation == 0 ? 0 : wire::NumberSize(generation)),
        &bytes);
    wire::AppendBytes(Registration::kInstanceFieldNumber, item, &bytes);
    if (generation != 0) {
      wire::AppendNumber(Registration::kGenerationFieldNumber, generation, &bytes);
    }
  }
  if (wait_for_ != registry::v1::INTENT_STATE_UNSPECIFIED) {
    // A negative one takes ten bytes, as an int32 does.
    wire::AppendNumber(RegisterRequest::kWaitForFieldNumber,
                       static_cast<uint64_t>(static_cast<int64_t>(wait_for_)), &bytes);
  }
  if (check_) wire::AppendNumber(RegisterRequest::kCheckFieldNumber, 1, &bytes);
  return bytes;
}

void FillIn(const Batch::Generations& asked, BatchResult* result) {
  if (!result->results.empty()) return;
  result->results.resize(asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    result->results[i].set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    result->results[i].set_generation(asked[i]);
  }
}

std::string EncodeResponse(const BatchResult& result, const Batch::Generations* asked) {
  std::string bytes;
  if (result.results.empty() && asked != nullptr) {
    for (const uint64_t generation : *asked) AppendAcknowledged(generation, &bytes);
  }
  for (const IntentResult& one : result.results) {
    wire::AppendHead(RegisterResponse::kResultsFieldNumber, one.ByteSizeLong(), &bytes);
    one.AppendToString(&bytes);
  }
  if (result.epoch != 0) {
    wire::AppendNumber(RegisterResponse::kEpochFieldNumber, result.epoch, &bytes);
  }
  if (result.revision != 0) {
    wire::AppendNumber(RegisterResponse::kRevisionFieldNumber, result.revision, &bytes);
  }
  return bytes;
}

std::vector<IntentOutcome> BeginOutcomes(const std::vector<Intent>& intents) {
  std::vector<IntentOutcome> outcomes(intents.size());
  for (size_t i = 0; i < intents.size(); ++i) outcomes[i].status = intents[i].status;
  return outcomes;
}

BatchResult ResultOf(const std::vector<IntentOutcome>& outcomes, bool as_asked, uint64_t epoch,
                     uint64_t revision) {
  BatchResult result;
  result.epoch = epoch;
  result.revision = revision;
  if (as_asked) return result;
  result.results.resize(outcomes.size());
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const IntentOutcome& outcome = outcomes[i];
    IntentResult& one = result.results[i];
    if (outcome.status.ok()) {
      one.set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
      one.set_generation(outcome.generation);
    } else {
      *one.mutable_status() = StatusToProto(outcome.status);
    }
  }
  return result;
}

}  // namespace failback
