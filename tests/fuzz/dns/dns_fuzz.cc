// DNS messages from anybody, compared with ldns: a query that both read is the same to both, and
// each answer is one that ldns reads, as long as it may be and no longer.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/dns/message.h"
#include "gateway/dns/names.h"
#include "gateway/dns/records.h"
#include "gateway/dns/zone.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/gateway/dns/dns_messages.h"
#include "tests/util/instances.h"

// Clang 14 does not read the library's <algorithm> after it.
// clang-format off
#include <ldns/ldns.h>
// clang-format on

namespace failback::dns {
namespace {

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

const ServiceRecords& RecordsOf(int which) {
  static const auto* const kAll = [] {
    auto* const all = new std::vector<ServiceRecords>;
    for (const int size : {0, 1, 30, 900}) {
      std::vector<registry::v1::ServiceInstance> instances;
      for (int i = 0; i < size; ++i) {
        registry::v1::ServiceInstance instance =
            MakeInstance("orders", absl::StrCat(i), 80 + i % 3);
        instance.set_address(i % 5 == 0   ? absl::StrCat("2001:db8::", i + 1)
                             : i % 7 == 0 ? absl::StrCat("host", i, ".example.com")
                                          : absl::StrCat("10.0.", i / 200, ".", i % 200));
        if (i % 2 == 0) (*instance.mutable_metadata())["tags"] = "canary";
        (*instance.mutable_metadata())["text"] = std::string(i % 260, 't');
        instance.set_zone(i % 3 == 0 ? "eu-1" : "eu-2");
        instances.push_back(instance);
      }
      all->emplace_back(SetOf(instances), RecordOptions{"eu-1", true});
    }
    return all;
  }();
  return (*kAll)[which % kAll->size()];
}

// A question that may well be of the zone.
std::string Question(FuzzInput* input) {
  static const char* const kLabels[] = {"orders", "service", "_tcp", "_orders",
                                        "addr",   "canary",  "ns",   "0a000001"};
  std::string name;
  for (int labels = input->Byte() % 6; labels > 0; --labels) {
    const uint8_t which = input->Byte();
    absl::StrAppend(&name, which < 200 ? kLabels[which % 8] : input->Text(70), ".");
  }
  if (input->Byte() % 8 != 0) absl::StrAppend(&name, "failBack");
  static const uint16_t kTypes[] = {1, 2, 6, 16, 28, 33, 252, 255};
  QueryShape shape;
  shape.id = static_cast<uint16_t>(input->Number());
  if (input->Byte() % 8 == 0) shape.flags = static_cast<uint16_t>(input->Number());
  shape.question_class = input->Byte() % 8 == 0 ? input->Byte() : 1;
  if (input->Byte() % 2 == 0) shape.udp_bytes = static_cast<int>(input->Number());
  shape.edns_version = input->Byte() % 16 == 0 ? 1 : 0;
  shape.edns_flags = static_cast<uint16_t>(input->Number());
  if (input->Byte() % 4 == 0) shape.cookie = input->Text(45);
  const uint8_t type = input->Byte();
  return QueryBytes(name, type < 220 ? kTypes[type % 8] : type, shape);
}

// Of `bytes`, which were read as `query`.
void CompareWithLdns(const std::string& bytes, const Query& query) {
  ldns_pkt* packet = nullptr;
  if (ldns_wire2pkt(&packet, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) !=
      LDNS_STATUS_OK) {
    return;
  }
  Check(ldns_pkt_id(packet) == query.id, "id");
  Check(ldns_pkt_rd(packet) == query.recursion_desired, "rd");
  Check(ldns_pkt_cd(packet) == query.checking_disabled, "cd");
  const ldns_rr_list* const questions = ldns_pkt_question(packet);
  const size_t count = query.question.empty() ? 0 : 1;
  Check(ldns_rr_list_rr_count(questions) == count, "questions");
  if (count == 0) {
    ldns_pkt_free(packet);
    return;
  }
  const ldns_rr* const question = ldns_rr_list_rr(questions, 0);
  Check(ldns_rr_get_type(question) == query.type, "type");
  Check(ldns_rr_get_class(question) == query.question_class, "class");
  const ldns_rdf* const owner = ldns_rr_owner(question);
  Check(query.name == std::string_view(reinterpret_cast<const char*>(ldns_rdf_data(owner)),
                                       ldns_rdf_size(owner)),
        "name");
  // ldns takes an OPT record with nothing in it for none.
  Check(query.edns || !ldns_pkt_edns(packet), "edns");
  if (query.edns) {
    Check(ldns_pkt_edns_udp_size(packet) == query.udp_bytes, "size of edns");
    Check(ldns_pkt_edns_do(packet) == query.dnssec_ok, "do");
  }
  ldns_pkt_free(packet);
}

void Answer(FuzzInput* input, const Query& query) {
  Zone zone{*Domain::Parse("failback")};
  zone.max_udp_bytes = static_cast<uint16_t>(512 + input->Number() % 8192);
  if (input->Byte() % 2 == 0) zone.addresses = {"\x7f\x01\x01\x01", std::string(16, '\x01')};
  const uint8_t what = input->Byte();
  Known known;
  known.state = static_cast<Known::State>(what % 16 < 3 ? what % 16 : 3);
  known.records = &RecordsOf(what / 16);
  Delivery delivery;
  const uint8_t how = input->Byte();
  delivery.tcp = how % 2 == 0;
  delivery.trusted = how / 2 % 2 == 0;
  if (!query.cookie.empty()) delivery.cookie = "0123456789abcdef01234567";
  Shuffle shuffle(input->Number());
  static auto* const buffer = new std::vector<char>(kMaxMessageBytes);
  const Reply reply = WriteReply(zone, query, zone.domain.MeaningOf(query.name), known, delivery,
                                 &shuffle, buffer->data());
  size_t limit = std::max<size_t>(kPlainUdpBytes, query.edns ? query.udp_bytes : 0);
  limit = std::min<size_t>(limit, zone.max_udp_bytes);
  if (!delivery.trusted) limit = std::min<size_t>(limit, 10 * query.bytes);
  if (delivery.tcp) limit = kMaxMessageBytes;
  Check(reply.size <= limit, "the answer is too long");
  Check(!reply.truncated || !delivery.tcp, "truncated by TCP");
  const Message message = ReadMessage({buffer->data(), reply.size});
  Check(message.readable, "ldns does not read the answer");
  Check(message.id == query.id && message.response, "another question's answer");
  Check(message.question.size() == 1, "the question is not returned");
  Check(message.truncated == reply.truncated, "tc");
  Check(message.edns == query.edns, "edns in the answer");
  Check(message.dnssec_ok == query.dnssec_ok, "do in the answer");
  Check(message.authority.size() <= 1, "authority");
  Check(message.rcode == 0 || message.answer.empty(), "records in an error");
}

// A cookie, or an error.
void AnswerEmpty(const std::string& bytes, const Query& query, Rcode rcode) {
  std::vector<char> buffer(kMaxMessageBytes);
  const Zone zone{*Domain::Parse("failback")};
  const bool cookie = rcode == Rcode::kNoError;
  const Reply reply = WriteEmpty(zone, query, rcode, false,
                                 cookie ? "0123456789abcdef01234567" : "", buffer.data());
  // A server's cookie is all that it may have beyond the query.
  Check(reply.size <= bytes.size() + (cookie ? 16 : 0), "longer than what it is about");
  const Message message = ReadMessage({buffer.data(), reply.size});
  Check(message.readable, "ldns does not read the error");
  Check(!cookie || (message.question.empty() && message.cookie.size() == 24), "no cookie");
}

void Run(FuzzInput* input) {
  std::string bytes;
  const uint8_t kind = input->Byte();
  if (kind % 4 != 0) {
    bytes = Question(input);
    if (kind % 4 == 1) {
      for (int i = input->Byte() % 4; i > 0; --i) {
        bytes[input->Number() % bytes.size()] = static_cast<char>(input->Byte());
      }
    }
  } else {
    bytes = input->Text(4096);
  }
  Query query;
  const Reading reading = ReadQuery(bytes, &query);
  ToText(query.name);
  if (!reading.answer) return;
  if (reading.rcode != Rcode::kNoError) return AnswerEmpty(bytes, query, reading.rcode);
  CompareWithLdns(bytes, query);
  if (query.question.empty()) return AnswerEmpty(bytes, query, Rcode::kNoError);
  Answer(input, query);
}

}  // namespace
}  // namespace failback::dns

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  failback::FuzzInput input(data, size);
  failback::dns::Run(&input);
  return 0;
}
