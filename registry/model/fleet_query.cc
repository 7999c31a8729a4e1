#include "registry/model/fleet_query.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"
#include "registry/model/page_token.h"

namespace failback {
namespace {

using admin::v1::AgentSummary;
using admin::v1::ListAgentsRequest;
using admin::v1::ListAgentsResponse;
using admin::v1::ListSessionsRequest;
using admin::v1::ListSessionsResponse;
using admin::v1::SessionSummary;

constexpr int kMaxPage = 1000;
constexpr size_t kMaxQuery = 1024;
// For so long an operation may be under way before it is worth a look.
constexpr absl::Duration kPatience = absl::Minutes(1);
// For so long after an agent has met another process in its session.
constexpr absl::Duration kTwinsAreTold = absl::Hours(24);

std::string Counted(uint64_t number, const char* what) {
  return absl::StrCat(number, " ", what, number == 1 ? "" : "s");
}

// What rows are sorted by, and a page's token is made of.
std::string PlaceOf(const SessionSummary& session) { return session.incarnation(); }
const char* ListingOf(const ListSessionsRequest&) { return "sessions"; }
std::string PlaceOf(const AgentSummary& agent) {
  return absl::StrCat(agent.report().name(), std::string(1, '\0'), agent.session().incarnation());
}
const char* ListingOf(const ListAgentsRequest&) { return "agents"; }

// Sorts `rows`, and moves those of the page asked for to `add`; the next page's token is returned.
template <typename Request, typename Row, typename Add>
absl::StatusOr<std::string> TakePage(const Request& request, std::vector<Row> rows, Add add) {
  if (request.page_size() < 0) {
    return InvalidField("page_size", absl::StrCat(request.page_size(), " is negative"));
  }
  const absl::StatusOr<std::string> after =
      ParsePageToken(ListingOf(request), request.page_token());
  if (!after.ok()) return after.status();
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return PlaceOf(a) < PlaceOf(b); });
  auto it = std::upper_bound(
      rows.begin(), rows.end(), *after,
      [](const std::string& place, const Row& row) { return place < PlaceOf(row); });
  if (request.page_token().empty()) it = rows.begin();
  const int size = request.page_size() == 0 ? kMaxPage : std::min(request.page_size(), kMaxPage);
  std::string last;
  for (int n = 0; n < size && it != rows.end(); ++n, ++it) {
    last = PlaceOf(*it);
    add(std::move(*it));
  }
  return it == rows.end() ? "" : PageToken(ListingOf(request), last);
}

}  // namespace

std::vector<std::string> TroublesOf(const SessionSummary& session,
                                    const registry::v1::AgentReport& report, absl::Time now) {
  std::vector<std::string> troubles;
  // A renewal comes every third of the TTL.
  const absl::Duration ttl = FromProto(session.ttl());
  const absl::Duration left = FromProto(session.expire_time()) - now;
  if (session.held_back()) {
    troubles.push_back("its session is past its TTL and held back");
  } else if (session.has_expire_time() && left < ttl / 3) {
    troubles.push_back(absl::StrCat("its session was last renewed ",
                                    absl::FormatDuration(absl::Trunc(ttl - left, absl::Seconds(1))),
                                    " ago, of a TTL of ", absl::FormatDuration(ttl)));
  }
  if (!report.journal_error().empty()) {
    troubles.push_back(absl::StrCat("its intent journal cannot be written (STORE_READ_ONLY): ",
                                    report.journal_error()));
  }
  if (report.has_twin_time() && now - FromProto(report.twin_time()) < kTwinsAreTold) {
    troubles.push_back(absl::StrCat(
        "another process used its incarnation ",
        absl::FormatDuration(absl::Trunc(now - FromProto(report.twin_time()), absl::Seconds(1))),
        " ago, and may run still"));
  }
  if (report.parked() > 0) {
    troubles.push_back(Counted(report.parked(), "parked operation"));
  }
  if (report.superseded() > 0) {
    troubles.push_back(Counted(report.superseded(), "superseded registration"));
  }
  if (report.pending() > 0 && report.has_oldest_pending()) {
    const absl::Duration since = now - FromProto(report.oldest_pending());
    if (since > kPatience) {
      troubles.push_back(absl::StrCat(Counted(report.pending(), "operation"),
                                      " pending, the oldest for ",
                                      absl::FormatDuration(absl::Trunc(since, absl::Seconds(1)))));
    }
  }
  return troubles;
}

absl::StatusOr<ListSessionsResponse> QuerySessions(const ListSessionsRequest& request,
                                                   std::vector<SessionSummary> sessions) {
  if (request.query().size() > kMaxQuery) {
    return InvalidField("query", absl::StrCat(request.query().size(), " bytes; at most ", kMaxQuery,
                                              " are allowed"));
  }
  const std::vector<std::string> words = absl::StrSplit(
      absl::AsciiStrToLower(request.query()), absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  if (!words.empty()) {
    const auto unwanted = [&](const SessionSummary& session) {
      const std::string text =
          absl::AsciiStrToLower(absl::StrCat(session.incarnation(), "\n", session.client_name()));
      return !std::all_of(words.begin(), words.end(),
                          [&](const std::string& word) { return absl::StrContains(text, word); });
    };
    sessions.erase(std::remove_if(sessions.begin(), sessions.end(), unwanted), sessions.end());
  }
  ListSessionsResponse response;
  response.set_total_sessions(static_cast<int>(sessions.size()));
  absl::StatusOr<std::string> next =
      TakePage(request, std::move(sessions),
               [&](SessionSummary session) { *response.add_sessions() = std::move(session); });
  if (!next.ok()) return next.status();
  response.set_next_page_token(*std::move(next));
  return response;
}

absl::StatusOr<ListAgentsResponse> QueryAgents(const ListAgentsRequest& request,
                                               std::vector<AgentSummary> agents, absl::Time now) {
  ListAgentsResponse response;
  for (AgentSummary& agent : agents) {
    for (std::string& trouble : TroublesOf(agent.session(), agent.report(), now)) {
      agent.add_troubles(std::move(trouble));
    }
    if (agent.troubles_size() > 0) {
      response.set_agents_in_trouble(response.agents_in_trouble() + 1);
    }
  }
  if (request.trouble()) {
    agents.erase(std::remove_if(agents.begin(), agents.end(),
                                [](const AgentSummary& agent) { return agent.troubles().empty(); }),
                 agents.end());
  }
  response.set_total_agents(static_cast<int>(agents.size()));
  absl::StatusOr<std::string> next = TakePage(request, std::move(agents), [&](AgentSummary agent) {
    *response.add_agents() = std::move(agent);
  });
  if (!next.ok()) return next.status();
  response.set_next_page_token(*std::move(next));
  return response;
}

}  // namespace failback
