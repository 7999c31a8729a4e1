// What an operator who is paged has to know first, as banners below the header. Pure.

import { h } from "./dom.js";
import { codeName, enumName, plural, since, span } from "./format.js";
import { icon } from "./icons.js";
import { kindOf } from "./header.js";
import { clockTime, shortMessage } from "./parts.js";

// [{key, level, text, action}], the worst first.
// `now` is by our clock, `theirs` the same moment by the daemon's.
export function problems(
  { route, overview, error, nextTry, updated, failedSince, listing },
  now,
  theirs,
) {
  const found = [];
  if (error && error.code !== "UNREACHABLE") {
    found.push({
      key: "refused",
      level: "bad",
      text: [h("strong", {}, error.code ?? "The console failed"), `: ${error.message}`],
      action: { name: "refresh", text: "Try again" },
    });
  } else if (error) {
    const what = kindOf(overview) || "daemon";
    found.push({
      key: "unreachable",
      level: "bad",
      text: [
        h("strong", {}, `This ${what} cannot be reached`),
        ` since `,
        clockTime(new Date(failedSince).toISOString(), now),
        `: ${error.message}. `,
        updated ? `What is shown is ${span(Math.floor((now - updated) / 1000) * 1000)} old. ` : "",
        `Next try ${nextTry - now > 500 ? `in ${span(Math.ceil((nextTry - now) / 1000) * 1000)}` : "now"}.`,
      ],
      action: { name: "refresh", text: "Try now" },
    });
  }
  const stale = Boolean(listing?.head?.stale);
  if (overview?.agent) found.push(...agentProblems(overview, route, stale, theirs));
  if (overview?.registry) found.push(...registryProblems(overview.registry));
  const { ready, reasons = [] } = overview?.readiness ?? { ready: true };
  if (!ready && found.length === 0)
    found.push({
      key: "ready",
      level: "warn",
      text: [h("strong", {}, "Not ready: "), reasons.join("; ")],
    });
  const unread = listing?.head?.unread;
  if (unread?.code) {
    found.push({
      key: "unread",
      level: "warn",
      text: [
        h("strong", {}, "The registry does not list these"),
        ` (${codeName(unread.code)}: ${shortMessage(unread.message)}): what this agent carries itself is shown alone.`,
      ],
    });
  }
  if (stale && found.length === 0) {
    found.push({
      key: "stale",
      level: "warn",
      text: ["The registry does not answer this list: it is the last that the agent knew."],
    });
  }
  return found;
}

function agentProblems({ agent, parked, superseded }, route, stale, now) {
  const found = [];
  if (agent.draining)
    found.push({
      key: "draining",
      level: "warn",
      text: [h("strong", {}, "The agent is draining"), " and takes no new intents."],
    });
  for (const upstream of agent.upstreams) {
    const state = enumName(upstream.state, "UPSTREAM_STATE");
    if (state === "connecting") {
      found.push({
        key: `down ${upstream.name}`,
        level: "bad",
        text: [
          h(
            "strong",
            {},
            upstream.refused ? `${upstream.name} refuses this agent` : `No session at ${upstream.name}`,
          ),
          ` for ${since(upstream.since, now)}`,
          upstream.lastError?.message
            ? `: ${shortMessage(upstream.lastError.message).replace(/^no session at \S+: /, "")}. `
            : ". ",
          Number(upstream.pending)
            ? `${plural(upstream.pending, "intent")} ${Number(upstream.pending) === 1 ? "waits" : "wait"} for it. `
            : upstream.lapsedSince && Number(upstream.desired)
              ? `None of ${plural(upstream.desired, "registration")} is acknowledged; each is sent when a session opens. `
              : "Nothing waits for it. ",
          stale ? "Lists show the last that the agent knew." : "",
        ],
        action:
          Number(upstream.pending) && route.view !== "pending"
            ? { href: "#/pending", text: "What is pending" }
            : null,
      });
    }
    if (state !== "connecting" && upstream.refused)
      found.push({
        key: `refused ${upstream.name}`,
        level: "bad",
        text: [
          h("strong", {}, `${upstream.name} refuses this agent`),
          `: ${shortMessage(upstream.lastError?.message ?? "")}. Its session was opened with credentials that it took, and runs out when the stream of its renewals ends.`,
        ],
      });
    if (upstream.journalError)
      found.push({
        key: `journal ${upstream.name}`,
        level: "bad",
        text: [
          h("strong", {}, "The intent journal cannot be written"),
          ` for ${since(upstream.journalErrorSince, now)}: ${shortMessage(upstream.journalError.message)}. `,
          "What is stated meanwhile is sent to the registry, but answered with an error: ",
          "it would not survive the agent.",
        ],
      });
    if (upstream.journalDamaged)
      found.push({
        key: `damaged ${upstream.name}`,
        level: "warn",
        text: [
          h("strong", {}, `The intent journal of ${upstream.name} was damaged`),
          ", and a new one is begun: what was owed in the old one is not carried. ",
          "Look at the disk, and submit again what is missing; this stays until the damaged file is removed.",
        ],
      });
    if (upstream.twinTime)
      found.push({
        key: `twin ${upstream.name}`,
        level: "warn",
        text: [
          h("strong", {}, `Another process used this agent's incarnation at ${upstream.name}`),
          ` ${since(upstream.twinTime, now)} ago, and may run still: a copy of its state directory, or one `,
          "incarnation configured twice. This agent has taken a new one.",
        ],
      });
    if (upstream.lapsedSince)
      found.push({
        key: `lapsed ${upstream.name}`,
        level: "bad",
        text: [
          h("strong", {}, `The session at ${upstream.name} has run out`),
          ` ${since(upstream.lapsedSince, now)} ago: the registry may have removed what it had acknowledged.`,
        ],
      });
    if (state === "resyncing") {
      found.push({
        key: `resync ${upstream.name}`,
        level: "info",
        text: [
          h("strong", {}, `${upstream.name} is back`),
          `: everything is being sent again, ${plural(upstream.pending, "intent")} to go.`,
        ],
      });
    }
  }
  if (superseded) {
    found.push({
      key: "superseded",
      level: "warn",
      text: [
        h(
          "strong",
          {},
          plural(superseded, "registration is superseded", "registrations are superseded"),
        ),
        ": a later incarnation holds the key, or held it until lately. Each is tried again.",
      ],
      action: { href: "#/pending?state=superseded", text: "Which" },
    });
  }
  if (parked) {
    found.push({
      key: "parked",
      level: "bad",
      text: [
        h("strong", {}, plural(parked, "intent is parked", "intents are parked")),
        `: refused for good or out of retries. ${parked === 1 ? "It is not tried again by itself" : "They are not tried again by themselves"}.`,
      ],
      action: { href: "#/pending?state=parked", text: "See why" },
    });
  }
  return found;
}

function registryProblems(registry) {
  const found = [];
  if (registry.writeStatus?.code) {
    found.push({
      key: "write",
      level: "bad",
      text: [
        h("strong", {}, "The store cannot be written"),
        `: ${registry.writeStatus.message}. `,
        registry.complete
          ? "Reads go on, writes are refused until it can."
          : "Nothing can be read or written until it answers.",
      ],
    });
  }
  if (enumName(registry.evictionGuard, "EVICTION_GUARD_STATE") === "holding") {
    found.push({
      key: "guard",
      level: "warn",
      text: [
        h("strong", {}, "Evictions are held back"),
        `: so many sessions are overdue at once that the network is the likely cause. ${plural(registry.heldBackLeases, "lease")} past ${registry.heldBackLeases === 1 ? "its TTL stays" : "their TTL stay"} listed.`,
      ],
      action: { href: "#/sessions?sort=-state", text: "Which" },
    });
  }
  return found;
}

export const banners = (list) =>
  list.map(({ key, level, text, action }) =>
    h(
      "div",
      { class: `banner is-${level}`, "data-key": key },
      icon(level === "info" ? "pending" : "warning"),
      h("p", {}, text),
      !action
        ? null
        : action.href
          ? h("a", { class: "button small", href: action.href }, action.text)
          : h(
              "button",
              { type: "button", class: "small", "data-action": action.name },
              action.text,
            ),
    ),
  );
