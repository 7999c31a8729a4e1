// The few numbers that answer most questions, above the services. Pure.

import { h } from "./dom.js";
import { count, enumName } from "./format.js";
import { ALL_STATES, badge, bar } from "./parts.js";

export function summary({ overview, kind }) {
  // Of a store that counts nothing there is nothing to sum up.
  if (!overview || overview.registry?.complete === false) return null;
  return h(
    "dl",
    { class: "summary", "aria-label": "Summary" },
    kind === "agent" ? agentTiles(overview) : registryTiles(overview),
  );
}

const tile = (name, value, ...notes) =>
  h(
    "div",
    { class: "tile" },
    h("dt", {}, name),
    h("dd", { class: "tile-value" }, value),
    notes.filter(Boolean).map((note) => h("dd", { class: "tile-note" }, note)),
  );

function agentTiles({ agent, pending, parked, superseded }) {
  const upstreams = agent?.upstreams ?? [];
  const sum = (field) => upstreams.reduce((total, upstream) => total + Number(upstream[field]), 0);
  const desired = sum("desired");
  const acknowledged = sum("acknowledged");
  const ready = upstreams.filter(
    ({ state }) => enumName(state, "UPSTREAM_STATE") === "ready",
  ).length;
  const many = upstreams.length > 1;
  return [
    tile(
      "Registered by this agent",
      count(desired),
      bar({ healthy: acknowledged, pending: desired - acknowledged }),
      desired === acknowledged
        ? `all acknowledged${many ? ", over all registries" : ""}`
        : `${count(acknowledged)} acknowledged, ${count(desired - acknowledged)} not yet`,
    ),
    tile("Pending", h("a", { href: "#/pending" }, count(pending)), "intents not acknowledged"),
    tile(
      "Parked",
      h("a", { href: "#/pending?state=parked" }, count(parked)),
      parked ? badge("parked", "needs a hand") : "none needs a hand",
      superseded
        ? h(
            "a",
            { href: "#/pending?state=superseded" },
            badge("superseded", `${count(superseded)} superseded`),
          )
        : null,
    ),
    tile(
      "Registries",
      `${ready} / ${upstreams.length}`,
      ready === upstreams.length
        ? badge("healthy", many ? "all ready" : "ready")
        : badge("unhealthy", `${upstreams.length - ready} not ready`),
    ),
  ];
}

function registryTiles({ registry, instances = { total: 0 } }) {
  return [
    tile(
      "Instances",
      count(instances.total),
      bar(instances),
      ALL_STATES.filter((state) => instances[state] > 0)
        .map((state) => `${count(instances[state])} ${state}`)
        .join(", ") || "none yet",
    ),
    tile(
      "Sessions",
      count(registry?.sessions),
      registry?.heldBackLeases
        ? badge("draining", `${count(registry.heldBackLeases)} held back`)
        : "none held back",
    ),
    tile(
      "Agents",
      h("a", { href: "#/agents" }, count(registry?.agents)),
      registry?.agentsInTrouble
        ? h(
            "a",
            { href: "#/agents?state=trouble" },
            badge("unhealthy", `${count(registry.agentsInTrouble)} in trouble`),
          )
        : "none in trouble",
    ),
    tile("Subscribers", count(registry?.subscribers), "following services"),
    tile(
      "Revision",
      count(registry?.revision),
      h("span", { class: "mono" }, `epoch ${registry?.epoch ?? "–"}`),
    ),
  ];
}
