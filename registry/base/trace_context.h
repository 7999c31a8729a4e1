// The trace that a call belongs to: W3C's `traceparent`, carried from the metadata of a call that
// comes in to the calls that it leads to, and into the log.
//
// Registry has no parameter for it. A server opens a scope around the call that it carries out, on
// the thread on which it does; code that makes another call, or keeps the intent for later, asks
// what the scope holds.
//
// Example: an instance that is registered for a call.
//
//   const ScopedTrace scope(TraceParentOf(context->client_metadata()));
//   const auto registration = agent->Register(me);  // Log() and the call to the registry see it
//
// An agent keeps it with the intent until that is acknowledged, and sends it where a call carries
// that intent alone; a batch has many origins.
//
// Thread safety: a scope belongs to its thread.

#ifndef FAILBACK_REGISTRY_BASE_TRACE_CONTEXT_H_
#define FAILBACK_REGISTRY_BASE_TRACE_CONTEXT_H_

#include <string>

namespace failback {

// The metadata key.
inline constexpr char kTraceParent[] = "traceparent";

// Whether `text` is a traceparent: `00-<32 hex>-<16 hex>-<2 hex>`, in lower case, ids not all zero.
bool IsTraceParent(const std::string& text);

// Until it is destroyed `traceparent` is this thread's; empty or malformed: none. Scopes nest.
class ScopedTrace {
 public:
  explicit ScopedTrace(std::string traceparent);
  ~ScopedTrace();
  ScopedTrace(const ScopedTrace&) = delete;
  ScopedTrace& operator=(const ScopedTrace&) = delete;

 private:
  const std::string traceparent_;
  const std::string* const outer_;
};

// This thread's; empty when there is none.
const std::string& CurrentTrace();

// Of a call's metadata, a multimap of gRPC's string_ref; empty when it has none.
template <typename Metadata>
std::string TraceParentOf(const Metadata& metadata) {
  const auto found = metadata.find(kTraceParent);
  if (found == metadata.end()) return "";
  return std::string(found->second.data(), found->second.size());
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_TRACE_CONTEXT_H_
