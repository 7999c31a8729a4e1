// The few numbers that answer most questions, above the services. Pure.

import { h } from "./dom.js";
import { count, enumName, plural } from "./format.js";
import { badge, countsBar, STATES } from "./parts.js";

export function summary({ overview, kind }) {
  if (!overview) return null;
  const counts = overview.instances ?? { total: 0 };
  return h(
    "dl",
    { class: "summary", "aria-label": "Summary" },
    tile(
      kind === "agent" ? "Registered by this agent" : "Instances",
      count(counts.total),
      countsBar(counts),
      STATES.filter((state) => counts[state] > 0)
        .map((state) => `${count(counts[state])} ${state}`)
        .join(", ") || "none yet",
    ),
    kind === "agent" ? agentTiles(overview) : registryTiles(overview.registry ?? {}),
  );
}

const tile = (name, value, ...notes) =>
  h(
    "div",
    { class: "tile" },
    h("dt", {}, name),
    h("dd", { class: "tile-value" }, value),
    notes.map((note) => h("dd", { class: "tile-note" }, note)),
  );

function agentTiles({ agent, pending, parked }) {
  const upstreams = agent?.upstreams ?? [];
  const sum = (field) => upstreams.reduce((total, upstream) => total + Number(upstream[field]), 0);
  const ready = upstreams.filter(
    ({ state }) => enumName(state, "UPSTREAM_STATE") === "ready",
  ).length;
  return [
    tile(
      "Acknowledged",
      `${count(sum("acknowledged"))} / ${count(sum("desired"))}`,
      upstreams.length > 1 ? "over all registries" : "by the registry",
    ),
    tile(
      "Pending",
      h("a", { href: "#/pending" }, count(pending)),
      parked ? badge("parked", `${count(parked)} parked`) : "none parked",
    ),
    tile(
      "Registries",
      `${ready} / ${upstreams.length}`,
      ready === upstreams.length
        ? badge("healthy", "all ready")
        : badge("unhealthy", plural(upstreams.length - ready, "not ready", "not ready")),
    ),
  ];
}

const registryTiles = (registry) => [
  tile(
    "Sessions",
    count(registry.sessions),
    registry.heldBackLeases
      ? badge("draining", `${count(registry.heldBackLeases)} held back`)
      : "none held back",
  ),
  tile("Subscribers", count(registry.subscribers), "following services"),
  tile(
    "Revision",
    count(registry.revision),
    h("span", { class: "mono" }, `epoch ${registry.epoch ?? "–"}`),
  ),
];
