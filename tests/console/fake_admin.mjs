// A daemon's admin endpoint without the daemon: serves the console and what it asks for, from a state that
// a test sets as it likes. For what real daemons show seldom, and for work on the page:
//
//   node tests/console/fake_admin.mjs agent|registry|outage|empty|large [PORT]

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname } from "node:path";

const CONSOLE = new URL("../../registry/admin/console/", import.meta.url);
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

const STATES = ["healthy", "unhealthy", "draining", "offline"];
const iso = (milliseconds) => new Date(milliseconds).toISOString();
const before = (seconds) => iso(Date.now() - seconds * 1000);

// One of each `share` instances is unhealthy, draining, persistent.
export function instances(service, number, { namespace = "default", share = 40 } = {}) {
  return Array.from({ length: number }, (_, i) => {
    const status = i % share === 7 ? "UNHEALTHY" : i % share === 23 ? "DRAINING" : "HEALTHY";
    return {
      record: {
        instance: {
          key: { namespace, service, instanceId: `${service}-${i + 1}` },
          address: `10.${(i >> 14) & 63}.${(i >> 7) & 127}.${i & 127}`,
          port: 8080,
          status: `HEALTH_STATUS_${status}`,
          weight: 100,
          zone: `eu-west-1${"abc"[i % 3]}`,
          metadata: { version: `2.${i % 4}.0`, track: i % 10 ? "stable" : "canary" },
          persistent: i % share === 31,
        },
        incarnation: `0b6f7a3e-${i >> 6}`,
        rank: String((i >> 6) + 1),
        generation: "3",
        clientName: `failback-agent@node-${(i >> 6) + 1}`,
        createRevision: String(i + 1),
        modifyRevision: String(i + 9),
        createTime: before(86400 + i),
        modifyTime: before(30 + i * 7),
      },
      state: `INSTANCE_STATE_${status}`,
    };
  });
}

const UNREACHABLE = {
  code: 14,
  message:
    "no session at grpc://127.0.0.1:7070: failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7070: Connection refused",
  details: [],
};

export function pending(number, { parked = 0, upstream = "main" } = {}) {
  return Array.from({ length: number + parked }, (_, i) => ({
    id: `${i % 5 === 4 ? "unregister" : "register"} default/orders/orders-${i + 1}`,
    kind: i % 5 === 4 ? "OPERATION_KIND_UNREGISTER" : "OPERATION_KIND_REGISTER",
    key: { namespace: "default", service: "orders", instanceId: `orders-${i + 1}` },
    subscriptionId: "",
    generation: String(i + 4),
    times: 3,
    retryTimes: -1,
    since: before(12),
    upstream,
    ...(i < number
      ? {
          state: "PENDING_STATE_WAITING",
          nextAttempt: iso(Date.now() + 4000 + (i % 9) * 700),
          lastStatus: UNREACHABLE,
        }
      : {
          state: "PENDING_STATE_PARKED",
          lastStatus: {
            code: 7,
            message: "token 'ci' may not register default/orders",
            details: [],
          },
        }),
  }));
}

const upstream = (state, fields = {}) => ({
  uri: "grpc://127.0.0.1:7070",
  name: "main",
  state: `UPSTREAM_STATE_${state}`,
  since: before(12),
  sessionId: "s",
  sessionTtl: "10s",
  epoch: "7391",
  storeId: "4be0a5c2",
  desired: "12",
  acknowledged: "12",
  pending: "0",
  parked: "0",
  subscriptions: "2",
  incarnation: "0b6f7a3e",
  ...fields,
});

const AGENT = (fields = {}, upstreams = [upstream("READY")]) => ({
  kind: "DAEMON_KIND_AGENT",
  readiness: { ready: true, reasons: [] },
  pending: 0,
  parked: 0,
  agent: {
    version: "0.4.0",
    incarnation: "0b6f7a3e-51c8",
    upstreams,
    localSessions: "3",
    draining: false,
    deniedCalls: "0",
    staticServices: [],
  },
  ...fields,
});
const REGISTRY = (fields = {}) => ({
  kind: "DAEMON_KIND_REGISTRY",
  readiness: { ready: true, reasons: [] },
  pending: 0,
  parked: 0,
  registry: {
    store: "sqlite:///var/lib/failback/registry.db",
    storeId: "4be0a5c2",
    epoch: "7391",
    revision: "18230",
    sessions: 160,
    incarnations: 161,
    tombstones: 12,
    subscribers: 48,
    expiredSessions: "2",
    heldBackLeases: 0,
    evictionGuard: "EVICTION_GUARD_STATE_WATCHING",
    complete: true,
    ...fields,
  },
});
const FLEET = () => [
  ...instances("orders", 12),
  ...instances("payments", 64),
  ...instances("catalog", 180),
  ...instances("search/query", 24),
  ...instances("mail", 3, { namespace: "staging", share: 8 }),
  ...instances("ledger", 8),
];

export const SCENARIOS = {
  registry: () => ({ overview: REGISTRY(), rows: FLEET(), pending: [] }),
  agent: () => ({ overview: AGENT(), rows: FLEET(), pending: [] }),
  outage: () => ({
    overview: AGENT({ pending: 6, parked: 1 }, [
      upstream("CONNECTING", {
        lastError: UNREACHABLE,
        pending: "6",
        parked: "1",
        acknowledged: "6",
      }),
    ]),
    rows: FLEET(),
    pending: pending(5, { parked: 1 }),
    stale: true,
  }),
  empty: () => ({
    overview: REGISTRY({ sessions: 0, subscribers: 0, revision: "0" }),
    rows: [],
    pending: [],
  }),
  large: () => ({
    overview: AGENT({ pending: 10000 }, [
      upstream("CONNECTING", {
        lastError: UNREACHABLE,
        desired: "10000",
        acknowledged: "0",
        pending: "10000",
      }),
    ]),
    rows: [...FLEET(), ...instances("fleet", 10000)],
    pending: pending(10000),
  }),
};

function counts(rows) {
  const of = (state) => rows.filter((row) => stateOf(row) === state).length;
  return {
    total: rows.length,
    ...Object.fromEntries(STATES.map((state) => [state, of(state)])),
    persistent: rows.filter((row) => row.record.instance.persistent).length,
  };
}
const stateOf = (row) =>
  row.record.instance.offline ? "offline" : row.state.replace("INSTANCE_STATE_", "").toLowerCase();
const keyOf = (row) => row.record.instance.key;

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
  const groups =
    Map.groupBy?.(state.rows, (row) => `${keyOf(row).namespace}/${keyOf(row).service}`) ??
    group(state.rows);
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
    groups.set(name, [...(groups.get(name) ?? []), row]);
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
  if (path === "/overview") return overview(state);
  if (path === "/services") return services(state, search);
  if (path === "/pending") return pageOf("operations", state.pending, search);
  const [, namespace, service, id] = path.slice(1).split("/").map(decodeURIComponent);
  if (!path.startsWith("/services/") || !service) return null;
  return id === undefined
    ? listInstances(state, namespace, service, search)
    : describe(state, namespace, service, id);
}

function answerPost(state, path, body) {
  if (path === "/pending/retry" || path === "/pending/cancel") {
    const chosen = state.pending.filter(({ id }) => !body.ids?.length || body.ids.includes(id));
    if (path.endsWith("cancel"))
      state.pending = state.pending.filter((row) => !chosen.includes(row));
    else
      for (const row of chosen)
        Object.assign(row, { state: "PENDING_STATE_IN_FLIGHT", nextAttempt: undefined });
    state.overview.pending = state.pending.length;
    return path.endsWith("cancel")
      ? { cancelled: String(chosen.length) }
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

// Serves `state` (made by one of SCENARIOS, changed as one likes) until `stop()`. `requests` counts those
// that were answered with a body, and those with "not modified".
export async function startFakeAdmin(state, port = 0) {
  const requests = { full: 0, unchanged: 0 };
  const server = createServer((request, response) => {
    const url = new URL(request.url, "http://fake");
    const send = (status, type, body, headers = {}) => {
      response.writeHead(status, {
        "content-type": type,
        "content-security-policy": POLICY,
        "cache-control": "no-cache",
        ...headers,
      });
      response.end(body);
    };
    const json = (status, value) => {
      const text = JSON.stringify(value);
      const etag = `"${createHash("sha1").update(text).digest("hex")}"`;
      if (request.headers["if-none-match"] === etag) {
        requests.unchanged++;
        response.writeHead(304, { etag });
        return response.end();
      }
      requests.full++;
      send(status, "application/json", text, status === 200 ? { etag } : {});
    };
    const file =
      url.pathname === "/"
        ? "index.html"
        : url.pathname.match(/^\/console\/([a-z_]+\.[a-z]+)$/)?.[1];
    if (file) return send(200, TYPES[extname(file)], readFileSync(new URL(file, CONSOLE)));
    if (request.method === "GET") {
      const body = answerGet(state, url.pathname, url.searchParams);
      return body
        ? json(200, body)
        : json(404, {
            code: "NOT_FOUND",
            message: `nothing is known of ${url.pathname}`,
            reason: "",
            details: {},
          });
    }
    let text = "";
    request.on("data", (chunk) => (text += chunk));
    request.on("end", () =>
      request.headers.authorization === `Bearer ${TOKEN}`
        ? json(200, answerPost(state, url.pathname, JSON.parse(text)))
        : json(401, {
            code: "UNAUTHENTICATED",
            message: "the token is not the one in admin.token_file",
            reason: "CREDENTIALS_NEEDED",
            details: {},
          }),
    );
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const { port: chosen } = server.address();
  return {
    url: `http://127.0.0.1:${chosen}/`,
    port: chosen,
    state,
    requests,
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
