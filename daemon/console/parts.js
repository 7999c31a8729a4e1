// Small pieces that several views are made of. Pure.

import { h } from "./dom.js";
import { ago, clock, codeName, count, enumName, exactly, since } from "./format.js";
import { icon } from "./icons.js";

// States of an instance, in the order in which they are counted and shown.
export const STATES = ["healthy", "unhealthy", "draining", "offline"];
// What is not as the others see it: not acknowledged, another's, or past its lease.
const UNSETTLED = ["pending", "parked", "superseded", "lapsed", "held"];
export const ALL_STATES = [...STATES, ...UNSETTLED];

// Those states of which there are some; "3 pending, 2 held".
export const unsettled = (counts) =>
  UNSETTLED.filter((state) => counts[state] > 0).map((state) => `${count(counts[state])} ${state}`);

export const stateOf = (summary) => enumName(summary.state, "INSTANCE_STATE") || "healthy";

// That of an instance is held beside its mark, which alone would hide it.
export const stateBadges = (summary) => [
  badge(stateOf(summary)),
  summary.record?.held && stateOf(summary) === "offline" ? badge("held") : null,
];

// A state is shown by colour, shape and word.
export const badge = (kind, text = kind) =>
  h("span", { class: `badge is-${kind}` }, icon(kind), text);

// How many are in which state, as one bar. Its numbers are beside it, in words.
export function bar(counts) {
  const parts = ALL_STATES.filter((state) => counts[state] > 0);
  return h(
    "span",
    { class: "bar", "aria-hidden": "true" },
    parts.map((state) =>
      h("span", { class: `bar-part is-${state}`, style: { "flex-grow": String(counts[state]) } }),
    ),
  );
}

// A point of time as an age, with the whole of it for who points at it.
export const age = (time, now) =>
  time ? h("time", { datetime: time, title: exactly(time) }, ago(time, now)) : "–";

// The same as a duration: "13 s".
export const passed = (time, now) =>
  h("time", { datetime: time, title: exactly(time) }, since(time, now));

export const clockTime = (time, now) =>
  h("time", { datetime: time, title: exactly(time) }, clock(time, now));

// google.rpc.Status: its code by name, and what it says.
export function statusText(status) {
  if (!status || !status.code) return "";
  return h(
    "span",
    { class: "status-text", title: status.message },
    h("code", {}, codeName(status.code)),
    " ",
    h(
      "span",
      {},
      holderOf(status) ? `held by ${holderOf(status)}: ` : "",
      shortMessage(status.message),
    ),
  );
}

// Who has the key that a later incarnation holds, where the registry reports it.
export const holderOf = ({ details = [] }) =>
  details.find(({ metadata }) => metadata?.holder)?.metadata.holder;

// Of gRPC's "failed to connect to all addresses; last error: …: Connection refused" only the cause.
export const shortMessage = (message = "") =>
  message.replace(/failed to connect to all addresses; last error: (.*: )?/, "");

// The entries of a map, which come in any order.
export const sorted = (map = {}) =>
  Object.entries(map).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));

export const tags = (metadata = {}) =>
  h(
    "span",
    { class: "tags" },
    sorted(metadata).map(([key, value]) =>
      h(
        "span",
        { class: "tag", title: `${key}=${value}` },
        h("span", { class: "tag-key" }, `${key}=`),
        value,
      ),
    ),
  );

export const copyButton = (text, what) =>
  h(
    "button",
    {
      type: "button",
      class: "quiet small",
      "data-action": "copy",
      "data-text": text,
      "aria-label": `Copy ${what}`,
    },
    "Copy",
  );

// A list of names and values; pairs without a value are left out.
export const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

// Buttons of which the chosen one narrows a list: [{value, text, number, kind}].
export function chips(label, parameter, chosen, choices) {
  return h(
    "div",
    { class: "chips", role: "group", "aria-label": label },
    choices.map(({ value, text, number, kind }) =>
      h(
        "button",
        {
          type: "button",
          class: `chip ${kind ? `is-${kind}` : ""}`,
          "data-key": `chip ${value}`,
          "data-action": "choose",
          "data-parameter": parameter,
          "data-value": value,
          "aria-pressed": String((chosen ?? "") === value),
        },
        kind ? icon(kind) : null,
        h("span", { class: "chip-text" }, text),
        number === undefined ? null : h("span", { class: "chip-number" }, count(number)),
      ),
    ),
  );
}

export const searchField = (label, hint, value) =>
  h(
    "label",
    { class: "search" },
    icon("search"),
    h("span", { class: "visually-hidden" }, label),
    h("input", {
      type: "search",
      id: "filter",
      placeholder: hint,
      autocomplete: "off",
      spellcheck: "false",
      "aria-keyshortcuts": "/",
      value: value ?? "",
      "data-own": "",
    }),
  );

// Of a drawer.
export const closeButton = () =>
  h(
    "button",
    {
      type: "button",
      class: "quiet icon-only",
      "data-action": "close-drawer",
      "aria-label": "Close details",
      title: "Close (Esc)",
    },
    icon("close"),
  );

// Why a list of intents is empty, a title and a text: at a registry, at an agent that has none, or
// because none of its rows is wanted.
export function noIntents(kind, rows, { registry, agent }) {
  if (kind === "registry") return registry;
  return rows.length > 0
    ? ["Nothing matches", "Take a word out of the filter, or choose another state."]
    : agent;
}

// Why there are no rows.
export const emptyState = (title, ...text) =>
  h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text));
