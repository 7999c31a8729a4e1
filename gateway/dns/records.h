// What DNS answers about a service, made of its instances: addresses and SRV targets, ready to be
// written.
//
// Given are the instances that are to get new work: healthy, not draining, not offline by an
// operator's mark, of a weight above zero. When there are none of these, all are given
// (`unhealthy_if_no_others`): a client that tries one is better off than one that has none. Of
// several with the same address and port one is given. A host name for an address has no A and
// AAAA record here; it is the target of an SRV record as it is.
//
// An instance has the tags that its metadata `tags` names, with commas between them: at most 16,
// and a service has 256 different ones. Those beyond are ignored.
//
// Making them takes one pass over the instances and one sort; they take some 36 bytes for each, and
// as much again for each of its tags.
//
// Thread safety: immutable; the functions are pure.

#ifndef FAILBACK_GATEWAY_DNS_RECORDS_H_
#define FAILBACK_GATEWAY_DNS_RECORDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/instance_set.h"
#include "registry/model/instance_view.h"

namespace failback::dns {

// Why an instance is not given while there are others.
enum class LeftOut { kNot, kOffline, kUnhealthy, kDraining, kWeightZero, kAddress };
// In this order; kAddress is for good: it is neither an IP address nor a host name of DNS.
LeftOut WhyLeftOut(const InstanceView& instance);
// As "an operator has taken it offline"; empty for kNot.
std::string_view LeftOutText(LeftOut why);

inline constexpr char kTagsKey[] = "tags";
inline constexpr size_t kMaxTagsOfInstance = 16;
inline constexpr size_t kMaxTagsOfService = 256;

struct Target {
  enum class Kind : uint8_t { kIpv4, kIpv6, kName };

  std::array<char, 16> ip = {};  // 4 or 16 bytes of it
  uint32_t instance = 0;         // which of the set
  uint32_t name = 0;             // of kName: which of names()
  uint16_t port = 0;
  uint16_t weight = 0;
  uint8_t priority = 0;
  Kind kind = Kind::kIpv4;
  bool first_of_address = true;  // of those with other ports

  std::string_view address() const { return {ip.data(), kind == Kind::kIpv4 ? 4u : 16u}; }
};

// Each list has every entry once.
struct Records {
  std::vector<std::array<char, 4>> ipv4;
  std::vector<std::array<char, 16>> ipv6;
  std::vector<Target> targets;  // those of priority 0 first
  size_t near = 0;              // how many these are
};

struct RecordOptions {
  // Instances of this zone have SRV priority 0, all others 1; empty: all have 0.
  std::string zone;
  bool unhealthy_if_no_others = true;
};

// Whether an instance is found by a tag, as far as the tag is concerned.
enum class TagStanding { kCounts, kWithout, kBeyondInstance, kBeyondService };

class ServiceRecords {
 public:
  ServiceRecords(const InstanceSet& set, const RecordOptions& options);

  // Of all instances, or of those with a tag; without any if no instance has it.
  const Records& Of(const std::string& tag) const;
  // Wire forms, in lower case.
  const std::vector<std::string>& names() const { return names_; }
  // The instances given are those that nothing should be given of.
  bool last_resort() const { return last_resort_; }

  // What they were made of.
  const InstanceSet& set() const { return set_; }

  // Of an instance of the set that is to be given.
  TagStanding StandingOf(const std::string& tag, const InstanceView& instance) const;

  // The instance of a target; a null one if there is none.
  Blob InstanceOf(const Target& target) const;

 private:
  struct Found;

  static void Fill(std::vector<Target> found, Records* records);

  const InstanceSet set_;
  Records all_;
  absl::flat_hash_map<std::string, Records> by_tag_;
  std::vector<std::string> names_;
  bool last_resort_ = false;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_RECORDS_H_
