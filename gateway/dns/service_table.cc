#include "gateway/dns/service_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/dns/service_watch.h"
#include "registry/model/validation.h"

namespace failback::dns {
namespace {

constexpr int kMostSwept = 256;
// Of all: those of names without a registration.
constexpr size_t kAbsentParts = 4;
size_t MostAbsent(size_t most) { return std::max<size_t>(1, most / kAbsentParts); }
// Of the new names a second: those of one network.
constexpr uint32_t kNetworkParts = 4;
// Networks that share one bucket share its names.
constexpr size_t kBuckets = 4096;
size_t MostPresent(size_t most) { return std::max<size_t>(1, most - most / kAbsentParts); }

}  // namespace

ServiceTable::ServiceTable(Registry* registry, Options options, std::function<void()> wake)
    : context_(std::make_shared<WatchContext>(registry, std::move(options), std::move(wake))),
      new_names_of_network_(std::max(1u, context_->options.new_names_per_second / kNetworkParts),
                            context_->options.key, kBuckets),
      new_names_(context_->options.new_names_per_second),
      new_names_nanos_(context_->NowNanos()) {}

ServiceTable::~ServiceTable() {
  for (Entries* list : {&present_, &absent_}) {
    for (const Entry& entry : *list) entry.watch->Stop();
  }
}

ServiceTable::Found ServiceTable::Look(const std::string& name_space, const std::string& service,
                                       const Asker& asker) {
  const int64_t now = context_->NowNanos();
  // No name has a slash in its namespace.
  std::string key = absl::StrCat(name_space, "/", service);
  Entry* entry = nullptr;
  const auto it = by_key_.find(key);
  if (it != by_key_.end()) {
    entry = &*it->second;
    Entries& list = ListOf(entry->present);
    list.splice(list.begin(), list, it->second);
  } else {
    Selector selector;
    selector.set_namespace_(name_space);
    selector.set_service(service);
    if (!ValidateSelector(FieldPath(), selector).ok()) {
      // There is no such service, nor will there be.
      Found absent;
      absent.known.state = Known::State::kAbsent;
      return absent;
    }
    if (!TakeNewName(asker, now)) {
      ++refused_;
      Found found;
      found.too_many_names = true;
      return found;
    }
    Add(std::move(key), std::move(selector));
    entry = &absent_.front();
  }
  entry->asked_nanos = now;
  Found found = entry->watch->Look(now);
  if (!entry->present && found.known.state == Known::State::kPresent) {
    entry->present = true;
    present_.splice(present_.begin(), absent_, by_key_.at(entry->key));
    --absent_count_;
    MakeRoom(&present_, MostPresent(context_->options.max_services));
  }
  return found;
}

void ServiceTable::Add(std::string key, Selector selector) {
  MakeRoom(&absent_, MostAbsent(context_->options.max_services) - 1);
  absent_.push_front(
      {std::move(key), std::make_shared<ServiceWatch>(context_, std::move(selector))});
  by_key_.emplace(absent_.front().key, absent_.begin());
  ++services_;
  ++absent_count_;
  const std::shared_ptr<ServiceWatch> watch = absent_.front().watch;
  watch->Start();
}

bool ServiceTable::TakeNewName(const Asker& asker, int64_t now_nanos) {
  const double rate = context_->options.new_names_per_second;
  const double passed = static_cast<double>(now_nanos - new_names_nanos_) * 1e-9;
  new_names_nanos_ = now_nanos;
  new_names_ = std::min(rate, new_names_ + passed * rate);
  if (new_names_ < (asker.proven ? 1 : 1 + rate / 2)) return false;
  if (!asker.address.empty() &&
      new_names_of_network_.Take(asker.address, now_nanos) != RateLimit::Verdict::kAnswer) {
    return false;
  }
  new_names_ -= 1;
  return true;
}

void ServiceTable::Remove(Entries* list, Entries::iterator entry) {
  const std::shared_ptr<ServiceWatch> watch = std::move(entry->watch);
  if (!entry->present) --absent_count_;
  --services_;
  by_key_.erase(entry->key);
  list->erase(entry);
  watch->Stop();
}

void ServiceTable::MakeRoom(Entries* list, size_t most) {
  while (list->size() > most) {
    ++evicted_;
    Remove(list, std::prev(list->end()));
  }
}

void ServiceTable::Sweep() {
  const int64_t now = context_->NowNanos();
  const int64_t kept = absl::ToInt64Nanoseconds(context_->options.kept);
  for (Entries* list : {&present_, &absent_}) {
    for (int swept = 0; swept < kMostSwept && !list->empty(); ++swept) {
      const auto last = std::prev(list->end());
      if (now - last->asked_nanos < kept) break;
      // One whose last instance went a while ago: its name is still known.
      const int64_t instance = last->watch->last_instance_nanos();
      if (instance != 0 && instance < now && now - instance < kept) {
        last->asked_nanos = instance;
        list->splice(list->begin(), *list, last);
        continue;
      }
      Remove(list, last);
    }
  }
}

ServiceTable::Statistics ServiceTable::Stats() const {
  Statistics statistics;
  statistics.services = services_;
  statistics.absent = absent_count_;
  statistics.evicted = evicted_;
  statistics.refused_names = refused_;
  statistics.builds = context_->builds;
  return statistics;
}

}  // namespace failback::dns
