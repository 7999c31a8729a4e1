// What an agent registers: each registration at each of its registries, and how far it has come; whatever
// these know, or allow to be read.

import { h } from "./dom.js";
import { count, enumName, shownOf } from "./format.js";
import { Listing } from "./listing.js";
import { badge, chips, noIntents, searchField, statusText } from "./parts.js";
import { currentRoute, formatRoute, goWith } from "./router.js";
import { sortRows } from "./sorting.js";

// The words of listings: what is accepted and not acknowledged is pending.
const WORDS = { accepted: "pending" };
const STATES = ["acknowledged", "pending", "parked", "superseded", "lapsed"];
const KINDS = { acknowledged: "healthy" };
const stateOf = ({ state }) => {
  const name = enumName(state, "INTENT_STATE");
  return WORDS[name] ?? name;
};
const kindOf = (state) => KINDS[state] ?? state;

const keyPartsOf = ({ instance: { key } }) => [key.namespace || "default", key.service, key.instanceId];
const nameOf = (row) => keyPartsOf(row).join("/");
// Registry and instance, each part so that it has none of the characters between them.
const keyOf = (row) => `${row.upstream} ${keyPartsOf(row).map(encodeURIComponent).join("/")}`;

// The instance that a row's key, as it is in an address, is about.
export function instanceOfRow(key) {
  const [namespace, service, instance] = key
    .slice(key.indexOf(" ") + 1)
    .split("/")
    .map(decodeURIComponent);
  return { namespace, service, instance };
}

function matches(row, words) {
  const { address, port } = row.instance;
  const text =
    `${nameOf(row)} ${address}:${port} ${row.upstream} ${stateOf(row)} ${row.lastStatus?.message ?? ""}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

export const intentsView = {
  title: () => "Intents",
  keyOf,
  open: (row) => goWith({ row: keyOf(row) }),

  listing: (route, { kind }) => (kind === "agent" ? new Listing("/intents", "intents") : null),

  rows: (listing, route) => {
    const words = (route.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const rows = listing.rows.filter(
      (row) => matches(row, words) && (!route.state || stateOf(row) === route.state),
    );
    return sortRows(rows, route.sort, {
      name: nameOf,
      state: (row) => STATES.indexOf(stateOf(row)),
      address: ({ instance }) => `${instance.address}:${instance.port}`,
    });
  },

  columns: (now, overview) => [
    {
      title: "Instance",
      sort: "name",
      class: "cell-main",
      cell: (row) => [
        h(
          "a",
          { class: "row-title", href: formatRoute({ ...currentRoute(), row: keyOf(row) }) },
          row.instance.key.instanceId,
        ),
        h(
          "span",
          { class: "row-note" },
          keyPartsOf(row).slice(0, 2).join("/"),
          (overview()?.agent?.upstreams.length ?? 0) > 1 ? ` at ${row.upstream}` : "",
        ),
      ],
    },
    {
      title: "State",
      sort: "state",
      class: "cell-badge",
      cell: (row) => badge(kindOf(stateOf(row)), stateOf(row)),
    },
    {
      title: "Reason",
      class: "cell-reason",
      cell: (row) =>
        statusText(row.lastStatus) ||
        { acknowledged: "–", lapsed: "the session has not been renewed for its TTL" }[
          stateOf(row)
        ] ||
        "no attempt has ended yet",
    },
    {
      title: "Address",
      sort: "address",
      class: "cell-address",
      cell: ({ instance }) => h("span", { class: "mono" }, `${instance.address}:${instance.port}`),
    },
    { title: "Generation", class: "cell-number", cell: (row) => count(row.generation) },
  ],

  tools: (route, { rows }) => [
    searchField("Filter intents", "Filter by key, address, reason or registry", route.q),
    chips("State", "state", route.state, [
      { value: "", text: "All", number: rows.length },
      ...STATES.map((state) => ({
        value: state,
        text: state[0].toUpperCase() + state.slice(1),
        kind: kindOf(state),
        number: rows.filter((row) => stateOf(row) === state).length,
      })),
    ]),
  ],

  summary: (listing, route, shown) => shownOf(shown, listing.rows.length, "intent"),

  empty: (route, { kind, rows }) =>
    noIntents(kind, rows, {
      registry: [
        "A registry registers nothing itself",
        "Intents are an agent's: open the console of an agent.",
      ],
      agent: [
        "This agent registers nothing",
        "Programs on this machine register through it, and its configuration may name services.",
      ],
    }),
};
