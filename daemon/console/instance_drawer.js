// One instance: what it is, whose, for how long, what happened to it, and the switch that takes it out
// of rotation. Pure.

import { h } from "./dom.js";
import { clock, count, countdown, durationMs, enumName, exactly, plural, span } from "./format.js";
import { icon } from "./icons.js";
import {
  age,
  badge,
  closeButton,
  copyButton,
  facts,
  shortMessage,
  sorted,
  stateBadges,
  stateOf,
  statusText,
} from "./parts.js";

// What happened, and how it looks: registered, healthy.
const CHANGES = {
  registered: "healthy",
  updated: "pending",
  replaced: "draining",
  unregistered: "offline",
  expired: "unhealthy",
  closed: "offline",
  offline: "offline",
  online: "healthy",
  acknowledged: "healthy",
  retrying: "pending",
  parked: "parked",
  superseded: "superseded",
  health: "pending",
  refused: "unhealthy",
  lapsed: "lapsed",
  cancelled: "offline",
};
const WORDS = {
  offline: "taken offline",
  online: "back in rotation",
  closed: "session closed",
  expired: "lease expired",
};

// What an agent reports about its registries; the rest was done by a person or a program.
const AT = new Set([
  "acknowledged",
  "retrying",
  "parked",
  "superseded",
  "refused",
  "lapsed",
  "cancelled",
]);

// `description` is an InstanceDescription, null while it is loaded, or {missing: why}.
export function instanceDrawer({ namespace, service, instance: id }, description, now) {
  const summary = description?.instance;
  return [
    h(
      "header",
      { class: "drawer-head" },
      h(
        "div",
        {},
        h("h2", { id: "drawer-title", tabindex: -1 }, id),
        h("p", { class: "muted" }, `${namespace} / ${service}`),
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet icon-only",
          "data-action": "copy",
          "data-text": location.href,
          "aria-label": "Copy a link to this instance",
          title: "Copy a link",
        },
        icon("link"),
      ),
      closeButton(),
    ),
    !description
      ? h("p", { class: "muted" }, "Loading…")
      : description.missing
        ? h("p", { class: "empty" }, description.missing)
        : [
            summary
              ? rotation(summary, now)
              : h(
                  "p",
                  { class: "mark is-unhealthy" },
                  "Not registered now. What is known of it is below.",
                  fence(description, now),
                ),
            doubt(description),
            owed(description.pending, now),
            summary ? what(summary, now) : null,
            lease(description, now),
            history(description.history, now),
          ],
  ];
}

function rotation(summary, now) {
  const { offline, status } = summary.record.instance;
  const said = enumName(status, "HEALTH_STATUS");
  return h(
    "section",
    { class: "rotation", "aria-label": "Rotation" },
    h(
      "div",
      { class: "rotation-state" },
      stateBadges(summary),
      offline
        ? h(
            "span",
            { class: "muted" },
            `its owner says: ${said === "unspecified" ? "healthy" : said}`,
          )
        : null,
      // A registry marks what it has.
      ["pending", "parked"].includes(stateOf(summary))
        ? null
        : h(
            "button",
            {
              type: "button",
              class: offline ? "primary" : "",
              "data-action": offline ? "online" : "offline",
            },
            offline ? "Back into rotation…" : "Take offline…",
          ),
    ),
    offline
      ? h(
          "p",
          { class: "mark is-offline" },
          offline.reason || "No reason was given.",
          h(
            "span",
            { class: "muted" },
            offline.by ? ` ${offline.by}, ` : " ",
            age(offline.time, now),
          ),
        )
      : null,
  );
}

// Why a registration by an agent that was there before is refused for a while.
const fence = ({ fenceEndTime, fenceRank }, now) =>
  fenceEndTime && Date.parse(fenceEndTime) > now
    ? ` Its fence stands: an incarnation with a rank below ${count(fenceRank)} is refused, until ${countdown(fenceEndTime, now)}.`
    : "";

// How far what is shown is to be trusted; at an agent.
function doubt({ stale, unread }) {
  if (unread?.code)
    return h(
      "p",
      { class: "mark is-offline" },
      "The registry does not list it: ",
      statusText(unread),
      " What is shown is what this agent carries.",
    );
  return stale
    ? h(
        "p",
        { class: "mark is-offline" },
        "The registry does not answer this: it is the last that the agent knew.",
      )
    : null;
}

function owed(pending = [], now) {
  return pending.length === 0
    ? null
    : h(
        "section",
        { "aria-labelledby": "owed" },
        h("h3", { id: "owed" }, "Not acknowledged yet"),
        pending.map((row) =>
          h(
            "div",
            { class: "owed" },
            badge(
              enumName(row.state, "PENDING_STATE") === "parked" ? "parked" : "pending",
              enumName(row.state, "PENDING_STATE"),
            ),
            h(
              "span",
              {},
              row.id.split(" ")[0],
              " at ",
              row.upstream,
              row.nextAttempt ? [", next attempt ", countdown(row.nextAttempt, now)] : "",
            ),
            statusText(row.lastStatus),
            h(
              "button",
              {
                type: "button",
                class: "small",
                "data-action": "retry",
                "data-id": row.id,
                "data-upstream": row.upstream,
              },
              icon("retry"),
              "Retry now",
            ),
          ),
        ),
      );
}

function what({ record }, now) {
  const { instance } = record;
  const entries = sorted(instance.metadata);
  const address = `${instance.address}:${instance.port}`;
  return [
    h(
      "section",
      { "aria-labelledby": "what" },
      h("h3", { id: "what" }, "Instance"),
      facts([
        ["Address", [h("span", { class: "mono" }, address), copyButton(address, "the address")]],
        ["Zone", instance.zone],
        ["Weight", instance.weight ?? 100],
        [
          "Lives",
          instance.persistent ? "until unregistered (persistent)" : "as long as its session",
        ],
        [
          "Generation",
          count(record.generation) + (Number(record.rank) ? `, rank ${count(record.rank)}` : ""),
        ],
        [
          "Registered",
          record.createTime
            ? [
                age(record.createTime, now),
                h("span", { class: "muted" }, ` revision ${count(record.createRevision)}`),
              ]
            : null,
        ],
        [
          "Changed",
          record.modifyTime
            ? [
                age(record.modifyTime, now),
                h("span", { class: "muted" }, ` revision ${count(record.modifyRevision)}`),
              ]
            : null,
        ],
      ]),
    ),
    h(
      "section",
      { "aria-labelledby": "metadata" },
      h("h3", { id: "metadata" }, "Metadata"),
      entries.length
        ? h(
            "dl",
            { class: "facts metadata" },
            entries.map(([key, value]) =>
              h("div", {}, h("dt", {}, key), h("dd", { class: "mono" }, value)),
            ),
          )
        : h("p", { class: "muted" }, "None."),
    ),
  ];
}

function lease({ session, instance }, now) {
  const record = instance?.record;
  if (!session && !record) return null;
  const left = session?.expireTime ? Date.parse(session.expireTime) - now : 0;
  const ttl = session?.ttl ? durationMs(session.ttl) : 0;
  return h(
    "section",
    { "aria-labelledby": "lease" },
    h("h3", { id: "lease" }, "Session and lease"),
    session
      ? [
          facts([
            ["Client", session.clientName],
            ["Incarnation", h("span", { class: "mono breakable" }, session.incarnation)],
            ["Rank", count(session.rank)],
            ["Instances in it", count(session.instances)],
            [
              "Lease",
              session.heldBack
                ? `past its TTL and held${session.holdEndTime ? `, ends ${countdown(session.holdEndTime, now)} at the latest` : ""}`
                : session.expireTime
                  ? `ends in ${span(Math.max(0, Math.ceil(left / 1000) * 1000))} unless renewed (TTL ${span(ttl)})`
                  : null,
            ],
          ]),
          ttl && !session.heldBack
            ? h("meter", {
                min: 0,
                max: ttl,
                low: ttl / 3,
                optimum: ttl,
                value: Math.max(0, Math.min(ttl, left)),
                "aria-label": "Lease left",
              })
            : null,
        ]
      : h(
          "p",
          { class: "muted" },
          record.incarnation
            ? [
                `${record.clientName || "Its client"}, incarnation `,
                h("span", { class: "mono breakable" }, record.incarnation),
                ". The session is the registry's: see its console.",
              ]
            : "Detached: registered without a session, lives until unregistered.",
        ),
  );
}

function history(changes = [], now) {
  return h(
    "section",
    { "aria-labelledby": "history" },
    h("h3", { id: "history" }, "History"),
    changes.length === 0
      ? h("p", { class: "muted" }, "Nothing since this daemon started.")
      : h(
          "ol",
          { class: "history" },
          changes.map((change) => {
            const kind = enumName(change.kind, "CHANGE_KIND");
            return h(
              "li",
              {},
              h("span", { class: `dot is-${CHANGES[kind] ?? "pending"}` }),
              h(
                "div",
                {},
                h("span", { class: "change" }, WORDS[kind] ?? kind),
                change.by
                  ? h("span", { class: "muted" }, ` ${AT.has(kind) ? "at" : "by"} ${change.by}`)
                  : null,
                change.detail ? h("p", {}, shortMessage(change.detail)) : null,
                h(
                  "p",
                  { class: "muted" },
                  h(
                    "time",
                    { datetime: change.time, title: exactly(change.time) },
                    clock(change.time, now),
                  ),
                  Number(change.revision) ? `, revision ${count(change.revision)}` : "",
                  Number(change.generation) ? `, generation ${count(change.generation)}` : "",
                ),
              ),
            );
          }),
        ),
    changes.length ? h("p", { class: "visually-hidden" }, plural(changes.length, "change")) : null,
  );
}
