#include "gateway/json/service_json.h"

#include "absl/strings/str_cat.h"
#include "failback/gateway/v1/gateway.pb.h"
#include "gateway/http/message_json.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"

namespace failback {
namespace {

using catalog::ServiceView;
using google::protobuf::Message;

// Instances were validated: they have a JSON form.
std::string Json(const Message& message) { return MessageJson(message).value_or("{}"); }

std::string ListJson(const ServiceName& name, const ServiceView& view) {
  const StatePosition position = PositionOf(view);
  gateway::v1::ServiceList list;
  list.set_namespace_(name.name_space);
  view.instances->ForEach([&](const Blob& blob) {
    const registry::v1::ServiceInstance service = ParseInstance(blob);
    auto* const entry = list.add_services();
    entry->set_service(service.key().service());
    entry->set_instances(service.instance_count());
  });
  list.set_epoch(position.epoch);
  list.set_revision(position.revision);
  list.set_stale(position.stale);
  return Json(list);
}

std::string ServiceJson(const ServiceName& name, const ServiceView& view) {
  const StatePosition position = PositionOf(view);
  gateway::v1::Service service;
  service.set_namespace_(name.name_space);
  service.set_service(name.service);
  view.instances->ForEach(
      [&](const Blob& instance) { *service.add_instances() = ParseInstance(instance); });
  service.set_epoch(position.epoch);
  service.set_revision(position.revision);
  service.set_stale(position.stale);
  service.set_held(position.held);
  return Json(service);
}

std::string SnapshotJson(const ServiceName& name, const ServiceView& view) {
  return name.service.empty() ? ListJson(name, view) : ServiceJson(name, view);
}

// `changes` null: nothing but what the delta says of the state.
std::string DeltaJson(const ServiceView& view, uint64_t base_revision,
                      const InstanceSet::Changes* changes) {
  const StatePosition position = PositionOf(view);
  gateway::v1::ServiceDelta delta;
  delta.set_epoch(position.epoch);
  delta.set_revision(position.revision);
  delta.set_base_revision(base_revision);
  if (changes != nullptr) {
    for (const Blob& instance : changes->upserts) {
      *delta.add_upserts() = ParseInstance(instance);
    }
    for (const std::string& key : changes->removals) {
      ParseCanonicalKey(key, delta.add_removals());
    }
  }
  delta.set_stale(position.stale);
  delta.set_held(position.held);
  return Json(delta);
}

// JSON of this project has no line breaks: one line of data.
std::string EventText(const ServiceView& view, const char* event, const std::string& json) {
  const StatePosition position = PositionOf(view);
  return absl::StrCat("id: ", position.epoch, ".", position.revision, "\nevent: ", event,
                      "\ndata: ", json, "\n\n");
}

// The renderings are of the instances: what else the bytes depend on is in the name.
std::shared_ptr<const std::string> Rendered(const ServiceView& view, const char* kind,
                                            absl::FunctionRef<std::string()> render) {
  return view.renderings->Get(
      absl::StrCat(kind, view.stale() ? " stale" : "", view.held ? " held" : ""), render);
}

}  // namespace

StatePosition PositionOf(const ServiceView& view) {
  return {view.instances->epoch(), view.instances->revision(), view.stale(), view.held};
}

std::shared_ptr<const std::string> StateJson(const ServiceName& name, const ServiceView& view) {
  return Rendered(view, "json", [&] { return SnapshotJson(name, view); });
}

std::shared_ptr<const std::string> NextEvent(const ServiceName& name, const ServiceView& view,
                                             const StatePosition& seen) {
  const StatePosition position = PositionOf(view);
  if (seen.SameSet(position)) {
    return Rendered(view, "flags", [&] {
      return EventText(view, "delta", DeltaJson(view, position.revision, nullptr));
    });
  }
  if (view.changes != nullptr && seen.epoch == position.epoch &&
      seen.revision == view.base_revision) {
    return Rendered(view, "delta", [&] {
      return EventText(view, "delta", DeltaJson(view, view.base_revision, view.changes.get()));
    });
  }
  return Rendered(view, "snapshot",
                  [&] { return EventText(view, "snapshot", SnapshotJson(name, view)); });
}

}  // namespace failback
