// The agents that report to a registry: what each carries, and which are in trouble.

import { h } from "./dom.js";
import { count, shownOf } from "./format.js";
import { Listing } from "./listing.js";
import { age, badge, chips, searchField } from "./parts.js";
import { sortRows } from "./sorting.js";

const troublesOf = (row) => row.troubles ?? [];
const nameOf = (row) => row.report.name || row.session.incarnation;
const number = (field) => (row) => Number(row.report[field]);

function matches(row, words) {
  const text = [nameOf(row), row.session.incarnation, row.report.version, ...troublesOf(row)]
    .join(" ")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

const counted = (title, field, kind) => ({
  title,
  sort: field,
  class: "cell-number",
  cell: (row) =>
    Number(row.report[field])
      ? h("span", { class: kind ? `is-${kind} number` : "" }, count(row.report[field]))
      : h("span", { class: "zero" }, "0"),
});

export const agentsView = {
  title: () => "Agents",
  keyOf: (row) => row.session.incarnation,

  listing: (route, { kind }) => (kind === "registry" ? new Listing("/agents", "agents") : null),

  rows: (listing, route) => {
    const words = (route.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const rows = listing.rows.filter(
      (row) =>
        matches(row, words) && (!route.state || (route.state === "trouble") === troublesOf(row).length > 0),
    );
    return sortRows(rows, route.sort, {
      name: nameOf,
      state: (row) => troublesOf(row).length,
      version: (row) => row.report.version,
      intents: number("intents"),
      pending: number("pending"),
      parked: number("parked"),
      superseded: number("superseded"),
    });
  },

  columns: (now) => [
    {
      title: "Agent",
      sort: "name",
      class: "cell-main",
      cell: (row) => [
        h("span", { class: "row-title", title: row.session.incarnation }, nameOf(row)),
        h("span", { class: "row-note" }, row.report.version),
      ],
    },
    {
      title: "State",
      sort: "state",
      class: "cell-badge",
      cell: (row) =>
        troublesOf(row).length ? badge("unhealthy", "trouble") : badge("healthy", "well"),
    },
    {
      title: "Trouble",
      class: "cell-reason",
      cell: (row) => h("span", { title: troublesOf(row).join("; ") }, troublesOf(row).join("; ")),
    },
    counted("Intents", "intents"),
    counted("Pending", "pending", "pending"),
    counted("Parked", "parked", "parked"),
    counted("Superseded", "superseded", "superseded"),
    { title: "Reported", class: "cell-age", cell: (row) => age(row.reportTime, now()) },
  ],

  tools: (route, { rows }) => {
    const troubled = rows.filter((row) => troublesOf(row).length > 0).length;
    return [
      searchField("Filter agents", "Filter by name, version or trouble", route.q),
      chips("State", "state", route.state, [
        { value: "", text: "All", number: rows.length },
        { value: "trouble", text: "In trouble", kind: "unhealthy", number: troubled },
        { value: "well", text: "Well", kind: "healthy", number: rows.length - troubled },
      ]),
    ];
  },

  summary: (listing, route, shown) => shownOf(shown, listing.head?.totalAgents ?? 0, "agent"),

  empty: (route, { rows }) =>
    rows.length > 0
      ? ["No agent matches", "Take a word out of the filter, or choose another state."]
      : [
          "No agent has reported",
          "An agent reports with its first renewal, some seconds after it has begun; one whose session has ended is not listed.",
        ],
};
