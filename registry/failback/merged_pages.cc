#include "registry/failback/merged_pages.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

// In a token: this registry's listing has ended.
constexpr char kEnded[] = "!";

std::string KeyOf(const InstanceRecord& record) { return CanonicalKey(record.instance().key()); }

// Of one key.
struct Choice {
  const InstanceRecord* record;
  bool stale;
  registry::v1::IntentState state;
};

// The further, the higher; nothing is known of one that failed.
int Progress(registry::v1::IntentState state) {
  switch (state) {
    case registry::v1::INTENT_STATE_PARKED:
      return 1;
    case registry::v1::INTENT_STATE_SUPERSEDED:
      return 2;
    case registry::v1::INTENT_STATE_ACCEPTED:
      return 3;
    case registry::v1::INTENT_STATE_LAPSED:
      return 4;
    case registry::v1::INTENT_STATE_ACKNOWLEDGED:
      return 5;
    default:
      return 0;
  }
}

}  // namespace

registry::v1::IntentState LesserState(registry::v1::IntentState a, registry::v1::IntentState b) {
  return Progress(b) < Progress(a) ? b : a;
}

absl::StatusOr<MergedPlace> MergedPlace::Parse(const std::string& token, size_t registries) {
  MergedPlace place;
  place.tokens.resize(registries, "");
  if (token.empty()) return place;
  const std::vector<std::string> parts = absl::StrSplit(token, '.');
  bool valid =
      parts.size() == registries + 1 && absl::WebSafeBase64Unescape(parts[0], &place.after);
  for (size_t i = 0; valid && i < registries; ++i) {
    if (parts[i + 1] == kEnded) {
      place.tokens[i] = std::nullopt;
    } else {
      valid = absl::WebSafeBase64Unescape(parts[i + 1], &*place.tokens[i]);
    }
  }
  if (!valid) return InvalidField("page_token", "is not a token of an earlier page");
  return place;
}

std::string MergedPlace::Format() const {
  std::string text = absl::WebSafeBase64Escape(after);
  bool ended = true;
  for (const auto& token : tokens) {
    ended = ended && !token.has_value();
    absl::StrAppend(&text, ".", token.has_value() ? absl::WebSafeBase64Escape(*token) : kEnded);
  }
  return ended ? "" : text;
}

ListResponse MergePages(int page_size, const MergedPlace& place,
                        const std::vector<ListResponse>& pages) {
  // Up to where each page that is not the last of its listing goes: beyond it, others may have keys
  // that this registry has too, on its next page.
  std::optional<std::string> end;
  std::map<std::string, Choice> found;
  ListResponse merged;
  std::optional<registry::v1::ListCoverage> coverage;
  for (size_t i = 0; i < pages.size(); ++i) {
    const ListResponse& page = pages[i];
    // They differ where one is unavailable, or of a version that does not say.
    if (place.tokens[i].has_value()) {
      coverage = coverage.value_or(page.coverage()) == page.coverage()
                     ? page.coverage()
                     : registry::v1::LIST_COVERAGE_PART;
    }
    merged.set_stale(merged.stale() || page.stale());
    if (!page.next_page_token().empty()) {
      const std::string last =
          page.records().empty() ? place.after : KeyOf(page.records(page.records_size() - 1));
      end = end.has_value() ? std::min(*end, last) : last;
    }
    for (const InstanceRecord& record : page.records()) {
      const std::string key = KeyOf(record);
      if (key <= place.after) continue;
      const auto [it, inserted] = found.emplace(key, Choice{&record, page.stale(), record.state()});
      if (inserted) continue;
      Choice& choice = it->second;
      if (choice.stale && !page.stale()) choice = {&record, false, choice.state};
      choice.state = LesserState(choice.state, record.state());
    }
  }
  merged.set_coverage(coverage.value_or(registry::v1::LIST_COVERAGE_UNSPECIFIED));
  const int limit = page_size == 0 ? kMaxPageSize : std::min(page_size, kMaxPageSize);
  MergedPlace next = place;
  size_t bytes = 0;
  for (const auto& [key, choice] : found) {
    if (end.has_value() && key > *end) break;
    bytes += choice.record->ByteSizeLong();
    if (PageIsFull(merged.records_size(), limit, bytes)) {
      end = next.after;
      break;
    }
    InstanceRecord* const record = merged.add_records();
    *record = *choice.record;
    record->set_state(choice.state);
    next.after = key;
  }
  if (end.has_value()) next.after = std::max(next.after, *end);
  for (size_t i = 0; i < pages.size(); ++i) {
    const ListResponse& page = pages[i];
    const bool used_up = page.records().empty() || !end.has_value() ||
                         KeyOf(page.records(page.records_size() - 1)) <= *end;
    if (!used_up || !next.tokens[i].has_value()) continue;
    if (page.next_page_token().empty()) {
      next.tokens[i] = std::nullopt;
    } else {
      next.tokens[i] = page.next_page_token();
    }
  }
  merged.set_next_page_token(next.Format());
  return merged;
}

}  // namespace failback
