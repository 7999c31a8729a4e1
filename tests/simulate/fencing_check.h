// Whether the registry decides each intent by the rules of fencing (docs/protocol.md): what it
// accepts for a key goes up in (rank, generation) for as long as the instance or its fence is
// there, and what is higher is not refused. As its writes take effect one after the other, in the
// order in which they come, that makes them linearizable.
//
// It keeps a model of its own, of what passed the server: not registry/model/fencing.h.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_FENCING_CHECK_H_
#define FAILBACK_TESTS_SIMULATE_FENCING_CHECK_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "registry/registry.h"
#include "tests/simulate/witness.h"
#include "tests/simulate/world.h"

namespace failback::simulate {

class FencingCheck final : public Witness {
 public:
  explicit FencingCheck(World* world) : world_(world) {}

  void Opened(const std::string& session_id, uint64_t rank) override {
    ranks_[session_id] = rank;
    session_of_[rank] = session_id;
  }
  // This leaves no fences.
  void Closed(const std::string& session_id) override;
  void Begun(const std::vector<Asked>& asked) override {
    for (const Asked& intent : asked) begun_.insert(intent.key);
  }
  // The registry is killed: what it had begun may be in its store.
  void Died() { unsure_.merge(begun_); }
  void Written(const std::string& session_id, const std::vector<Asked>& asked,
               const BatchResult& result) override;
  // The instance is not there any more.
  void Removed(const std::string& key);
  // The store is another one, or an earlier one: what it knows is not known here.
  void Forget() {
    fences_.clear();
    unsure_.clear();
    complete_ = false;
  }

 private:
  struct Fence {
    std::pair<uint64_t, uint64_t> newest;  // rank and generation
    bool registers = false;
    int64_t gone_at = 0;  // 0: the instance is there
  };
  bool Holds(const Fence& fence) const;

  World* const world_;
  std::map<std::string, uint64_t> ranks_;       // by session
  std::map<uint64_t, std::string> session_of_;  // the last one with that rank
  std::map<std::string, Fence> fences_;         // by canonical key
  std::multiset<std::string> begun_;            // keys of what is not answered
  std::multiset<std::string> unsure_;           // keys whose fence may be a newer one
  bool complete_ = true;                        // every fence of the store is in fences_
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_FENCING_CHECK_H_
