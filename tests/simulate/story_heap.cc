#include "tests/simulate/story_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/numeric/bits.h"

namespace failback::simulate {
namespace {

constexpr size_t kRegion = size_t{4} << 30;  // of addresses, not of memory
constexpr size_t kBlock = size_t{64} << 10;
constexpr size_t kBlocks = kRegion / kBlock;
constexpr size_t kLargePage = size_t{2} << 20;
constexpr size_t kBlocksOfPage = kLargePage / kBlock;
constexpr size_t kSparse = (size_t{1} << 20) / kBlock;

// Sizes up to 128 go in steps of 16, then there are four for each power of two, up to a block's half.
constexpr size_t kSmallClasses = 8;
constexpr size_t kClasses = kSmallClasses + size_t{4} * 8;
constexpr size_t kLargestPiece = kBlock / 2;

struct Sizes {
  constexpr Sizes() {
    for (size_t i = 0; i < kClasses; ++i) {
      const size_t power = size_t{128} << ((i - std::min(i, kSmallClasses)) / 4);
      of[i] = i < kSmallClasses ? 16 * (i + 1) : power + power / 4 * ((i - kSmallClasses) % 4 + 1);
    }
  }
  size_t of[kClasses] = {};
};
constexpr Sizes kSizes;
static_assert(kSizes.of[kClasses - 1] == kLargestPiece, "the classes end there");

struct Piece {
  Piece* next;
};

// All of it zero before the first call, which comes before any constructor has run.
struct Heap {
  char* region;
  size_t next_block;     // none is in use from here on, up to those of sparse pieces
  size_t touched_block;  // none was ever
  size_t sparse_block;   // where those begin, which are taken from the end of the region
  size_t touched_sparse;
  int64_t bytes;
  bool fresh;  // the last piece that was taken was never used before
  static constexpr size_t kLists = 64;
  struct AtHand {
    // The rest of the last block of each class.
    char* rest[kClasses];
    char* rest_end[kClasses];
    bool rest_fresh[kClasses];
    Piece* free[kClasses];
    // Large pieces, by their number of blocks; longer ones in the first.
    Piece* free_large[kLists];
  } at_hand;
  // Of each block that begins a large piece how many that has; else 0, and which class it is of.
  uint32_t blocks_of[kBlocks];
  uint8_t class_of[kBlocks];
};
Heap heap;

size_t ClassOf(size_t size) {
  if (size <= 16 * kSmallClasses) return size == 0 ? 0 : (size - 1) / 16;
  const auto power = static_cast<size_t>(63 - absl::countl_zero(uint64_t{size - 1}));
  return kSmallClasses + 4 * (power - 7) + (((size - 1) >> (power - 2)) & 3);
}

size_t BlockOf(const void* piece) {
  return static_cast<size_t>(static_cast<const char*>(piece) - heap.region) / kBlock;
}

size_t SizeOf(const void* piece) {
  const size_t block = BlockOf(piece);
  return heap.blocks_of[block] > 0 ? heap.blocks_of[block] * kBlock
                                   : kSizes.of[heap.class_of[block]];
}

// `align`: a number of blocks. A piece of a megabyte or more is of one that uses little of it and gives
// pages back (retry/timer_slab.h). They are apart from the others, whose pages stay.
char* NewBlocks(size_t count, size_t align) {
  if (heap.region == nullptr) {
    void* const region = mmap(nullptr, kRegion + kLargePage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) std::abort();
    const auto begin = reinterpret_cast<uintptr_t>(region);
    heap.region = static_cast<char*>(region) + (kLargePage - begin % kLargePage) % kLargePage;
    heap.sparse_block = heap.touched_sparse = kBlocks;
  }
  if (count >= kSparse) {
    if (heap.sparse_block < heap.next_block + count + align) return nullptr;
    heap.sparse_block = (heap.sparse_block - count) / align * align;
    heap.fresh = heap.sparse_block + count <= heap.touched_sparse;
    heap.touched_sparse = std::min(heap.touched_sparse, heap.sparse_block);
    return heap.region + heap.sparse_block * kBlock;
  }
  heap.next_block = (heap.next_block + align - 1) / align * align;
  if (heap.next_block + count > heap.sparse_block) return nullptr;
  char* const blocks = heap.region + heap.next_block * kBlock;
  heap.fresh = heap.next_block >= heap.touched_block;
  heap.next_block += count;
  heap.touched_block = std::max(heap.touched_block, heap.next_block);
  return blocks;
}

void* TakeSmall(size_t of_class) {
  const size_t size = kSizes.of[of_class];
  heap.bytes += static_cast<int64_t>(size);
  if (Piece* const piece = heap.at_hand.free[of_class]; ABSL_PREDICT_TRUE(piece != nullptr)) {
    heap.at_hand.free[of_class] = piece->next;
    heap.fresh = false;
    return piece;
  }
  if (static_cast<size_t>(heap.at_hand.rest_end[of_class] - heap.at_hand.rest[of_class]) < size) {
    char* const block = NewBlocks(1, 1);
    if (block == nullptr) return nullptr;
    heap.blocks_of[BlockOf(block)] = 0;
    heap.class_of[BlockOf(block)] = static_cast<uint8_t>(of_class);
    heap.at_hand.rest[of_class] = block;
    heap.at_hand.rest_end[of_class] = block + kBlock;
    heap.at_hand.rest_fresh[of_class] = heap.fresh;
  }
  heap.fresh = heap.at_hand.rest_fresh[of_class];
  return std::exchange(heap.at_hand.rest[of_class], heap.at_hand.rest[of_class] + size);
}

// `align`: in blocks.
void* TakeLarge(size_t size, size_t align) {
  const size_t count = (size + kBlock - 1) / kBlock;
  if (size > kRegion) return nullptr;
  Piece** list = &heap.at_hand.free_large[count < Heap::kLists ? count : 0];
  for (; *list != nullptr; list = &(*list)->next) {
    Piece* const piece = *list;
    if (heap.blocks_of[BlockOf(piece)] < count || BlockOf(piece) % align != 0) continue;
    *list = piece->next;
    heap.fresh = false;
    heap.bytes += static_cast<int64_t>(SizeOf(piece));
    return piece;
  }
  char* const blocks = NewBlocks(count, align);
  if (blocks == nullptr) return nullptr;
  heap.blocks_of[BlockOf(blocks)] = static_cast<uint32_t>(count);
  heap.bytes += static_cast<int64_t>(count * kBlock);
  return blocks;
}

void* Take(size_t size) {
  void* const piece =
      ABSL_PREDICT_TRUE(size <= kLargestPiece) ? TakeSmall(ClassOf(size)) : TakeLarge(size, 1);
  if (piece == nullptr) errno = ENOMEM;
  return piece;
}

void Return(void* freed) {
  if (freed == nullptr) return;
  const size_t block = BlockOf(freed);
  const size_t count = heap.blocks_of[block];
  heap.bytes -= static_cast<int64_t>(SizeOf(freed));
  Piece** const list = ABSL_PREDICT_TRUE(count == 0)
                           ? &heap.at_hand.free[heap.class_of[block]]
                           : &heap.at_hand.free_large[count < Heap::kLists ? count : 0];
  auto* const piece = static_cast<Piece*>(freed);
  piece->next = *list;
  *list = piece;
}

void* TakeAligned(size_t align, size_t size) {
  if (align <= 16) return Take(size);
  // Pieces of a power of two begin at multiples of it in their block.
  const size_t power = absl::bit_ceil(std::max(size, align));
  if (power <= kLargestPiece) return Take(power);
  return TakeLarge(size, (align + kBlock - 1) / kBlock);
}

}  // namespace

int64_t HeapBytes() { return heap.bytes; }

HeapMark::HeapMark() {
  heap.at_hand = {};
  // A page of its own: in a child process the one before is its parent's.
  heap.next_block = (heap.next_block + kBlocksOfPage - 1) / kBlocksOfPage * kBlocksOfPage;
  block_ = heap.next_block;
  heap.sparse_block = heap.sparse_block / kBlocksOfPage * kBlocksOfPage;
  sparse_block_ = heap.sparse_block;
  bytes_ = heap.bytes;
}

bool HeapMark::reached() const { return heap.bytes == bytes_; }

void HeapMark::GoBack() const {
  heap.at_hand = {};
  heap.next_block = block_;
  heap.sparse_block = sparse_block_;
}

}  // namespace failback::simulate

// NOLINTBEGIN(readability-identifier-naming): the C library's names.
#if !defined(__SANITIZE_ADDRESS__) && !defined(FAILBACK_THREAD_SANITIZER)

using failback::simulate::Return;
using failback::simulate::SizeOf;
using failback::simulate::Take;
using failback::simulate::TakeAligned;

extern "C" {

void* malloc(size_t size) { return Take(size); }

void free(void* piece) { Return(piece); }

void* calloc(size_t count, size_t size) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const piece = Take(bytes);
  // What no one has used is zero, and stays untouched.
  if (piece != nullptr && !failback::simulate::heap.fresh) std::memset(piece, 0, bytes);
  return piece;
}

void* realloc(void* piece, size_t size) {
  if (piece == nullptr) return Take(size);
  const size_t before = SizeOf(piece);
  // One that has room enough, and not twice too much, stays.
  if (size <= before && size > before / 2) return piece;
  void* const other = Take(size);
  if (other == nullptr) return nullptr;
  std::memcpy(other, piece, std::min(before, size));
  Return(piece);
  return other;
}

size_t malloc_usable_size(void* piece) { return piece == nullptr ? 0 : SizeOf(piece); }

void* aligned_alloc(size_t align, size_t size) { return TakeAligned(align, size); }
void* memalign(size_t align, size_t size) { return TakeAligned(align, size); }
void* valloc(size_t size) { return TakeAligned(4096, size); }
void* pvalloc(size_t size) { return TakeAligned(4096, (size + 4095) / 4096 * 4096); }
int posix_memalign(void** piece, size_t align, size_t size) {
  *piece = TakeAligned(align, size);
  return *piece == nullptr ? ENOMEM : 0;
}

}  // extern "C"

void* operator new(size_t size) {
  void* const piece = Take(size);
  if (ABSL_PREDICT_FALSE(piece == nullptr)) throw std::bad_alloc();
  return piece;
}
void* operator new[](size_t size) { return operator new(size); }
void operator delete(void* piece) noexcept { Return(piece); }
void operator delete[](void* piece) noexcept { Return(piece); }
void operator delete(void* piece, size_t /*size*/) noexcept { Return(piece); }
void operator delete[](void* piece, size_t /*size*/) noexcept { Return(piece); }

#endif
// NOLINTEND(readability-identifier-naming)
