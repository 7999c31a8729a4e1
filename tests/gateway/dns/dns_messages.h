// DNS messages as tests write and read them; what reads them is ldns.

#ifndef FAILBACK_TESTS_GATEWAY_DNS_DNS_MESSAGES_H_
#define FAILBACK_TESTS_GATEWAY_DNS_DNS_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "failback/registry/v1/registry.pb.h"
#include "registry/model/instance_set.h"

namespace failback::dns {

// "orders.service.failback." with the case that it has.
std::string WireName(const std::string& text);

struct QueryShape {
  uint16_t id = 0x1234;
  uint16_t flags = 0x0100;  // recursion desired, as stub resolvers ask
  uint16_t question_class = 1;
  int udp_bytes = -1;  // below zero: no EDNS
  uint8_t edns_version = 0;
  uint16_t edns_flags = 0;
  std::string cookie;  // empty: none
};
std::string QueryBytes(const std::string& name, uint16_t type, const QueryShape& shape = {});

// A message that ldns has read. Records as it prints them, without tabs:
// "orders.service.failback. 1 IN A 10.0.0.7".
struct Message {
  bool readable = false;
  uint16_t id = 0;
  int rcode = 0;  // with the upper bits that EDNS has
  bool response = false;
  bool authoritative = false;
  bool truncated = false;
  bool recursion_desired = false;
  bool recursion_available = false;
  std::vector<std::string> question;
  std::vector<std::string> answer;
  std::vector<std::string> authority;
  std::vector<std::string> additional;  // without OPT
  bool edns = false;
  bool dnssec_ok = false;
  uint16_t udp_bytes = 0;
  std::string cookie;  // from OPT
};
Message ReadMessage(const std::string& bytes);

// A set that has these.
InstanceSet SetOf(const std::vector<registry::v1::ServiceInstance>& instances);

}  // namespace failback::dns

#endif  // FAILBACK_TESTS_GATEWAY_DNS_DNS_MESSAGES_H_
