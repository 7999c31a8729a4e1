// What a person can do: each asks first where it matters, tells the server, and says how it went.

import { instancePath } from "./api.js";
import { notify } from "./announce.js";
import { act, ask } from "./dialogs.js";
import { plural } from "./format.js";

// Named in one request.
const BATCH = 100;
const NAME = "failback operator";

// Runs `change`, and tells what came of it; `done(result)` gives the words. True when it was done.
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

export const retry = (id, upstream) =>
  carryOut(
    () => act("/pending/retry", { selector: { ids: [id], upstream } }),
    () => `Trying again: ${id}`,
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
      () => `Given up: ${id}`,
    )
  );
}

export async function setOffline(key, offline) {
  const answer = await ask(
    offline
      ? {
          title: `Take ${key.instanceId} offline?`,
          danger: true,
          confirm: "Take it offline",
          text: `Clients of ${key.service} are told to send it nothing. What it registered stays as it is; it comes back only by hand.`,
          fields: [
            {
              name: "reason",
              label: "Reason",
              maxlength: 256,
              hint: "Shown to whoever looks at it next.",
              required: true,
            },
            {
              name: "by",
              label: "Your name",
              maxlength: 128,
              value: localStorage.getItem(NAME) ?? "",
            },
          ],
        }
      : {
          title: `Put ${key.instanceId} back into rotation?`,
          confirm: "Put it back",
          text: `Clients of ${key.service} are told what its owner says of it.`,
          fields: [
            {
              name: "by",
              label: "Your name",
              maxlength: 128,
              value: localStorage.getItem(NAME) ?? "",
            },
          ],
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
