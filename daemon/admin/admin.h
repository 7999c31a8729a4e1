// What an operator can ask of a daemon and do to it: the one source behind AdminService, the HTTP
// paths and the console.
//
// This class answers from any Registry, by listing it. A daemon derives its own, and adds what it
// knows better: how it is, its sessions, its history (StoreAdmin, EtcdAdmin, AgentAdmin).
//
// Thread safety: all methods from any thread. Callbacks run once, on any thread, perhaps before the
// method returns. The object outlives the calls under way.

#ifndef FAILBACK_DAEMON_ADMIN_ADMIN_H_
#define FAILBACK_DAEMON_ADMIN_ADMIN_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/registry.h"

namespace failback {

// NOT_FOUND when nothing is known of the instance.
absl::StatusOr<admin::v1::InstanceDescription> UnlessUnknown(
    const InstanceKey& key, absl::StatusOr<admin::v1::InstanceDescription> description);

// An operator: what the caller calls itself, in quotes, and what the server knows of it, as
//
//   'alice@host' by token fleet
//
// Cut to the length that requests allow: of what is known nothing, unless it is too long alone.
std::string NameOperator(std::string claimed, std::string known);

class Admin {
 public:
  // `registry` outlives the object.
  Admin(admin::v1::DaemonKind kind, Registry* registry, absl::Time start_time);
  virtual ~Admin() = default;
  Admin(const Admin&) = delete;
  Admin& operator=(const Admin&) = delete;

  admin::v1::DaemonKind kind() const { return kind_; }

  // How people call this daemon: in its overview. Before the first call.
  void SetName(std::string name) { name_ = std::move(name); }

  // Adds to the overview what the program knows beside the registry. Before the first call.
  void OnOverview(std::function<void(admin::v1::Overview*)> add) { add_ = std::move(add); }

  // What answers ExplainDnsName. Before the first call.
  using ExplainDns = std::function<void(const admin::v1::ExplainDnsNameRequest&,
                                        Callback<admin::v1::DnsExplanation>)>;
  void OnExplainDns(ExplainDns explain) { explain_dns_ = std::move(explain); }

  // Whether clients should be sent here.
  virtual admin::v1::Readiness GetReadiness() const = 0;

  admin::v1::Overview GetOverview() const;
  // The same in the shape of the others; what is not known without asking is asked for.
  virtual void AnswerOverview(const admin::v1::GetOverviewRequest& request,
                              Callback<admin::v1::Overview> done) const;

  // Another one whenever what is listed may be another; empty: not known without listing.
  virtual std::string ListVersion() const { return ""; }

  // Here: of one namespace, `default` if none is named.
  virtual void ListServices(const admin::v1::ListServicesRequest& request,
                            Callback<admin::v1::ListServicesResponse> done) const;

  void ListInstances(const admin::v1::ListInstancesRequest& request,
                     Callback<admin::v1::ListInstancesResponse> done) const;

  virtual void DescribeInstance(const admin::v1::DescribeInstanceRequest& request,
                                Callback<admin::v1::InstanceDescription> done) const;

  void SetOffline(const admin::v1::SetOfflineRequest& request,
                  Callback<admin::v1::SetOfflineResponse> done) const;

  void ExplainDnsName(const admin::v1::ExplainDnsNameRequest& request,
                      Callback<admin::v1::DnsExplanation> done) const;

  // A registry's own; here: UNIMPLEMENTED.
  virtual void ListSessions(const admin::v1::ListSessionsRequest& request,
                            Callback<admin::v1::ListSessionsResponse> done) const;
  virtual void ListAgents(const admin::v1::ListAgentsRequest& request,
                          Callback<admin::v1::ListAgentsResponse> done) const;
  virtual void SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                                Callback<admin::v1::SetEvictionGuardResponse> done) const;

 protected:
  struct Listing {
    std::vector<InstanceRecord> records;
    bool stale = false;
    // Why it could not be read, when `records` are what the daemon knows itself.
    absl::Status unread;
  };
  // The instance, if it is registered; otherwise an empty description.
  void FindInstance(const InstanceKey& key, Callback<admin::v1::InstanceDescription> done) const;

  // Everything that `selector` means, on all pages.
  virtual void ListAll(const Selector& selector, Callback<Listing> done) const;

  // Adds what the daemon knows of itself.
  virtual void AddOverview(admin::v1::Overview* overview) const = 0;

  Registry* registry() const { return registry_; }

 private:
  template <typename Response>
  static void SetTrust(const Listing& listing, Response* response);
  void ListPages(ListRequest request, Listing so_far, Callback<Listing> done) const;

  const admin::v1::DaemonKind kind_;
  Registry* const registry_;
  const absl::Time start_time_;
  std::string name_;
  std::function<void(admin::v1::Overview*)> add_;
  ExplainDns explain_dns_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_ADMIN_H_
