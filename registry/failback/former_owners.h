// Who opened the sessions of incarnations that have none now, where callers are distinguished.
//
// A client whose session has ended comes back with the same incarnation, and finds it taken if
// another caller may open one under it meanwhile. So an incarnation stays its owner's for a while.
//
// Bounded: one owner has a quarter of the places at most, and beyond that loses those that he left
// first. Where all places are taken, an owner who has some loses his own first; only an owner who
// has none takes the one that was left first of all. So no caller can make an agent forget whose
// the incarnations of others are by leaving many himself.
//
//   owners.Leave("pod-uid", "shop", now);
//   owners.OwnerOf("pod-uid", now);          // "shop"
//   owners.Take("pod-uid");                  // a session is open again
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_FAILBACK_FORMER_OWNERS_H_
#define FAILBACK_REGISTRY_FAILBACK_FORMER_OWNERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

namespace failback {

class FormerOwners {
 public:
  // At most `max` incarnations, each for `life_nanos`.
  FormerOwners(size_t max, int64_t life_nanos) : max_(max), life_nanos_(life_nanos) {}

  // The last session of `incarnation` has ended. An empty owner is none.
  void Leave(const std::string& incarnation, const std::string& owner, int64_t now_nanos);

  // It has a session again.
  void Take(const std::string& incarnation);

  // Whose it is; empty: it has no owner.
  std::string OwnerOf(const std::string& incarnation, int64_t now_nanos) const;

  size_t size() const { return left_.size(); }

 private:
  // By the order in which they were left.
  using Order = std::map<uint64_t, std::string>;
  struct Left {
    std::string owner;
    uint64_t serial;
    int64_t until_nanos;
  };

  void DropFirst(const Order& order);

  const size_t max_;
  const int64_t life_nanos_;
  uint64_t last_serial_ = 0;
  std::unordered_map<std::string, Left> left_;  // by incarnation
  Order all_;
  std::map<std::string, Order> by_owner_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FORMER_OWNERS_H_
