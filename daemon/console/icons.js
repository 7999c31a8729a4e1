// Sixteen by sixteen, drawn with one stroke each, in the colour of the text around them.

import { h } from "./dom.js";

const PATHS = {
  healthy: "M3 8.5 6.5 12 13 4.5",
  unhealthy: "M4 4l8 8M12 4l-8 8",
  draining: "M8 2.5v9M4 8l4 4 4-4M3 14h10",
  offline: "M5.5 3v10M10.5 3v10",
  pending: "M8 4.5V8l2.5 2M8 2a6 6 0 1 0 .01 0",
  superseded: "M4 9.5 8 5l4 4.5M4 13l4-4.5L12 13",
  lapsed: "M4.5 2.5h7M4.5 13.5h7M5 2.5c0 4 6 7 6 11M11 2.5c0 4-6 7-6 11",
  held: "M5 8V5.5a3 3 0 0 1 6 0V8M3.5 8h9v5.5h-9z",
  parked: "M6 13V3h3.2a2.9 2.9 0 0 1 0 5.8H6",
  warning: "M8 2 1.8 13.5h12.4zM8 6.5v3.2M8 11.7v.1",
  search: "M7 2.5a4.5 4.5 0 1 0 .01 0M10.3 10.3 14 14",
  close: "M4 4l8 8M12 4l-8 8",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13.2 2v3.2H10",
  link: "M6.6 9.4a2.6 2.6 0 0 0 3.7 0l2.3-2.3a2.6 2.6 0 0 0-3.7-3.7l-.9.9M9.4 6.6a2.6 2.6 0 0 0-3.7 0L3.4 8.9a2.6 2.6 0 0 0 3.7 3.7l.9-.9",
  back: "M9.5 3.5 5 8l4.5 4.5",
  auto: "M8 2.5a5.5 5.5 0 1 0 .01 0M8 2.5v11M8 5.5h4.8M8 8h5.5M8 10.5h4.8",
  light:
    "M8 5.2a2.8 2.8 0 1 0 .01 0M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8 13 13M13 3l-1.2 1.2M4.2 11.8 3 13",
  dark: "M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8z",
};

export const icon = (name) =>
  h(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" },
    h("path", { d: PATHS[name] }),
  );
