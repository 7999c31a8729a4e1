// Several registries kept in step: a Registry over one FailbackRegistry per upstream.
//
// An intent goes to every upstream, and each carries its own record of it: own generation, own
// retries, own journal. One that is unavailable delays none of the others; its part waits on its
// own wheel. With one upstream this class hands everything through.
//
// Choose it to move a fleet from one registry to another: name both, let every agent register with
// both, move the subscribers, then name only the new one.
//
// What the caller receives:
// * Register and Unregister answer with a result per target (IntentResult.targets). The item's own
//   status is that of the first upstream that refused; its state the least that all have reached.
//   So ACCEPTED means accepted for each, and to wait for ACKNOWLEDGED is to wait for all. A checked
//   intent that fails at one upstream is undone there and stays at the others.
// * Subscribe and List name one upstream, or merge all by key (registry/watch/merged_set.h has the
//   rules, and what stale, epoch and order mean then).
// * A local session is one at each upstream; its id distinguishes them. Lost at one, it is lost,
//   and opening it again resumes the others.
//
// With a state directory each upstream has a folder in it, named after the upstream, and a file
// says which ones were there last. What happens when the configuration changes in between:
// * An upstream that is new gets the intents that another one's journal holds, so what is
//   registered through this agent goes there too, without a new request.
// * One that comes back after it was left out keeps its incarnation and its numbers, and gives up
//   what the others do not hold any more: nothing that was unregistered meanwhile is registered
//   again.
// * One that is left out keeps its folder. What is registered there ends with its session's TTL;
//   unregisters that it still owed, and persistent instances, stay as they are, and a warning says
//   so.
// * When none of the former ones is left (the URI of the only one has changed), the new ones take
//   over everything, owed unregisters included.
//
// Example:
//
//   std::vector<FailbackGroup::Upstream> upstreams;
//   upstreams.push_back({"old", "grpc://10.0.0.1:7070", std::move(old_registry)});
//   upstreams.push_back({"new", "etcd://10.0.0.2:2379/failback", std::move(new_registry)});
//   auto group = FailbackGroup::Create(std::move(upstreams), options);
//
// Thread safety and callbacks: as FailbackRegistry.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_GROUP_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/base/file_lock.h"
#include "registry/failback/failback_registry.h"
#include "registry/registry.h"

namespace failback {

class FailbackGroup final : public Registry {
 public:
  // A local session's id has room for so many.
  static constexpr size_t kMaxUpstreams = 5;

  struct Upstream {
    // Unique in the group; empty: the URI. Printable, without spaces.
    std::string name;
    // As configured, for people.
    std::string uri;
    std::unique_ptr<Registry> registry;
  };

  // `options` are those of each upstream, but for upstream_name; state_dir is the group's, with a
  // folder for each. Errors as of FailbackRegistry::Create, and INVALID_ARGUMENT for no upstream,
  // too many, or two of the same name.
  static absl::StatusOr<std::unique_ptr<FailbackGroup>> Create(
      std::vector<Upstream> upstreams, const FailbackRegistry::Options& options);
  ~FailbackGroup() override;

  // Registry.
  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;
  // At the upstream named, or at all that have the instance. The answer is of the first of them.
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) override;

  // What an operator sees and does; as the calls of AgentService.
  // At the first upstream.
  std::string incarnation() const;
  std::vector<agent::v1::UpstreamStatus> UpstreamStatuses() const;
  std::vector<FailbackStatistics> Stats() const;
  int64_t local_sessions() const;
  bool draining() const;
  // By id, then by upstream.
  std::vector<agent::v1::PendingOperation> Pending(const PendingRange& range = {}) const;
  // By key, then in the order of the upstreams; those whose canonical keys begin so.
  std::vector<CarriedRecord> Carried(const std::string& begins = "") const;
  // As FailbackRegistry's, at every upstream where an id is pending, or at the one named.
  // INVALID_ARGUMENT for an upstream that there is not.
  absl::StatusOr<int64_t> Retry(const agent::v1::PendingSelector& selector);
  absl::StatusOr<int64_t> Cancel(const agent::v1::PendingSelector& selector,
                                 int64_t* sent = nullptr);
  // As FailbackRegistry's, of all upstreams.
  void WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done);
  // At all upstreams at once; the answer has the sums.
  void Drain(absl::Duration deadline, Callback<agent::v1::DrainResponse> done);

 private:
  struct Member {
    std::string name;
    std::string uri;
    std::unique_ptr<FailbackRegistry> registry;
  };
  using Members = std::vector<Member>;

  explicit FailbackGroup(const FailbackRegistry::Options& options);
  // Opens the members, each with its folder, and hands intents over between their journals.
  absl::Status Open(std::vector<Upstream> upstreams, const FailbackRegistry::Options& options);

  // The request of each member, with its own session.
  template <typename Request>
  std::vector<Request> Split(const Request& request) const;
  // One call at every member; `merge` makes one answer of theirs. The first error of a call as a
  // whole is the answer otherwise.
  template <typename Method, typename Request, typename Response, typename Merge>
  void CallAll(Method method, std::vector<Request> requests, Callback<Response> done,
               Merge merge) const;
  static BatchResult MergeResults(const Members& members, const std::vector<BatchResult>& results);

  // `upstream` is empty or names a member; the error has the field's name.
  absl::Status CheckUpstream(const std::string& field, const std::string& upstream) const;
  // The member that answers for `upstream`: the one of that name, or the only one. Null: all do.
  const Member* Only(const std::string& upstream) const;
  using Act = absl::FunctionRef<absl::StatusOr<int64_t>(FailbackRegistry*,
                                                        const std::vector<std::string>& ids)>;
  absl::StatusOr<int64_t> ForPending(const agent::v1::PendingSelector& selector, Act act);

  const absl::Duration begin_grace_;
  HashedWheelTimer* const timer_;
  std::unique_ptr<FileLock> lock_;
  // Shared with the calls under way: a callback may destroy the group.
  std::shared_ptr<const Members> members_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_GROUP_H_
