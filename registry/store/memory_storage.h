// A store that forgets: the state lives in the process and ends with it.

#ifndef FAILBACK_REGISTRY_STORE_MEMORY_STORAGE_H_
#define FAILBACK_REGISTRY_STORE_MEMORY_STORAGE_H_

#include "registry/model/ids.h"
#include "registry/store/sqlite/epoch.h"
#include "registry/store/sqlite/storage.h"

namespace failback {

class MemoryStorage final : public Storage {
 public:
  StoreIdentity identity() const override { return identity_; }
  absl::Status Read(StoreReader* reader) override { return absl::OkStatus(); }
  absl::Status Write(const WriteSet& writes) override { return absl::OkStatus(); }
  bool blocks() const override { return false; }
  bool forgets() const override { return true; }

 private:
  const StoreIdentity identity_ = {RandomId(), NewEpoch(), 0, 1};
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_MEMORY_STORAGE_H_
