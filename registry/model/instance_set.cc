#include "registry/model/instance_set.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "registry/model/canonical.h"

namespace failback {
namespace {

using Run = Event::Run;

// A run that grows beyond the second is divided into some of the first; a small one joins the next.
constexpr size_t kRun = 32;
constexpr size_t kLongestRun = 64;

// Negative, zero or positive: in the order of the canonical keys, as no name has a NUL.
int Compare(const KeyNames& a, const KeyNames& b) {
  if (const int order = a.name_space.compare(b.name_space); order != 0) return order;
  if (const int order = a.service.compare(b.service); order != 0) return order;
  return a.instance_id.compare(b.instance_id);
}

bool ComesBefore(const Blob& a, const Blob& b) { return Compare(KeyNamesOf(a), KeyNamesOf(b)) < 0; }

// Goes through the instances of runs.
class Cursor {
 public:
  explicit Cursor(const Event::Runs& runs) : runs_(runs) {}

  bool done() const { return run_ == runs_.size(); }
  const Blob& instance() const { return (*runs_[run_])[at_]; }
  // Null within a run.
  const Run* begins() const { return at_ == 0 ? runs_[run_].get() : nullptr; }
  void Next() {
    if (++at_ == runs_[run_]->size()) NextRun();
  }
  void NextRun() {
    ++run_;
    at_ = 0;
  }

 private:
  const Event::Runs& runs_;
  size_t run_ = 0;
  size_t at_ = 0;
};

// Whether runs of an event can be those of a set.
bool AreOfASet(const Event::Runs& runs) {
  const Blob* last = nullptr;
  for (const auto& run : runs) {
    if (run->empty() || run->size() > kLongestRun) return false;
    for (const Blob& instance : *run) {
      if (last != nullptr && !ComesBefore(*last, instance)) return false;
      last = &instance;
    }
  }
  return true;
}

// The instances of a snapshot, sorted; of several with one key the last.
std::vector<Blob> Sorted(const Event& snapshot) {
  std::vector<Blob> sorted;
  sorted.reserve(snapshot.instances());
  bool is_sorted = true;
  snapshot.ForEachInstance([&](const Blob& instance) {
    is_sorted = is_sorted && (sorted.empty() || ComesBefore(sorted.back(), instance));
    sorted.push_back(instance);
  });
  if (is_sorted) return sorted;
  std::stable_sort(sorted.begin(), sorted.end(), ComesBefore);
  std::vector<Blob> once;
  once.reserve(sorted.size());
  for (Blob& instance : sorted) {
    if (!once.empty() && !ComesBefore(once.back(), instance)) once.pop_back();
    once.push_back(std::move(instance));
  }
  return once;
}

}  // namespace

// What a delta does to one key.
struct InstanceSet::Operation {
  KeyNames names;
  const Blob* instance;    // null: it goes
  const std::string* key;  // of one that goes
};

absl::Status InstanceSet::Apply(const Event& event, Changes* changes) {
  if (absl::Status status = order_.Check(event); !status.ok()) return status;
  flags_ = event.flags();
  if (event.is_snapshot()) {
    const InstanceSet before = *this;
    Replace(event);
    if (changes != nullptr) *changes = Difference(before, *this);
  } else if (event.is_delta()) {
    Changes unused;
    Carry(event, changes != nullptr ? changes : &unused);
  }
  return absl::OkStatus();
}

void InstanceSet::Replace(const Event& snapshot) {
  // The first one is shared as it is.
  if (runs_.empty() && AreOfASet(snapshot.runs())) {
    runs_ = snapshot.runs();
    size_ = snapshot.instances();
    return;
  }
  std::vector<Blob> sorted = Sorted(snapshot);
  // What is there already stays: others share it.
  Cursor known(runs_);
  for (Blob& instance : sorted) {
    while (!known.done() && ComesBefore(known.instance(), instance)) known.Next();
    if (!known.done() && known.instance() == instance) instance = known.instance();
  }
  runs_.clear();
  size_ = sorted.size();
  runs_.reserve((sorted.size() + kRun - 1) / kRun);
  for (size_t i = 0; i < sorted.size(); i += kRun) {
    const auto begin = sorted.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(kRun, sorted.size() - i));
    runs_.push_back(std::make_shared<const Run>(begin, end));
  }
}

void InstanceSet::Carry(const Event& delta, Changes* changes) {
  std::vector<Operation> operations;
  operations.reserve(delta.removals().size() + delta.instances());
  for (const std::string& key : delta.removals()) {
    operations.push_back({SplitCanonicalKey(key), nullptr, &key});
  }
  delta.ForEachInstance([&](const Blob& instance) {
    operations.push_back({KeyNamesOf(instance), &instance, nullptr});
  });
  std::stable_sort(
      operations.begin(), operations.end(),
      [](const Operation& a, const Operation& b) { return Compare(a.names, b.names) < 0; });

  for (size_t next = 0; next < operations.size();) {
    // The run that the next operation concerns, and its operations: up to where a run follows.
    const size_t index = RunOf(operations[next].names);
    const bool last = index + 1 >= runs_.size();
    const KeyNames follows = last ? KeyNames() : KeyNamesOf(runs_[index + 1]->front());
    const auto is_here = [&](const Operation& operation) {
      return last || Compare(operation.names, follows) < 0;
    };
    const Run before = runs_.empty() ? Run() : *runs_[index];
    Run after;
    after.reserve(before.size() + 1);
    bool changed = false;
    auto old = before.begin();
    for (; next < operations.size() && is_here(operations[next]); ++next) {
      const Operation& operation = operations[next];
      // Of several of one key the last counts: an upsert after a removal.
      const bool again =
          next + 1 < operations.size() && Compare(operation.names, operations[next + 1].names) == 0;
      if (again) continue;
      while (old != before.end() && Compare(KeyNamesOf(*old), operation.names) < 0) {
        after.push_back(*old++);
      }
      const bool there = old != before.end() && Compare(KeyNamesOf(*old), operation.names) == 0;
      if (operation.instance == nullptr) {
        if (!there) continue;
        changes->removals.push_back(*operation.key);
      } else if (there && *old == *operation.instance) {
        after.push_back(*old++);
        continue;
      } else {
        after.push_back(*operation.instance);
        changes->upserts.push_back(*operation.instance);
      }
      if (there) ++old;
      changed = true;
    }
    if (!changed) continue;
    after.insert(after.end(), old, before.end());
    size_ = size_ - before.size() + after.size();
    Put(index, std::move(after));
  }
}

size_t InstanceSet::RunOf(const KeyNames& names) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), names,
                                      [](const KeyNames& wanted, const auto& run) {
                                        return Compare(wanted, KeyNamesOf(run->front())) < 0;
                                      });
  return after == runs_.begin() ? 0 : static_cast<size_t>(after - runs_.begin()) - 1;
}

void InstanceSet::Put(size_t index, Run run) {
  const auto at = [this](size_t i) { return runs_.begin() + static_cast<std::ptrdiff_t>(i); };
  if (index + 1 < runs_.size() && run.size() + runs_[index + 1]->size() <= kRun) {
    run.insert(run.end(), runs_[index + 1]->begin(), runs_[index + 1]->end());
    runs_.erase(at(index + 1));
  }
  if (index < runs_.size()) runs_.erase(at(index));
  if (run.empty()) return;
  const size_t pieces = run.size() <= kLongestRun ? 1 : (run.size() + kRun - 1) / kRun;
  Event::Runs divided;
  divided.reserve(pieces);
  for (size_t i = 0; i < pieces; ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(i * run.size() / pieces);
    const auto end = static_cast<std::ptrdiff_t>((i + 1) * run.size() / pieces);
    divided.push_back(std::make_shared<const Run>(run.begin() + begin, run.begin() + end));
  }
  runs_.insert(at(index), std::make_move_iterator(divided.begin()),
               std::make_move_iterator(divided.end()));
}

Blob InstanceSet::Find(std::string_view key) const {
  if (runs_.empty()) return Blob();
  const KeyNames names = SplitCanonicalKey(key);
  const Run& run = *runs_[RunOf(names)];
  const auto found =
      std::lower_bound(run.begin(), run.end(), names, [](const Blob& instance, const auto& wanted) {
        return Compare(KeyNamesOf(instance), wanted) < 0;
      });
  return found != run.end() && Compare(KeyNamesOf(*found), names) == 0 ? *found : Blob();
}

void InstanceSet::ForEach(absl::FunctionRef<void(const Blob&)> use) const {
  for (const auto& run : runs_) {
    for (const Blob& instance : *run) use(instance);
  }
}

InstanceSet::Changes InstanceSet::Difference(const InstanceSet& before, const InstanceSet& after) {
  Changes changes;
  Cursor old(before.runs_);
  Cursor now(after.runs_);
  while (!old.done() || !now.done()) {
    if (!old.done() && !now.done() && old.begins() != nullptr && old.begins() == now.begins()) {
      old.NextRun();
      now.NextRun();
      continue;
    }
    const int order = old.done() ? 1
                      : now.done()
                          ? -1
                          : Compare(KeyNamesOf(old.instance()), KeyNamesOf(now.instance()));
    if (order < 0) changes.removals.push_back(KeyOf(old.instance()));
    if (order > 0 || (order == 0 && old.instance() != now.instance())) {
      changes.upserts.push_back(now.instance());
    }
    if (order <= 0) old.Next();
    if (order >= 0) now.Next();
  }
  return changes;
}

}  // namespace failback
