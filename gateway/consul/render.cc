#include "gateway/consul/render.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "registry/model/with_view.h"

namespace failback::consul {
namespace {

using markup::JsonWriter;

bool IsShown(const ServiceEntry& entry, const Shown& shown) {
  return (!shown.passing || entry.status == CheckStatus::kPassing) &&
         (shown.node.empty() || entry.address == shown.node) &&
         std::all_of(shown.tags.begin(), shown.tags.end(),
                     [&](const std::string& tag) { return entry.HasTag(tag); });
}

template <typename Use>
void ForEachShown(const InstanceSet& instances, const Shown& shown, Use use) {
  instances.ForEach([&](const Blob& instance) {
    WithView(instance, [&](const InstanceView& view) {
      const ServiceEntry entry(view);
      if (IsShown(entry, shown)) use(entry);
    });
  });
}

void WriteTexts(const std::vector<std::string>& texts, JsonWriter* json) {
  json->BeginArray();
  for (const std::string& text : texts) json->String(text);
  json->EndArray();
}

void WriteMeta(const ServiceEntry& entry, JsonWriter* json) {
  json->BeginObject();
  for (const auto& [key, value] : entry.meta) json->Key(key).String(value);
  json->EndObject();
}

void WriteWeights(const ServiceEntry& entry, JsonWriter* json) {
  json->BeginObject();
  json->Key("Passing").Number(entry.weight);
  json->Key("Warning").Number(1);
  json->EndObject();
}

// What is the same of a node wherever it is shown.
void WriteNodeFields(std::string_view address, const std::string& datacenter, JsonWriter* json) {
  json->Key("ID").String("");
  json->Key("Node").String(address);
  json->Key("Address").String(address);
  json->Key("Datacenter").String(datacenter);
  json->Key("TaggedAddresses").BeginObject();
  json->Key("lan").String(address);
  json->Key("wan").String(address);
  json->EndObject();
}

// Where clients that are older than Consul's Locality can see it.
void WriteNodeMeta(std::string_view zone, JsonWriter* json) {
  json->BeginObject();
  if (!zone.empty()) json->Key("zone").String(zone);
  json->EndObject();
}

void WriteNode(std::string_view address, std::string_view zone, const std::string& datacenter,
               JsonWriter* json) {
  json->BeginObject();
  WriteNodeFields(address, datacenter, json);
  json->Key("Meta");
  WriteNodeMeta(zone, json);
  json->Key("CreateIndex").Number(0);
  json->Key("ModifyIndex").Number(0);
  json->EndObject();
}

void WriteLocality(const ServiceEntry& entry, JsonWriter* json) {
  if (entry.zone.empty()) return;
  json->Key("Locality").BeginObject();
  json->Key("Region").String("");
  json->Key("Zone").String(entry.zone);
  json->EndObject();
}

// The service of an entry of `health/service` and `catalog/node`.
void WriteNodeService(const ServiceEntry& entry, JsonWriter* json) {
  json->BeginObject();
  json->Key("ID").String(entry.id);
  json->Key("Service").String(entry.service);
  json->Key("Tags");
  WriteTexts(entry.tags, json);
  json->Key("Address").String(entry.address);
  json->Key("Meta");
  WriteMeta(entry, json);
  json->Key("Port").Number(entry.port);
  json->Key("Weights");
  WriteWeights(entry, json);
  json->Key("EnableTagOverride").Bool(false);
  WriteLocality(entry, json);
  json->Key("CreateIndex").Number(0);
  json->Key("ModifyIndex").Number(0);
  json->EndObject();
}

// The checks of an instance as the catalog has them.
template <typename Use>
void ForEachCheck(const ServiceEntry& entry, Use use) {
  CheckEntry check;
  check.node = entry.address;
  if (entry.offline || entry.maintenance) {
    check.id = absl::StrCat("_service_maintenance:", std::string(entry.id));
    check.name = "Service Maintenance Mode";
    check.status = CheckStatus::kCritical;
    check.notes = entry.offline ? "An operator has taken the instance out of rotation"
                                : "The service is in maintenance mode";
    check.kind = "maintenance";
    use(check);
  }
  const std::string name = absl::StrCat("Service '", std::string(entry.service), "' check");
  check.id = DefaultCheckId(entry.id, 0, 1);
  check.name = name;
  check.status = entry.check_status;
  check.notes = "";
  check.output = entry.draining && !entry.maintenance ? "draining" : "";
  check.kind = "ttl";
  use(check);
}

}  // namespace

std::string DefaultCheckId(std::string_view service_id, size_t number, size_t count) {
  return count == 1 ? absl::StrCat("service:", std::string(service_id))
                    : absl::StrCat("service:", std::string(service_id), ":", number + 1);
}

void WriteCheck(const CheckEntry& check, const ServiceEntry& service, JsonWriter* json) {
  json->BeginObject();
  json->Key("Node").String(check.node);
  json->Key("CheckID").String(check.id);
  json->Key("Name").String(check.name);
  json->Key("Status").String(StatusName(check.status));
  json->Key("Notes").String(check.notes);
  json->Key("Output").String(check.output);
  json->Key("ServiceID").String(service.id);
  json->Key("ServiceName").String(service.service);
  json->Key("ServiceTags");
  WriteTexts(service.tags, json);
  json->Key("Type").String(check.kind);
  json->Key("Definition").BeginObject().EndObject();
  json->Key("CreateIndex").Number(0);
  json->Key("ModifyIndex").Number(0);
  json->EndObject();
}

std::string HealthOfService(const InstanceSet& instances, const Shown& shown) {
  JsonWriter json;
  json.BeginArray();
  ForEachShown(instances, shown, [&](const ServiceEntry& entry) {
    json.BeginObject();
    json.Key("Node");
    WriteNode(entry.address, entry.zone, shown.datacenter, &json);
    json.Key("Service");
    WriteNodeService(entry, &json);
    json.Key("Checks").BeginArray();
    ForEachCheck(entry, [&](const CheckEntry& check) { WriteCheck(check, entry, &json); });
    json.EndArray();
    json.EndObject();
  });
  json.EndArray();
  return std::move(json).Take();
}

std::string CatalogOfService(const InstanceSet& instances, const Shown& shown) {
  JsonWriter json;
  json.BeginArray();
  ForEachShown(instances, shown, [&](const ServiceEntry& entry) {
    json.BeginObject();
    WriteNodeFields(entry.address, shown.datacenter, &json);
    json.Key("NodeMeta");
    WriteNodeMeta(entry.zone, &json);
    json.Key("ServiceKind").String("");
    json.Key("ServiceID").String(entry.id);
    json.Key("ServiceName").String(entry.service);
    json.Key("ServiceTags");
    WriteTexts(entry.tags, &json);
    json.Key("ServiceAddress").String(entry.address);
    json.Key("ServiceWeights");
    WriteWeights(entry, &json);
    json.Key("ServiceMeta");
    WriteMeta(entry, &json);
    json.Key("ServicePort").Number(entry.port);
    json.Key("ServiceEnableTagOverride").Bool(false);
    json.Key("CreateIndex").Number(0);
    json.Key("ModifyIndex").Number(0);
    json.EndObject();
  });
  json.EndArray();
  return std::move(json).Take();
}

std::string ChecksOf(const Sets& services, const Shown& shown,
                     absl::FunctionRef<bool(CheckStatus)> wanted) {
  JsonWriter json;
  json.BeginArray();
  for (const InstanceSet* instances : services) {
    ForEachShown(*instances, shown, [&](const ServiceEntry& entry) {
      ForEachCheck(entry, [&](const CheckEntry& check) {
        if (wanted(check.status)) WriteCheck(check, entry, &json);
      });
    });
  }
  json.EndArray();
  return std::move(json).Take();
}

std::string ChecksOfService(const InstanceSet& instances, const Shown& shown) {
  return ChecksOf({&instances}, shown, [](CheckStatus) { return true; });
}

std::string Nodes(const Sets& services, const std::string& datacenter) {
  std::map<std::string, std::string> zones;  // by address: of the first instance that has one
  for (const InstanceSet* instances : services) {
    ForEachShown(*instances, {datacenter}, [&](const ServiceEntry& entry) {
      std::string& zone = zones[std::string(entry.address)];
      if (zone.empty()) zone = std::string(entry.zone);
    });
  }
  JsonWriter json;
  json.BeginArray();
  for (const auto& [address, zone] : zones) WriteNode(address, zone, datacenter, &json);
  json.EndArray();
  return std::move(json).Take();
}

std::string ServicesOfNode(const Sets& services, const Shown& shown) {
  JsonWriter json;
  std::set<std::string> ids;
  for (const InstanceSet* instances : services) {
    ForEachShown(*instances, shown, [&](const ServiceEntry& entry) {
      if (ids.empty()) {
        json.BeginObject();
        json.Key("Node");
        WriteNode(shown.node, entry.zone, shown.datacenter, &json);
        json.Key("Services").BeginObject();
      }
      // Ids are unique within a service, not on a machine.
      std::string id(entry.id);
      if (!ids.insert(id).second) {
        id = absl::StrCat(std::string(entry.service), "/", id);
        if (!ids.insert(id).second) return;
      }
      json.Key(id);
      WriteNodeService(entry, &json);
    });
  }
  if (ids.empty()) return "null";
  json.EndObject();
  json.EndObject();
  return std::move(json).Take();
}

std::set<std::string> TagsOf(const InstanceSet& instances) {
  std::set<std::string> tags;
  ForEachShown(instances, {}, [&](const ServiceEntry& entry) {
    tags.insert(entry.tags.begin(), entry.tags.end());
  });
  return tags;
}

std::string ServicesWithTags(const TagsOfServices& services) {
  JsonWriter json;
  json.BeginObject();
  for (const auto& [name, tags] : services) {
    json.Key(name).BeginArray();
    for (const std::string& tag : tags) json.String(tag);
    json.EndArray();
  }
  json.EndObject();
  return std::move(json).Take();
}

void WriteAgentService(const ServiceEntry& entry, const std::string& datacenter, JsonWriter* json) {
  json->BeginObject();
  json->Key("Kind").String("");
  json->Key("ID").String(entry.id);
  json->Key("Service").String(entry.service);
  json->Key("Tags");
  WriteTexts(entry.tags, json);
  json->Key("Meta");
  WriteMeta(entry, json);
  json->Key("Port").Number(entry.port);
  json->Key("Address").String(entry.address);
  json->Key("Weights");
  WriteWeights(entry, json);
  json->Key("EnableTagOverride").Bool(false);
  json->Key("Datacenter").String(datacenter);
  WriteLocality(entry, json);
  json->EndObject();
}

}  // namespace failback::consul
