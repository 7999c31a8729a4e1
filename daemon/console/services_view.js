// The services, and how their instances are.

import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { Listing } from "./listing.js";
import { chips, bar, searchField, STATES, unsettled } from "./parts.js";
import { formatRoute } from "./router.js";
import { sortRows } from "./sorting.js";

const key = ({ namespace, name }) => `${namespace}/${name}`;
const linkTo = ({ namespace, name }) =>
  formatRoute({ view: "instances", namespace, service: name });

export const servicesView = {
  title: () => "Services",
  keyOf: key,
  open: (row) => {
    location.hash = linkTo(row);
  },

  listing: (route) =>
    new Listing("/services", "services", { namespace: route.namespace, query: route.q }),

  // The whole list is here, so it is sorted here.
  rows: (listing, route) =>
    sortRows(listing.rows, route.sort, {
      name: key,
      total: (row) => row.instances.total,
      ...Object.fromEntries(STATES.map((state) => [state, (row) => row.instances[state]])),
    }),

  columns: () => [
    {
      title: "Service",
      sort: "name",
      class: "cell-main",
      cell: (row) => [
        h("a", { href: linkTo(row), class: "row-title" }, row.name),
        h("span", { class: "row-note" }, [row.namespace, ...unsettled(row.instances)].join(", ")),
      ],
    },
    { title: "Health", class: "cell-bar", cell: ({ instances }) => bar(instances) },
    {
      title: "Instances",
      sort: "total",
      class: "cell-number",
      cell: ({ instances }) => count(instances.total),
    },
    ...STATES.map((state) => ({
      title: state[0].toUpperCase() + state.slice(1),
      sort: state,
      class: `cell-number cell-state is-${state}`,
      cell: ({ instances }) =>
        instances[state]
          ? h("span", { class: `is-${state} number` }, count(instances[state]))
          : h("span", { class: "zero" }, "0"),
    })),
  ],

  tools: (route, listing) => [
    searchField("Filter services by name", "Filter services", route.q),
    (listing.head?.namespaces?.length ?? 0) > 1 || route.namespace
      ? chips("Namespace", "namespace", route.namespace, [
          { value: "", text: "All namespaces" },
          ...(listing.head?.namespaces ?? []).map((name) => ({ value: name, text: name })),
        ])
      : null,
  ],

  summary: (listing, route) => {
    const { totalServices = 0 } = listing.head ?? {};
    return route.q || route.namespace
      ? `${plural(totalServices, "service")} match`
      : plural(totalServices, "service");
  },

  empty: (route) =>
    route.q || route.namespace
      ? ["No service matches", "The filter looks for all of its words in namespace and name."]
      : [
          "Nothing is registered",
          "A service appears here as soon as the first instance of it registers. By hand: ",
          h("code", {}, "failbackctl register orders --id orders-1 --address 10.0.0.7 --port 8080"),
        ],
};
