// The instances of one service.

import { h } from "./dom.js";
import { plural } from "./format.js";
import { Listing, MAX_ROWS } from "./listing.js";
import { age, ALL_STATES, chips, searchField, stateBadges, STATES, tags } from "./parts.js";
import { currentRoute, formatRoute, goWith } from "./router.js";

// The server looks through all instances for each page: a few large ones.
const PAGE_SIZE = 2500;

const instanceOf = (row) => row.record.instance;
const idOf = (row) => instanceOf(row).key.instanceId;

export const instancesView = {
  title: (route) => route.service,
  keyOf: idOf,
  open: (row) => goWith({ instance: idOf(row) }),

  listing: ({ namespace, service, q, status, persistent, sort }) =>
    new Listing(
      `/services/${encodeURIComponent(namespace)}/${encodeURIComponent(service)}`,
      "instances",
      { query: q, status, persistent, sort },
      PAGE_SIZE,
    ),

  // In the server's order.
  rows: (listing) => listing.rows,

  columns: (now) => [
    {
      title: "Instance",
      sort: "instance_id",
      class: "cell-main",
      cell: (row) => [
        h(
          "a",
          { href: formatRoute({ ...currentRoute(), instance: idOf(row) }), class: "row-title" },
          idOf(row),
        ),
        row.record.instance.persistent ? h("span", { class: "row-note" }, "persistent") : null,
      ],
    },
    { title: "State", sort: "state", class: "cell-badge", cell: stateBadges },
    {
      title: "Address",
      sort: "address",
      class: "cell-address",
      cell: (row) =>
        h("span", { class: "mono" }, `${instanceOf(row).address}:${instanceOf(row).port}`),
    },
    { title: "Zone", sort: "zone", class: "cell-zone", cell: (row) => instanceOf(row).zone || "–" },
    {
      title: "Weight",
      sort: "weight",
      class: "cell-number cell-weight",
      cell: (row) => instanceOf(row).weight ?? 100,
    },
    { title: "Metadata", class: "cell-metadata", cell: (row) => tags(instanceOf(row).metadata) },
    {
      title: "Client",
      sort: "client_name",
      class: "cell-client",
      cell: (row) => row.record.clientName || "–",
    },
    {
      title: "Changed",
      sort: "modify_time",
      class: "cell-age",
      cell: (row) => age(row.record.modifyTime, now()),
    },
  ],

  tools: (route, { head }) => {
    const counts = head?.counts;
    return [
      searchField(
        "Filter instances by text or key=value",
        "Filter: text, or key=value of the metadata",
        route.q,
      ),
      counts
        ? chips("State", "status", route.status, [
            { value: "", text: "All", number: counts.total },
            ...ALL_STATES.filter(
              (state) => STATES.includes(state) || counts[state] > 0 || route.status === state,
            ).map((state) => ({
              value: state,
              text: state[0].toUpperCase() + state.slice(1),
              number: counts[state],
              kind: state,
            })),
          ])
        : null,
    ];
  },

  summary: (listing) => {
    const total = listing.head?.totalInstances ?? 0;
    const all = listing.head?.counts?.total ?? total;
    const shown =
      total === all
        ? plural(total, "instance")
        : `${plural(total, "instance")} of ${all.toLocaleString("en-GB")} match`;
    return total > MAX_ROWS && listing.complete
      ? `${shown}; the first ${MAX_ROWS.toLocaleString("en-GB")} are listed: narrow the filter for the others`
      : shown;
  },

  empty: (route) =>
    route.q || route.status
      ? [
          "No instance matches",
          "Words are looked for in id, address, zone, client and metadata; ",
          h("code", {}, "key=value"),
          " is a metadata entry, and the value may end with ",
          h("code", {}, "*"),
          ".",
        ]
      : [
          "No instances",
          "No instance of this service is registered now. One that was a moment ago may be in ",
          h("a", { href: "#/pending" }, "what is pending"),
          " at its agent.",
        ],
};
