// The sessions of a registry: whose they are, and until when.

import { h } from "./dom.js";
import { count, durationMs, plural, span } from "./format.js";
import { Listing } from "./listing.js";
import { badge, searchField } from "./parts.js";
import { sortRows } from "./sorting.js";

// How long until then, in whole seconds. What is shown is some seconds old, and the lease was renewed since.
const left = (time, now, most = Infinity) =>
  span(Math.min(most, Math.max(0, Math.ceil((Date.parse(time) - now) / 1000) * 1000)));

export const sessionsView = {
  title: () => "Sessions",
  keyOf: (row) => row.incarnation,

  listing: (route, { kind }) =>
    kind === "registry" ? new Listing("/sessions", "sessions", { query: route.q }) : null,

  rows: (listing, route) =>
    sortRows(listing.rows, route.sort, {
      client: (row) => row.clientName,
      incarnation: (row) => row.incarnation,
      state: (row) => Number(row.heldBack),
      instances: (row) => row.instances,
      rank: (row) => Number(row.rank),
    }),

  live: true,

  columns: (now) => [
    {
      title: "Client",
      sort: "client",
      class: "cell-main",
      cell: (row) => h("span", { class: "row-title" }, row.clientName || "–"),
    },
    {
      title: "State",
      sort: "state",
      class: "cell-badge",
      cell: (row) => (row.heldBack ? badge("held") : badge("healthy", "alive")),
    },
    {
      title: "Incarnation",
      sort: "incarnation",
      class: "cell-reason",
      cell: (row) => h("span", { class: "mono", title: row.incarnation }, row.incarnation),
    },
    {
      title: "Instances",
      sort: "instances",
      class: "cell-number",
      cell: (row) => count(row.instances),
    },
    { title: "Rank", sort: "rank", class: "cell-number cell-times", cell: (row) => count(row.rank) },
    {
      title: "Lease",
      class: "cell-age",
      cell: (row) =>
        row.heldBack
          ? row.holdEndTime
            ? `${left(row.holdEndTime, now())} at most`
            : "past its TTL"
          : `${left(row.expireTime, now(), durationMs(row.ttl))} of ${span(durationMs(row.ttl))}`,
    },
  ],

  tools: (route) => [
    searchField("Filter sessions", "Filter by client or incarnation", route.q),
  ],

  summary: (listing, route) => {
    const { totalSessions = 0 } = listing.head ?? {};
    return route.q ? `${plural(totalSessions, "session")} match` : plural(totalSessions, "session");
  },

  empty: (route) =>
    route.q
      ? ["No session matches", "The filter looks for all of its words in client and incarnation."]
      : ["No session is open", "A client opens one before it registers what is to live with it."],
};
