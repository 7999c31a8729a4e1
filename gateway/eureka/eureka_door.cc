#include "gateway/eureka/eureka_door.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gateway/door/door_guard.h"
#include "gateway/door/parked_read.h"
#include "gateway/markup/fields.h"
#include "gateway/markup/xml_reader.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "registry/model/with_view.h"

namespace failback::eureka {
namespace {

using catalog::Knowledge;
using http::Request;
using http::Responder;
using http::Response;

constexpr char kCall[] = "Eureka";
// Until something is known, or it is known that nothing is.
constexpr absl::Duration kFirstWait = absl::Seconds(5);

absl::Status CheckParameters(const Request& request, std::initializer_list<const char*> allowed) {
  for (const auto& [name, value] : request.query) {
    if (std::any_of(allowed.begin(), allowed.end(),
                    [&name = name](const char* known) { return name == known; })) {
      continue;
    }
    std::string names;
    for (const char* known : allowed) absl::StrAppend(&names, names.empty() ? "" : ", ", known);
    return InvalidField(Quoted(name), absl::StrCat("is not supported here; allowed: ",
                                                   names.empty() ? "none" : names));
  }
  return absl::OkStatus();
}

Response Empty(int status) {
  Response response = Response::Text("");
  response.status = status;
  return response;
}

Response Document(Form form, std::string body) {
  Response response = Response::Json(std::move(body));
  response.content_type = ContentType(form);
  return response;
}

absl::Status NotFound(const std::string& what) {
  return Refusal(registry::v1::ERROR_REASON_NOT_FOUND, absl::StrCat("there is no ", what));
}

// Every instance of the services that may be read.
template <typename Use>
void ForEachInstance(const catalog::NamespaceView& view,
                     const std::function<bool(const std::string&)>& readable, Use use) {
  for (const auto& service : *view.services) {
    if (readable != nullptr && !readable(service.name)) continue;
    service.instances->ForEach([&](const Blob& instance) { use(service.name, instance); });
  }
}

absl::StatusOr<google::protobuf::Value> ParseBody(const Request& request) {
  const std::string_view type = request.Header("Content-Type");
  if (type.find("xml") != std::string_view::npos) return markup::ParseXml(request.body);
  if (type.find("json") != std::string_view::npos) return markup::ParseJson(request.body);
  const size_t first = request.body.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && request.body[first] == '<'
             ? markup::ParseXml(request.body)
             : markup::ParseJson(request.body);
}

}  // namespace

Response EurekaDoor::Error(int http_status, const absl::Status& status) {
  Response response = Response::Text(absl::StrCat(std::string(status.message()), "\n"));
  response.status = http_status;
  http::AddRetryAfter(status, &response);
  return response;
}

Response EurekaDoor::Error(const absl::Status& status) {
  return Error(http::HttpStatusOf(status), status);
}

EurekaDoor::Readable EurekaDoor::ReadableBy(const Identity& caller) const {
  if (options_.access == nullptr) return nullptr;
  std::shared_ptr<const AccessRules> rules = options_.access->rules();
  if (rules->JudgeAll(caller, config::v1::PERMISSION_READ, options_.name_space).ok()) {
    return nullptr;
  }
  return [rules = std::move(rules), caller,
          name_space = options_.name_space](const std::string& service) {
    return rules->Judge(caller, config::v1::PERMISSION_READ, name_space, service).ok();
  };
}

void EurekaDoor::Read(const Request& request, Responder responder, const Answer& answer) const {
  const auto look = [self = shared_from_this(), caller = request.caller, answer](
                        bool last, uint64_t* version) -> std::optional<Response> {
    if (absl::Status may =
            MayReadSome(self->options_.access.get(), caller, self->options_.name_space);
        !may.ok()) {
      return Error(may);
    }
    const View view = self->options_.catalog->Namespace(self->options_.name_space);
    *version = view.version;
    if (absl::Status missing = catalog::WhyUnknown(view.knowledge, last); !missing.ok())
      return Error(missing);
    if (view.knowledge != Knowledge::kKnown) return std::nullopt;
    return answer(view, self->ReadableBy(caller));
  };
  AnswerWhenDue(std::move(responder), kFirstWait, look,
                [catalog = options_.catalog, name_space = options_.name_space](
                    uint64_t version, std::function<void()> wake) {
                  return catalog->WaitForNamespace(name_space, version, std::move(wake));
                });
}

void EurekaDoor::GetApps(const Request& request, Responder responder) {
  if (auto status = CheckParameters(request, {}); !status.ok())
    return responder.Send(Error(status));
  Read(request, std::move(responder),
       [form = FormOf(request.Header("Accept"))](const View& view, const Readable& readable) {
         const auto render = [&] {
           Applications all;
           ForEachInstance(view, readable,
                           [&](const std::string&, const Blob& instance) { all.Add(instance); });
           return all.Render(form, view.index);
         };
         if (readable != nullptr) return Document(form, render());
         Response response = Document(form, "");
         response.shared_body =
             view.renderings->Get(form == Form::kXml ? "eureka xml" : "eureka json", render);
         return response;
       });
}

void EurekaDoor::GetDelta(const Request& request, Responder responder) {
  if (auto status = CheckParameters(request, {}); !status.ok())
    return responder.Send(Error(status));
  Read(request, std::move(responder),
       [self = shared_from_this(), form = FormOf(request.Header("Accept"))](
           const View& view, const Readable& readable) {
         return self->Delta(view, readable, form);
       });
}

Response EurekaDoor::Delta(const View& view, const Readable& readable, Form form) {
  Applications all;  // for its counts
  ForEachInstance(view, readable,
                  [&](const std::string&, const Blob& instance) { all.Add(instance); });
  MutexLock lock(&mu_);
  // Another thread may have come with a newer view.
  if (view.version >= delta_of_) {
    delta_of_ = view.version;
    delta_.Update(*view.services, options_.now());
  }
  if (delta_.too_many()) {
    // By this status clients fetch all.
    return Error(403, Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                              "too much has changed lately for a delta; fetch all"));
  }
  const std::pair<uint64_t, uint64_t> versions = {delta_.version(), view.version};
  if (rendered_of_ != versions) rendered_.clear();
  rendered_of_ = versions;
  std::shared_ptr<const std::string> body = readable == nullptr ? rendered_[form] : nullptr;
  if (body == nullptr) {
    Applications changed;
    for (const DeltaLog::Change& change : delta_.changes()) {
      if (readable == nullptr || readable(change.service)) {
        changed.Add(change.instance, change.action);
      }
    }
    body =
        std::make_shared<const std::string>(changed.Render(form, delta_.version(), all.counts()));
    if (readable == nullptr) rendered_[form] = body;
  }
  Response response = Document(form, "");
  response.shared_body = std::move(body);
  return response;
}

void EurekaDoor::GetVips(const Request& request, Responder responder, bool secure) {
  if (auto status = CheckParameters(request, {}); !status.ok())
    return responder.Send(Error(status));
  Read(request, std::move(responder),
       [form = FormOf(request.Header("Accept")), vip = request.parameters[0], secure](
           const View& view, const Readable& readable) {
         Applications found;
         ForEachInstance(view, readable, [&](const std::string&, const Blob& instance) {
           WithView(instance, [&](const InstanceView& fields) {
             const Info info(fields);
             if (secure ? info.HasSecureVip(vip) : info.HasVip(vip)) found.Add(instance);
           });
         });
         if (found.empty()) {
           return Error(NotFound(absl::StrCat("instance with the VIP address ", Quoted(vip))));
         }
         return Document(form, found.Render(form, view.index));
       });
}

void EurekaDoor::GetApp(const Request& request, Responder responder) {
  if (auto status = CheckParameters(request, {}); !status.ok())
    return responder.Send(Error(status));
  Read(request, std::move(responder),
       [form = FormOf(request.Header("Accept")), app = request.parameters[0]](
           const View& view, const Readable& readable) {
         Applications found;
         ForEachInstance(view, readable, [&](const std::string& service, const Blob& instance) {
           if (absl::EqualsIgnoreCase(service, app)) found.Add(instance);
         });
         if (found.empty()) return Error(NotFound(absl::StrCat("app ", Quoted(app))));
         return Document(form, found.RenderOnly(form));
       });
}

void EurekaDoor::GetInstance(const Request& request, Responder responder, const std::string& app,
                             const std::string& id) {
  if (auto status = CheckParameters(request, {}); !status.ok())
    return responder.Send(Error(status));
  Read(request, std::move(responder),
       [form = FormOf(request.Header("Accept")), app, id](const View& view,
                                                          const Readable& readable) {
         Blob found;
         ForEachInstance(view, readable, [&](const std::string& service, const Blob& instance) {
           if (!found && (app.empty() || absl::EqualsIgnoreCase(service, app)) &&
               KeyNamesOf(instance).instance_id == id) {
             found = instance;
           }
         });
         if (!found) return Error(NotFound(absl::StrCat("instance ", Quoted(id))));
         return Document(form, RenderInstance(found, form));
       });
}

InstanceKey EurekaDoor::KeyOf(const Request& request) const {
  InstanceKey key;
  key.set_namespace_(options_.name_space);
  key.set_service(ServiceOfApp(request.parameters[0]));
  key.set_instance_id(request.parameters[1]);
  return key;
}

void EurekaDoor::Register(const Request& request, Responder responder) {
  // What servers tell each other when they replicate is not for this door.
  if (auto status = CheckParameters(request, {}); !status.ok())
    return responder.Send(Error(status));
  absl::StatusOr<google::protobuf::Value> body = ParseBody(request);
  if (!body.ok()) return responder.Send(Error(body.status()));
  absl::StatusOr<Registration> registration =
      ParseRegistration(*body, request.parameters[0], options_.name_space);
  if (!registration.ok()) return responder.Send(Error(registration.status()));
  InstanceWriter::PutRequest put;
  put.instance = std::move(registration->instance);
  put.ttl = registration->lease;
  options_.writer->Put(
      request.caller, std::move(put),
      [responder = std::move(responder)](const absl::StatusOr<LiveInstance>& live) mutable {
        responder.Send(live.ok() ? Empty(204) : Error(live.status()));
      });
}

void EurekaDoor::Renew(const Request& request, Responder responder) {
  if (auto status = CheckParameters(request, {"status", "lastDirtyTimestamp", "overriddenstatus"});
      !status.ok()) {
    return responder.Send(Error(status));
  }
  options_.writer->Renew(
      request.caller, KeyOf(request), absl::ZeroDuration(),
      [responder = std::move(responder)](const absl::StatusOr<LiveInstance>& live) mutable {
        responder.Send(live.ok() ? Empty(200) : Error(live.status()));
      });
}

void EurekaDoor::Cancel(const Request& request, Responder responder) {
  if (auto status = CheckParameters(request, {}); !status.ok())
    return responder.Send(Error(status));
  options_.writer->Remove(
      request.caller, KeyOf(request), registry::v1::INTENT_STATE_UNSPECIFIED,
      [responder = std::move(responder)](const absl::StatusOr<LiveInstance>& live) mutable {
        // One that another client has is none of this one's: done.
        const bool superseded = ReasonOf(live.status()) == registry::v1::ERROR_REASON_SUPERSEDED;
        responder.Send(live.ok() || superseded ? Empty(200) : Error(live.status()));
      });
}

void EurekaDoor::SetStatus(const Request& request, Responder responder, bool remove) {
  absl::Status status = CheckParameters(request, {"value", "lastDirtyTimestamp"});
  const std::string value = request.Query("value");
  if (status.ok() && !remove && value != "OUT_OF_SERVICE" && value != "UP") {
    status =
        InvalidField("value", absl::StrCat(Quoted(value),
                                           " cannot override a status; OUT_OF_SERVICE takes an "
                                           "instance out of rotation, UP puts it back"));
  }
  if (status.ok() && options_.access != nullptr) {
    status = options_.access->rules()->JudgeAll(request.caller, config::v1::PERMISSION_ADMINISTER,
                                                std::nullopt);
    if (!status.ok()) {
      status = options_.access->Denied(request.caller, kCall, config::v1::PERMISSION_ADMINISTER,
                                       std::move(status));
    }
  }
  if (!status.ok()) return responder.Send(Error(status));
  SetOfflineRequest offline;
  *offline.mutable_key() = KeyOf(request);
  offline.set_offline(!remove && value == "OUT_OF_SERVICE");
  offline.set_reason("Eureka status override");
  offline.set_by(options_.access == nullptr ? "a Eureka client" : request.caller.ToString());
  options_.registry->SetOffline(
      offline,
      [responder = std::move(responder)](const absl::StatusOr<SetOfflineResponse>& set) mutable {
        responder.Send(set.ok() ? Empty(200) : Error(set.status()));
      });
}

void EurekaDoor::AddBelow(const std::string& prefix, const Add& add) {
  using Method = void (EurekaDoor::*)(const Request&, Responder);
  const auto route = [&](const char* method, const char* pattern, Method handler) {
    add(method, absl::StrCat(prefix, pattern),
        [self = shared_from_this(), handler](const Request& request, Responder responder) {
          ((*self).*handler)(request, std::move(responder));
        });
  };
  route("GET", "/apps", &EurekaDoor::GetApps);
  route("GET", "/apps/delta", &EurekaDoor::GetDelta);
  route("GET", "/apps/{app}", &EurekaDoor::GetApp);
  route("POST", "/apps/{app}", &EurekaDoor::Register);
  route("PUT", "/apps/{app}/{id}", &EurekaDoor::Renew);
  route("DELETE", "/apps/{app}/{id}", &EurekaDoor::Cancel);
  const auto call = [&](const char* method, const char* pattern, auto handler) {
    add(method, absl::StrCat(prefix, pattern),
        [self = shared_from_this(), handler](const Request& request, Responder responder) {
          handler(self.get(), request, std::move(responder));
        });
  };
  call("GET", "/apps/{app}/{id}", [](EurekaDoor* door, const Request& request, Responder r) {
    door->GetInstance(request, std::move(r), request.parameters[0], request.parameters[1]);
  });
  call("GET", "/instances/{id}", [](EurekaDoor* door, const Request& request, Responder r) {
    door->GetInstance(request, std::move(r), "", request.parameters[0]);
  });
  call("GET", "/vips/{vip}", [](EurekaDoor* door, const Request& request, Responder r) {
    door->GetVips(request, std::move(r), false);
  });
  call("GET", "/svips/{vip}", [](EurekaDoor* door, const Request& request, Responder r) {
    door->GetVips(request, std::move(r), true);
  });
  call("PUT", "/apps/{app}/{id}/status", [](EurekaDoor* door, const Request& request, Responder r) {
    door->SetStatus(request, std::move(r), false);
  });
  call("DELETE", "/apps/{app}/{id}/status",
       [](EurekaDoor* door, const Request& request, Responder r) {
         door->SetStatus(request, std::move(r), true);
       });
}

void EurekaDoor::AddRoutes(const Add& add) {
  AddBelow("/eureka", add);
  AddBelow("/eureka/v2", add);
}

}  // namespace failback::eureka
