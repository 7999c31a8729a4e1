// A batch of intents: what one Register or one Unregister carries, checked and canonical.
//
// Choose it wherever intents go from one place to another, as LevelDB's WriteBatch: it is made
// once, where the request comes in, and then decided, stored, journalled and sent as it is. An
// instance in it is its canonical bytes (registry/model/canonical.h); they are shared, not copied.
//
// A batch is read from the bytes of a request without a message in between. Bytes that are not
// encoded as protobuf's serializers do it, and requests of which something is to be refused, are
// parsed as a whole: there is one place where errors are made.
//
//   absl::StatusOr<Batch> batch = Batch::Read(Batch::Kind::kRegister, bytes, limits);
//   if (!batch.ok()) return batch.status();  // no RegisterRequest, or too large
//   registry->Write(*std::move(batch), [](absl::StatusOr<BatchResult> result) { … });
//
// An intent whose `status` is not OK is refused by validation. A registry that decides answers with
// that status; one that only passes the batch on sends the item as it came.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_MODEL_BATCH_H_
#define FAILBACK_REGISTRY_MODEL_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/model/blob.h"
#include "registry/model/fencing.h"
#include "registry/model/messages.h"
#include "registry/model/wire_bounds.h"

namespace failback {

// What has become of a batch.
struct BatchResult {
  // Of each intent, in order. None: each is ACKNOWLEDGED under the generation that it came with.
  std::vector<registry::v1::IntentResult> results;
  uint64_t epoch = 0;
  uint64_t revision = 0;

  // `Response`: RegisterResponse, UnregisterResponse, or RegisterStreamResponse.
  template <typename Response>
  static BatchResult Of(Response response) {
    BatchResult result;
    result.results.reserve(static_cast<size_t>(response.results_size()));
    for (auto& one : *response.mutable_results()) result.results.push_back(std::move(one));
    result.epoch = response.epoch();
    result.revision = response.revision();
    return result;
  }
  template <typename Response>
  Response ToResponse() && {
    Response response;
    response.mutable_results()->Reserve(static_cast<int>(results.size()));
    for (auto& one : results) *response.add_results() = std::move(one);
    response.set_epoch(epoch);
    response.set_revision(revision);
    return response;
  }
};

class Batch {
 public:
  enum class Kind { kRegister, kUnregister };

  // What a request may be made of.
  struct Limits {
    WireBounds bounds;
    uint32_t max_items;
  };

  // Of the intents, in order. A call is answered with them where results are left out.
  using Generations = absl::InlinedVector<uint64_t, 4>;

  using Done = absl::AnyInvocable<void(absl::StatusOr<BatchResult>) &&>;

  // An empty one, in a session or, if that is empty, detached.
  explicit Batch(Kind kind = Kind::kRegister, std::string session_id = "")
      : kind_(kind), session_id_(std::move(session_id)) {}

  // Out of the bytes of a RegisterRequest or UnregisterRequest. INVALID_ARGUMENT: they are none
  // (INVALID_FIELD), or beyond the limits (TOO_LARGE).
  static absl::StatusOr<Batch> Read(Kind kind, std::string_view request, const Limits& limits);

  static Batch Of(const RegisterRequest& request);
  static Batch Of(const UnregisterRequest& request);

  // What a caller has checked before, as a batch that it was in: it is not read again. `key` is
  // canonical; `instance` has that key, canonical too; `persistent` is its field.
  void Put(std::string_view key, Blob instance, bool persistent, uint64_t generation);
  void Remove(std::string_view key, uint64_t generation);

  Kind kind() const { return kind_; }
  size_t size() const { return intents_.size(); }
  bool empty() const { return intents_.empty(); }
  const std::vector<Intent>& intents() const { return intents_; }
  const std::string& session_id() const { return session_id_; }
  void set_session_id(std::string session_id) { session_id_ = std::move(session_id); }
  registry::v1::IntentState wait_for() const { return wait_for_; }
  bool check() const { return check_; }
  Generations generations() const;

  // What a registry that decides asks first: the error of the call as a whole, if there is one.
  // After OK each intent without an error is complete.
  absl::Status Check(uint32_t max_batch);

  // The intents themselves. After Check.
  std::vector<Intent> TakeIntents() && { return std::move(intents_); }

  // Takes out the intents whose `statuses` are not OK. What is returned is to be answered for those
  // that are left: it puts the statuses back in between, and answers `done`.
  Done Refuse(std::vector<absl::Status> statuses, Done done);

  // The bytes of the request.
  std::string Encode() const;

 private:
  template <typename Request>
  static Batch OfItems(Kind kind, const Request& request, std::vector<Intent> intents);
  template <typename Request>
  static absl::StatusOr<Batch> Parse(std::string_view request, const Limits& limits);
  // False: parse it.
  bool ReadEncoded(std::string_view request, uint32_t max_items);

  Kind kind_;
  std::string session_id_;
  registry::v1::IntentState wait_for_ = registry::v1::INTENT_STATE_UNSPECIFIED;
  bool check_ = false;
  std::vector<Intent> intents_;
};

// Puts results in that were left out.
void FillIn(const Batch::Generations& asked, BatchResult* result);

// The bytes of the response, without a message for each result. `asked` null: a result that is left
// out stays so.
std::string EncodeResponse(const BatchResult& result, const Batch::Generations* asked);

// --- For registries that decide.

// One for each intent: its status where it is refused already.
std::vector<IntentOutcome> BeginOutcomes(const std::vector<Intent>& intents);

// `as_asked`: each outcome is OK, under the generation that its intent came with.
BatchResult ResultOf(const std::vector<IntentOutcome>& outcomes, bool as_asked, uint64_t epoch,
                     uint64_t revision);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_BATCH_H_
