// Text of records that were stored by an earlier version, or by another program.
//
// What a server stores now it has checked. A record that it did not check may hold text that no
// client can read, and one such record makes every listing and set that it is in unreadable. So
// what is read from a store is looked at, and mended or left out, before it is used.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_STORED_TEXT_H_
#define FAILBACK_REGISTRY_MODEL_STORED_TEXT_H_

#include <string>
#include <string_view>

namespace failback {

// Whether `instance`, the bytes of a ServiceInstance, parses: it is one, and all its text is UTF-8.
bool IsReadableInstance(std::string_view instance);

// Whether `instance` is a ServiceInstance in its canonical bytes, with text that is not UTF-8.
bool HasUnreadableText(std::string_view instance);

// `mark`, an encoded OfflineMark, with text that every client can read.
std::string ReadableMark(std::string_view mark);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_STORED_TEXT_H_
