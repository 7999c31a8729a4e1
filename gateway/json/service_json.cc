#include "gateway/json/service_json.h"

#include "absl/strings/str_cat.h"
#include "failback/gateway/v1/gateway.pb.h"
#include "gateway/http/message_json.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"

namespace failback {
namespace {

using google::protobuf::Message;

// Instances were validated: they have a JSON form.
std::string Json(const Message& message) { return MessageJson(message).value_or("{}"); }

std::string ListJson(const ServiceState& state) {
  gateway::v1::ServiceList list;
  list.set_namespace_(state.name().name_space);
  state.set().ForEach([&](const Blob& blob) {
    const registry::v1::ServiceInstance service = ParseInstance(blob);
    auto* const entry = list.add_services();
    entry->set_service(service.key().service());
    entry->set_instances(service.instance_count());
  });
  list.set_epoch(state.set().epoch());
  list.set_revision(state.set().revision());
  list.set_stale(state.stale());
  return Json(list);
}

std::string ServiceJson(const ServiceState& state) {
  gateway::v1::Service service;
  service.set_namespace_(state.name().name_space);
  service.set_service(state.name().service);
  state.set().ForEach(
      [&](const Blob& instance) { *service.add_instances() = ParseInstance(instance); });
  service.set_epoch(state.set().epoch());
  service.set_revision(state.set().revision());
  service.set_stale(state.stale());
  service.set_held(state.held());
  return Json(service);
}

std::string DeltaJson(const ServiceState& state) {
  gateway::v1::ServiceDelta delta;
  delta.set_epoch(state.set().epoch());
  delta.set_revision(state.set().revision());
  delta.set_base_revision(state.previous().revision);
  for (const Blob& instance : state.changes().upserts) {
    *delta.add_upserts() = ParseInstance(instance);
  }
  for (const std::string& key : state.changes().removals) {
    ParseCanonicalKey(key, delta.add_removals());
  }
  delta.set_stale(state.stale());
  delta.set_held(state.held());
  return Json(delta);
}

// JSON of this project has no line breaks: one line of data.
std::string EventText(const ServiceState& state, const char* event, const std::string& json) {
  return absl::StrCat("id: ", state.set().epoch(), ".", state.set().revision(), "\nevent: ", event,
                      "\ndata: ", json, "\n\n");
}

}  // namespace

std::shared_ptr<const std::string> StateJson(const ServiceState& state) {
  return state.Rendered(
      "json", [&] { return state.name().service.empty() ? ListJson(state) : ServiceJson(state); });
}

std::shared_ptr<const std::string> SnapshotEvent(const ServiceState& state) {
  return state.Rendered("snapshot",
                        [&] { return EventText(state, "snapshot", *StateJson(state)); });
}

std::shared_ptr<const std::string> DeltaEvent(const ServiceState& state) {
  return state.Rendered("delta", [&] { return EventText(state, "delta", DeltaJson(state)); });
}

}  // namespace failback
