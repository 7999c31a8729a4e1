// Keys that work anywhere on the page; those of the rows are the grid's.

import { showHelp } from "./dialogs.js";
import { byId } from "./dom.js";
import { currentRoute, go, goWith } from "./router.js";

// `grid()` is the one shown, if any; `closeDrawer()` closes the details; `views()` names the daemon's views.
export function listenToKeys({ grid, closeDrawer, views }) {
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
    else if (/^[1-9]$/.test(event.key) && views()[event.key - 1])
      go({ view: views()[event.key - 1] });
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
