// What a person can do: each asks first where it matters, asks the server, and says how it went.

import { instancePath } from "./api.js";
import { notify } from "./announce.js";
import { act, ask } from "./dialogs.js";
import { codeName, enumName, plural } from "./format.js";
import { shortMessage } from "./parts.js";

// Named in one request.
const BATCH = 100;
const NAME = "failback operator";

// Runs `change`, and shows what came of it; `done(result)` gives the words. True when it was done.
async function carryOut(change, done) {
  try {
    const result = await change();
    if (result === null) return false;
    notify(done(result));
    return true;
  } catch (error) {
    notify(error.message, { failed: true });
    return false;
  }
}

// Long enough for an attempt, short enough to wait for.
const RETRY_WAIT = "3s";

// Shows how the attempt ended.
export const retry = (id, upstream) =>
  carryOut(
    () => act("/pending/retry", { selector: { ids: [id], upstream }, wait: RETRY_WAIT }),
    ({ remaining = [] }) => {
      if (remaining.length === 0) return `Done: ${id}`;
      const [{ state, lastStatus }] = remaining;
      const word = enumName(state, "PENDING_STATE");
      return lastStatus?.code
        ? `Still ${word}: ${id}: ${codeName(lastStatus.code)} ${shortMessage(lastStatus.message)}`
        : `Still ${word}: ${id}`;
    },
  );

// All that is pending, or, where a filter is in force, the rows that it leaves.
export const retryAll = (rows, filtered) =>
  carryOut(
    async () => {
      if (!filtered) return act("/pending/retry", {});
      let retried = 0;
      const ids = [...new Set(rows.map((row) => row.id))];
      for (let i = 0; i < ids.length; i += BATCH) {
        const result = await act("/pending/retry", { selector: { ids: ids.slice(i, i + BATCH) } });
        if (result === null) return null;
        retried += Number(result.retried);
      }
      return { retried };
    },
    ({ retried }) => `Trying again: ${plural(retried, "intent")}`,
  );

export async function cancel(id, upstream) {
  const sure = await ask({
    title: "Give this intent up?",
    danger: true,
    confirm: "Give it up",
    text: `“${id}” is not tried again, until its owner states a new intent for the same key. What the registry holds stays as it is.`,
  });
  return (
    sure !== null &&
    carryOut(
      () => act("/pending/cancel", { selector: { ids: [id], upstream } }),
      ({ sent }) =>
        Number(sent)
          ? `Given up: ${id}. It had been sent, and may still take effect.`
          : `Given up: ${id}`,
    )
  );
}

export async function setGuard(enabled) {
  const sure = await ask({
    title: enabled ? "Switch the eviction guard on?" : "Switch the eviction guard off?",
    danger: !enabled,
    confirm: enabled ? "Switch it on" : "Switch it off",
    text: enabled
      ? "Sessions are held when too many would expire at once."
      : "What is held ends at once, and from now on each session ends with its TTL. Until the registry starts again.",
    fields: [yourName()],
  });
  return sure !== null && changeGuard({ enabled }, sure.by);
}

export async function releaseHeld() {
  const sure = await ask({
    title: "End the held sessions?",
    danger: true,
    confirm: "End them",
    text: "Sessions past their TTL end now, and their instances with them. The guard goes on.",
    fields: [yourName()],
  });
  return sure !== null && changeGuard({ release: true }, sure.by);
}

function changeGuard(change, by) {
  localStorage.setItem(NAME, by);
  return carryOut(
    () => act("/guard", { ...change, by }),
    ({ state, released }) =>
      `The guard is ${enumName(state, "EVICTION_GUARD_STATE")}; ${plural(released, "session")} released.`,
  );
}

// For the history of what changes.
const yourName = () => ({
  name: "by",
  label: "Your name",
  maxlength: 128,
  value: localStorage.getItem(NAME) ?? "",
});

export async function setOffline(key, offline) {
  const answer = await ask(
    offline
      ? {
          title: `Take ${key.instanceId} offline?`,
          danger: true,
          confirm: "Take it offline",
          text: `Clients of ${key.service} are notified to send it nothing. What it registered stays as it is; it comes back only by hand.`,
          fields: [
            {
              name: "reason",
              label: "Reason",
              maxlength: 256,
              hint: "Shown beside the instance from now on.",
              required: true,
            },
            yourName(),
          ],
        }
      : {
          title: `Put ${key.instanceId} back into rotation?`,
          confirm: "Put it back",
          text: `Clients of ${key.service} get the health that its owner reports.`,
          fields: [yourName()],
        },
  );
  if (answer === null) return false;
  localStorage.setItem(NAME, answer.by);
  return carryOut(
    () =>
      act(`${instancePath(key)}/offline`, { offline, reason: answer.reason ?? "", by: answer.by }),
    () => (offline ? `${key.instanceId} is offline.` : `${key.instanceId} is back in rotation.`),
  );
}

export const copy = (text) =>
  carryOut(
    () => navigator.clipboard.writeText(text).then(() => text),
    () => "Copied.",
  );
