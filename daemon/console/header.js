// The top of every view: whose console this is, how it is, how fresh that is, and where to go. Pure.

import { h } from "./dom.js";
import { count, enumName, span } from "./format.js";
import { icon } from "./icons.js";
import { badge } from "./parts.js";

export const kindOf = (overview) => enumName(overview?.kind, "DAEMON_KIND");

// What this daemon has to show.
export function viewsOf(overview) {
  return kindOf(overview) === "registry"
    ? ["services", "agents", "sessions", "status"]
    : ["services", "pending", "intents", "status"];
}

// Rows of the pending table to look at; superseded ones are normal at a standby.
export const owed = (overview) => (overview?.pending ?? 0) + (overview?.parked ?? 0);

function tabOf(view, route, overview) {
  const { registry } = overview ?? {};
  switch (view) {
    case "services":
      return tab(route, view, "Services", ["services", "instances"]);
    case "pending":
      return tab(route, view, "Pending", [view], owed(overview), overview?.parked);
    case "intents":
      return tab(route, view, "Intents", [view]);
    case "agents":
      return tab(route, view, "Agents", [view], registry?.agentsInTrouble, true);
    case "sessions":
      return tab(route, view, "Sessions", [view], registry?.heldBackLeases, true);
    default:
      return tab(route, view, "Status", [view]);
  }
}

export function header({ overview, error, updated, route, theme }, now) {
  const kind = kindOf(overview);
  return [
    h(
      "a",
      { class: "brand", href: "#/services" },
      h("img", { src: "/console/icon.svg", alt: "", width: 24, height: 24 }),
      h("span", {}, "Failback"),
    ),
    kind ? h("span", { class: "kind", title: `Version ${overview.version}` }, kind) : null,
    overview?.name || overview?.host
      ? h(
          "span",
          { class: "whose", title: `${overview.name} on ${overview.host}, ${location.host}` },
          overview.name || overview.host,
        )
      : null,
    h(
      "nav",
      { "aria-label": "Views" },
      h(
        "ul",
        {},
        viewsOf(overview).map((view) => tabOf(view, route, overview)),
      ),
    ),
    h("span", { class: "grow" }),
    overview ? readiness(overview, error) : null,
    updated
      ? h(
          "span",
          { class: `updated ${error ? "is-late" : ""}` },
          h("span", { class: "updated-word" }, "updated "),
          now - updated < 2500
            ? "just now"
            : `${span(Math.floor((now - updated) / 1000) * 1000)} ago`,
        )
      : null,
    h(
      "button",
      {
        type: "button",
        class: "quiet icon-only",
        "data-action": "theme",
        "aria-label": `Colours: ${theme}`,
        title: `Colours: ${theme}`,
      },
      icon(theme),
    ),
    h(
      "button",
      {
        type: "button",
        class: "quiet icon-only help",
        "data-action": "help",
        "aria-label": "Keyboard help",
        title: "Keyboard help",
      },
      "?",
    ),
  ];
}

function tab(route, view, text, views, number, parked) {
  const current = views.includes(route.view);
  return h(
    "li",
    {},
    h(
      "a",
      { href: `#/${view}`, "aria-current": current ? "page" : null },
      text,
      number
        ? h(
            "span",
            { class: `tab-number ${parked ? "is-unhealthy" : "is-pending"}` },
            count(number),
          )
        : null,
    ),
  );
}

function readiness({ agent, readiness: { ready, reasons = [] } = {} }, error) {
  if (error?.code === "UNREACHABLE") return badge("unhealthy", "unreachable");
  // It was ready once, and clients need not be sent elsewhere; but it must not look healthy.
  const away = (agent?.upstreams ?? []).filter(
    ({ state }) => enumName(state, "UPSTREAM_STATE") === "connecting",
  );
  if (ready && away.length)
    return h(
      "span",
      { title: `Ready, without a session at ${away.map(({ name }) => name).join(", ")}` },
      away.some(({ refused }) => refused)
        ? badge("unhealthy", "refused")
        : badge("draining", "no session"),
    );
  return ready
    ? badge("healthy", "ready")
    : h("span", { title: reasons.join("; ") }, badge("draining", "not ready"));
}
