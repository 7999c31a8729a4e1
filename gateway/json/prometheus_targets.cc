#include "gateway/json/prometheus_targets.h"

#include <deque>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gateway/http/message_json.h"
#include "gateway/http/problem.h"
#include "gateway/json/parameters.h"
#include "google/protobuf/struct.pb.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "registry/security/guarded_registry.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;

// An answer has at most so many bytes: Prometheus reads all of it into memory.
constexpr size_t kMostBytes = 64 << 20;
constexpr size_t kMostServices = 100;

std::string StatusText(const ServiceInstance& instance) {
  if (instance.has_offline()) return "offline";
  switch (instance.status()) {
    case registry::v1::HEALTH_STATUS_UNHEALTHY:
      return "unhealthy";
    case registry::v1::HEALTH_STATUS_DRAINING:
      return "draining";
    default:
      return "healthy";
  }
}

// Letters, digits and underscores: the rest of a metadata key becomes an underscore.
std::string LabelOf(const std::string& key) {
  std::string label = "__meta_failback_metadata_";
  for (const char c : key) label += absl::ascii_isalnum(c) ? c : '_';
  return label;
}

// Lists page by page, service by service, until all is there.
class Listing final : public std::enable_shared_from_this<Listing> {
 public:
  Listing(std::shared_ptr<const JsonDoor::Sources> sources, Identity caller,
          std::deque<Selector> selectors, http::Responder responder)
      : sources_(std::move(sources)),
        caller_(std::move(caller)),
        selectors_(std::move(selectors)),
        responder_(std::move(responder)) {}

  void Next() {
    if (selectors_.empty()) {
      body_ += "]";
      return responder_.Send(http::Response::Json(std::move(body_)));
    }
    ListRequest list;
    *list.mutable_selector() = selectors_.front();
    list.set_page_token(page_token_);
    auto done = [self = shared_from_this()](absl::StatusOr<ListResponse> page) {
      self->OnPage(std::move(page));
    };
    if (sources_->access == nullptr) return sources_->registry->List(list, std::move(done));
    GuardedRegistry(sources_->registry, sources_->access, caller_).List(list, std::move(done));
  }

 private:
  void OnPage(absl::StatusOr<ListResponse> page) {
    if (!page.ok()) return responder_.Send(http::Problem(page.status()));
    for (const InstanceRecord& record : page->records()) {
      if (body_.size() > 1) body_ += ",";
      body_ += TargetJson(record.instance());
    }
    if (body_.size() > kMostBytes) {
      return responder_.Send(
          http::Problem(Refusal(registry::v1::ERROR_REASON_TOO_LARGE,
                                absl::StrCat("the targets have more than ", kMostBytes,
                                             " bytes: ask for some services, with ?service="))));
    }
    page_token_ = page->next_page_token();
    if (page_token_.empty()) selectors_.pop_front();
    Next();
  }

  const std::shared_ptr<const JsonDoor::Sources> sources_;
  const Identity caller_;
  std::deque<Selector> selectors_;
  std::string page_token_;
  std::string body_ = "[";
  http::Responder responder_;
};

}  // namespace

std::string TargetJson(const ServiceInstance& instance) {
  const bool ipv6 = instance.address().find(':') != std::string::npos;
  google::protobuf::Struct target;
  auto& members = *target.mutable_fields();
  members[std::string("targets")].mutable_list_value()->add_values()->set_string_value(
      absl::StrCat(ipv6 ? "[" : "", instance.address(), ipv6 ? "]:" : ":", instance.port()));
  auto& labels = *members[std::string("labels")].mutable_struct_value()->mutable_fields();
  const auto set = [&](const std::string& label, const std::string& value) {
    labels[label].set_string_value(value);
  };
  set("__meta_failback_namespace", instance.key().namespace_());
  set("__meta_failback_service", instance.key().service());
  set("__meta_failback_instance_id", instance.key().instance_id());
  set("__meta_failback_status", StatusText(instance));
  set("__meta_failback_zone", instance.zone());
  set("__meta_failback_weight",
      absl::StrCat(instance.has_weight() ? instance.weight() : uint32_t{100}));
  for (const auto& [key, value] : instance.metadata()) set(LabelOf(key), value);
  return MessageJson(target).value_or("{}");
}

void AnswerPrometheus(const std::shared_ptr<const JsonDoor::Sources>& sources,
                      const http::Request& request, http::Responder responder) {
  absl::Status status = CheckParameters(request, {"namespace", "service"});
  std::deque<Selector> selectors;
  for (const auto& [name, value] : request.query) {
    if (name != "service") continue;
    selectors.emplace_back().set_service(value);
  }
  if (selectors.empty()) selectors.emplace_back();
  if (selectors.size() > kMostServices) {
    status = InvalidField("service", absl::StrCat("is there ", selectors.size(), " times, of ",
                                                  kMostServices, " that are allowed"));
  }
  for (Selector& selector : selectors) {
    if (!status.ok()) break;
    selector.set_namespace_(request.Query("namespace"));
    NormalizeSelector(&selector);
    status = ValidateSelector(FieldPath(), selector);
  }
  if (!status.ok()) return responder.Send(http::Problem(status));
  std::make_shared<Listing>(sources, request.caller, std::move(selectors), std::move(responder))
      ->Next();
}

}  // namespace failback
