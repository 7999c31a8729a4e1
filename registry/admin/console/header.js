// The top of every view: whose console this is, how it is, how fresh that is, and where to go. Pure.

import { h } from "./dom.js";
import { count, enumName, span } from "./format.js";
import { icon } from "./icons.js";
import { badge } from "./parts.js";

export const kindOf = (overview) => enumName(overview?.kind, "DAEMON_KIND");

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
    h(
      "nav",
      { "aria-label": "Views" },
      h(
        "ul",
        {},
        tab(route, "services", "Services", ["services", "instances"]),
        kind === "registry"
          ? null
          : tab(route, "pending", "Pending", ["pending"], overview?.pending, overview?.parked),
        tab(route, "status", "Status", ["status"]),
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

function readiness({ readiness: { ready, reasons = [] } = {} }, error) {
  if (error?.code === "UNREACHABLE") return badge("unhealthy", "unreachable");
  return ready
    ? badge("healthy", "ready")
    : h("span", { title: reasons.join("; ") }, badge("draining", "not ready"));
}
