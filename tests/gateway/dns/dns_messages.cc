#include "tests/gateway/dns/dns_messages.h"

#include <ldns/ldns.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "registry/model/blob.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"

namespace failback::dns {
namespace {

std::string Number16(size_t value) {
  return {static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::vector<std::string> Texts(const ldns_rr_list* records) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < ldns_rr_list_rr_count(records); ++i) {
    char* const text = ldns_rr2str(ldns_rr_list_rr(records, i));
    std::string line(text);
    std::free(text);
    while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
    std::replace(line.begin(), line.end(), '\t', ' ');
    texts.push_back(std::move(line));
  }
  return texts;
}

}  // namespace

std::string WireName(const std::string& text) {
  std::string wire;
  for (const auto label : absl::StrSplit(text, '.', absl::SkipEmpty())) {
    wire += static_cast<char>(label.size());
    wire.append(label.data(), label.size());
  }
  return wire + '\0';
}

std::string QueryBytes(const std::string& name, uint16_t type, const QueryShape& shape) {
  const bool edns = shape.udp_bytes >= 0;
  std::string bytes = Number16(shape.id) + Number16(shape.flags) + Number16(1) + Number16(0) +
                      Number16(0) + Number16(edns ? 1 : 0) + WireName(name) + Number16(type) +
                      Number16(shape.question_class);
  if (!edns) return bytes;
  bytes += '\0';
  bytes += Number16(41) + Number16(static_cast<size_t>(shape.udp_bytes));
  bytes += '\0';
  bytes += static_cast<char>(shape.edns_version);
  bytes += Number16(shape.edns_flags);
  if (shape.cookie.empty()) return bytes + Number16(0);
  return bytes + Number16(4 + shape.cookie.size()) + Number16(10) + Number16(shape.cookie.size()) +
         shape.cookie;
}

Message ReadMessage(const std::string& bytes) {
  Message message;
  ldns_pkt* packet = nullptr;
  if (ldns_wire2pkt(&packet, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) !=
      LDNS_STATUS_OK) {
    return message;
  }
  message.readable = true;
  message.id = ldns_pkt_id(packet);
  message.rcode = ldns_pkt_edns_extended_rcode(packet) << 4 | ldns_pkt_get_rcode(packet);
  message.response = ldns_pkt_qr(packet);
  message.authoritative = ldns_pkt_aa(packet);
  message.truncated = ldns_pkt_tc(packet);
  message.recursion_desired = ldns_pkt_rd(packet);
  message.recursion_available = ldns_pkt_ra(packet);
  message.question = Texts(ldns_pkt_question(packet));
  message.answer = Texts(ldns_pkt_answer(packet));
  message.authority = Texts(ldns_pkt_authority(packet));
  message.additional = Texts(ldns_pkt_additional(packet));
  message.edns = ldns_pkt_edns(packet);
  message.dnssec_ok = ldns_pkt_edns_do(packet);
  message.udp_bytes = ldns_pkt_edns_udp_size(packet);
  const ldns_rdf* const options = ldns_pkt_edns_data(packet);
  if (options != nullptr && ldns_rdf_size(options) > 4) {
    const auto* const data = reinterpret_cast<const char*>(ldns_rdf_data(options));
    EXPECT_EQ(data[1], 10);
    message.cookie.assign(data + 4, ldns_rdf_size(options) - 4);
  }
  ldns_pkt_free(packet);
  return message;
}

InstanceSet SetOf(const std::vector<registry::v1::ServiceInstance>& instances) {
  std::vector<std::pair<std::string, Blob>> sorted;
  for (const registry::v1::ServiceInstance& instance : instances) {
    const Blob blob(CanonicalInstance(instance));
    sorted.emplace_back(KeyOf(blob), blob);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Blob> blobs;
  for (auto& [key, blob] : sorted) blobs.push_back(blob);
  InstanceSet set;
  EXPECT_TRUE(set.Apply(*Event::Snapshot(1, 1, SetFlags(), std::move(blobs))).ok());
  return set;
}

}  // namespace failback::dns
