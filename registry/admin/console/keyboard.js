// Keys that work anywhere on the page; those of the rows are the grid's.

import { showHelp } from "./dialogs.js";
import { byId } from "./dom.js";
import { currentRoute, go, goWith } from "./router.js";

const VIEWS = { 1: "services", 2: "pending", 3: "status" };

// `grid()` is the one shown, if any; `closeDrawer()` closes the details.
export function listenToKeys({ grid, closeDrawer }) {
  addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || byId("dialog").open) return;
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "Escape") escape(typing, closeDrawer);
    else if ((typing && event.key === "ArrowDown") || (typing && event.key === "Enter"))
      grid()?.focus();
    else if (typing) return;
    else if (event.key === "/") byId("filter")?.focus();
    else if (event.key === "?") showHelp();
    else if ("jk".includes(event.key) || event.key === "ArrowDown") grid()?.focus();
    else if (VIEWS[event.key]) go({ view: VIEWS[event.key] });
    else return;
    event.preventDefault();
  });
}

function escape(typing, closeDrawer) {
  const route = currentRoute();
  if (route.instance || route.row) closeDrawer();
  else if (typing?.value) {
    typing.value = "";
    goWith({ q: "" }, { replace: true });
  } else document.activeElement.blur();
}
