#include "retry/timer_slab.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace failback {

TimerSlab::~TimerSlab() {
  for (uint32_t index = 0; index < room_; index += kChunkEntries) {
    std::free(chunks_[index / kChunkEntries]);
  }
}

bool TimerSlab::Grow() {
  if (room_ == kMaxEntries) return false;
  void* const memory = std::aligned_alloc(kChunkBytes, kChunkBytes);
  if (memory == nullptr) return false;
  // Small pages for the first chunk, of which a small wheel touches a few; huge pages then, which
  // spare a large wheel most of its address translation misses.
  madvise(memory, kChunkBytes, room_ == 0 ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  madvise(memory, kChunkBytes, MADV_DONTNEED);  // zero, and not there until touched
  chunks_[room_ / kChunkEntries] = static_cast<TimerEntry*>(memory);
  room_ += kChunkEntries;
  return true;
}

void TimerSlab::Clear(uint32_t used) {
  if (used <= kFew) {
    for (uint32_t index = 0; index < used; ++index) {
      TimerEntry* const entry = At(index);
      entry->next = entry->prev = 0;
      entry->set_deadline(0);
      entry->set_claim(0, 0);
      entry->order = 0;
      entry->state = TimerEntry::State::kFree;
    }
    return;
  }
  for (uint32_t index = 0; index < room_; index += kChunkEntries) {
    madvise(chunks_[index / kChunkEntries], kChunkBytes, MADV_DONTNEED);
  }
}

}  // namespace failback
