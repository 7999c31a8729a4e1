#include "gateway/eureka/render.h"

#include "absl/strings/str_cat.h"
#include "gateway/markup/json_writer.h"
#include "gateway/markup/xml_writer.h"
#include "registry/model/with_view.h"

namespace failback::eureka {
namespace {

using markup::JsonWriter;
using markup::XmlWriter;

constexpr char kXmlHead[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
constexpr char kMyOwnClass[] = "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo";
constexpr char kAmazonClass[] = "com.netflix.appinfo.AmazonInfo";

// One form of a document: an object has fields, in XML elements; a list repeats one of them.
class XmlForm {
 public:
  void Begin(std::string_view name) { xml_.Open(name); }
  void End(std::string_view name) { xml_.Close(name); }
  void Text(std::string_view name, std::string_view text) { xml_.Element(name, text); }
  void Number(std::string_view name, uint64_t number) { Text(name, std::to_string(number)); }
  // A key that a client chose.
  void FreeText(std::string_view name, std::string_view text) {
    if (markup::IsXmlName(name)) Text(name, text);
  }
  void Port(std::string_view name, uint32_t number, bool enabled) {
    xml_.Open(name, {{"enabled", enabled ? "true" : "false"}});
    xml_.Text(std::to_string(number)).Close(name);
  }
  void BeginTyped(std::string_view name, std::string_view type) {
    xml_.Open(name, {{"class", type}});
  }
  void BeginList(std::string_view) {}
  void BeginItem(std::string_view name) { xml_.Open(name); }
  void EndItem(std::string_view name) { xml_.Close(name); }
  void EndList() {}
  // The fields whose names the two forms have differently.
  static constexpr char kOverridden[] = "overriddenstatus";

  std::string Take() && { return kXmlHead + std::move(xml_).Take(); }

 private:
  XmlWriter xml_;
};

class JsonForm {
 public:
  JsonForm() { json_.BeginObject(); }
  void Begin(std::string_view name) { json_.Key(name).BeginObject(); }
  void End(std::string_view) { json_.EndObject(); }
  void Text(std::string_view name, std::string_view text) { json_.Key(name).String(text); }
  void Number(std::string_view name, uint64_t number) {
    json_.Key(name).Number(static_cast<int64_t>(number));
  }
  void FreeText(std::string_view name, std::string_view text) { Text(name, text); }
  void Port(std::string_view name, uint32_t number, bool enabled) {
    json_.Key(name).BeginObject();
    json_.Key("$").Number(number);
    json_.Key("@enabled").String(enabled ? "true" : "false");
    json_.EndObject();
  }
  void BeginTyped(std::string_view name, std::string_view type) {
    json_.Key(name).BeginObject();
    json_.Key("@class").String(type);
  }
  void BeginList(std::string_view name) { json_.Key(name).BeginArray(); }
  void BeginItem(std::string_view) { json_.BeginObject(); }
  void EndItem(std::string_view) { json_.EndObject(); }
  void EndList() { json_.EndArray(); }
  static constexpr char kOverridden[] = "overriddenStatus";

  std::string Take() && {
    json_.EndObject();
    return std::move(json_).Take();
  }

 private:
  JsonWriter json_;
};

template <typename Out>
void WriteLease(const Info& info, Out* out) {
  out->Begin("leaseInfo");
  out->Number("renewalIntervalInSecs", info.renewal_seconds);
  out->Number("durationInSecs", info.lease_seconds);
  for (const char* stamp : {"registrationTimestamp", "lastRenewalTimestamp", "evictionTimestamp",
                            "serviceUpTimestamp"}) {
    out->Number(stamp, 0);
  }
  out->End("leaseInfo");
}

template <typename Out>
void WriteMetadata(const Info& info, Out* out) {
  out->Begin("metadata");
  for (const auto& [key, value] : info.metadata) out->FreeText(key, value);
  if (!info.zone.empty()) out->Text("zone", info.zone);
  if (!info.weight.empty()) out->Text("weight", info.weight);
  out->End("metadata");
}

template <typename Out>
void WriteDataCenter(const Info& info, Out* out) {
  out->BeginTyped("dataCenterInfo", info.data_center == "Amazon" ? kAmazonClass : kMyOwnClass);
  out->Text("name", info.data_center);
  if (!info.data_center_metadata.empty()) {
    out->Begin("metadata");
    for (const auto& [key, value] : info.data_center_metadata) out->FreeText(key, value);
    out->End("metadata");
  }
  out->End("dataCenterInfo");
}

// The fields of an instance, within its object.
template <typename Out>
void WriteInfo(const Info& info, DeltaLog::Action action, Out* out) {
  const auto optional = [out](std::string_view name, std::string_view text) {
    if (!text.empty()) out->Text(name, text);
  };
  out->Text("instanceId", info.id);
  out->Text("hostName", info.host_name);
  out->Text("app", info.app);
  out->Text("ipAddr", info.ip_address);
  out->Text("status", StatusName(info.status));
  out->Text(Out::kOverridden, info.overridden ? StatusName(info.status) : "UNKNOWN");
  out->Port("port", info.port, info.port_enabled);
  out->Port("securePort", info.secure_port, info.secure_port_enabled);
  out->Text("countryId", info.country_id);
  WriteDataCenter(info, out);
  WriteLease(info, out);
  WriteMetadata(info, out);
  optional("appGroupName", info.app_group);
  optional("homePageUrl", info.home_page_url);
  optional("statusPageUrl", info.status_page_url);
  optional("healthCheckUrl", info.health_check_url);
  optional("secureHealthCheckUrl", info.secure_health_check_url);
  optional("vipAddress", info.vip);
  optional("secureVipAddress", info.secure_vip);
  optional("asgName", info.asg);
  out->Text("isCoordinatingDiscoveryServer", "false");
  out->Text("lastUpdatedTimestamp", "0");
  out->Text("lastDirtyTimestamp", "0");
  out->Text("actionType", ActionName(action));
}

// The fields of an app, within its object.
template <typename Out, typename Entries>
void WriteApp(const std::string& app, const Entries& entries, Out* out) {
  out->Text("name", app);
  out->BeginList("instance");
  for (const auto& entry : entries) {
    out->BeginItem("instance");
    WithView(entry.instance,
             [&](const InstanceView& view) { WriteInfo(Info(view), entry.action, out); });
    out->EndItem("instance");
  }
  out->EndList();
}

template <typename Out, typename Apps>
std::string WriteApps(const Apps& apps, uint64_t version, const std::string& hash) {
  Out out;
  out.Begin("applications");
  out.Text("versions__delta", std::to_string(version));
  out.Text("apps__hashcode", hash);
  out.BeginList("application");
  for (const auto& [app, entries] : apps) {
    out.BeginItem("application");
    WriteApp(app, entries, &out);
    out.EndItem("application");
  }
  out.EndList();
  out.End("applications");
  return std::move(out).Take();
}

template <typename Out, typename Apps>
std::string WriteOnly(const Apps& apps) {
  Out out;
  out.Begin("application");
  for (const auto& [app, entries] : apps) WriteApp(app, entries, &out);
  out.End("application");
  return std::move(out).Take();
}

template <typename Out>
std::string WriteInstance(const Blob& instance) {
  Out out;
  out.Begin("instance");
  WithView(instance, [&](const InstanceView& view) {
    WriteInfo(Info(view), DeltaLog::Action::kAdded, &out);
  });
  out.End("instance");
  return std::move(out).Take();
}

}  // namespace

Form FormOf(std::string_view accept) {
  const size_t json = accept.find("json");
  const size_t xml = accept.find("xml");
  return json < xml ? Form::kJson : Form::kXml;
}

const char* ContentType(Form form) {
  return form == Form::kXml ? "application/xml" : "application/json";
}

std::string HashOf(const StatusCounts& counts) {
  std::string hash;
  for (const auto& [status, count] : counts) absl::StrAppend(&hash, status, "_", count, "_");
  return hash;
}

void Applications::Add(const Blob& instance, DeltaLog::Action action) {
  WithView(instance, [&](const InstanceView& view) {
    const Info info(view);
    apps_[info.app].push_back({instance, action});
    ++counts_[StatusName(info.status)];
  });
}

std::string Applications::Render(Form form, uint64_t version, const StatusCounts& all) const {
  return form == Form::kXml ? WriteApps<XmlForm>(apps_, version, HashOf(all))
                            : WriteApps<JsonForm>(apps_, version, HashOf(all));
}

std::string Applications::RenderOnly(Form form) const {
  return form == Form::kXml ? WriteOnly<XmlForm>(apps_) : WriteOnly<JsonForm>(apps_);
}

std::string RenderInstance(const Blob& instance, Form form) {
  return form == Form::kXml ? WriteInstance<XmlForm>(instance) : WriteInstance<JsonForm>(instance);
}

}  // namespace failback::eureka
