// What a DNS server answers about a name, and why, for people.
//
//   const Meaning meaning = MeaningOfText(zone.domain, name);
//   const Explanation explained = Explain(zone, options, name, meaning, table.Look(…));
//   for (const auto& record : explained.records) Print(record.type, record.data);
//   for (const auto& instance : explained.left_out) Print(instance.id, instance.why);
//
// It is made of the records that answers are made of, and how many of them an answer has is counted
// in answers that are written. It takes one look at each instance, and reads those that are listed.
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_DNS_EXPLAIN_H_
#define FAILBACK_GATEWAY_DNS_EXPLAIN_H_

#include <cstddef>
#include <string>
#include <vector>

#include "gateway/dns/names.h"
#include "gateway/dns/records.h"
#include "gateway/dns/service_table.h"
#include "gateway/dns/zone.h"
#include "registry/model/blob.h"

namespace failback::dns {

// Records, and instances that are left out, that an explanation lists at most.
inline constexpr size_t kMaxExplained = 1000;
// Of a name as people write it.
inline constexpr size_t kMaxExplainedName = 1024;

struct Explanation {
  struct Record {
    std::string type;  // "SRV"
    std::string data;  // "0 100 8080 0a000001.addr.failback."
  };
  // The answer to a question of one type.
  struct Answer {
    std::string type;
    size_t records = 0;  // that there are
    // That are in an answer by UDP without EDNS, in the largest one by UDP, and by TCP.
    size_t plain_udp = 0;
    size_t udp = 0;
    size_t tcp = 0;
  };
  struct LeftOut {
    std::string id;
    std::string endpoint;  // "10.0.0.7:8080"
    std::string why;
  };

  std::string rcode;   // "NOERROR", "NODATA", "NXDOMAIN", "SERVFAIL", "REFUSED"
  std::string reason;  // what the name is, or why there is nothing
  bool stale = false;
  std::vector<Record> records;
  std::vector<Answer> answers;
  std::vector<LeftOut> left_out;
  size_t total_left_out = 0;
};

// An instance of the service that was registered here, and why the registry may not tell of it.
struct NotRegistered {
  std::string key;  // canonical
  Blob instance;
  std::string why;
  bool acknowledged = false;  // by the registry, once
};

// What `name`, as a person writes it, means. kOutside also for what is no name.
Meaning MeaningOfText(const Domain& domain, const std::string& name);

// `name` means `meaning`; `found`: what is known of the service, if it means one.
// `not_registered`: those of them that the set has not, or has with another endpoint, are left out
// as well; those that are acknowledged only where there is a set to compare them with.
Explanation Explain(const Zone& zone, const RecordOptions& options, const std::string& name,
                    const Meaning& meaning, const ServiceTable::Found& found,
                    const std::vector<NotRegistered>& not_registered = {});

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_EXPLAIN_H_
