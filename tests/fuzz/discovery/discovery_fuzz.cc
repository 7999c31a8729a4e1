// What clients of Consul and Eureka send, from anybody: what is taken is a valid instance, is shown
// in documents that can be read, and comes back as it was; all else is refused by name.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/consul/definition.h"
#include "gateway/consul/mapping.h"
#include "gateway/consul/query.h"
#include "gateway/consul/render.h"
#include "gateway/eureka/instance_info.h"
#include "gateway/eureka/render.h"
#include "gateway/markup/fields.h"
#include "gateway/markup/xml_reader.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "registry/model/instance_set.h"
#include "registry/model/validation.h"
#include "tests/fuzz/fuzz_input.h"

namespace failback {
namespace {

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

InstanceSet SetOf(const ServiceInstance& instance) {
  InstanceSet set;
  Check(set.Apply(*Event::Snapshot(1, 1, SetFlags(), {Blob(CanonicalInstance(instance))})).ok(),
        "a set of one");
  return set;
}

void CheckValid(const ServiceInstance& instance) {
  Check(ValidateInstance(FieldPath("instance"), instance).ok(), "an instance is valid");
}

// JSON that may well be of a service: fields that are known, with values of any kind.
std::string Json(FuzzInput* input, int depth = 0) {
  static const char* const kNames[] = {
      "Name",       "ID",         "Port",     "Tags",           "Meta",
      "Check",      "Checks",     "TTL",      "HTTP",           "Interval",
      "Weights",    "Passing",    "Address",  "instance",       "app",
      "port",       "$",          "@enabled", "hostName",       "ipAddr",
      "metadata",   "status",     "zone",     "leaseInfo",      "weight",
      "vipAddress", "instanceId", "Status",   "durationInSecs", "dataCenterInfo"};
  static const char* const kValues[] = {"\"orders\"", "8080", "\"10s\"",     "true",  "\"UP\"",
                                        "\"a,b\"",    "null", "\"passing\"", "1e300", "-1"};
  const uint8_t kind = input->Byte() % (depth > 5 ? 2 : 8);
  if (kind == 0) return kValues[input->Byte() % std::size(kValues)];
  if (kind == 1) return absl::StrCat("\"", input->Text(20), "\"");
  if (kind == 2) {
    std::string list = "[";
    for (int items = input->Byte() % 4; items > 0; --items) {
      absl::StrAppend(&list, Json(input, depth + 1), items > 1 ? "," : "");
    }
    return list + "]";
  }
  std::string object = "{";
  for (int fields = input->Byte() % 8; fields > 0; --fields) {
    absl::StrAppend(&object, "\"", kNames[input->Byte() % std::size(kNames)],
                    "\":", Json(input, depth + 1), fields > 1 ? "," : "");
  }
  return object + "}";
}

void FuzzConsul(const std::string& body) {
  const auto service = consul::ParseService(body);
  consul::ParseCheck(body).status().IgnoreError();
  consul::ParseCheckUpdate(body).status().IgnoreError();
  if (!service.ok()) {
    Check(!service.status().message().empty(), "a refusal has words");
    return;
  }
  const auto instance =
      consul::ToInstance(*service, "default", "10.0.0.1", consul::CheckStatus::kWarning);
  if (!instance.ok()) return;
  CheckValid(*instance);
  const InstanceView view(*instance);
  const consul::ServiceEntry entry(view);
  Check(entry.tags == service->tags, "tags come back");
  Check(entry.meta.size() == service->meta.size(), "Meta comes back");
  const InstanceSet set = SetOf(*instance);
  for (const std::string& json :
       {consul::HealthOfService(set, {"default"}), consul::CatalogOfService(set, {"default"}),
        consul::ChecksOfService(set, {"default"}), consul::Nodes({&set}, "default")}) {
    Check(markup::ParseJson(json).ok(), "what is shown is JSON");
  }
}

void FuzzEureka(const google::protobuf::Value& body) {
  const auto registration = eureka::ParseRegistration(body, "ORDERS", "default");
  if (!registration.ok()) return;
  CheckValid(registration->instance);
  eureka::Applications all;
  all.Add(Blob(CanonicalInstance(registration->instance)));
  Check(markup::ParseJson(all.Render(eureka::Form::kJson, 1)).ok(), "what is shown is JSON");
  const auto xml = markup::ParseXml(all.Render(eureka::Form::kXml, 1));
  Check(xml.ok(), "what is shown is XML");
}

void Fuzz(FuzzInput* input) {
  switch (input->Byte() % 4) {
    case 0: {
      FuzzConsul(input->Byte() % 2 == 0 ? Json(input) : input->Rest());
      return;
    }
    case 1: {
      const auto value = markup::ParseJson(input->Byte() % 2 == 0 ? Json(input) : input->Rest());
      if (value.ok()) FuzzEureka(*value);
      return;
    }
    case 2: {
      const auto value = markup::ParseXml(
          input->Byte() % 2 == 0 ? absl::StrCat("<instance><hostName>h</hostName><port>1</port>",
                                                input->Text(500), "</instance>")
                                 : input->Rest());
      if (value.ok()) FuzzEureka(*value);
      return;
    }
    default: {
      consul::Parameters parameters;
      for (int count = input->Byte() % 8; count > 0; --count) {
        static const char* const kNames[] = {"index", "wait", "tag", "passing", "dc", "filter"};
        parameters.emplace_back(kNames[input->Byte() % std::size(kNames)], input->Text(30));
      }
      const auto query = consul::ParseQuery(parameters, consul::Query::kTags, "default");
      if (query.ok()) {
        Check(query->wait <= consul::kLongestQueryWait && query->wait > absl::ZeroDuration(),
              "a wait is bounded");
      }
      std::vector<std::string> tags;
      for (int count = input->Byte() % 8; count > 0; --count) tags.push_back(input->Text(40));
      const auto encoded = consul::EncodeTags(tags);
      if (!encoded.ok()) return;
      std::vector<std::string> decoded;
      for (const std::string& value : *encoded) consul::DecodeTags(value, &decoded);
      Check(decoded == tags, "tags come back");
    }
  }
}

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  failback::FuzzInput input(data, size);
  failback::Fuzz(&input);
  return 0;
}
