// The names of etcd's keys. docs/etcd.md has the picture.
//
//   <prefix>/v1/<namespace>/<service>/<instance id>      an instance, or its tombstone
//   <prefix>/v1/<namespace>/<service>/<id> offline       an operator's mark on it
//   <prefix>/v1/.store, .epoch                           the store's identity
//   <prefix>/v1/.incarnation/<incarnation>               ranks
//   <prefix>/v1/.rank/<rank>                             whose a rank is that was claimed
//   <prefix>/v1/.session/<session id>                    sessions
//   <prefix>/v1/.lease/<session id>/<lease>              leases of a session
//   <prefix>/v1/.persistent/<incarnation>/<n>/<s>/<id>   whose the instances without a lease are
//
// In each part `%` and `/` are written as %25 and %2F. A namespace begins with a letter or a digit,
// so no other key can be mistaken for one. No id holds a space, which is below all that one may
// hold: a mark comes right behind its instance, and is read and watched with it.
//
// Thread safety: as a plain value.

#ifndef FAILBACK_REGISTRY_ETCD_KEYS_H_
#define FAILBACK_REGISTRY_ETCD_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace failback {
namespace etcd {

// [begin, end).
struct KeyRange {
  std::string begin;
  std::string end;
};

class Keys {
 public:
  // `prefix` without a slash at its end, as "/failback"; may be empty.
  explicit Keys(const std::string& prefix) : root_(prefix + "/v1/") {}

  std::string StoreId() const { return root_ + ".store"; }
  std::string Epoch() const { return root_ + ".epoch"; }
  std::string Incarnation(std::string_view name) const;
  KeyRange Incarnations() const;
  std::string Rank(uint64_t rank) const;
  std::string Session(std::string_view session_id) const;
  KeyRange Sessions() const;
  std::string Lease(std::string_view session_id, int64_t lease) const;
  KeyRange LeasesOf(std::string_view session_id) const;

  // `canonical` is a key as registry/model/canonical.h writes it.
  std::string Instance(std::string_view canonical) const;
  // Its canonical spelling again; nullopt for a key that is no instance's.
  std::optional<std::string> ParseInstance(std::string_view key) const;

  // The operator's mark on an instance.
  std::string Mark(std::string_view canonical) const;
  // The canonical key of the instance that it is a mark on; nullopt for a key that is no mark's.
  std::optional<std::string> ParseMark(std::string_view key) const;
  // An instance with its mark; at most two keys.
  KeyRange InstanceWithMark(std::string_view canonical) const;

  // `service_key` is `namespace NUL service`.
  KeyRange Service(std::string_view service_key) const;
  KeyRange Namespace(std::string_view name) const;
  KeyRange AllInstances() const;
  // Of the instances of all services whose `service_key` begins so.
  KeyRange Beginning(std::string_view prefix) const;

  std::string Persistent(std::string_view incarnation, std::string_view canonical) const;
  KeyRange PersistentOf(std::string_view incarnation) const;
  // The canonical key in a Persistent key of `incarnation`.
  std::optional<std::string> ParsePersistent(std::string_view incarnation,
                                             std::string_view key) const;

 private:
  std::optional<std::string> ParseUnmarked(std::string_view key) const;

  const std::string root_;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_KEYS_H_
