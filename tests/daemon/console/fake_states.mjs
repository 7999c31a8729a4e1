// What a fake daemon may tell: fleets, pending tables, and whole scenarios.

const STATES = [
  "healthy",
  "unhealthy",
  "draining",
  "offline",
  "pending",
  "parked",
  "superseded",
  "lapsed",
  "held",
];
export const iso = (milliseconds) => new Date(milliseconds).toISOString();
export const before = (seconds) => iso(Date.now() - seconds * 1000);

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

const DENIED = {
  code: 7,
  message: "token 'ci' may not register default/orders",
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
          lastStatus: DENIED,
        }),
  }));
}

const upstream = (state, fields = {}) => ({
  uri: "grpc://127.0.0.1:7070",
  name: "main",
  state: `UPSTREAM_STATE_${state}`,
  since: before(12),
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
// Agents of which every fourth is in trouble.
const agents = (number) =>
  Array.from({ length: number }, (_, i) => ({
    session: session(i),
    report: {
      name: `failback-agent@node-${i + 1}`,
      version: i % 3 ? "0.4.0" : "0.3.9",
      intents: String(12 + i),
      pending: i % 4 === 1 ? "3" : "0",
      parked: i % 4 === 1 ? "2" : "0",
      superseded: i % 8 === 5 ? "1" : "0",
      ...(i % 4 === 1 ? { oldestPending: before(300 + i) } : {}),
    },
    reportTime: before(40 + i),
    troubles:
      i % 4 === 1
        ? ["2 parked operations", ...(i % 8 === 5 ? ["1 superseded registration"] : [])]
        : [],
  }));
const session = (i, held = false) => ({
  incarnation: `0b6f7a3e-51c8-4f${10 + i}`,
  clientName: `failback-agent@node-${i + 1}`,
  rank: String(i + 1),
  [held ? "holdEndTime" : "expireTime"]: iso(Date.now() + (held ? 84000 : 8000)),
  heldBack: held,
  ttl: "10s",
  instances: 12 + i,
});
// Instances in states that only an agent knows.
const unsettled = () =>
  instances("orders", 12).map((row, i) => ({
    ...row,
    state: `INSTANCE_STATE_${["PENDING", "SUPERSEDED", "LAPSED", "PARKED"][i % 4]}`,
  }));
// The same as the agent's own intents.
const intents = () =>
  unsettled().map(({ record, state }, i) => ({
    instance: record.instance,
    state: state.replace("INSTANCE_STATE_PENDING", "INTENT_STATE_ACCEPTED").replace("INSTANCE", "INTENT"),
    generation: record.generation,
    upstream: "main",
    lastStatus: [
      UNREACHABLE,
      {
        code: 9,
        message: "default/orders/orders-2: a newer intent holds the key (rank 9, generation 1)",
        details: [
          {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            reason: "SUPERSEDED",
            metadata: { rank: "9", generation: "1", holder: "failback-agent@web-8" },
          },
        ],
      },
      null,
      DENIED,
    ][i % 4],
  }));
const FLEET = () => [
  ...instances("orders", 12),
  ...instances("payments", 64),
  ...instances("catalog", 180),
  ...instances("search/query", 24),
  ...instances("mail", 3, { namespace: "staging", share: 8 }),
  ...instances("ledger", 8),
];

export const SCENARIOS = {
  registry: () => ({
    overview: REGISTRY({ agents: 12, agentsInTrouble: 3 }),
    rows: FLEET(),
    pending: [],
    agents: agents(12),
    sessions: Array.from({ length: 14 }, (_, i) => session(i, i % 5 === 3)),
  }),
  unsettled: () => ({
    overview: {
      ...AGENT({ pending: 3, parked: 3, superseded: 3 }),
      name: "failback-agent@web-7",
      host: "web-7",
    },
    rows: unsettled(),
    pending: pending(2),
    intents: intents(),
  }),
  denied: () => ({
    overview: AGENT(),
    rows: unsettled(),
    pending: [],
    unread: { code: 7, message: "token 'agent' may not read default/orders", details: [] },
  }),
  certificates: () => ({
    overview: {
      ...REGISTRY(),
      certificateNotAfter: iso(Date.now() + 90 * 86400e3),
      clientCertificates: {
        seen: 214,
        ending: 2,
        soonest: ["spiffe://prod/late", "spiffe://prod/orders"].map((name, i) => ({
          name,
          host: `10.0.0.${i + 1}`,
          notAfter: iso(Date.now() + (i + 1) * 86400e3),
          seen: before(20),
        })),
      },
    },
    rows: FLEET(),
    pending: [],
  }),
  agent: () => ({ overview: AGENT(), rows: FLEET(), pending: [] }),
  outage: () => ({
    overview: AGENT({ pending: 5, parked: 1 }, [
      upstream("CONNECTING", {
        lastError: UNREACHABLE,
        pending: "5",
        parked: "1",
        acknowledged: "6",
      }),
    ]),
    rows: FLEET(),
    pending: pending(5, { parked: 1 }),
    stale: true,
  }),
  etcd: () => ({
    overview: REGISTRY({
      store: "etcd://10.0.0.1:2379/failback",
      storeId: "5d1f0c2e",
      epoch: "81",
      revision: "4711",
      sessions: 12,
      agents: 3,
      complete: false,
    }),
    rows: FLEET(),
    pending: [],
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

export function counts(rows) {
  const of = (state) => rows.filter((row) => stateOf(row) === state).length;
  return {
    total: rows.length,
    ...Object.fromEntries(STATES.map((state) => [state, of(state)])),
    persistent: rows.filter((row) => row.record.instance.persistent).length,
  };
}
export const stateOf = (row) =>
  row.record.instance.offline ? "offline" : row.state.replace("INSTANCE_STATE_", "").toLowerCase();
export const keyOf = (row) => row.record.instance.key;
