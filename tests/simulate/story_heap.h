// The heap of the simulation's program, in place of the C library's: malloc and its kin for a
// process of one thread.
//
// Why: a story lives for some milliseconds, in which a third of the time went to malloc and to
// making a process and its pages. What a story frees is used again at once here. When it has ended,
// all that it has taken is taken back (HeapMark), so that the next story finds the same addresses
// free, and goes as it would in a process of its own. And it counts, so that what a story has left
// is known.
//
// Algorithm: a range of addresses, cut into blocks of 64 KB. A block has pieces of one size (four
// sizes for each power of two), or is one of several that a large piece takes. What is freed is the
// next of its size.
//
// Absent under sanitizers, which bring a heap of their own; nothing is counted then.
//
// Thread safety: none, of malloc itself.

#ifndef FAILBACK_TESTS_SIMULATE_STORY_HEAP_H_
#define FAILBACK_TESTS_SIMULATE_STORY_HEAP_H_

#include <cstdint>

namespace failback::simulate {

// What is allocated and not freed, in bytes as they are rounded up; 0 under sanitizers.
int64_t HeapBytes();

// A moment, to which the heap goes back again and again.
class HeapMark {
 public:
  // From here on pieces are taken where none is in use.
  HeapMark();
  // Whether all that was taken since then has been freed.
  bool reached() const;
  // The heap is as it was then. Only when it is reached.
  void GoBack() const;

 private:
  int64_t bytes_;
  uint64_t block_;
  uint64_t sparse_block_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_STORY_HEAP_H_
