// What DNS answers about a name, and why, for people.
//
//   const Explanation explained = Explain(domain, "orders.service.failback", instances, options);
//   for (const auto& record : explained.records) Print(record.type, record.data);
//   for (const auto& instance : explained.left_out) Print(instance.id, instance.why);
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_DNS_EXPLAIN_H_
#define FAILBACK_GATEWAY_DNS_EXPLAIN_H_

#include <string>
#include <vector>

#include "failback/registry/v1/registry.pb.h"
#include "gateway/dns/names.h"
#include "gateway/dns/records.h"

namespace failback::dns {

struct Explanation {
  struct Record {
    std::string type;  // "SRV"
    std::string data;  // "0 100 8080 0a000001.addr.failback."
  };
  struct LeftOut {
    std::string id;
    std::string endpoint;  // "10.0.0.7:8080"
    std::string why;
  };

  std::string rcode;   // "NOERROR", "NODATA", "NXDOMAIN", "REFUSED"
  std::string reason;  // what the name is, or why there is nothing
  std::vector<Record> records;
  std::vector<LeftOut> left_out;
};

// What `name`, as a person writes it, means. kOutside also for what is no name.
Meaning MeaningOfText(const Domain& domain, const std::string& name);

// `instances`: all of the service that `name` means, sorted by their ids; none if it means none.
Explanation Explain(const Domain& domain, const std::string& name,
                    const std::vector<registry::v1::ServiceInstance>& instances,
                    const RecordOptions& options);

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_EXPLAIN_H_
