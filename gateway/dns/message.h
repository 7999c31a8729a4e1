// DNS messages as a server of one zone needs them: a reader of queries and a writer of responses.
//
// Both are bounded. A query is at most kMaxQueryBytes long and has one question; the reader looks
// at each byte once, follows no compression pointer and allocates nothing: a Query refers to the
// packet. The writer writes into a buffer of the caller's, and what does not fit is left out whole.
//
// Example: refuse whatever is asked.
//
//   Query query;
//   const Reading reading = ReadQuery(packet, &query);
//   if (!reading.answer) return;                  // a response, or too short to be answered
//   Writer writer(buffer, sizeof(buffer));
//   writer.Begin(query, reading.rcode == Rcode::kNoError ? Rcode::kRefused : reading.rcode);
//   Send(buffer, writer.End());
//
// RFC 1035; RFC 6891 (EDNS), RFC 7873 (cookies: gateway/dns/cookie.h).
//
// Thread safety: the functions are pure, the classes thread-compatible.

#ifndef FAILBACK_GATEWAY_DNS_MESSAGE_H_
#define FAILBACK_GATEWAY_DNS_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace failback::dns {

inline constexpr size_t kHeaderBytes = 12;
inline constexpr size_t kMaxNameBytes = 255;
inline constexpr size_t kMaxLabelBytes = 63;
// A name, its type, and EDNS with a cookie and padding take less.
inline constexpr size_t kMaxQueryBytes = 2048;
inline constexpr size_t kMaxMessageBytes = 65535;
// Without EDNS.
inline constexpr size_t kPlainUdpBytes = 512;
inline constexpr size_t kClientCookieBytes = 8;
inline constexpr size_t kMaxCookieBytes = 40;

namespace type {
inline constexpr uint16_t kA = 1;
inline constexpr uint16_t kNs = 2;
inline constexpr uint16_t kSoa = 6;
inline constexpr uint16_t kHinfo = 13;
inline constexpr uint16_t kTxt = 16;
inline constexpr uint16_t kAaaa = 28;
inline constexpr uint16_t kSrv = 33;
inline constexpr uint16_t kOpt = 41;
inline constexpr uint16_t kIxfr = 251;
inline constexpr uint16_t kAxfr = 252;
inline constexpr uint16_t kAny = 255;
}  // namespace type

inline constexpr uint16_t kClassIn = 1;

enum class Rcode : uint8_t {
  kNoError = 0,
  kFormErr = 1,
  kServFail = 2,
  kNxDomain = 3,
  kNotImp = 4,
  kRefused = 5,
  kBadVers = 16,    // in EDNS only, as
  kBadCookie = 23,  // of a server's cookie that is asked about
};

struct Query {
  uint16_t id = 0;
  uint8_t opcode = 0;
  bool recursion_desired = false;
  bool checking_disabled = false;
  size_t bytes = 0;  // of the packet
  // Name, type and class as they came; empty: the question could not be read, or there is none, and
  // a cookie asks for one of the server's (RFC 7873, section 5.4).
  std::string_view question;
  std::string_view name;  // with the labels' lengths and the root's
  uint16_t type = 0;
  uint16_t question_class = 0;
  bool edns = false;
  bool dnssec_ok = false;   // it takes signatures, of which there are none here
  uint16_t udp_bytes = 0;   // that the client takes, by EDNS
  std::string_view cookie;  // client's, and the server's if it has one; empty: none
};

struct Reading {
  bool answer = false;
  // Not kNoError: the answer to give, whatever is asked.
  Rcode rcode = Rcode::kNoError;
};

Reading ReadQuery(std::string_view packet, Query* query);

enum class Section { kAnswer, kAuthority, kAdditional };

// Writes one response: Begin, records section by section, End. A record is one Owner, Type and data
// between BeginRecord and EndRecord; one that does not fit is dropped whole, and EndRecord is false.
class Writer {
 public:
  // `limit`: at most kMaxMessageBytes, and at least what Begin and End write.
  Writer(char* buffer, size_t limit) : begin_(buffer), limit_(limit) {}

  // Header and question. `server_udp_bytes`: what the server takes, and `cookie` the whole cookie
  // to return, for EDNS; they take effect if the query has it.
  void Begin(const Query& query, Rcode rcode, uint16_t server_udp_bytes = kMaxQueryBytes,
             std::string_view cookie = {});
  void SetAuthoritative() { flags_ |= 0x0400; }
  void SetTruncated() { flags_ |= 0x0200; }
  bool truncated() const { return (flags_ & 0x0200) != 0; }

  // The owner is the name at `offset` of the message, or `name`, which may end with a pointer that
  // PutPointer would write.
  void BeginRecord(Section section, uint16_t type, uint32_t ttl) {
    section_ = section;
    type_ = type;
    ttl_ = ttl;
    record_begin_ = size_;
    overflow_ = false;
  }
  void OwnerAt(size_t offset) { PutPointer(offset); }
  void Owner(std::string_view name) { Put(name); }
  // Begins the data, after the owner.
  void BeginData() {
    if (char* const to = Take(10)) {
      Set16(to, type_);
      Set16(to + 2, kClassIn);
      Set32(to + 4, ttl_);
      Set16(to + 8, 0);  // its length
    }
    data_begin_ = size_;
  }
  void Put8(uint8_t value) {
    if (char* const to = Take(1)) *to = static_cast<char>(value);
  }
  void Put16(uint16_t value) {
    if (char* const to = Take(2)) Set16(to, value);
  }
  void Put32(uint32_t value) {
    if (char* const to = Take(4)) Set32(to, value);
  }
  void Put(std::string_view bytes) {
    char* const to = Take(bytes.size());
    if (to != nullptr && !bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }
  void PutPointer(size_t offset) { Put16(static_cast<uint16_t>(0xc000 | offset)); }
  // Whether the record is in the message. After false no larger one will fit.
  bool EndRecord() {
    if (overflow_) {
      size_ = record_begin_;
      overflow_ = false;
      return false;
    }
    Set16(begin_ + data_begin_ - 2, static_cast<uint16_t>(size_ - data_begin_));
    ++counts_[static_cast<int>(section_)];
    return true;
  }

  // Where the next byte goes.
  size_t size() const { return size_; }
  size_t records(Section section) const { return counts_[static_cast<int>(section)]; }

  // The size of the whole message.
  size_t End();

 private:
  static void Set16(char* to, uint16_t value) {
    to[0] = static_cast<char>(value >> 8);
    to[1] = static_cast<char>(value);
  }
  static void Set32(char* to, uint32_t value) {
    Set16(to, static_cast<uint16_t>(value >> 16));
    Set16(to + 2, static_cast<uint16_t>(value));
  }
  // Where the next `size` bytes go; null, and the record is dropped, if there is no room for them.
  char* Take(size_t size) {
    if (size_ + reserved_ + size > limit_) {
      overflow_ = true;
      return nullptr;
    }
    size_ += size;
    return begin_ + size_ - size;
  }

  char* const begin_;
  const size_t limit_;
  size_t size_ = 0;
  size_t reserved_ = 0;  // for OPT
  bool overflow_ = false;
  uint16_t flags_ = 0;
  uint16_t counts_[3] = {};
  Rcode rcode_ = Rcode::kNoError;
  bool edns_ = false;
  bool dnssec_ok_ = false;
  uint16_t udp_bytes_ = 0;
  std::string_view cookie_;
  // Of the record under way.
  Section section_ = Section::kAnswer;
  uint16_t type_ = 0;
  uint32_t ttl_ = 0;
  size_t record_begin_ = 0;
  size_t data_begin_ = 0;
};

// Pointers reach no further.
inline constexpr size_t kMaxPointer = 0x3fff;

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_MESSAGE_H_
