#include "registry/server/write_threads.h"

#include <optional>
#include <utility>

#include "registry/base/trace_context.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/server/refusals.h"

namespace failback {
namespace {

// A request that is larger than this, some twenty instances, is bulk.
constexpr size_t kLargestSmallRequest = 4096;

// A message of a stream that is no larger than this, some thousand instances, may be carried out
// where it was read.
constexpr size_t kLargestMessageHere = 256 << 10;

bool IsBulk(const grpc::ByteBuffer& request) { return request.Length() > kLargestSmallRequest; }

}  // namespace

WriteThreads::WriteThreads(const Options& options)
    : options_(options), threads_(std::make_unique<ThreadPool>(options.threads)) {}

bool WriteThreads::HasRoomFor(const grpc::ByteBuffer& request) const {
  return !IsBulk(request) ||
         waiting_bytes_ + static_cast<int64_t>(request.Length()) <= options_.max_waiting_bytes;
}

void WriteThreads::Write(Source source, Batch::Kind kind, std::shared_ptr<Registry> registry,
                         const grpc::ByteBuffer& request, Callback<std::string> done) {
  if (!IsBulk(request)) return WriteHere(source, kind, registry.get(), request, std::move(done));
  std::shared_ptr<void> under_way = bulk_calls_.Enter();
  if (source == Source::kStream && bulk_calls_.count() == 1 &&
      request.Length() <= kLargestMessageHere) {
    return WriteHere(source, kind, registry.get(), request, std::move(done));
  }
  const auto size = static_cast<int64_t>(request.Length());
  waiting_bytes_ += size;
  threads_->Execute([this, source, kind, size, under_way = std::move(under_way),
                     registry = std::move(registry), request, parent = CurrentTrace(),
                     done = std::move(done)]() mutable {
    const ScopedTrace trace(std::move(parent));
    waiting_bytes_ -= size;
    if (stopping_) return std::move(done)(ShuttingDown());
    Guarded([&] {
      WriteHere(source, kind, registry.get(), request, std::move(done));
    }).IgnoreError();  // the callback's end has answered
  });
}

void WriteThreads::WriteHere(Source source, Batch::Kind kind, Registry* registry,
                             const grpc::ByteBuffer& request, Callback<std::string> done) const {
  absl::StatusOr<Batch> batch = Batch::Read(kind, Contiguous(request).view(), options_.batch);
  if (!batch.ok()) return std::move(done)(batch.status());
  // What the results that the registry leaves out are filled in from.
  std::optional<Batch::Generations> requested;
  if (source == Source::kCall) requested = batch->generations();
  registry->Write(*std::move(batch), [requested = std::move(requested), done = std::move(done)](
                                         absl::StatusOr<BatchResult> result) mutable {
    if (!result.ok()) return std::move(done)(result.status());
    std::move(done)(EncodeResponse(*result, requested.has_value() ? &*requested : nullptr));
  });
}

}  // namespace failback
