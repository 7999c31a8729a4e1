// A daemon's admin endpoint without the daemon: serves the console and what it asks for, from a state that
// a test sets as it likes. For what real daemons show seldom, and for work on the page:
//
//   node tests/daemon/console/fake_admin.mjs agent|registry|outage|empty|large [PORT]

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname } from "node:path";
import { before, counts, iso, keyOf, SCENARIOS, stateOf } from "./fake_states.mjs";

const CONSOLE = new URL("../../../daemon/console/", import.meta.url);
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};
// As the daemons' own, so that what the page may not do there it may not do here.
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
export const TOKEN = "let-me-in";

function pageOf(field, rows, search, more = {}) {
  const from = Number(search.get("page_token") ?? 0),
    size = Number(search.get("page_size") || 1000);
  return {
    [field]: rows.slice(from, from + size),
    nextPageToken: from + size < rows.length ? String(from + size) : "",
    ...more,
  };
}

function services(state, search) {
  const groups = group(state.rows);
  const words = (search.get("query") ?? "").toLowerCase().split(/\s+/);
  const found = [...groups]
    .filter(
      ([name]) =>
        words.every((word) => name.toLowerCase().includes(word)) &&
        (!search.get("namespace") || name.startsWith(`${search.get("namespace")}/`)),
    )
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([, rows]) => ({
      namespace: keyOf(rows[0]).namespace,
      name: keyOf(rows[0]).service,
      instances: counts(rows),
    }));
  return pageOf("services", found, search, {
    totalServices: found.length,
    stale: Boolean(state.stale),
    namespaces: [...new Set(state.rows.map((row) => keyOf(row).namespace))].sort(),
  });
}

function group(rows) {
  const groups = new Map();
  for (const row of rows) {
    const name = `${keyOf(row).namespace}/${keyOf(row).service}`;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return groups;
}

function listInstances(state, namespace, service, search) {
  const all = state.rows.filter(
    (row) => keyOf(row).namespace === namespace && keyOf(row).service === service,
  );
  const words = (search.get("query") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const states = search.getAll("status");
  let rows = all.filter(
    (row) =>
      (states.length === 0 || states.includes(stateOf(row))) &&
      words.every((word) => {
        const [key, value] = word.split("=");
        return value === undefined
          ? JSON.stringify(row.record).toLowerCase().includes(word)
          : row.record.instance.metadata[key] === value;
      }),
  );
  const sort = search.get("sort") ?? "",
    field = sort.replace("-", "");
  if (field === "instance_id" || field === "zone") {
    const value = (row) => (field === "zone" ? row.record.instance.zone : keyOf(row).instanceId);
    rows = rows.sort(
      (a, b) =>
        (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (sort.startsWith("-") ? -1 : 1),
    );
  }
  rows = rows.map((row) => ({ ...row, state: `INSTANCE_STATE_${stateOf(row).toUpperCase()}` }));
  return pageOf("instances", rows, search, {
    totalInstances: rows.length,
    counts: counts(all),
    stale: Boolean(state.stale),
    unread: state.unread,
  });
}

function describe(state, namespace, service, id) {
  const row = state.rows.find(
    (row) => JSON.stringify(keyOf(row)) === JSON.stringify({ namespace, service, instanceId: id }),
  );
  if (!row) return null;
  const { clientName, incarnation, rank } = row.record;
  return {
    instance: { ...row, state: `INSTANCE_STATE_${stateOf(row).toUpperCase()}` },
    session: {
      incarnation,
      clientName,
      rank,
      expireTime: iso(Date.now() + 8000),
      heldBack: false,
      ttl: "10s",
      instances: 64,
    },
    history: [
      ...(row.history ?? []),
      {
        time: before(220),
        kind: "CHANGE_KIND_UPDATED",
        by: clientName,
        detail: "version 2.0.0 → 2.1.0",
        revision: "18211",
        generation: "3",
      },
      {
        time: before(86400),
        kind: "CHANGE_KIND_REGISTERED",
        by: clientName,
        detail: "",
        revision: "301",
        generation: "1",
      },
    ],
    pending: state.pending.filter(({ key }) => key.instanceId === id && key.service === service),
    stale: Boolean(state.stale),
    unread: state.unread,
  };
}

function overview(state) {
  const rows = state.overview.agent
    ? state.rows.slice(0, Number(state.overview.agent.upstreams[0].desired))
    : state.rows;
  return {
    version: "0.4.0",
    startTime: before(3 * 86400),
    time: iso(Date.now()),
    instances: counts(rows),
    services: group(rows).size,
    ...state.overview,
  };
}

function answerGet(state, path, search) {
  if (path === "/services") return services(state, search);
  if (path === "/pending") return pageOf("operations", state.pending, search);
  if (path === "/intents") return pageOf("intents", state.intents ?? [], search);
  if (path === "/agents" && state.agents)
    return pageOf("agents", state.agents, search, {
      totalAgents: state.agents.length,
      agentsInTrouble: state.agents.filter(({ troubles }) => troubles.length).length,
    });
  if (path === "/sessions" && state.sessions)
    return pageOf("sessions", state.sessions, search, { totalSessions: state.sessions.length });
  const [, namespace, service, id] = path.slice(1).split("/").map(decodeURIComponent);
  if (!path.startsWith("/services/") || !service) return null;
  return id === undefined
    ? listInstances(state, namespace, service, search)
    : describe(state, namespace, service, id);
}

function answerPost(state, path, body) {
  if (path === "/pending/retry" || path === "/pending/cancel") {
    const chosen = state.pending.filter(
      ({ id }) => !body.selector?.ids || body.selector.ids.includes(id),
    );
    if (path.endsWith("cancel"))
      state.pending = state.pending.filter((row) => !chosen.includes(row));
    else
      for (const row of chosen)
        Object.assign(row, { state: "PENDING_STATE_IN_FLIGHT", nextAttempt: undefined });
    const parked = state.pending.filter((row) => row.state === "PENDING_STATE_PARKED").length;
    Object.assign(state.overview, { pending: state.pending.length - parked, parked });
    return path.endsWith("cancel")
      ? {
          cancelled: String(chosen.length),
          sent: String(chosen.filter((row) => row.state === "PENDING_STATE_IN_FLIGHT").length),
        }
      : { retried: String(chosen.length) };
  }
  const [, namespace, service, instanceId] = path.slice(1).split("/").map(decodeURIComponent);
  const row = state.rows.find(
    (row) => JSON.stringify(keyOf(row)) === JSON.stringify({ namespace, service, instanceId }),
  );
  const mark = body.offline
    ? { reason: body.reason, by: body.by, time: iso(Date.now()) }
    : undefined;
  row.record.instance.offline = mark;
  row.history = [
    {
      time: iso(Date.now()),
      kind: body.offline ? "CHANGE_KIND_OFFLINE" : "CHANGE_KIND_ONLINE",
      by: body.by,
      detail: body.reason,
      revision: "18231",
      generation: "0",
    },
    ...(row.history ?? []),
  ];
  return { offline: mark, unchanged: false, epoch: "7391", revision: "18231" };
}

// The lists' tag is the state's revision, as the daemons' is; what has the time in it has none.
function tagOf({ revision }, path) {
  const isList = /^\/(services|pending)/.test(path) && path.split("/").length !== 5;
  return isList ? `"${revision}"` : undefined;
}

const UNAUTHENTICATED = {
  code: "UNAUTHENTICATED",
  message: "the token is not the one in admin.token_file",
  reason: "CREDENTIALS_NEEDED",
  details: {},
};

async function answer(state, request, path, search) {
  if (request.method === "POST") {
    let text = "";
    for await (const chunk of request) text += chunk;
    if (request.headers.authorization !== `Bearer ${TOKEN}`) return [401, UNAUTHENTICATED];
    state.revision++;
    if (path === "/guard")
      return [200, { state: "EVICTION_GUARD_STATE_WATCHING", released: 2 }];
    return [200, answerPost(state, path, JSON.parse(text))];
  }
  if (path === "/overview") return [200, overview(state)];
  const body = answerGet(state, path, search);
  return body
    ? [200, body]
    : [404, { code: "NOT_FOUND", message: `nothing is known of ${path}`, reason: "", details: {} }];
}

// Serves `state`, made by one of SCENARIOS, until `stop()`; `change()` lets a test alter it. `asked` has the
// paths that were answered in full. Between `hangUp()` and `comeBack()` whoever connects is hung up on.
export async function startFakeAdmin(state, port = 0) {
  state.revision ??= 1;
  const asked = [];
  const server = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url, "http://fake");
    const send = (status, type, body, headers = {}) =>
      response
        .writeHead(status, { "content-type": type, "content-security-policy": POLICY, ...headers })
        .end(body);
    const file =
      pathname === "/" ? "index.html" : pathname.match(/^\/console\/([a-z_]+\.[a-z]+)$/)?.[1];
    if (file) return send(200, TYPES[extname(file)], readFileSync(new URL(file, CONSOLE)));
    const etag = tagOf(state, pathname);
    if (etag && request.headers["if-none-match"] === etag) return response.writeHead(304).end();
    asked.push(pathname);
    const [status, body] = await answer(state, request, pathname, searchParams);
    send(status, "application/json", JSON.stringify(body), etag && status === 200 ? { etag } : {});
  });
  let away = false;
  server.on("connection", (socket) => away && socket.resetAndDestroy());
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const chosen = server.address().port;
  return {
    url: `http://127.0.0.1:${chosen}/`,
    state,
    asked,
    change: (alter) => {
      alter(state);
      state.revision++;
    },
    hangUp: () => {
      away = true;
      server.closeAllConnections();
    },
    comeBack: () => (away = false),
    stop: () =>
      new Promise((resolve) => {
        server.close(resolve);
        server.closeAllConnections();
      }),
  };
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [, , scenario = "agent", port = "7071"] = process.argv;
  const { url } = await startFakeAdmin(SCENARIOS[scenario](), Number(port));
  console.log(`${scenario}: ${url}`);
}
