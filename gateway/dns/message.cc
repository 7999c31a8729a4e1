#include "gateway/dns/message.h"

namespace failback::dns {
namespace {

constexpr uint16_t kResponse = 0x8000;
constexpr uint16_t kOpcode = 0x7800;
constexpr uint16_t kRecursionDesired = 0x0100;
constexpr uint16_t kCheckingDisabled = 0x0010;
constexpr uint16_t kCookieOption = 10;
constexpr uint16_t kDnssecOk = 0x8000;  // of the flags of EDNS
constexpr size_t kOptBytes = 11;
constexpr size_t kOptionHeader = 4;
// Beside the OPT record clients send a signature at most.
constexpr uint16_t kMaxAdditional = 4;

// Reads on, never beyond the end; once it would have, ok() is false and all else is zero.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t at() const { return at_; }
  bool done() const { return at_ == bytes_.size(); }

  uint8_t Get8() { return static_cast<uint8_t>(Has(1) ? bytes_[at_++] : 0); }
  uint16_t Get16() {
    const uint16_t high = Get8();
    return static_cast<uint16_t>(high << 8 | Get8());
  }
  std::string_view Get(size_t size) {
    if (!Has(size)) return {};
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  // A name; `pointers`: it may end with one, which is not followed.
  std::string_view GetName(bool pointers) {
    const size_t begin = at_;
    while (true) {
      const uint8_t length = Get8();
      if (!ok_ || at_ - begin + length > kMaxNameBytes) break;
      if (length == 0) return bytes_.substr(begin, at_ - begin);
      if (length >= 0xc0 && pointers) {
        // To something before it, after the header.
        const size_t target = static_cast<size_t>(length & 0x3f) << 8 | Get8();
        if (!ok_ || target < kHeaderBytes || target >= begin) break;
        return bytes_.substr(begin, at_ - begin);
      }
      if (length > kMaxLabelBytes) break;
      Get(length);
    }
    ok_ = false;
    return {};
  }

 private:
  bool Has(size_t size) {
    ok_ = ok_ && bytes_.size() - at_ >= size;
    return ok_;
  }

  const std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

// The options of an OPT record. False: they are none.
bool ReadOptions(std::string_view bytes, Query* query) {
  Reader options(bytes);
  while (!options.done()) {
    const uint16_t code = options.Get16();
    const std::string_view data = options.Get(options.Get16());
    if (!options.ok()) return false;
    if (code != kCookieOption) continue;
    // A client's cookie, and then perhaps one of 8 to 32 bytes of a server's.
    const bool whole = data.size() == kClientCookieBytes ||
                       (data.size() >= 2 * kClientCookieBytes && data.size() <= kMaxCookieBytes);
    if (!whole || !query->cookie.empty()) return false;
    query->cookie = data;
  }
  return true;
}

Rcode ReadAdditional(Reader* reader, uint16_t count, Query* query) {
  uint8_t version = 0;
  for (uint16_t i = 0; i < count; ++i) {
    const std::string_view owner = reader->GetName(/*pointers=*/true);
    const uint16_t type = reader->Get16();
    const uint16_t record_class = reader->Get16();
    reader->Get8();  // of the OPT record: bits of an rcode
    const uint8_t record_version = reader->Get8();
    const uint16_t record_flags = reader->Get16();
    const std::string_view data = reader->Get(reader->Get16());
    if (!reader->ok()) return Rcode::kFormErr;
    if (type != type::kOpt) continue;
    if (query->edns || owner.size() != 1) return Rcode::kFormErr;
    query->edns = true;
    query->udp_bytes = record_class;
    query->dnssec_ok = (record_flags & kDnssecOk) != 0;
    version = record_version;
    // Those of another version mean something else.
    if (version == 0 && !ReadOptions(data, query)) return Rcode::kFormErr;
  }
  if (!reader->done()) return Rcode::kFormErr;
  return version == 0 ? Rcode::kNoError : Rcode::kBadVers;
}

}  // namespace

Reading ReadQuery(std::string_view packet, Query* query) {
  *query = Query();
  query->bytes = packet.size();
  if (packet.size() < kHeaderBytes) return {};
  Reader reader(packet);
  query->id = reader.Get16();
  const uint16_t flags = reader.Get16();
  if ((flags & kResponse) != 0) return {};
  query->opcode = static_cast<uint8_t>((flags & kOpcode) >> 11);
  query->recursion_desired = (flags & kRecursionDesired) != 0;
  query->checking_disabled = (flags & kCheckingDisabled) != 0;
  if (packet.size() > kMaxQueryBytes) return {true, Rcode::kFormErr};
  if (query->opcode != 0) return {true, Rcode::kNotImp};
  const uint16_t questions = reader.Get16();
  const uint16_t answers = reader.Get16();
  const uint16_t authority = reader.Get16();
  const uint16_t additional = reader.Get16();
  if (questions > 1 || answers != 0 || additional > kMaxAdditional) {
    return {true, Rcode::kFormErr};
  }
  if (questions == 0) {
    const Rcode rcode = ReadAdditional(&reader, additional, query);
    const bool asks_for_cookie = authority == 0 && !query->cookie.empty();
    return {true, rcode == Rcode::kNoError && !asks_for_cookie ? Rcode::kFormErr : rcode};
  }
  const std::string_view name = reader.GetName(/*pointers=*/false);
  query->type = reader.Get16();
  query->question_class = reader.Get16();
  if (!reader.ok()) return {true, Rcode::kFormErr};
  query->name = name;
  query->question = packet.substr(kHeaderBytes, reader.at() - kHeaderBytes);
  // An IXFR says there which version it has; other queries have nothing there.
  if (authority != 0) {
    return {true, query->type == type::kIxfr ? Rcode::kRefused : Rcode::kFormErr};
  }
  return {true, ReadAdditional(&reader, additional, query)};
}

void Writer::Begin(const Query& query, Rcode rcode, uint16_t server_udp_bytes,
                   std::string_view cookie) {
  rcode_ = rcode;
  edns_ = query.edns;
  dnssec_ok_ = query.dnssec_ok;
  udp_bytes_ = server_udp_bytes;
  cookie_ = cookie;
  flags_ = static_cast<uint16_t>(kResponse | query.opcode << 11 |
                                 (query.recursion_desired ? kRecursionDesired : 0) |
                                 (query.checking_disabled ? kCheckingDisabled : 0));
  if (edns_) reserved_ = kOptBytes + (cookie_.empty() ? 0 : kOptionHeader + cookie_.size());
  Put16(query.id);
  Put16(0);  // flags and counts are known at the end
  Put16(query.question.empty() ? 0 : 1);
  Put32(0);
  Put16(0);
  Put(query.question);
}

size_t Writer::End() {
  const auto rcode = static_cast<uint8_t>(rcode_);
  if (edns_) {
    reserved_ = 0;
    Put8(0);  // the root
    Put16(type::kOpt);
    Put16(udp_bytes_);
    Put8(static_cast<uint8_t>(rcode >> 4));
    Put8(0);                            // version
    Put16(dnssec_ok_ ? kDnssecOk : 0);  // given back (RFC 3225), though nothing is signed here
    Put16(static_cast<uint16_t>(cookie_.empty() ? 0 : kOptionHeader + cookie_.size()));
    if (!cookie_.empty()) {
      Put16(kCookieOption);
      Put16(static_cast<uint16_t>(cookie_.size()));
      Put(cookie_);
    }
    ++counts_[static_cast<int>(Section::kAdditional)];
  }
  Set16(begin_ + 2, static_cast<uint16_t>(flags_ | (rcode & 0x0f)));
  for (int i = 0; i < 3; ++i) Set16(begin_ + 6 + 2 * i, counts_[i]);
  return size_;
}

}  // namespace failback::dns
