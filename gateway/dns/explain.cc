#include "gateway/dns/explain.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gateway/dns/message.h"
#include "registry/model/blob.h"
#include "registry/model/instance_set.h"
#include "registry/model/instance_view.h"
#include "registry/model/with_view.h"

namespace failback::dns {
namespace {

using Kind = Meaning::Kind;

constexpr struct {
  uint16_t type;
  const char* name;
} kTypes[] = {{type::kA, "A"},     {type::kAaaa, "AAAA"}, {type::kSrv, "SRV"},
              {type::kTxt, "TXT"}, {type::kSoa, "SOA"},   {type::kNs, "NS"}};

std::string IpText(std::string_view bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
  return text;
}

std::string Endpoint(const InstanceView& instance) {
  const bool colons = instance.address.find(':') != std::string_view::npos;
  return absl::StrCat(colons ? "[" : "", std::string(instance.address), colons ? "]:" : ":",
                      instance.port);
}

// Writes the answers that clients of all kinds get.
class Answers {
 public:
  Answers(const Zone& zone, const std::string& wire, const Meaning& meaning, const Known& known)
      : zone_(zone), wire_(wire), meaning_(meaning), known_(known) {}

  Reply Write(uint16_t type, bool tcp, bool edns) {
    std::string question = wire_;
    for (const uint16_t value : {type, kClassIn}) {
      question += static_cast<char>(value >> 8);
      question += static_cast<char>(value);
    }
    Query query;
    query.question = question;
    query.name = wire_;
    query.type = type;
    query.question_class = kClassIn;
    query.bytes = kHeaderBytes + question.size();
    query.edns = edns;
    query.udp_bytes = zone_.max_udp_bytes;
    Delivery delivery;
    delivery.tcp = tcp;
    delivery.trusted = true;
    return WriteReply(zone_, query, meaning_, known_, delivery, &shuffle_, buffer_.data());
  }

 private:
  const Zone& zone_;
  const std::string& wire_;
  const Meaning& meaning_;
  const Known& known_;
  Shuffle shuffle_{1};
  std::vector<char> buffer_ = std::vector<char>(kMaxMessageBytes);
};

class Explainer {
 public:
  Explainer(const Zone& zone, const RecordOptions& options, const Meaning& meaning,
            const ServiceTable::Found& found)
      : zone_(zone), options_(options), meaning_(meaning), found_(found) {}

  Explanation Run(const std::string& name, const std::vector<NotRegistered>& not_registered) {
    const absl::StatusOr<std::string> wire = ToWire(name);
    if (!wire.ok()) {
      explained_.rcode = "REFUSED";
      explained_.reason = std::string(wire.status().message());
      return std::move(explained_);
    }
    explained_.reason = ReasonOfMeaning();
    // Of what is not known, and what may not be read, there is no last state.
    explained_.stale = found_.known.stale && found_.known.state != Known::State::kNothing &&
                       found_.known.state != Known::State::kDenied;
    AddAnswers(*wire);
    if (found_.known.records != nullptr) {
      AddRecords();
      AddLeftOut();
      ExplainService();
    } else {
      AddFixedRecords();
    }
    // What may not be read here is not told by what is carried either.
    if (found_.known.state != Known::State::kDenied) AddNotRegistered(not_registered);
    return std::move(explained_);
  }

 private:
  bool about_service() const {
    return meaning_.kind == Kind::kService || meaning_.kind == Kind::kServiceSrv;
  }
  const Records& given() const { return found_.known.records->Of(meaning_.tag); }

  // For who knows the service and not its name.
  std::string NamesOfServices() const {
    const std::string domain = zone_.domain.text();
    return absl::StrCat("; a service is [TAG.]SERVICE.service[.NAMESPACE].", domain,
                        " or _SERVICE._tcp.service[.NAMESPACE].", domain);
  }

  std::string ReasonOfMeaning() const {
    switch (meaning_.kind) {
      case Kind::kOutside:
        return absl::StrCat("not a name below ", zone_.domain.text(), NamesOfServices());
      case Kind::kUnknown:
        return absl::StrCat("no service can have this name", NamesOfServices());
      case Kind::kEmpty:
        return absl::StrCat("no record has this name, and names below it may have some",
                            NamesOfServices());
      case Kind::kApex:
        return "the domain itself";
      case Kind::kNameServer:
        return "the server that answers";
      case Kind::kAddress:
        return "an address, the target of SRV records";
      case Kind::kService:
      case Kind::kServiceSrv:
        break;
    }
    return absl::StrCat(
        "service ", meaning_.service, " of namespace ", meaning_.name_space,
        meaning_.tag.empty() ? "" : absl::StrCat(", its instances with the tag ", meaning_.tag),
        ReasonOfState());
  }

  // What is known of the service, if it is not there.
  std::string ReasonOfState() const {
    switch (found_.known.state) {
      case Known::State::kNothing:
        return found_.too_many_names
                   ? ": more new names a second are asked for than are looked up; ask again"
                   : ": nothing is known of it, as the registry does not tell; `failbackctl "
                     "status` says why";
      case Known::State::kDenied:
        return ": the server's reader may not read it (dns.read_as and the policy, or at an agent "
               "the registry's answer to the agent)";
      case Known::State::kAbsent:
        return ": it has no instance, and none was seen here in the hour that a name stays known";
      case Known::State::kPresent:
        break;
    }
    return "";
  }

  // The rcode, and how much of what there is fits.
  void AddAnswers(const std::string& wire) {
    Answers answers(zone_, wire, meaning_, found_.known);
    Rcode rcode = Rcode::kNoError;
    for (const auto& [type, name] : kTypes) {
      const Reply tcp = answers.Write(type, /*tcp=*/true, /*edns=*/true);
      rcode = tcp.rcode;
      const bool usual =
          about_service() && found_.known.records != nullptr &&
          (type == type::kSrv || (meaning_.kind == Kind::kService &&
                                  (type == type::kA || type == type::kAaaa || type == type::kTxt)));
      if (tcp.answers == 0 && !usual) continue;
      Explanation::Answer answer;
      answer.type = name;
      answer.records = about_service() ? CountOf(type) : tcp.answers;
      answer.plain_udp = answers.Write(type, /*tcp=*/false, /*edns=*/false).answers;
      answer.udp = answers.Write(type, /*tcp=*/false, /*edns=*/true).answers;
      answer.tcp = tcp.answers;
      any_ |= answer.records > 0;
      explained_.answers.push_back(std::move(answer));
    }
    explained_.rcode = TextOf(rcode);
  }

  std::string TextOf(Rcode rcode) const {
    switch (rcode) {
      case Rcode::kNoError:
        return any_ ? "NOERROR" : "NODATA";
      case Rcode::kNxDomain:
        return "NXDOMAIN";
      case Rcode::kServFail:
        return "SERVFAIL";
      default:
        return "REFUSED";
    }
  }

  size_t CountOf(uint16_t type) const {
    if (type == type::kA) return given().ipv4.size();
    if (type == type::kAaaa) return given().ipv6.size();
    return given().targets.size();
  }

  void AddRecord(const char* type, std::string data) {
    if (explained_.records.size() < kMaxExplained) {
      explained_.records.push_back({type, std::move(data)});
    }
  }

  void AddRecords() {
    const Records& records = given();
    if (meaning_.kind == Kind::kService) {
      for (const auto& ip : records.ipv4) AddRecord("A", IpText({ip.data(), ip.size()}));
      for (const auto& ip : records.ipv6) AddRecord("AAAA", IpText({ip.data(), ip.size()}));
    }
    for (const Target& target : records.targets) {
      if (explained_.records.size() == kMaxExplained) return;
      const std::string name =
          target.kind == Target::Kind::kName
              ? ToText(found_.known.records->names()[target.name])
              : absl::StrCat(absl::BytesToHexString(std::string(target.address())), ".addr.",
                             zone_.domain.text());
      AddRecord("SRV",
                absl::StrCat(target.priority, " ", target.weight, " ", target.port, " ", name));
    }
  }

  // Of names that are about no service.
  void AddFixedRecords() {
    std::vector<std::string> addresses;
    if (meaning_.kind == Kind::kNameServer) addresses = zone_.addresses;
    if (meaning_.kind == Kind::kAddress) addresses = {meaning_.address};
    for (const std::string& address : addresses) {
      AddRecord(address.size() == 4 ? "A" : "AAAA", IpText(address));
    }
  }

  // Each instance that no record is of, with the reason.
  void AddLeftOut() {
    const InstanceSet& set = found_.known.records->set();
    std::vector<bool> has_record(set.size());
    for (const Target& target : given().targets) has_record[target.instance] = true;
    explained_.total_left_out = set.size() - given().targets.size();
    size_t at = 0;
    set.ForEach([&](const Blob& instance) {
      if (has_record[at++] || explained_.left_out.size() == kMaxExplained) return;
      WithView(instance, [this](const InstanceView& view) {
        explained_.left_out.push_back(
            {std::string(view.instance_id), Endpoint(view), WhyWithout(view)});
      });
    });
  }

  // Empty: the set has not the key.
  std::string EndpointInSet(const std::string& key) const {
    std::string endpoint;
    if (found_.known.records == nullptr) return endpoint;
    const Blob instance = found_.known.records->set().Find(key);
    if (instance) WithView(instance, [&](const InstanceView& view) { endpoint = Endpoint(view); });
    return endpoint;
  }

  void AddNotRegistered(const std::vector<NotRegistered>& not_registered) {
    const bool told = found_.known.state != Known::State::kNothing;
    for (const NotRegistered& one : not_registered) {
      if (one.acknowledged && !told) continue;
      WithView(one.instance, [this, &one](const InstanceView& view) {
        std::string endpoint = Endpoint(view);
        // An update that is on its way, or another's instance that looks the same.
        if (EndpointInSet(one.key) == endpoint) return;
        ++explained_.total_left_out;
        if (explained_.left_out.size() == kMaxExplained) return;
        explained_.left_out.push_back(
            {std::string(view.instance_id), std::move(endpoint), one.why});
      });
    }
  }

  std::string WhyWithout(const InstanceView& instance) const {
    const LeftOut reason = WhyLeftOut(instance);
    const bool last_resort = found_.known.records->last_resort();
    if (reason != LeftOut::kNot && (reason == LeftOut::kAddress || !last_resort)) {
      return std::string(LeftOutText(reason));
    }
    if (!meaning_.tag.empty()) {
      switch (found_.known.records->StandingOf(meaning_.tag, instance)) {
        case TagStanding::kWithout:
          return absl::StrCat("has no tag ", meaning_.tag);
        case TagStanding::kBeyondInstance:
          return absl::StrCat("has the tag ", meaning_.tag, " beyond its first ",
                              kMaxTagsOfInstance, ", which are all that count");
        case TagStanding::kBeyondService:
          return absl::StrCat("its service has ", kMaxTagsOfService,
                              " other tags, which are all that count");
        case TagStanding::kCounts:
          break;
      }
    }
    return "another instance has the same address and port";
  }

  void ExplainService() {
    const auto add = [this](auto... text) { absl::StrAppend(&explained_.reason, text...); };
    const ServiceRecords& records = *found_.known.records;
    if (records.set().empty()) {
      return add(": its last instance has left less than an hour ago, so the name is known");
    }
    if (records.last_resort()) {
      add(": none is to get work, so all are given (dns.unhealthy_if_no_others)");
    }
    const size_t far = given().targets.size() - given().near;
    if (far > 0) {
      add("; zone ", options_.zone, " first, ", far, " of other zones with priority 1");
    }
  }

  const Zone& zone_;
  const RecordOptions& options_;
  const Meaning& meaning_;
  const ServiceTable::Found& found_;
  bool any_ = false;
  Explanation explained_;
};

}  // namespace

Meaning MeaningOfText(const Domain& domain, const std::string& name) {
  const absl::StatusOr<std::string> wire = ToWire(name);
  return wire.ok() ? domain.MeaningOf(*wire) : Meaning();
}

Explanation Explain(const Zone& zone, const RecordOptions& options, const std::string& name,
                    const Meaning& meaning, const ServiceTable::Found& found,
                    const std::vector<NotRegistered>& not_registered) {
  return Explainer(zone, options, meaning, found).Run(name, not_registered);
}

}  // namespace failback::dns
