#include "gateway/dns/records.h"

#include <arpa/inet.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "gateway/dns/names.h"
#include "registry/model/validation.h"
#include "registry/model/with_view.h"

namespace failback::dns {
namespace {

constexpr uint16_t kDefaultWeight = 100;

// The address of an instance as a number; false for one that is none.
bool ReadIp(std::string_view text, Target* target) {
  char terminated[kMaxAddressLength + 1];
  if (text.size() >= sizeof(terminated)) return false;
  text.copy(terminated, text.size());
  terminated[text.size()] = '\0';
  if (inet_pton(AF_INET, terminated, target->ip.data()) == 1) {
    target->kind = Target::Kind::kIpv4;
    return true;
  }
  target->kind = Target::Kind::kIpv6;
  return inet_pton(AF_INET6, terminated, target->ip.data()) == 1;
}

// What makes two targets the same for clients.
std::tuple<Target::Kind, std::string_view, uint32_t> AddressOf(const Target& target) {
  return {target.kind, target.kind == Target::Kind::kName ? std::string_view() : target.address(),
          target.name};
}

// The first `most` different ones.
void AddTags(const InstanceView& instance, size_t most, std::vector<std::string>* tags) {
  for (const InstanceView::Entry& entry : instance.metadata) {
    if (entry.key != kTagsKey) continue;
    for (const auto piece :
         absl::StrSplit(absl::string_view(entry.value.data(), entry.value.size()), ',',
                        absl::SkipWhitespace())) {
      std::string tag(absl::StripAsciiWhitespace(piece));
      if (!EncodeLabel(tag).has_value()) continue;
      if (std::find(tags->begin(), tags->end(), tag) != tags->end()) continue;
      tags->push_back(std::move(tag));
      if (tags->size() == most) return;
    }
  }
}

}  // namespace

// Targets as they are found, in the order of the set.
struct ServiceRecords::Found {
  void Add(const Target& target, const std::vector<std::string>& tags) {
    all.push_back(target);
    for (const std::string& tag : tags) {
      if (by_tag.size() < kMaxTagsOfService || by_tag.contains(tag)) by_tag[tag].push_back(target);
    }
  }

  std::vector<Target> all;
  absl::flat_hash_map<std::string, std::vector<Target>> by_tag;
};

LeftOut WhyLeftOut(const InstanceView& instance) {
  Target ignored;
  if (!ReadIp(instance.address, &ignored) && !ToWire(instance.address).ok()) {
    return LeftOut::kAddress;
  }
  if (instance.offline) return LeftOut::kOffline;
  if (instance.status == registry::v1::HEALTH_STATUS_DRAINING) return LeftOut::kDraining;
  if (instance.status != registry::v1::HEALTH_STATUS_UNSPECIFIED &&
      instance.status != registry::v1::HEALTH_STATUS_HEALTHY) {
    return LeftOut::kUnhealthy;
  }
  return instance.has_weight && instance.weight == 0 ? LeftOut::kWeightZero : LeftOut::kNot;
}

std::string_view LeftOutText(LeftOut why) {
  switch (why) {
    case LeftOut::kNot:
      return "";
    case LeftOut::kOffline:
      return "an operator has taken it offline";
    case LeftOut::kUnhealthy:
      return "unhealthy";
    case LeftOut::kDraining:
      return "draining";
    case LeftOut::kWeightZero:
      return "its weight is zero";
    case LeftOut::kAddress:
      return "its address is neither an IP address nor a host name";
  }
  return "";
}

ServiceRecords::ServiceRecords(const InstanceSet& set, const RecordOptions& options) : set_(set) {
  absl::flat_hash_map<std::string, uint32_t> name_indexes;
  uint32_t ordinal = 0;
  Found good;
  Found others;  // given when there is no good one
  std::vector<std::string> tags;
  good.all.reserve(set.size());
  set.ForEach([&](const Blob& blob) {
    const uint32_t instance = ordinal++;
    WithView(blob, [&](const InstanceView& view) {
      const LeftOut why = WhyLeftOut(view);
      if (why == LeftOut::kAddress) return;
      const bool usable = why == LeftOut::kNot;
      if (!usable && (!options.unhealthy_if_no_others || !good.all.empty())) return;
      if (usable && good.all.empty()) others = Found();
      Target target;
      if (!ReadIp(view.address, &target)) {
        target.kind = Target::Kind::kName;
        const std::string name = *ToWire(view.address);
        const auto [it, inserted] =
            name_indexes.try_emplace(name, static_cast<uint32_t>(names_.size()));
        if (inserted) names_.push_back(name);
        target.name = it->second;
      }
      target.instance = instance;
      target.port = static_cast<uint16_t>(view.port);
      target.weight = view.has_weight ? static_cast<uint16_t>(view.weight) : kDefaultWeight;
      target.priority = options.zone.empty() || view.zone == options.zone ? 0 : 1;
      tags.clear();
      AddTags(view, kMaxTagsOfInstance, &tags);
      (usable ? good : others).Add(target, tags);
    });
  });
  last_resort_ = !others.all.empty();
  Found& given = last_resort_ ? others : good;
  Fill(std::move(given.all), &all_);
  for (auto& [tag, targets] : given.by_tag) Fill(std::move(targets), &by_tag_[tag]);
}

void ServiceRecords::Fill(std::vector<Target> found, Records* records) {
  std::vector<Target>& targets = records->targets;
  targets = std::move(found);
  // Neighbours are the same address, then the same port.
  std::sort(targets.begin(), targets.end(), [](const Target& a, const Target& b) {
    return std::make_tuple(AddressOf(a), a.port, a.instance) <
           std::make_tuple(AddressOf(b), b.port, b.instance);
  });
  targets.erase(std::unique(targets.begin(), targets.end(),
                            [](const Target& a, const Target& b) {
                              return a.port == b.port && AddressOf(a) == AddressOf(b);
                            }),
                targets.end());
  for (size_t i = 0; i < targets.size(); ++i) {
    Target& target = targets[i];
    target.first_of_address = i == 0 || AddressOf(targets[i - 1]) != AddressOf(target);
    if (!target.first_of_address || target.kind == Target::Kind::kName) continue;
    if (target.kind == Target::Kind::kIpv4) {
      records->ipv4.emplace_back();
      std::copy_n(target.ip.begin(), 4, records->ipv4.back().begin());
    } else {
      records->ipv6.push_back(target.ip);
    }
  }
  const auto far = std::stable_partition(targets.begin(), targets.end(),
                                         [](const Target& target) { return target.priority == 0; });
  records->near = static_cast<size_t>(far - targets.begin());
  records->ipv4.shrink_to_fit();
  records->ipv6.shrink_to_fit();
  targets.shrink_to_fit();
}

const Records& ServiceRecords::Of(const std::string& tag) const {
  static const auto* const kNone = new Records;
  if (tag.empty()) return all_;
  const auto it = by_tag_.find(tag);
  return it == by_tag_.end() ? *kNone : it->second;
}

TagStanding ServiceRecords::StandingOf(const std::string& tag, const InstanceView& instance) const {
  // Metadata is bounded, so no instance has more than this.
  std::vector<std::string> tags;
  AddTags(instance, std::numeric_limits<size_t>::max(), &tags);
  const auto it = std::find(tags.begin(), tags.end(), tag);
  if (it == tags.end()) return TagStanding::kWithout;
  if (it - tags.begin() >= static_cast<int64_t>(kMaxTagsOfInstance)) {
    return TagStanding::kBeyondInstance;
  }
  return by_tag_.contains(tag) ? TagStanding::kCounts : TagStanding::kBeyondService;
}

Blob ServiceRecords::InstanceOf(const Target& target) const {
  size_t before = 0;
  for (const auto& run : set_.runs()) {
    if (target.instance < before + run->size()) return (*run)[target.instance - before];
    before += run->size();
  }
  return Blob();
}

}  // namespace failback::dns
