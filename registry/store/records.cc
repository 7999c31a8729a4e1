#include "registry/store/records.h"

#include <cstring>
#include <new>

#include "registry/model/offline_mark.h"

namespace failback {

RecordVersion RecordVersion::WithoutInstance() const {
  RecordVersion left;
  left.offline = offline;
  left.fence = fence;
  left.retention_ms = retention_ms;
  return left;
}

Blob RecordVersion::Shown() const { return WithMark(instance, offline); }

Record* Record::New(const HashedKey& key) {
  void* const memory = ::operator new(sizeof(Record) + key.text.size());
  auto* const record = new (memory) Record(key);
  std::memcpy(static_cast<void*>(record + 1), key.text.data(), key.text.size());
  return record;
}

void Record::Delete(Record* record) {
  record->~Record();
  ::operator delete(record);
}

}  // namespace failback
