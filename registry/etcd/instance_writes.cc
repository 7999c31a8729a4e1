#include "registry/etcd/instance_writes.h"

#include <string_view>

namespace failback {
namespace etcd {

InstanceWrites::InstanceWrites(const Keys* keys, const Session* session, absl::Duration retention,
                               int64_t now_ms)
    : keys_(keys),
      session_(session),
      retention_ms_(static_cast<uint32_t>(absl::ToInt64Milliseconds(retention))),
      now_ms_(now_ms) {}

bool InstanceWrites::LeavesTombstone(const Session* session, const Intent& intent,
                                     const KnownKey& known) {
  return !intent.registers && (session != nullptr || known.current.fence().rank != 0);
}

void InstanceWrites::Add(const Intent& intent, const std::string& key, const KnownKey& known,
                         const Verdict& verdict, int64_t lease) {
  txn_.CompareModified(key, known.mod_revision);
  if (intent.registers) {
    const std::string index = IndexAfter(intent);
    if (!index.empty() && index != IndexBefore(known)) {
      txn_.Put(keys_->Persistent(index, intent.key), "", "", 0);
    }
    SetHistory(intent, known);
  } else {
    // A deregistration ends the operator's mark.
    const std::string mark = keys_->Mark(intent.key);
    txn_.CompareModified(mark, known.mark_revision);
    if (known.mark_revision != 0) txn_.Delete(mark);
    if (!LeavesTombstone(session_, intent, known)) return txn_.Delete(key);
    SetEnd();
  }
  SetFence(intent, known, verdict);
  EncodeMeta(meta_, &head_);
  txn_.Put(key, head_, intent.registers ? intent.instance.view() : std::string_view(), lease);
}

void InstanceWrites::DropIndex(const Intent& intent, const KnownKey& known) {
  const std::string before = IndexBefore(known);
  if (before.empty() || before == IndexAfter(intent)) return;
  txn_.Delete(keys_->Persistent(before, intent.key));
}

std::string InstanceWrites::IndexBefore(const KnownKey& known) {
  const bool indexed = known.current.instance && known.lease == 0;
  return indexed ? known.current.meta.owner() : std::string();
}

std::string InstanceWrites::IndexAfter(const Intent& intent) const {
  const bool indexed = session_ != nullptr && intent.registers && intent.persistent;
  return indexed ? session_->incarnation : std::string();
}

// What else there is of the fence before stays when a detached caller writes.
void InstanceWrites::SetFence(const Intent& intent, const KnownKey& known, const Verdict& verdict) {
  if (session_ != nullptr) {
    StoredRecord::SetFence(FenceOf(session_->rank, verdict, intent), meta_.mutable_fence());
  } else if (known.current.meta.has_fence()) {
    *meta_.mutable_fence() = known.current.meta.fence();
  } else {
    meta_.clear_fence();
  }
  meta_.set_retention_ms(meta_.has_fence() ? retention_ms_ : 0);
}

// When the instance was made and changed, and by whom.
void InstanceWrites::SetHistory(const Intent& intent, const KnownKey& known) {
  meta_.set_create_ms(now_ms_);
  meta_.set_modify_ms(now_ms_);
  meta_.set_create_revision(0);
  if (known.current.instance) {
    const auto& before = known.current.meta;
    if (before.create_ms() != 0) meta_.set_create_ms(before.create_ms());
    meta_.set_create_revision(before.create_revision() != 0 ? before.create_revision()
                                                            : known.mod_revision);
    // Registered again as it is: not a change.
    if (known.current.instance == intent.instance && before.modify_ms() != 0) {
      meta_.set_modify_ms(before.modify_ms());
    }
  }
  if (session_ == nullptr) return;
  meta_.set_owner(session_->incarnation);
  meta_.set_client_name(session_->client_name);
}

// When the instance was unregistered and by whom, for an operator.
void InstanceWrites::SetEnd() {
  meta_.set_create_ms(0);
  meta_.set_modify_ms(now_ms_);
  meta_.set_create_revision(0);
  meta_.clear_owner();
  if (session_ != nullptr) meta_.set_client_name(session_->client_name);
}

}  // namespace etcd
}  // namespace failback
