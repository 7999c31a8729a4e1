#include "gateway/consul/consul_door.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/door/door_guard.h"
#include "gateway/door/parked_read.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback::consul {
namespace {

using catalog::Knowledge;
using catalog::NamespaceView;
using catalog::ServiceView;
using http::Request;
using http::Responder;
using http::Response;

constexpr char kCall[] = "Consul";
// For what does not block: until something is known, or it is known that nothing is.
constexpr absl::Duration kFirstWait = absl::Seconds(5);
constexpr size_t kMostLists = 128;

// What comes with the answer to every query. `stale_since` is that of the view.
void AddIndex(uint64_t index, absl::Time stale_since, absl::Time now, Response* response) {
  const bool stale = stale_since != absl::InfiniteFuture();
  const int64_t contact =
      stale ? std::max<int64_t>(0, absl::ToInt64Milliseconds(now - stale_since)) : 0;
  response->headers.emplace_back("X-Consul-Index", absl::StrCat(index));
  response->headers.emplace_back("X-Consul-KnownLeader", stale ? "false" : "true");
  response->headers.emplace_back("X-Consul-LastContact", absl::StrCat(contact));
}

}  // namespace

Response ConsulDoor::Error(int http_status, const absl::Status& status) {
  // Clients take 401 for "access control is disabled".
  Response response = Response::Text(absl::StrCat(std::string(status.message()), "\n"));
  response.status = http_status == 401 ? 403 : http_status;
  // Old clients read it from every 404.
  if (response.status == 404) response.headers.emplace_back("X-Consul-Index", "1");
  http::AddRetryAfter(status, &response);
  return response;
}

Response ConsulDoor::Error(const absl::Status& status) {
  return Error(http::HttpStatusOf(status), status);
}

std::optional<Response> ConsulDoor::RefuseUnsupported(const Request& request) {
  // Parts of Consul's API, and calls of those parts that are here, each with what is below it.
  static constexpr const char* kParts[] = {
      "acl",      "config",    "connect",  "coordinate",        "discovery-chain",
      "event",    "kv",        "internal", "exported-services", "imported-services",
      "lock",     "namespace", "operator", "namespaces",        "partition",
      "peering",  "peerings",  "query",    "partitions",        "session",
      "snapshot", "txn"};
  static constexpr std::pair<const char*, const char*> kCalls[] = {{"agent", "connect"},
                                                                   {"agent", "force-leave"},
                                                                   {"agent", "health"},
                                                                   {"agent", "host"},
                                                                   {"agent", "join"},
                                                                   {"agent", "leave"},
                                                                   {"agent", "maintenance"},
                                                                   {"agent", "metrics"},
                                                                   {"agent", "monitor"},
                                                                   {"agent", "reload"},
                                                                   {"agent", "token"},
                                                                   {"agent", "version"},
                                                                   {"catalog", "connect"},
                                                                   {"catalog", "deregister"},
                                                                   {"catalog", "gateway-services"},
                                                                   {"catalog", "node-services"},
                                                                   {"catalog", "register"},
                                                                   {"health", "connect"},
                                                                   {"health", "ingress"}};
  const std::vector<std::string>& path = request.segments;
  if (path.size() < 2 || path[0] != "v1") return std::nullopt;
  std::string call = path[1];
  bool absent = std::any_of(std::begin(kParts), std::end(kParts),
                            [&](const char* part) { return path[1] == part; });
  if (!absent && path.size() > 2) {
    call = absl::StrCat(path[1], "/", path[2]);
    absent = std::any_of(std::begin(kCalls), std::end(kCalls), [&](const auto& one) {
      return path[1] == one.first && path[2] == one.second;
    });
  }
  if (!absent) return std::nullopt;
  return Error(501, absl::UnimplementedError(absl::StrCat(
                        "/v1/", call,
                        " is not part of this door: services register with "
                        "/v1/agent/service/register at a failback-agent, and are read with "
                        "/v1/catalog and /v1/health; docs/consul.md lists every call")));
}

absl::Status ConsulDoor::MayRead(const Identity& caller, const std::string& name_space,
                                 const std::string& service) const {
  if (options_.access == nullptr) return absl::OkStatus();
  absl::Status status =
      options_.access->rules()->Judge(caller, config::v1::PERMISSION_READ, name_space, service);
  if (status.ok()) return status;
  return options_.access->Denied(caller, kCall, config::v1::PERMISSION_READ, std::move(status));
}

std::function<bool(const std::string&)> ConsulDoor::ReadableBy(
    const Identity& caller, const std::string& name_space) const {
  if (options_.access == nullptr) return nullptr;
  std::shared_ptr<const AccessRules> rules = options_.access->rules();
  if (rules->JudgeAll(caller, config::v1::PERMISSION_READ, name_space).ok()) return nullptr;
  return [rules = std::move(rules), caller, name_space](const std::string& service) {
    return rules->Judge(caller, config::v1::PERMISSION_READ, name_space, service).ok();
  };
}

absl::Duration ConsulDoor::WaitOf(const Query& query) const {
  return query.blocking ? WaitWithJitter(query.wait, options_.random()) : kFirstWait;
}

http::Handler ConsulDoor::ServiceHandler(const char* kind, unsigned accepts, Render render) {
  return [self = shared_from_this(), kind = std::string(kind), accepts, render](
             const Request& request, Responder responder) {
    absl::StatusOr<Query> parsed = ParseQuery(request.query, accepts, self->options_.datacenter);
    if (!parsed.ok()) return responder.Send(Error(parsed.status()));
    const Query query = *std::move(parsed);
    const std::string service = request.parameters[0];
    const Identity caller = request.caller;
    // What the bytes depend on. A tag may hold anything: by their lengths no two lists are one text.
    std::string key = absl::StrCat("consul ", kind, query.passing ? " passing " : " ");
    for (const std::string& tag : query.tags) absl::StrAppend(&key, tag.size(), ":", tag);
    const std::shared_ptr<catalog::Catalog> followed = self->options_.catalog;
    const auto look = [=](bool last, uint64_t* version) -> std::optional<Response> {
      // Each time: the rules may be others by now.
      if (absl::Status may = self->MayRead(caller, query.name_space, service); !may.ok()) {
        return Error(may);
      }
      const ServiceView view = followed->Service(query.name_space, service);
      *version = view.version;
      if (absl::Status missing = catalog::WhyUnknown(view.knowledge, last); !missing.ok()) {
        return Error(missing);
      }
      if (view.knowledge != Knowledge::kKnown || (!last && !IsDue(query, view.index))) {
        return std::nullopt;
      }
      Response response;
      response.shared_body = view.renderings->Get(
          key,
          [&] {
            return render(*view.instances, {query.name_space, query.tags, query.passing});
          },
          /*made_up=*/!query.tags.empty());
      AddIndex(view.index, view.stale_since, self->options_.now(), &response);
      return response;
    };
    AnswerWhenDue(std::move(responder), self->WaitOf(query), look,
                  [=](uint64_t version, std::function<void()> wake) {
                    return followed->WaitForService(query.name_space, service, version,
                                                    std::move(wake));
                  });
  };
}

http::Handler ConsulDoor::NamespaceHandler(RenderAll render) {
  return [self = shared_from_this(), render](const Request& request, Responder responder) {
    absl::StatusOr<Query> parsed =
        ParseQuery(request.query, Query::kNothingElse, self->options_.datacenter);
    if (!parsed.ok()) return responder.Send(Error(parsed.status()));
    const Query query = *std::move(parsed);
    // The request is valid only now.
    Request kept;
    kept.parameters = request.parameters;
    kept.caller = request.caller;
    const std::shared_ptr<catalog::Catalog> followed = self->options_.catalog;
    const auto look = [=](bool last, uint64_t* version) -> std::optional<Response> {
      // Each time: the rules may be others by now.
      if (absl::Status may =
              MayReadSome(self->options_.access.get(), kept.caller, query.name_space);
          !may.ok()) {
        return Error(may);
      }
      const NamespaceView view = followed->Namespace(query.name_space);
      *version = view.version;
      if (absl::Status missing = catalog::WhyUnknown(view.knowledge, last); !missing.ok()) {
        return Error(missing);
      }
      if (view.knowledge != Knowledge::kKnown || (!last && !IsDue(query, view.index))) {
        return std::nullopt;
      }
      const auto readable = self->ReadableBy(kept.caller, query.name_space);
      Sets sets;
      for (const auto& service : *view.services) {
        if (readable == nullptr || readable(service.name)) {
          sets.push_back(service.instances.get());
        }
      }
      Response response = Response::Json(render(sets, {query.name_space}, kept));
      AddIndex(view.index, view.stale_since, self->options_.now(), &response);
      return response;
    };
    AnswerWhenDue(std::move(responder), self->WaitOf(query), look,
                  [=](uint64_t version, std::function<void()> wake) {
                    return followed->WaitForNamespace(query.name_space, version, std::move(wake));
                  });
  };
}

void ConsulDoor::ReadServiceNames(const Request& request, Responder responder) {
  absl::StatusOr<Query> parsed =
      ParseQuery(request.query, Query::kNothingElse, options_.datacenter);
  if (!parsed.ok()) return responder.Send(Error(parsed.status()));
  const Query query = *std::move(parsed);
  const auto look = [self = shared_from_this(), query, caller = request.caller](
                        bool last, uint64_t* version) -> std::optional<Response> {
    if (absl::Status may = MayReadSome(self->options_.access.get(), caller, query.name_space);
        !may.ok()) {
      return Error(may);
    }
    const NamespaceView view = self->options_.catalog->Namespace(query.name_space);
    *version = view.version;
    if (absl::Status missing = catalog::WhyUnknown(view.knowledge, last); !missing.ok())
      return Error(missing);
    if (view.knowledge != Knowledge::kKnown) return std::nullopt;
    TagsOfServices services;
    uint64_t index = 0;
    {
      MutexLock lock(&self->mu_);
      if (self->lists_.size() > kMostLists) self->lists_.clear();
      ServiceList& list = self->lists_[query.name_space];
      list.Update(view);
      index = list.index();
      // Not of each service's health: that changes more often.
      if (!last && !IsDue(query, index)) return std::nullopt;
      services = list.services();
    }
    if (const auto readable = self->ReadableBy(caller, query.name_space)) {
      for (auto it = services.begin(); it != services.end();) {
        it = readable(it->first) ? std::next(it) : services.erase(it);
      }
    }
    Response response = Response::Json(ServicesWithTags(services));
    AddIndex(index, view.stale_since, self->options_.now(), &response);
    return response;
  };
  AnswerWhenDue(std::move(responder), WaitOf(query), look,
                [followed = options_.catalog, query](uint64_t version, std::function<void()> wake) {
                  return followed->WaitForNamespace(query.name_space, version, std::move(wake));
                });
}

void ConsulDoor::AddReads(const Add& add) {
  add("GET", "/v1/health/service/{service}",
      ServiceHandler("health", Query::kTags, HealthOfService));
  add("GET", "/v1/health/checks/{service}",
      ServiceHandler("checks", Query::kNothingElse, ChecksOfService));
  add("GET", "/v1/catalog/service/{service}",
      ServiceHandler("catalog", Query::kTags, CatalogOfService));
  add("GET", "/v1/catalog/services",
      [self = shared_from_this()](const Request& request, Responder responder) {
        self->ReadServiceNames(request, std::move(responder));
      });
  add("GET", "/v1/catalog/nodes",
      NamespaceHandler([](const Sets& services, const Shown& shown, const Request&) {
        return Nodes(services, shown.datacenter);
      }));
  add("GET", "/v1/catalog/node/{node}",
      NamespaceHandler([](const Sets& services, const Shown& shown, const Request& request) {
        Shown of_node = shown;
        of_node.node = request.parameters[0];
        return ServicesOfNode(services, of_node);
      }));
  add("GET", "/v1/health/node/{node}",
      NamespaceHandler([](const Sets& services, const Shown& shown, const Request& request) {
        Shown of_node = shown;
        of_node.node = request.parameters[0];
        return ChecksOf(services, of_node, [](CheckStatus) { return true; });
      }));
  const http::Handler by_state =
      NamespaceHandler([](const Sets& services, const Shown& shown, const Request& request) {
        const std::string& state = request.parameters[0];
        const std::optional<CheckStatus> wanted = ParseStatus(state);
        return ChecksOf(services, shown, [&](CheckStatus status) {
          return state == "any" || (wanted.has_value() && status == *wanted);
        });
      });
  add("GET", "/v1/health/state/{state}", [by_state](const Request& request, Responder responder) {
    static constexpr const char* kStates[] = {"any", "unknown", "passing", "warning", "critical"};
    const std::string& state = request.parameters[0];
    if (std::none_of(std::begin(kStates), std::end(kStates),
                     [&](const char* known) { return state == known; })) {
      return responder.Send(Error(InvalidField(
          "state",
          absl::StrCat(Quoted(state), " is not any, unknown, passing, warning or critical"))));
    }
    by_state(request, std::move(responder));
  });
  const auto constant = [&](const char* pattern, std::string json) {
    add("GET", pattern, [json = std::move(json)](const Request&, Responder responder) {
      Response response = Response::Json(json);
      AddIndex(1, absl::InfiniteFuture(), absl::InfiniteFuture(), &response);
      responder.Send(std::move(response));
    });
  };
  markup::JsonWriter leader, peers, datacenters;
  leader.String(options_.address);
  peers.BeginArray().String(options_.address).EndArray();
  datacenters.BeginArray().String(options_.datacenter).EndArray();
  constant("/v1/status/leader", std::move(leader).Take());
  constant("/v1/status/peers", std::move(peers).Take());
  constant("/v1/catalog/datacenters", std::move(datacenters).Take());
}

void ConsulDoor::AddRoutes(const Add& add) {
  AddReads(add);
  AddAgent(add);
}

}  // namespace failback::consul
