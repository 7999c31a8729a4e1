// An InstanceWriter that remembers what it is given and answers as it is told. Thread-compatible.

#ifndef FAILBACK_TESTS_GATEWAY_DOOR_FAKE_INSTANCE_WRITER_H_
#define FAILBACK_TESTS_GATEWAY_DOOR_FAKE_INSTANCE_WRITER_H_

#include <map>
#include <string>
#include <utility>

#include "gateway/door/instance_writer.h"
#include "registry/model/errors.h"

namespace failback {

class FakeInstanceWriter final : public InstanceWriter {
 public:
  void Put(const Identity&, PutRequest request, Callback<LiveInstance> done) override {
    if (!answer.ok()) return std::move(done)(answer);
    const std::string name = NameOf(request.instance.key());
    put[name] = std::move(request);
    std::move(done)(LiveInstance{registry::v1::INTENT_STATE_ACKNOWLEDGED, put[name].ttl});
  }
  void Renew(const Identity&, const InstanceKey& key, absl::Duration ttl,
             Callback<LiveInstance> done) override {
    if (!answer.ok()) return std::move(done)(answer);
    const auto it = put.find(NameOf(key));
    if (it == put.end() || it->second.ttl == absl::ZeroDuration()) {
      return std::move(done)(Refusal(registry::v1::ERROR_REASON_NOT_FOUND, "put it again"));
    }
    if (ttl != absl::ZeroDuration()) it->second.ttl = ttl;
    ++renewals;
    std::move(done)(LiveInstance{registry::v1::INTENT_STATE_ACKNOWLEDGED, it->second.ttl});
  }
  void Remove(const Identity&, const InstanceKey& key, registry::v1::IntentState,
              Callback<LiveInstance> done) override {
    if (!answer.ok()) return std::move(done)(answer);
    put.erase(NameOf(key));
    std::move(done)(LiveInstance{registry::v1::INTENT_STATE_ACKNOWLEDGED, {}});
  }

  static std::string NameOf(const InstanceKey& key) {
    return key.namespace_() + "/" + key.service() + "/" + key.instance_id();
  }

  absl::Status answer;                    // not OK: of every call
  std::map<std::string, PutRequest> put;  // by "namespace/service/id", as they were given
  int renewals = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_GATEWAY_DOOR_FAKE_INSTANCE_WRITER_H_
