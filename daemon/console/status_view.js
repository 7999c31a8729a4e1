// The daemon itself: a registry's store and sessions, an agent's upstreams, checks and configuration. Pure.

import { h } from "./dom.js";
import { count, durationMs, enumName, exactly, plural, span } from "./format.js";
import { age, badge, copyButton, facts, passed, statusText } from "./parts.js";

const UPSTREAMS = {
  ready: "healthy",
  resyncing: "pending",
  connecting: "unhealthy",
  draining: "draining",
};
const CHECKS = { passing: "healthy", critical: "unhealthy", unknown: "pending" };

const card = (title, ...content) =>
  h("section", { class: "card", "aria-label": title }, h("h2", {}, title), content);
const mono = (text) => (text ? h("span", { class: "mono breakable" }, text) : null);

export function statusView({ overview, kind }, now) {
  if (!overview) return null;
  const { registry, agent } = overview;
  // An agent counts its instances, not the services they are of; etcd's counts are etcd's.
  const known = registry && registry.complete !== false;
  return h(
    "div",
    { class: "cards" },
    card(
      kind === "agent" ? "Agent" : "Registry",
      facts([
        [
          "Ready",
          overview.readiness?.ready
            ? badge("healthy", "yes")
            : [badge("draining", "no"), " ", (overview.readiness?.reasons ?? []).join("; ")],
        ],
        ["Name", overview.name],
        ["Host", overview.host],
        ["Version", overview.version],
        ["Running", overview.startTime ? passed(overview.startTime, now) : null],
        ["Services", known ? count(overview.services) : null],
        [
          kind === "agent" ? "Registered here" : "Instances",
          kind === "agent" || known ? count(overview.instances?.total) : null,
        ],
        ...(registry ? registryFacts(registry) : agentFacts(agent, now)),
      ]),
    ),
    overview.certificateNotAfter ? card("Certificates", certificates(overview, now)) : null,
    registry ? card("Sessions", known ? sessions(registry) : elsewhere(registry)) : null,
    (agent?.upstreams ?? []).map((upstream) => upstreamCard(upstream, now)),
    agent?.staticServices?.length
      ? card(
          "Services this agent checks",
          agent.staticServices.map((service) => checks(service, now)),
        )
      : null,
    agent?.config ? card("Configuration", configuration(agent.config, now)) : null,
    agent?.xds ? card("Stock gRPC clients (xDS)", xds(agent.xds, now)) : null,
    overview.dns ? card("DNS", dns(overview.dns)) : null,
  );
}

const elsewhere = (registry) => [
  facts([
    ["Open", count(registry.sessions)],
    ["Agents that renew here", count(registry.agents)],
  ]),
  h("p", { class: "muted" }, "Kept by etcd: the same at every registry over it."),
];

const registryFacts = (registry) => [
  ["Store", mono(registry.store)],
  // Epoch 0: etcd has not answered.
  ...(registry.complete === false && registry.epoch === "0" ? [] : storeFacts(registry)),
];

const storeFacts = (registry) => [
  [
    "Store id",
    registry.storeId
      ? [mono(registry.storeId), copyButton(registry.storeId, "the store id")]
      : null,
  ],
  ["Epoch", mono(registry.epoch)],
  ["Revision", count(registry.revision)],
  [
    "Writes",
    registry.writeStatus?.code
      ? [badge("unhealthy", "refused"), " ", statusText(registry.writeStatus)]
      : registry.complete === false
        ? null
        : badge("healthy", "accepted"),
  ],
];

// How long a certificate is good for, with the moment of its end for who points at it.
const ends = (time, now) =>
  h(
    "time",
    { datetime: time, title: exactly(time) },
    Date.parse(time) > now ? `in ${span(Date.parse(time) - now)}` : "has ended",
  );

function certificates({ certificateNotAfter, clientCertificates: clients }, now) {
  return [
    facts([
      ["Own ends", ends(certificateNotAfter, now)],
      ["Clients seen", clients ? count(clients.seen) : null],
      [
        "End soon",
        clients?.ending ? badge("draining", count(clients.ending)) : clients ? "0" : null,
      ],
    ]),
    clients?.soonest?.length
      ? h(
          "ul",
          { class: "ending" },
          clients.soonest.map(({ name, host, notAfter }) =>
            h(
              "li",
              {},
              h("span", { class: "mono breakable" }, name),
              h("span", { class: "muted" }, ` at ${host}, ends `),
              ends(notAfter, now),
            ),
          ),
        )
      : null,
  ];
}

const agentFacts = (agent, now) => [
  ["Incarnation", mono(agent.incarnation)],
  ["Local sessions", count(agent.localSessions)],
  ["Denied calls", Number(agent.deniedCalls) ? count(agent.deniedCalls) : null],
  [
    "Certificate ends",
    agent.registryCertificateNotAfter ? ends(agent.registryCertificateNotAfter, now) : null,
  ],
];

function sessions(registry) {
  const guard = enumName(registry.evictionGuard, "EVICTION_GUARD_STATE");
  return [
    facts([
      ["Open", h("a", { href: "#/sessions" }, count(registry.sessions))],
      [
        "Agents",
        [
          h("a", { href: "#/agents" }, count(registry.agents)),
          registry.agentsInTrouble
            ? [", ", h("a", { href: "#/agents?state=trouble" }, `${count(registry.agentsInTrouble)} in trouble`)]
            : "",
        ],
      ],
      ["Subscribers", count(registry.subscribers)],
      ["Incarnations", count(registry.incarnations)],
      ["Tombstones", count(registry.tombstones)],
      ["Expired since start", count(registry.expiredSessions)],
      ["Held back", count(registry.heldBackLeases)],
      [
        "Eviction guard",
        badge({ holding: "draining", watching: "healthy" }[guard] ?? "offline", guard || "unknown"),
      ],
    ]),
    h(
      "p",
      { class: "guard" },
      registry.heldBackLeases
        ? h(
            "button",
            { type: "button", class: "small", "data-action": "guard-release" },
            "End what is held…",
          )
        : null,
      guard === "off"
        ? h("button", { type: "button", class: "small", "data-action": "guard-on" }, "Guard on…")
        : h("button", { type: "button", class: "small quiet", "data-action": "guard-off" }, "Guard off…"),
    ),
  ];
}

function upstreamCard(upstream, now) {
  const state = enumName(upstream.state, "UPSTREAM_STATE");
  const desired = Number(upstream.desired),
    acknowledged = Number(upstream.acknowledged);
  return card(
    `Registry ${upstream.name}`,
    h(
      "p",
      {},
      badge(UPSTREAMS[state] ?? "pending", state),
      upstream.refused ? [" ", badge("unhealthy", "refuses this agent")] : null,
      " ",
      h("span", { class: "muted" }, upstream.since ? ["for ", passed(upstream.since, now)] : ""),
    ),
    h("progress", {
      max: Math.max(1, desired),
      value: desired ? acknowledged : 1,
      "aria-label": "Acknowledged of what should be registered",
    }),
    h("p", {}, `${count(acknowledged)} of ${plural(desired, "instance")} acknowledged`),
    facts([
      ["Address", upstream.uri === upstream.name ? null : mono(upstream.uri)],
      [
        "Pending",
        Number(upstream.pending) ? h("a", { href: "#/pending" }, count(upstream.pending)) : "0",
      ],
      [
        "Parked",
        Number(upstream.parked)
          ? h("a", { href: "#/pending?state=parked" }, count(upstream.parked))
          : "0",
      ],
      ["Subscriptions", count(upstream.subscriptions)],
      ["Session TTL", upstream.sessionTtl ? span(durationMs(upstream.sessionTtl)) : null],
      ["Epoch", Number(upstream.epoch) ? mono(upstream.epoch) : null],
      ["Last error", statusText(upstream.lastError)],
    ]),
  );
}

function checks({ key, state, since, checks: list = [], registered }, now) {
  const word = enumName(state, "CHECK_STATE");
  return h(
    "div",
    { class: "checked" },
    h(
      "p",
      {},
      badge(CHECKS[word] ?? "pending", word),
      " ",
      h("strong", {}, `${key.service} ${key.instanceId}`),
      h(
        "span",
        { class: "muted" },
        registered ? "" : " not registered",
        since ? [", for ", passed(since, now)] : "",
      ),
    ),
    h(
      "ul",
      {},
      list.map((check) => {
        const how = enumName(check.state, "CHECK_STATE");
        return h(
          "li",
          {},
          badge(CHECKS[how] ?? "pending", how),
          ` ${check.name || check.kind} `,
          check.lastError ? h("span", { class: "muted" }, check.lastError) : null,
        );
      }),
    ),
  );
}

const configuration = ({ file, loadTime, reloads, refused, error }, now) => [
  facts([
    ["File", file ? mono(file) : "none: flags and environment"],
    ["Loaded", loadTime ? age(loadTime, now) : null],
    ["Reloads", count(reloads)],
    ["Refused", count(refused)],
  ]),
  error
    ? h("p", { class: "mark is-unhealthy" }, `The file as it is now is not in force: ${error}`)
    : null,
];

const dns = (status) =>
  facts([
    ["Domain", mono(status.domain)],
    ["Addresses", mono((status.addresses ?? []).join(", "))],
    ["Zone that comes first", status.zone],
    ["Queries", count(status.queries)],
    ["With records", count(status.answered)],
    ["Without records", Number(status.noData) ? count(status.noData) : null],
    ["No such name", Number(status.nxDomain) ? count(status.nxDomain) : null],
    ["Refused", count(status.refused)],
    ["Beyond the rate", Number(status.limited) ? count(status.limited) : null],
    ["Truncated", Number(status.truncated) ? count(status.truncated) : null],
    ["Failures", Number(status.failures) ? count(status.failures) : null],
    ["Services followed", count(status.services)],
    ["Never registered", Number(status.absentServices) ? count(status.absentServices) : null],
    ["Connections", count(status.connections)],
  ]);

const xds = (status, now) =>
  facts([
    ["Streams", count(status.streams)],
    ["Services followed", count(status.services)],
    ["Responses", count(status.responses)],
    ["Refused by clients", count(status.refused)],
    [
      "Unusable instances",
      Number(status.unusableInstances) ? count(status.unusableInstances) : null,
    ],
    [
      "Last refusal",
      status.lastRefusal
        ? [
            age(status.lastRefusal.time, now),
            ` ${status.lastRefusal.client}: ${status.lastRefusal.reason}`,
          ]
        : null,
    ],
  ]);
