// What is not acknowledged yet: why, since when, when it is tried again, and what one can do.

import { h } from "./dom.js";
import { codeName, count, countdown, enumName, shownOf, since } from "./format.js";
import { icon } from "./icons.js";
import { Listing } from "./listing.js";
import { badge, chips, noIntents, searchField, shortMessage, statusText } from "./parts.js";
import { goWith, instanceRoute } from "./router.js";
import { sortRows } from "./sorting.js";

// Row and registry; a registry's name has no space in it.
export const keyOf = (row) => `${row.upstream} ${row.id}`;
const stateOf = (row) => enumName(row.state, "PENDING_STATE");
const KINDS = { parked: "parked", superseded: "superseded" };
const kindOf = (state) => KINDS[state] ?? "pending";
// What a row waits for, in the words of its last status; groups thousands of rows into a few reasons.
const reasonOf = ({ lastStatus }) =>
  lastStatus?.code
    ? `${codeName(lastStatus.code)}: ${shortMessage(lastStatus.message)}`
    : "no attempt has ended yet";

function matches(row, words) {
  const text = `${row.id} ${row.upstream} ${stateOf(row)} ${reasonOf(row)}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

// The most frequent reasons first: [[reason, number]].
function reasons(rows) {
  const numbers = new Map();
  for (const row of rows) numbers.set(reasonOf(row), (numbers.get(reasonOf(row)) ?? 0) + 1);
  return [...numbers].sort(([, a], [, b]) => b - a);
}

function attempt(row, now) {
  if (row.nextAttempt)
    return h(
      "time",
      { class: "countdown", datetime: row.nextAttempt },
      countdown(row.nextAttempt, now),
    );
  return (
    { "in flight": "under way", queued: "when the session is open", parked: "not by itself" }[
      stateOf(row)
    ] ?? "–"
  );
}

// An id is a verb and a key: `register default/orders/orders-1`. The last part distinguishes neighbours.
function intent({ id, key, selector, upstream }, overview) {
  const [verb, ...rest] = id.split(" ");
  const name = rest.join(" ");
  const last = key?.instanceId ?? name;
  // A subscription follows a service, or the services of a namespace.
  const place = key
    ? name.slice(0, -last.length - 1)
    : [selector?.namespace || "default", selector?.service].filter(Boolean).join("/");
  return [
    key
      ? h(
          "a",
          {
            class: "row-title",
            href: instanceRoute(key),
          },
          last,
        )
      : h("span", { class: "row-title" }, last),
    h(
      "span",
      { class: "row-note" },
      `${verb} ${place}`,
      (overview?.agent?.upstreams.length ?? 0) > 1 ? ` at ${upstream}` : "",
    ),
  ];
}

const button = (action, row, text, name) =>
  h(
    "button",
    {
      type: "button",
      class: action === "retry" ? "small" : "small quiet",
      "data-action": action,
      "data-id": row.id,
      "data-upstream": row.upstream,
      "aria-label": `${text}: ${name}`,
    },
    action === "retry" ? icon("retry") : null,
    text,
  );

export const pendingView = {
  title: () => "Pending",
  keyOf,
  open: (row) => goWith({ row: keyOf(row) }),
  live: true,

  listing: (route, { kind }) => (kind === "agent" ? new Listing("/pending", "operations") : null),

  rows: (listing, route) => {
    const words = (route.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const rows = listing.rows.filter(
      (row) =>
        matches(row, words) &&
        (!route.state || stateOf(row) === route.state) &&
        (!route.reason || reasonOf(row) === route.reason),
    );
    return sortRows(rows, route.sort, {
      id: (row) => row.id,
      state: stateOf,
      times: (row) => row.times,
      since: (row) => Date.parse(row.since),
      next: (row) => (row.nextAttempt ? Date.parse(row.nextAttempt) : Infinity),
    });
  },

  columns: (now, overview) => [
    { title: "Intent", sort: "id", class: "cell-main", cell: (row) => intent(row, overview()) },
    {
      title: "State",
      sort: "state",
      class: "cell-badge",
      cell: (row) => badge(kindOf(stateOf(row)), stateOf(row)),
    },
    {
      title: "Reason",
      class: "cell-reason",
      cell: (row) => statusText(row.lastStatus) || "no attempt has ended yet",
    },
    {
      title: "Tries",
      sort: "times",
      class: "cell-number cell-times",
      cell: (row) => count(row.times),
    },
    { title: "For", sort: "since", class: "cell-age", cell: (row) => since(row.since, now()) },
    { title: "Next attempt", sort: "next", class: "cell-next", cell: (row) => attempt(row, now()) },
    {
      title: "",
      class: "cell-actions",
      cell: (row) => [
        button("retry", row, "Retry now", row.id),
        button("cancel", row, "Cancel", row.id),
      ],
    },
  ],

  tools: (route, { rows }, shown) => [
    searchField("Filter what is pending", "Filter by key, reason or registry", route.q),
    chips("State", "state", route.state, [
      { value: "", text: "All", number: rows.length },
      ...["waiting", "in flight", "queued", "parked", "superseded"].map((state) => ({
        value: state,
        text: state[0].toUpperCase() + state.slice(1),
        kind: kindOf(state),
        number: rows.filter((row) => stateOf(row) === state).length,
      })),
    ]),
    rows.length === 0
      ? null
      : h(
          "button",
          { type: "button", "data-action": "retry-all", disabled: shown === 0 },
          icon("retry"),
          shown === rows.length ? "Retry all" : `Retry the ${count(shown)} shown`,
        ),
  ],

  // Thousands of rows have a few causes.
  above: (route, { rows }) =>
    rows.length === 0
      ? null
      : h(
          "section",
          { class: "reasons", "aria-label": "Reasons" },
          reasons(rows)
            .slice(0, 5)
            .map(([reason, number]) =>
              h(
                "button",
                {
                  type: "button",
                  class: "reason",
                  "data-key": reason,
                  "data-action": "choose",
                  "data-parameter": "reason",
                  "data-value": route.reason === reason ? "" : reason,
                  "aria-pressed": String(route.reason === reason),
                },
                h("span", { class: "reason-number" }, `${count(number)} ×`),
                h("span", {}, reason),
              ),
            ),
        ),

  summary: (listing, route, shown) => shownOf(shown, listing.rows.length, "intent"),

  empty: (route, { kind, rows }) =>
    noIntents(kind, rows, {
      registry: [
        "A registry owes nothing",
        "What is on its way is known to the agents that carry it: open the console of an agent.",
      ],
      agent: ["Nothing is pending", "Every intent has been acknowledged by its registry."],
    }),
};
