// What is known of the services that are asked for, over any Registry.
//
// A service is followed from its first question on, and for an hour after its last one; so an
// answer costs the registry nothing. How many are followed is bounded twice: all of them, and those
// of names without a registration, which any client can make up, to a quarter. Where there are too
// many the one that was asked for least recently makes room. New names are also bounded in time:
// beyond a rate they are not looked at, and nothing is known of them. A quarter of the rate is for
// one network, and half of it for all clients whose addresses may be forged, so that neither can
// keep the others from what they ask for first.
//
// What is known stays: the end of a subscription and a stale set change no record. A service whose
// last instance has gone is present, without records, for an hour; one that has had none is absent.
// A set that is empty and stale says nothing.
//
// Thread safety: Look, Sweep and the destructor on one thread; Stats from any. `wake` is called
// without locks, on the thread that brings the news.

#ifndef FAILBACK_GATEWAY_DNS_SERVICE_TABLE_H_
#define FAILBACK_GATEWAY_DNS_SERVICE_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "gateway/catalog/followed_set.h"
#include "gateway/dns/cookie.h"
#include "gateway/dns/rate_limit.h"
#include "gateway/dns/records.h"
#include "gateway/dns/zone.h"
#include "registry/registry.h"

namespace failback::dns {

class ServiceWatch;
struct WatchContext;

class ServiceTable {
 public:
  // Of what it follows (gateway/catalog/followed_set.h), which nothing waits for: no executor.
  struct Options : catalog::FollowOptions {
    RecordOptions records;
    // Followed at once.
    size_t max_services = 10000;
    // After the last question, and after the last instance.
    absl::Duration kept = absl::Hours(1);
    uint32_t new_names_per_second = 1000;  // and as many at once
    // By which networks share what counts their new names: nobody can guess it.
    std::array<uint64_t, 2> key = RandomKey();
  };

  struct Statistics {
    int64_t services = 0;       // that are followed
    int64_t absent = 0;         // of these: those that have never had an instance
    int64_t evicted = 0;        // that had to make room
    int64_t refused_names = 0;  // new ones, beyond the rate
    int64_t builds = 0;         // of records
  };

  // `wake`: something has become known of a service of which nothing was. Outlived by nothing: it
  // may be called until the destructor has returned.
  ServiceTable(Registry* registry, Options options, std::function<void()> wake);
  ~ServiceTable();
  ServiceTable(const ServiceTable&) = delete;
  ServiceTable& operator=(const ServiceTable&) = delete;

  struct Found {
    Known known;
    // Nothing is known yet, and may be soon: ask again after `wake`.
    bool wait = false;
    bool too_many_names = false;                    // beyond the rate: nothing is followed
    std::shared_ptr<const ServiceRecords> records;  // what `known` refers to
  };
  // Who asks. Nobody, as an operator does: only the rate of all names counts.
  struct Asker {
    std::string_view address = {};  // 4 or 16 bytes
    bool proven = true;             // it has this address
  };
  Found Look(const std::string& name_space, const std::string& service, const Asker& asker);

  // Ends what is no longer kept; at most a few hundred at a time.
  void Sweep();

  Statistics Stats() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<ServiceWatch> watch;
    int64_t asked_nanos = 0;
    bool present = false;  // it has had an instance: which list it is in
  };
  using Entries = std::list<Entry>;  // the last is the one asked for least recently

  Entries& ListOf(bool present) { return present ? present_ : absent_; }
  void Add(std::string key, Selector selector);
  // Whether there may be one more now.
  bool TakeNewName(const Asker& asker, int64_t now_nanos);
  void Remove(Entries* list, Entries::iterator entry);
  void MakeRoom(Entries* list, size_t most);

  const std::shared_ptr<WatchContext> context_;
  absl::flat_hash_map<std::string, Entries::iterator> by_key_;
  Entries present_;
  Entries absent_;
  RateLimit new_names_of_network_;
  double new_names_ = 0;  // that may come now
  int64_t new_names_nanos_ = 0;
  std::atomic<int64_t> services_{0}, absent_count_{0}, evicted_{0}, refused_{0};
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_SERVICE_TABLE_H_
