#include "gateway/dns/zone.h"

#include <algorithm>
#include <array>
#include <utility>

#include "registry/model/blob.h"
#include "registry/model/instance_view.h"
#include "registry/model/with_view.h"

namespace failback::dns {
namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr uint16_t kClassAny = 255;
constexpr uint32_t kStaleTtl = 1;
// Of the SOA record: for secondaries, which there are none of.
constexpr uint32_t kRefresh = 3600;
constexpr uint32_t kRetry = 600;
constexpr uint32_t kExpire = 86400;
constexpr size_t kMaxString = 255;
// The shortest record: a pointer, type, class, TTL, length and an IPv4 address.
constexpr size_t kSmallestRecord = 16;

using Kind = Meaning::Kind;

size_t LimitOf(const Zone& zone, const Query& query, const Delivery& delivery) {
  if (delivery.tcp) return kMaxMessageBytes;
  size_t limit = kPlainUdpBytes;
  if (query.edns) limit = std::max<size_t>(limit, query.udp_bytes);
  limit = std::min<size_t>(limit, zone.max_udp_bytes);
  if (!delivery.trusted) limit = std::min(limit, kMaxAmplification * query.bytes);
  return limit;
}

class ReplyWriter {
 public:
  ReplyWriter(const Zone& zone, const Query& query, const Meaning& meaning, const Known& known,
              const Delivery& delivery, Shuffle* shuffle, char* buffer)
      : zone_(zone),
        query_(query),
        meaning_(meaning),
        known_(known),
        delivery_(delivery),
        shuffle_(shuffle),
        limit_(LimitOf(zone, query, delivery)),
        writer_(buffer, limit_),
        ttl_(known.stale ? std::min(zone.ttl, kStaleTtl) : zone.ttl) {}

  Reply Write() {
    const Rcode rcode = RcodeOf();
    writer_.Begin(query_, rcode, zone_.max_udp_bytes, delivery_.cookie);
    const bool exists = rcode == Rcode::kNoError;
    if (exists || rcode == Rcode::kNxDomain) writer_.SetAuthoritative();
    if (exists) WriteRecords();
    // RFC 2308: what says for how long the answer "nothing" holds.
    const bool nothing =
        rcode == Rcode::kNxDomain || (exists && writer_.records(Section::kAnswer) == 0 && !short_);
    if (nothing) WriteSoa(Section::kAuthority);
    if (short_ && !delivery_.tcp) writer_.SetTruncated();
    const bool truncated = writer_.truncated();
    return {writer_.End(), rcode, truncated, writer_.records(Section::kAnswer)};
  }

 private:
  Rcode RcodeOf() const {
    const bool transfer = query_.type == type::kAxfr || query_.type == type::kIxfr;
    const bool in = query_.question_class == kClassIn || query_.question_class == kClassAny;
    if (meaning_.kind == Kind::kOutside || transfer || !in) return Rcode::kRefused;
    if (meaning_.kind == Kind::kUnknown) return Rcode::kNxDomain;
    if (!NeedsService(query_, meaning_)) return Rcode::kNoError;
    switch (known_.state) {
      case Known::State::kNothing:
        return Rcode::kServFail;
      case Known::State::kDenied:
        return Rcode::kRefused;
      case Known::State::kAbsent:
        return Rcode::kNxDomain;
      case Known::State::kPresent:
        break;
    }
    return Rcode::kNoError;
  }

  void WriteRecords() {
    if (query_.type == type::kAny && meaning_.kind != Kind::kEmpty) return WriteAny();
    switch (meaning_.kind) {
      case Kind::kApex:
        return WriteApex();
      case Kind::kNameServer:
        for (const std::string& address : zone_.addresses) WriteIp(Section::kAnswer, address);
        return;
      case Kind::kAddress:
        return WriteIp(Section::kAnswer, meaning_.address);
      case Kind::kService:
      case Kind::kServiceSrv:
        return WriteService();
      default:
        return;
    }
  }

  void WriteService() {
    const Records& records = known_.records->Of(meaning_.tag);
    if (query_.type == type::kSrv) return WriteSrv(records);
    if (meaning_.kind == Kind::kServiceSrv) return;
    if (query_.type == type::kA) return WriteAddresses(records.ipv4, type::kA);
    if (query_.type == type::kAaaa) return WriteAddresses(records.ipv6, type::kAaaa);
    if (query_.type == type::kTxt) return WriteTxt(records);
  }

  // How many of `size` records may fit.
  size_t Wanted(size_t size) const {
    return std::min(size, (limit_ - writer_.size()) / kSmallestRecord + 1);
  }

  void BeginAtQuestion(uint16_t type) {
    writer_.BeginRecord(Section::kAnswer, type, ttl_);
    writer_.OwnerAt(kHeaderBytes);
    writer_.BeginData();
  }

  template <size_t kSize>
  void WriteAddresses(const std::vector<std::array<char, kSize>>& addresses, uint16_t type) {
    const size_t wanted = Wanted(addresses.size());
    const std::vector<uint32_t>& order = shuffle_->Order(addresses.size(), wanted);
    short_ = wanted < addresses.size();
    for (size_t i = 0; i < wanted; ++i) {
      BeginAtQuestion(type);
      writer_.Put({addresses[order[i]].data(), kSize});
      if (writer_.EndRecord()) continue;
      short_ = true;
      return;
    }
  }

  // One address, if its type is asked for, of the name in the question.
  void WriteIp(Section section, const std::string& address) {
    if (query_.type != (address.size() == 4 ? type::kA : type::kAaaa)) return;
    BeginAtQuestion(query_.type);
    writer_.Put(address);
    short_ |= !writer_.EndRecord();
  }

  // HEX-IP.addr, and where it is if a pointer reaches it. Below `addr` all names share their end.
  void PutAddressName(std::string_view address, bool compress) {
    writer_.Put8(static_cast<uint8_t>(2 * address.size()));
    for (const char c : address) {
      writer_.Put8(static_cast<uint8_t>(kHex[static_cast<uint8_t>(c) >> 4]));
      writer_.Put8(static_cast<uint8_t>(kHex[static_cast<uint8_t>(c) & 15]));
    }
    if (compress && addr_at_ > 0) return writer_.PutPointer(addr_at_);
    if (addr_at_ == 0 && writer_.size() <= kMaxPointer) addr_at_ = writer_.size();
    writer_.Put8(4);
    writer_.Put("addr");
    writer_.Put(zone_.domain.wire());
  }

  // Whether it fits.
  bool WriteSrvRecord(const Target& target, size_t* target_at) {
    const size_t addr_before = addr_at_;
    BeginAtQuestion(type::kSrv);
    writer_.Put16(target.priority);
    writer_.Put16(target.weight);
    writer_.Put16(target.port);
    *target_at = writer_.size();
    // RFC 2782: the target is not compressed.
    if (target.kind == Target::Kind::kName) {
      writer_.Put(known_.records->names()[target.name]);
    } else {
      PutAddressName(target.address(), /*compress=*/false);
    }
    if (writer_.EndRecord()) return true;
    addr_at_ = addr_before;
    return false;
  }

  // A target whose address is to follow, and where its name is.
  using Glue = std::vector<std::pair<const Target*, size_t>>;

  // The records of `count` targets, in a random order.
  void WriteTargets(const Target* targets, size_t count, Glue* glue) {
    const size_t wanted = Wanted(count);
    const std::vector<uint32_t>& order = shuffle_->Order(count, wanted);
    short_ |= wanted < count;
    for (size_t i = 0; i < wanted; ++i) {
      const Target& target = targets[order[i]];
      size_t target_at = 0;
      if (!WriteSrvRecord(target, &target_at)) {
        short_ = true;
      } else if (target.kind != Target::Kind::kName && target.first_of_address) {
        glue->emplace_back(&target, target_at);
      }
    }
  }

  void WriteSrv(const Records& records) {
    Glue glue;
    // Where not all fit, those of one's own zone come first.
    const size_t far = records.targets.size() - records.near;
    WriteTargets(records.targets.data(), records.near, &glue);
    WriteTargets(records.targets.data() + records.near, far, &glue);
    for (const auto& [target, target_at] : glue) {
      writer_.BeginRecord(Section::kAdditional,
                          target->kind == Target::Kind::kIpv4 ? type::kA : type::kAaaa, ttl_);
      if (target_at <= kMaxPointer) {
        writer_.OwnerAt(target_at);
      } else {
        PutAddressName(target->address(), /*compress=*/true);
      }
      writer_.BeginData();
      writer_.Put(target->address());
      // RFC 2181, section 9: that of these some did not fit is no truncation; they can be asked
      // for.
      if (!writer_.EndRecord()) return;
    }
  }

  void PutString(std::string_view first, std::string_view second) {
    writer_.Put8(static_cast<uint8_t>(first.size() + 1 + second.size()));
    writer_.Put(first);
    writer_.Put8('=');
    writer_.Put(second);
  }

  void WriteTxt(const Records& records) {
    const size_t wanted = std::min(records.targets.size(), kMaxTxtRecords);
    const std::vector<uint32_t>& order = shuffle_->Order(records.targets.size(), wanted);
    short_ = wanted < records.targets.size();
    for (size_t i = 0; i < wanted; ++i) {
      const Blob instance = known_.records->InstanceOf(records.targets[order[i]]);
      BeginAtQuestion(type::kTxt);
      WithView(instance, [this](const InstanceView& view) {
        size_t strings = 1;
        // The longest is cut: an id has 253 bytes at most.
        PutString("id", view.instance_id.substr(0, kMaxString - 3));
        for (const InstanceView::Entry& entry : view.metadata) {
          if (entry.key.size() + 1 + entry.value.size() > kMaxString) continue;
          if (strings++ == kMaxTxtStrings) break;
          PutString(entry.key, entry.value);
        }
      });
      short_ |= !writer_.EndRecord();
    }
  }

  void WriteApex() {
    if (query_.type == type::kSoa) return WriteSoa(Section::kAnswer);
    if (query_.type != type::kNs) return;
    BeginAtQuestion(type::kNs);
    const size_t name_at = writer_.size();
    PutServerName();
    short_ |= !writer_.EndRecord();
    for (const std::string& address : zone_.addresses) {
      writer_.BeginRecord(Section::kAdditional, address.size() == 4 ? type::kA : type::kAaaa, ttl_);
      writer_.OwnerAt(name_at);
      writer_.BeginData();
      writer_.Put(address);
      if (!writer_.EndRecord()) return;
    }
  }

  void PutServerName() {
    writer_.Put8(2);
    writer_.Put("ns");
    PutDomain();
  }

  // The domain is the end of the name in the question.
  void PutDomain() {
    writer_.PutPointer(kHeaderBytes + query_.name.size() - zone_.domain.wire().size());
  }

  void WriteSoa(Section section) {
    writer_.BeginRecord(section, type::kSoa, ttl_);
    writer_.OwnerAt(kHeaderBytes + query_.name.size() - zone_.domain.wire().size());
    writer_.BeginData();
    PutServerName();
    writer_.Put8(10);
    writer_.Put("hostmaster");
    PutDomain();
    writer_.Put32(delivery_.now_seconds);  // a serial that grows
    writer_.Put32(kRefresh);
    writer_.Put32(kRetry);
    writer_.Put32(kExpire);
    writer_.Put32(ttl_);  // how long "nothing" holds
    short_ |= !writer_.EndRecord();
  }

  // RFC 8482: one small record instead of all.
  void WriteAny() {
    BeginAtQuestion(type::kHinfo);
    writer_.Put8(7);
    writer_.Put("RFC8482");
    writer_.Put8(0);
    short_ |= !writer_.EndRecord();
  }

  const Zone& zone_;
  const Query& query_;
  const Meaning& meaning_;
  const Known& known_;
  const Delivery& delivery_;
  Shuffle* const shuffle_;
  const size_t limit_;
  Writer writer_;
  const uint32_t ttl_;
  bool short_ = false;
  size_t addr_at_ = 0;  // where `addr` and the domain are; 0: nowhere yet
};

}  // namespace

uint64_t Shuffle::Next() {
  // Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

const std::vector<uint32_t>& Shuffle::Order(size_t size, size_t wanted) {
  if (order_.size() != size) {
    order_.resize(size);
    for (size_t i = 0; i < size; ++i) order_[i] = static_cast<uint32_t>(i);
  }
  for (size_t i = 0; i + 1 < size && i < wanted; ++i) {
    std::swap(order_[i], order_[i + (Next() >> 32) * (size - i) / (uint64_t{1} << 32)]);
  }
  return order_;
}

bool NeedsService(const Query& query, const Meaning& meaning) {
  return (meaning.kind == Kind::kService || meaning.kind == Kind::kServiceSrv) &&
         query.type != type::kAxfr && query.type != type::kIxfr &&
         (query.question_class == kClassIn || query.question_class == kClassAny);
}

Reply WriteReply(const Zone& zone, const Query& query, const Meaning& meaning, const Known& known,
                 const Delivery& delivery, Shuffle* shuffle, char* buffer) {
  return ReplyWriter(zone, query, meaning, known, delivery, shuffle, buffer).Write();
}

Reply WriteEmpty(const Zone& zone, const Query& query, Rcode rcode, bool truncated,
                 std::string_view cookie, char* buffer) {
  Writer writer(buffer, kMaxMessageBytes);
  writer.Begin(query, rcode, zone.max_udp_bytes, cookie);
  if (truncated) writer.SetTruncated();
  return {writer.End(), rcode, truncated, 0};
}

}  // namespace failback::dns
