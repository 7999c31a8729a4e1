#include "gateway/dns/explain.h"

#include <arpa/inet.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "registry/model/blob.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "registry/model/instance_set.h"

namespace failback::dns {
namespace {

using registry::v1::ServiceInstance;
using Kind = Meaning::Kind;

std::string IpText(std::string_view bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
  return text;
}

std::string Endpoint(const ServiceInstance& instance) {
  const bool colons = instance.address().find(':') != std::string::npos;
  return absl::StrCat(colons ? "[" : "", instance.address(), colons ? "]:" : ":", instance.port());
}

InstanceSet SetOf(const std::vector<ServiceInstance>& instances) {
  std::vector<std::pair<std::string, Blob>> sorted;
  for (const ServiceInstance& instance : instances) {
    Blob blob(CanonicalInstance(instance));
    std::string key = KeyOf(blob);
    sorted.emplace_back(std::move(key), std::move(blob));
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Blob> blobs;
  blobs.reserve(sorted.size());
  for (auto& [key, blob] : sorted) blobs.push_back(std::move(blob));
  InstanceSet set;
  set.Apply(*Event::Snapshot(1, 1, SetFlags(), std::move(blobs))).IgnoreError();
  return set;
}

void AddRecords(const Domain& domain, const Meaning& meaning, const ServiceRecords& all,
                Explanation* explained) {
  const Records& records = all.Of(meaning.tag);
  if (meaning.kind == Kind::kService) {
    for (const auto& ip : records.ipv4) {
      explained->records.push_back({"A", IpText({ip.data(), ip.size()})});
    }
    for (const auto& ip : records.ipv6) {
      explained->records.push_back({"AAAA", IpText({ip.data(), ip.size()})});
    }
  }
  for (const Target& target : records.targets) {
    const std::string name =
        target.kind == Target::Kind::kName
            ? ToText(all.names()[target.name])
            : absl::StrCat(absl::BytesToHexString(std::string(target.address())), ".addr.",
                           domain.text());
    explained->records.push_back(
        {"SRV", absl::StrCat(target.priority, " ", target.weight, " ", target.port, " ", name)});
  }
}

// Each instance that no record is of, with the reason.
void AddLeftOut(const std::vector<ServiceInstance>& instances, const Meaning& meaning,
                const ServiceRecords& all, Explanation* explained) {
  std::set<std::string> given;
  for (const Target& target : all.Of(meaning.tag).targets) {
    given.insert(ParseInstance(all.InstanceOf(target)).key().instance_id());
  }
  for (const ServiceInstance& instance : instances) {
    const std::string& id = instance.key().instance_id();
    if (given.count(id) > 0) continue;
    std::string why;
    if (const LeftOut reason = WhyLeftOut(InstanceView(instance));
        reason != LeftOut::kNot && (reason == LeftOut::kAddress || !all.last_resort())) {
      why = std::string(LeftOutText(reason));
    } else if (!meaning.tag.empty()) {
      why = absl::StrCat("without the tag ", meaning.tag, ", or the same address and port");
    } else {
      why = "another instance has the same address and port";
    }
    explained->left_out.push_back({id, Endpoint(instance), std::move(why)});
  }
}

std::string ServiceText(const Meaning& meaning) {
  return absl::StrCat(
      "service ", meaning.service, " of namespace ", meaning.name_space,
      meaning.tag.empty() ? "" : absl::StrCat(", instances with the tag ", meaning.tag));
}

}  // namespace

Meaning MeaningOfText(const Domain& domain, const std::string& name) {
  const absl::StatusOr<std::string> wire = ToWire(name);
  return wire.ok() ? domain.MeaningOf(*wire) : Meaning();
}

Explanation Explain(const Domain& domain, const std::string& name,
                    const std::vector<ServiceInstance>& instances, const RecordOptions& options) {
  Explanation explained;
  const Meaning meaning = MeaningOfText(domain, name);
  switch (meaning.kind) {
    case Kind::kOutside:
      explained.rcode = "REFUSED";
      explained.reason = absl::StrCat("not a name below ", domain.text());
      return explained;
    case Kind::kUnknown:
      explained.rcode = "NXDOMAIN";
      explained.reason = "no service can have this name";
      return explained;
    case Kind::kEmpty:
      explained.rcode = "NODATA";
      explained.reason = "names below it may have records";
      return explained;
    case Kind::kApex:
      explained.rcode = "NOERROR";
      explained.reason = "the domain itself: SOA and NS";
      return explained;
    case Kind::kNameServer:
      explained.rcode = "NOERROR";
      explained.reason = "the server that answers";
      return explained;
    case Kind::kAddress:
      explained.rcode = "NOERROR";
      explained.reason = "an address, the target of SRV records";
      explained.records.push_back(
          {meaning.address.size() == 4 ? "A" : "AAAA", IpText(meaning.address)});
      return explained;
    case Kind::kService:
    case Kind::kServiceSrv:
      break;
  }
  explained.reason = ServiceText(meaning);
  if (instances.empty()) {
    explained.rcode = "NXDOMAIN";
    absl::StrAppend(&explained.reason,
                    ": it has no instance; NODATA for an hour after its last one, where it was "
                    "asked for before");
    return explained;
  }
  const ServiceRecords records(SetOf(instances), options);
  AddRecords(domain, meaning, records, &explained);
  AddLeftOut(instances, meaning, records, &explained);
  explained.rcode = explained.records.empty() ? "NODATA" : "NOERROR";
  if (records.last_resort()) {
    absl::StrAppend(&explained.reason,
                    ": none is to get work, so all are given (dns.unhealthy_if_no_others)");
  }
  return explained;
}

}  // namespace failback::dns
