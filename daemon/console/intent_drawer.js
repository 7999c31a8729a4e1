// One row of the pending table: what the intent is, why it is not acknowledged, and what one can do. Pure.

import { h } from "./dom.js";
import { clock, codeName, count, countdown, enumName, exactly } from "./format.js";
import { badge, closeButton, facts, passed, sorted } from "./parts.js";
import { instanceRoute } from "./router.js";

const stateOf = (row) => enumName(row.state, "PENDING_STATE");
const KINDS = { parked: "parked", superseded: "superseded" };

// `row` is a PendingOperation; undefined when it is not pending, or while the table is `loading`.
export function intentDrawer(name, row, loading, now) {
  const [verb, ...rest] = (row?.id ?? name).split(" ");
  return [
    h(
      "header",
      { class: "drawer-head" },
      h(
        "div",
        {},
        h("h2", { id: "drawer-title", tabindex: -1 }, rest.join(" ")),
        h("p", { class: "muted" }, row ? `${verb} at ${row.upstream}` : verb),
      ),
      closeButton(),
    ),
    row
      ? [what(row, now), why(row.lastStatus), target(row)]
      : loading
        ? h("p", { class: "muted" }, "Loading…")
        : h("p", { class: "empty" }, "It is not pending: acknowledged, replaced or given up."),
  ];
}

function what(row, now) {
  const button = (action, text) =>
    h(
      "button",
      {
        type: "button",
        class: action === "cancel" ? "quiet" : "",
        "data-action": action,
        "data-id": row.id,
        "data-upstream": row.upstream,
      },
      text,
    );
  return h(
    "section",
    { class: "rotation", "aria-label": "Intent" },
    h(
      "div",
      { class: "rotation-state" },
      badge(KINDS[stateOf(row)] ?? "pending", stateOf(row)),
      button("retry", "Retry now"),
      button("cancel", "Cancel…"),
    ),
    facts([
      [
        "Since",
        [
          h("time", { datetime: row.since, title: exactly(row.since) }, clock(row.since, now)),
          h("span", { class: "muted" }, ", for ", passed(row.since, now)),
        ],
      ],
      [
        "Next attempt",
        row.nextAttempt
          ? [
              h("time", { datetime: row.nextAttempt }, clock(row.nextAttempt, now)),
              h("span", { class: "muted" }, `, ${countdown(row.nextAttempt, now)}`),
            ]
          : stateOf(row) === "parked"
            ? "not by itself"
            : null,
      ],
      [
        "Tries",
        row.retryTimes < 0 ? count(row.times) : `${count(row.times)} of ${count(row.retryTimes)}`,
      ],
      ["Generation", count(row.generation)],
    ]),
  );
}

// The whole of the last status: its message, and what it says to programs.
function why(status) {
  return h(
    "section",
    { "aria-labelledby": "why" },
    h("h3", { id: "why" }, "Why"),
    status?.code
      ? [
          h("p", {}, h("code", {}, codeName(status.code)), " ", status.message),
          (status.details ?? []).map(detail),
        ]
      : h("p", { class: "muted" }, "No attempt has ended yet."),
  );
}

function detail({ "@type": type = "", ...fields }) {
  const name = type.split(".").pop();
  if (name === "ErrorInfo")
    return facts([["Reason", h("code", {}, fields.reason)], ...sorted(fields.metadata)]);
  if (name === "RetryInfo") return facts([["Asked to wait", fields.retryDelay]]);
  if (name === "BadRequest")
    return facts(
      (fields.fieldViolations ?? []).map(({ field, description }) => [field, description]),
    );
  return facts([[name, h("span", { class: "mono breakable" }, JSON.stringify(fields))]]);
}

const target = ({ key }) =>
  key
    ? h(
        "p",
        {},
        h(
          "a",
          {
            href: instanceRoute(key),
          },
          "The instance, and what happened to it",
        ),
      )
    : null;
