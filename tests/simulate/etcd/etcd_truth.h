// What etcd holds for a registry, revision by revision, read as a registry reads it; and whether
// what is written of a key goes up.
//
//   EtcdTruth truth(&host, {"s0", "s1"}, {on_set, on_wrong});
//
// Fencing, as docs/etcd.md has it: for as long as a key is there, (rank, generation) of what is put
// does not go down; and a tombstone stays for a minute. What expires takes its fence with it, until
// a server puts that back. Of a session that is closed nothing is there.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_ETCD_ETCD_TRUTH_H_
#define FAILBACK_TESTS_SIMULATE_ETCD_ETCD_TRUTH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "tests/simulate/etcd/model_client.h"
#include "tests/simulate/witness.h"

namespace failback::simulate {

class EtcdTruth final : public Witness {
 public:
  // Instances as subscribers receive them, by canonical key.
  using Set = std::map<std::string, std::string>;
  struct Events {
    // A service, at this revision, after each that changed it.
    std::function<void(const std::string& service, uint64_t epoch, uint64_t revision,
                       const Set& set)>
        on_set;
    std::function<void(const std::string& property, const std::string& what)> on_wrong;
  };

  // `services` of the namespace "default". The host outlives this.
  EtcdTruth(EtcdHost* host, std::vector<std::string> services, Events events);
  ~EtcdTruth() override;

  EtcdTruth(const EtcdTruth&) = delete;
  EtcdTruth& operator=(const EtcdTruth&) = delete;

  void Opened(const std::string& session_id, uint64_t rank) override;
  // Nothing of it is there any more, nor comes; unless its first lease, with its key, had run out:
  // the others follow within a TTL.
  void Closed(const std::string& session_id) override;
  void Written(const std::string&, const std::vector<Asked>&, const BatchResult&) override {}

 private:
  // What a key holds.
  struct Fence {
    std::pair<uint64_t, uint64_t> number;  // rank and generation
    bool tombstone = false;
    int64_t since = 0;
  };

  void OnRevision();
  void CheckFence(const mvccpb::Event& event);
  bool HadExpired(const std::string& session_id) const;
  void CheckClosed(const std::string& canonical, const Fence& fence);
  Set SetOf(const std::string& service) const;

  EtcdHost* const host_;
  const std::vector<std::string> services_;
  const Events events_;
  const etcd::Keys keys_{"/failback"};
  etcd::Identity identity_{nullptr, &keys_, [](const etcd::Store&) {}};
  uint64_t wake_ = 0;
  int64_t seen_ = 0;  // revisions up to here
  std::map<std::string, Set> sets_;
  std::map<std::string, Fence> fences_;  // by canonical key
  // The session that was opened last with a rank, and the ranks of those that are closed.
  std::map<uint64_t, std::string> sessions_;
  std::set<uint64_t> closed_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_ETCD_ETCD_TRUTH_H_
