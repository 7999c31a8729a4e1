// What a screen reader announces when the page changes, and what is shown for a moment.

import { byId, h } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 6000;
let pending = null;

// Politely, and only the last of what comes within half a second.
export function announce(text) {
  clearTimeout(pending);
  pending = setTimeout(() => {
    byId("announcer").textContent = text;
  }, 500);
}

// The outcome of something that was asked for. Failures stay until they are closed.
export function notify(text, { failed = false } = {}) {
  const close = h(
    "button",
    { type: "button", class: "quiet icon-only", "aria-label": "Close this message" },
    icon("close"),
  );
  const notice = h(
    "div",
    {
      class: `notice ${failed ? "is-unhealthy" : "is-healthy"}`,
      role: failed ? "alert" : "status",
    },
    icon(failed ? "unhealthy" : "healthy"),
    h("span", {}, text),
    close,
  );
  close.addEventListener("click", () => notice.remove());
  byId("notices").append(notice);
  if (!failed) setTimeout(() => notice.remove(), SHOWN_MS);
}
