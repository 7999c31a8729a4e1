#include "registry/failback/carried_record.h"

#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"

namespace failback {

agent::v1::CarriedIntent CarriedRecord::ToProto() const {
  agent::v1::CarriedIntent intent;
  *intent.mutable_instance() = ParseInstance(instance);
  ParseCanonicalKey(key, intent.mutable_instance()->mutable_key());
  intent.set_state(state);
  intent.set_generation(generation);
  intent.set_upstream(upstream);
  if (!last_status.ok()) *intent.mutable_last_status() = StatusToProto(last_status);
  return intent;
}

}  // namespace failback
