// How an instance of the registry and one of Eureka are each other.
//
//   Eureka                       instance
//   app                          key.service, in lower case; shown in upper case
//   instanceId, or hostName      key.instance_id
//   ipAddr, or hostName          address
//   port, or securePort if only  port
//     that one is enabled
//   status UP                    healthy
//   status DOWN                  unhealthy; so are STARTING and UNKNOWN, which are remembered
//   status OUT_OF_SERVICE        draining; an operator's mark is shown so too
//   metadata `zone`, or the      zone
//     availability zone
//   metadata `weight`            weight, if it is a number of 0..65535
//   the other metadata           metadata
//   all other fields             metadata whose keys begin with `eureka.`, unless they are as they
//                                are without: vipAddress is the service, countryId is 1, …
//   leaseInfo.durationInSecs     the TTL; 90 s if there is none
//
// Example:
//
//   absl::StatusOr<Registration> registration = ParseRegistration(*value, "ORDERS", "default");
//   if (!registration.ok()) return Refuse(registration.status());
//   Info info(InstanceView(registration->instance));              // info.app: "ORDERS"
//
// Thread safety: plain values; the functions are pure.

#ifndef FAILBACK_GATEWAY_EUREKA_INSTANCE_INFO_H_
#define FAILBACK_GATEWAY_EUREKA_INSTANCE_INFO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/struct.pb.h"
#include "registry/model/instance_view.h"
#include "registry/model/messages.h"

namespace failback::eureka {

inline constexpr absl::Duration kDefaultLease = absl::Seconds(90);

enum class Status { kUp, kDown, kStarting, kOutOfService, kUnknown };

// "UP"; and back.
const char* StatusName(Status status);
std::optional<Status> ParseStatus(std::string_view name);

struct Registration {
  ServiceInstance instance;
  absl::Duration lease = kDefaultLease;
};

// Of `{"instance": {…}}`, which XML is read as too (gateway/markup/xml_reader.h). `app` is that of
// the path. INVALID_ARGUMENT names the field.
absl::StatusOr<Registration> ParseRegistration(const google::protobuf::Value& body,
                                               const std::string& app,
                                               const std::string& name_space);

// The service that an app is.
std::string ServiceOfApp(std::string_view app);
// The app that a service is.
std::string AppOfService(std::string_view service);

// An instance as Eureka shows it. Refers to what it was made of.
struct Info {
  explicit Info(const InstanceView& instance);

  // Whether it has this virtual address; of several, with commas between them.
  bool HasVip(std::string_view vip) const;
  bool HasSecureVip(std::string_view vip) const;

  std::string app;
  std::string_view id;
  std::string_view host_name;
  std::string_view ip_address;
  Status status = Status::kUp;
  bool overridden = false;  // by an operator's mark
  uint32_t port = 0;
  bool port_enabled = true;
  uint32_t secure_port = 443;
  bool secure_port_enabled = false;
  std::string_view vip;
  std::string_view secure_vip;
  std::string_view country_id = "1";
  std::string_view home_page_url;
  std::string_view status_page_url;
  std::string_view health_check_url;
  std::string_view secure_health_check_url;
  std::string_view app_group;
  std::string_view asg;
  std::string_view data_center = "MyOwn";
  uint32_t lease_seconds = 90;
  uint32_t renewal_seconds = 30;
  std::string weight;  // as metadata; empty: none
  std::string_view zone;
  std::vector<InstanceView::Entry> metadata;              // without weight and zone
  std::vector<InstanceView::Entry> data_center_metadata;  // of Amazon
};

}  // namespace failback::eureka

#endif  // FAILBACK_GATEWAY_EUREKA_INSTANCE_INFO_H_
