// Immutable bytes with a shared owner: one pointer wide, one allocation, copied by counting.
//
// An instance is held as the bytes it is stored and sent as. The same bytes are in the state, in
// the change log and in snapshots under way; they are never copied.
//
// Thread safety: as shared_ptr<const T>. Different Blob objects that share bytes may be used from
// different threads; one Blob object may not be changed by one thread while another uses it.

#ifndef FAILBACK_REGISTRY_MODEL_BLOB_H_
#define FAILBACK_REGISTRY_MODEL_BLOB_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace failback {

class Blob {
 public:
  Blob() = default;  // null: no bytes at all, unlike empty bytes
  explicit Blob(std::string_view bytes) : rep_(NewRep(bytes.size())) {
    if (!bytes.empty()) std::memcpy(MutableData(), bytes.data(), bytes.size());
  }
  // `size` bytes, which `write(char*)` fills in.
  template <typename Write>
  Blob(size_t size, Write write) : rep_(NewRep(size)) {
    write(MutableData());
  }
  Blob(const Blob& other) : rep_(other.rep_) { Ref(); }
  Blob(Blob&& other) noexcept : rep_(std::exchange(other.rep_, nullptr)) {}
  Blob& operator=(Blob other) noexcept {
    std::swap(rep_, other.rep_);
    return *this;
  }
  ~Blob() { Unref(); }

  explicit operator bool() const { return rep_ != nullptr; }
  const char* data() const { return reinterpret_cast<const char*>(rep_ + 1); }
  size_t size() const { return rep_ == nullptr ? 0 : rep_->size; }
  std::string_view view() const {
    return rep_ == nullptr ? std::string_view() : std::string_view(data(), size());
  }

  // Same bytes, or both null.
  friend bool operator==(const Blob& a, const Blob& b) {
    if (a.rep_ == b.rep_) return true;
    return a.rep_ != nullptr && b.rep_ != nullptr && a.view() == b.view();
  }
  friend bool operator!=(const Blob& a, const Blob& b) { return !(a == b); }

 private:
  struct Rep {
    std::atomic<uint32_t> refs;
    uint32_t size;
  };

  static Rep* NewRep(size_t size) {
    void* memory = std::malloc(sizeof(Rep) + size);
    if (memory == nullptr) throw std::bad_alloc();
    return new (memory) Rep{{1}, static_cast<uint32_t>(size)};
  }
  char* MutableData() { return reinterpret_cast<char*>(rep_ + 1); }
  void Ref() const {
    if (rep_ != nullptr) rep_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  void Unref() {
    if (rep_ != nullptr && rep_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::free(rep_);
    }
  }

  Rep* rep_ = nullptr;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_BLOB_H_
