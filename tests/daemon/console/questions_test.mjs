// The questions of a person who is paged, asked of real daemons that have all kinds of trouble at once: what is
// parked, superseded, held, expired and denied. Each is answered by failbackctl and by the console.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertAccessible, closePage, launch, openPage, screenshot, shows } from "./browser.mjs";
import { Fleet, TOKEN } from "./daemons.mjs";

const PATIENCE_MS = 60_000;
const BILLING = "register default/billing/billing-1";
const allowed = (text) => text.includes("401");

let browser;
let fleet;
// Registers orders-1, which another one holds, and billing-1, which the policy denies.
let troubled;
// Holds orders-1.
let holder;
// Stops without a word.
let lost;

const service = (name, number) => ({
  name,
  id: `${name}-${number}`,
  address: "10.0.0.1",
  port: 8000 + number,
});
const rules = (...services) => [
  { tokens: ["fleet"], allow: ["register"], namespaces: ["default"], services },
  { tokens: ["fleet"], allow: ["read", "administer"], namespaces: "*", services: "*" },
];

// failbackctl, its output, or what it says of a failure.
const ask = (target, ...args) =>
  fleet.ctl(target, "--token-file", fleet.tokenFile, ...args).catch((error) => error.stderr);

// Until failbackctl says what matches; what it said.
async function until(pattern, target, ...args) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const said = await ask(target, ...args);
    if (pattern.test(said)) return said;
    assert.ok(Date.now() < deadline, `${args.join(" ")} does not say ${pattern}:\n${said}`);
  }
}

// A page of the console, looked at by `body`, and kept as a picture.
async function look(daemon, hash, name, body) {
  const page = await openPage(browser, `${daemon.url}${hash}`, { allowed });
  await body(page);
  await assertAccessible(page, name);
  await screenshot(page, `questions-${name}`);
  await closePage(page);
}

before(async () => {
  browser = await launch();
  fleet = new Fleet();
  await fleet.startRegistry(
    ...fleet.policyFlags(rules("orders", "payments")),
    "--reload-interval",
    "50ms",
    "--eviction-guard-min-sessions",
    "3",
    "--eviction-guard-longest-hold",
    "5m",
  );
  const options = ["--token-file", fleet.tokenFile, "--session-ttl", "2s"];
  troubled = await fleet.addAgent("agent-a", [service("billing", 1)], ...options);
  await until(/parked/, troubled, "pending");
  holder = await fleet.addAgent("agent-b", [service("orders", 1)], ...options);
  await until(/acknowledged/, holder, "intents");
  await ask(troubled, "register", "orders", "--id", "orders-1", "--address", "10.0.0.2", "--port", "80");
  await until(/superseded/, troubled, "pending");
  lost = await fleet.addAgent("agent-c", [service("payments", 1)], ...options);
  await until(/acknowledged/, lost, "intents");
  await until(/agent-c/, fleet.registry, "agents");
  await lost.kill();
  await until(/held/, fleet.registry, "sessions");
});
after(async () => {
  await fleet?.stop();
  await browser?.close();
});

test("why is billing-1 not listed?", async () => {
  assert.doesNotMatch(await ask(fleet.registry, "list"), /billing/);
  assert.match(await ask(troubled, "list", "--state", "parked"), /billing +billing-1 .* parked/);
  const described = await ask(troubled, "describe", "billing", "--id", "billing-1");
  assert.match(described, /status +parked: not acknowledged by the registry/);
  assert.match(described, /PERMISSION_DENIED: token fleet may not register default\/billing/);
  await look(troubled, "#/intents?state=parked", "not-listed", async (page) => {
    await shows(page, "1 intent of 2 match", "#count");
    await shows(page, "may not register default/billing", ".grid-body");
    await page.locator(".grid-body [role=row] .cell-reason").click();
    await shows(page, "register at main", "#drawer .owed");
  });
});

test("who owns orders-1?", async () => {
  assert.match(await ask(fleet.registry, "list", "orders"), /orders-1 .* agent-b/);
  assert.match(
    await ask(troubled, "describe", "orders", "--id", "orders-1"),
    /status +superseded: another holds the key, or held it until lately[^]*owner +agent-b, /,
  );
  await look(fleet.registry, "#/services/default/orders?instance=orders-1", "owner", (page) =>
    shows(page, "agent-b", "#drawer .facts"),
  );
});

test("what is pending, and why?", async () => {
  const pending = await ask(troubled, "pending");
  assert.match(pending, /register default\/billing\/billing-1 .* parked .* PERMISSION_DENIED/);
  assert.match(pending, /register default\/orders\/orders-1 .* superseded .*, held by agent-b/);
  await look(troubled, "#/pending", "pending", async (page) => {
    await shows(page, "2 intents", "#count");
    await shows(page, "may not register default/billing", ".grid-body");
    await shows(page, "held by agent-b", ".grid-body");
  });
});

test("which agents are in trouble?", async () => {
  const agents = await until(
    /agent-a .* 1 parked operation; 1 superseded registration/,
    fleet.registry,
    "agents",
    "--trouble",
  );
  // Parked is not pending: NAME, VERSION, INTENTS, PENDING, PARKED, SUPERSEDED.
  assert.match(agents, /agent-a +\S+ +2 +0 +1 +1 /);
  assert.match(agents, /agent-c .* held back/);
  assert.doesNotMatch(agents, /agent-b/);
  assert.match(await ask(troubled, "status"), /operations +0 pending, 1 parked/);
  await look(fleet.registry, "#/agents?state=trouble", "agents", async (page) => {
    await shows(page, "2 agents of 3 match", "#count");
    await shows(page, "1 parked operation; 1 superseded registration", ".grid-body");
  });
});

test("is the registry healthy, and can its store be written?", async () => {
  const status = await ask(fleet.registry, "status");
  assert.match(status, /state +ready/);
  assert.match(status, /guard +holding/);
  assert.doesNotMatch(status, /writes +refused/);
  assert.match(await ask(fleet.registry, "list", "--state", "held"), /payments-1 .* held/);
  assert.match(await ask(fleet.registry, "sessions", "agent-c"), /held +in .* at the latest/);
  await look(fleet.registry, "#/status", "healthy", async (page) => {
    await shows(page, "accepted", "main");
    await shows(page, "Evictions are held back", "#banners");
  });
  await look(fleet.registry, "#/sessions?sort=-state", "sessions", (page) =>
    shows(page, " at most", ".grid-body"),
  );
});

test("what do I do: release, retry, cancel?", async () => {
  await look(fleet.registry, "#/status", "release", async (page) => {
    await page.getByRole("button", { name: "End what is held" }).click();
    await page.getByLabel("Your name").fill("alice");
    await page.getByRole("button", { name: "End them" }).click();
    await page.getByLabel("Token", { exact: true }).fill(TOKEN);
    await page.getByRole("button", { name: "Go on" }).click();
    await shows(page, "1 session released", "#notices");
  });
  fleet.policyFlags(rules("orders", "payments", "billing"));
  await until(/retried 1: 1 done|nothing is pending/, troubled, "retry", BILLING, "--wait", "10s");
  await until(/billing-1/, fleet.registry, "list", "billing");
  const cancelled = await ask(troubled, "cancel", "register default/orders/orders-1");
  assert.match(cancelled, /cancelled 1/);
  assert.match(await ask(troubled, "retry"), /nothing is pending/);
  assert.match(await ask(troubled, "wait-ready"), /ready/);
});

test("what happened to payments-1 at three in the morning?", async () => {
  const described = await until(
    /expired/,
    fleet.registry,
    "describe",
    "payments",
    "--id",
    "payments-1",
  );
  assert.match(described, /status +not registered[^]*expired[^]*registered +agent-c/);
  const released = "held it until it was released by 'alice' by admin endpoint at 127.0.0.1";
  assert.ok(described.includes(released), described);
  await look(
    fleet.registry,
    "#/services/default/payments?instance=payments-1",
    "history",
    async (page) => {
      await shows(page, "Not registered now", "#drawer");
      await shows(page, "lease expired", "#drawer .history");
      await shows(page, released, "#drawer .history");
    },
  );
});
