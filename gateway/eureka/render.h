// What Eureka's clients read: applications and instances, as XML or JSON.
//
// Both forms are written through one walk. Times that a registry does not hand out are 0.
//
// Example:
//
//   Applications all;
//   for (const auto& service : *view.services) {
//     service.instances->ForEach([&](const Blob& instance) { all.Add(instance); });
//   }
//   std::string xml = all.Render(Form::kXml, view.index);
//
// Thread safety: thread-compatible; the functions are pure.

#ifndef FAILBACK_GATEWAY_EUREKA_RENDER_H_
#define FAILBACK_GATEWAY_EUREKA_RENDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/eureka/delta_log.h"
#include "gateway/eureka/instance_info.h"
#include "registry/model/blob.h"

namespace failback::eureka {

enum class Form { kXml, kJson };

// What an `Accept` header asks for: JSON if it names that before XML; XML otherwise, also without
// one.
Form FormOf(std::string_view accept);
const char* ContentType(Form form);

// How many instances have which status.
using StatusCounts = std::map<std::string, int>;
// "DOWN_1_UP_3_".
std::string HashOf(const StatusCounts& counts);

// Some instances, by their apps.
class Applications {
 public:
  void Add(const Blob& instance, DeltaLog::Action action = DeltaLog::Action::kAdded);

  bool empty() const { return apps_.empty(); }
  const StatusCounts& counts() const { return counts_; }

  // `<applications>`. `all`: of all instances, where these are not all.
  std::string Render(Form form, uint64_t version) const { return Render(form, version, counts_); }
  std::string Render(Form form, uint64_t version, const StatusCounts& all) const;
  // `<application>`, of the only app.
  std::string RenderOnly(Form form) const;

 private:
  struct Entry {
    Blob instance;
    DeltaLog::Action action;
  };
  std::map<std::string, std::vector<Entry>> apps_;
  StatusCounts counts_;
};

// `<instance>`.
std::string RenderInstance(const Blob& instance, Form form);

}  // namespace failback::eureka

#endif  // FAILBACK_GATEWAY_EUREKA_RENDER_H_
