// The console: gets what the route wants from the admin API, and shows it.
//
// One state, one function that draws it. The modules below do not know it: views are pure functions of what
// they are given, the grid knows rows, the poller knows time.

import * as actions from "./actions.js";
import { agentsView } from "./agents_view.js";
import { announce } from "./announce.js";
import { forget, get, instancePath } from "./api.js";
import { byId, h, morph, onAction } from "./dom.js";
import { plural } from "./format.js";
import { header, kindOf, owed, viewsOf } from "./header.js";
import { instanceDrawer } from "./instance_drawer.js";
import { intentDrawer } from "./intent_drawer.js";
import { instanceOfRow, intentsView } from "./intents_view.js";
import { instancesView } from "./instances_view.js";
import { listenToKeys } from "./keyboard.js";
import { ListPage } from "./list_page.js";
import { keyOf as rowKeyOf, pendingView } from "./pending_view.js";
import { Poller } from "./poller.js";
import { banners, problems } from "./problems.js";
import { currentRoute, goWith } from "./router.js";
import { servicesView } from "./services_view.js";
import { sessionsView } from "./sessions_view.js";
import { statusView } from "./status_view.js";
import { showHelp } from "./dialogs.js";

const LISTS = {
  services: servicesView,
  instances: instancesView,
  pending: pendingView,
  intents: intentsView,
  agents: agentsView,
  sessions: sessionsView,
};
const TICK_MS = 250;

const state = {
  route: currentRoute(),
  overview: null,
  kind: "",
  // The daemon's clock less ours.
  skew: 0,
  // What is asked for, and what is shown: the same once the first rows have come.
  wanted: null,
  listing: null,
  // {path, description}: of the instance whose details are open.
  instance: null,
  // When all was got last, by our clock; why not since, since when, and when it is tried again.
  updated: 0,
  error: null,
  failedSince: 0,
  nextTry: 0,
};
let page = null;

const keyOf = ({ namespace, service, instance }) => ({ namespace, service, instanceId: instance });
// The instance whose details are open: {namespace, service, instance}, or null.
const describedIn = (route) =>
  route.instance ? route : route.view === "intents" && route.row ? instanceOfRow(route.row) : null;

// Gets everything that the route wants.
async function refresh(signal) {
  const { route } = state;
  const overview = await get("/overview", signal);
  if (overview !== state.overview) state.skew = Date.parse(overview.time) - Date.now();
  state.overview = overview;
  state.kind = kindOf(overview);
  const wanted = LISTS[route.view]?.listing(route, state) ?? null;
  if (wanted?.first !== state.wanted?.first) state.wanted = wanted;
  const described = describedIn(route);
  const path = described ? instancePath(keyOf(described)) : null;
  await Promise.all([state.wanted?.refresh(signal, show), path ? describe(path, signal) : null]);
  forget((known) => known === "/overview" || known === path || state.wanted?.owns(known));
  show();
}

function show() {
  if (state.wanted?.head) state.listing = state.wanted;
  draw();
}

async function describe(path, signal) {
  let description;
  try {
    description = await get(path, signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    description = { missing: error.message };
  }
  state.instance = { path, description };
}

const poller = new Poller(refresh, (error, nextTry) => {
  if (error && !state.error) {
    state.failedSince = Date.now();
    announce(
      error.code === "UNREACHABLE"
        ? `This ${state.kind || "daemon"} cannot be reached.`
        : error.message,
    );
  } else if (!error && state.error) {
    announce("Connected again.");
  }
  Object.assign(state, { error, nextTry });
  if (!error) state.updated = Date.now();
  draw();
});

function draw() {
  const now = Date.now();
  const theirs = now + state.skew;
  const { route } = state;
  document.title = [titleOf(route), whoseOf(state.overview), `Failback ${state.kind}`.trim()]
    .filter(Boolean)
    .join(" · ");
  morph(byId("top"), header({ ...state, theme: window.theme.current() }, now));
  morph(byId("banners"), banners(problems(state, now, theirs)));
  drawMain(route, theirs);
  drawDrawer(route, theirs);
  announceChanges();
}

// Which daemon this is, among the many whose tabs are open.
const whoseOf = (overview) => overview?.name || overview?.host;

const titleOf = (route) => LISTS[route.view]?.title(route) ?? "Status";

function drawMain(route, now) {
  const main = byId("content");
  const view = LISTS[route.view];
  if (page && (!view || !page.shows(route))) {
    page.destroy();
    page = null;
  }
  if (view) {
    page ??= new ListPage(route.view, view, route);
    page.draw(main, state, now);
  } else {
    morph(
      main,
      h("div", { class: "heading", "data-key": "heading" }, h("h1", { tabindex: -1 }, "Status")),
      statusView(state, now) ?? h("p", { class: "count" }, "Loading…"),
    );
  }
}

function drawDrawer(route, now) {
  const drawer = byId("drawer");
  const open = Boolean(openIn(route));
  const opens = open && drawer.hidden;
  drawer.hidden = !open;
  document.body.classList.toggle("has-drawer", open);
  if (!open) return;
  drawer.setAttribute("aria-labelledby", "drawer-title");
  const described = describedIn(route);
  morph(drawer, described ? describedInstance(described, now) : openRow(route, now));
  if (opens) {
    drawer.scrollTop = 0;
    byId("drawer-title").focus({ preventScroll: true });
  }
}

// The row whose details are open.
const openIn = ({ instance, row }) => instance || row;

function describedInstance(route, now) {
  const description =
    state.instance?.path === instancePath(keyOf(route)) ? state.instance.description : null;
  return instanceDrawer(route, description, now);
}

function openRow({ row: key }, now) {
  const row = state.listing?.rows.find((row) => rowKeyOf(row) === key);
  return intentDrawer(key.slice(key.indexOf(" ") + 1), row, !state.listing?.complete, now);
}

function closeDrawer() {
  const key = openIn(state.route);
  goWith({ instance: "", row: "" });
  page?.grid.focus(key);
}

// Announces to those who do not see it what has changed by itself, or by their filter.
let said = { pending: 0, hash: location.hash };
function announceChanges() {
  const pending = owed(state.overview);
  if ((pending === 0) !== (said.pending === 0)) {
    announce(pending ? `${plural(pending, "intent")} pending.` : "Nothing is pending any more.");
  } else if (said.hash !== location.hash && page?.text && state.listing === state.wanted) {
    announce(page.text);
    said.hash = location.hash;
  }
  said.pending = pending;
}

addEventListener("hashchange", () => {
  const before = state.route;
  state.route = currentRoute();
  const elsewhere = ListPage.placeOf(before) !== ListPage.placeOf(state.route);
  if (elsewhere) {
    state.listing = null;
    scrollTo(0, 0);
  }
  draw();
  if (elsewhere) byId("content").querySelector("h1")?.focus({ preventScroll: true });
  poller.now();
});

// After a change the new state is shown without waiting for its turn.
const thenRefresh = (change) => change.then((done) => done && poller.now());

onAction(document.body, {
  theme: () => {
    window.theme.next();
    draw();
  },
  help: showHelp,
  refresh: () => poller.now(),
  choose: ({ dataset }) => goWith({ [dataset.parameter]: dataset.value }),
  "close-drawer": closeDrawer,
  copy: ({ dataset }) => actions.copy(dataset.text),
  retry: ({ dataset }) => thenRefresh(actions.retry(dataset.id, dataset.upstream)),
  "retry-all": () =>
    thenRefresh(actions.retryAll(page.rows, page.rows.length < state.listing.rows.length)),
  "guard-release": () => thenRefresh(actions.releaseHeld()),
  "guard-on": () => thenRefresh(actions.setGuard(true)),
  "guard-off": () => thenRefresh(actions.setGuard(false)),
  cancel: ({ dataset }) => thenRefresh(actions.cancel(dataset.id, dataset.upstream)),
  offline: () => thenRefresh(actions.setOffline(keyOf(describedIn(state.route)), true)),
  online: () => thenRefresh(actions.setOffline(keyOf(describedIn(state.route)), false)),
});

// The fragment is the route's: this link only moves the keyboard.
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("content").focus();
});

listenToKeys({ grid: () => page?.grid, closeDrawer, views: () => viewsOf(state.overview) });

// Ages each second, countdowns four times.
let ticks = 0;
setInterval(() => {
  if (!document.hidden && (++ticks % 4 === 0 || LISTS[state.route.view]?.live)) draw();
}, TICK_MS);
draw();
poller.now();
