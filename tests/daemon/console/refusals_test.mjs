// The console of a real agent whose registry refuses: what is parked is shown with the reason, in the table, in the
// row's details, at the instance, and by failbackctl as JSON. And one whose journal was damaged.

import assert from "node:assert/strict";
import { closeSync, openSync, readdirSync, writeSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { assertAccessible, closePage, launch, openPage, screenshot, shows } from "./browser.mjs";
import { Fleet } from "./daemons.mjs";

let browser;
let fleet;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());
beforeEach(() => {
  fleet = new Fleet();
});
afterEach(() => fleet.stop());

const service = (name, number) => ({
  name,
  id: `${name}-${number}`,
  address: "10.0.0.1",
  port: 8000 + number,
});
const jsonOf = async (path) => {
  const response = await fetch(fleet.agent.url + path);
  assert.equal(response.status, 200, path);
  return response.json();
};

// Until the agent's table has a row of `id` with an ErrorInfo, which is returned with it.
async function refused(id) {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const { operations } = await jsonOf("pending");
    const row = operations.find((row) => row.id === id);
    const info = row?.lastStatus?.details?.find(({ "@type": type }) => type.endsWith("ErrorInfo"));
    if (info) return { row, info };
    assert.ok(Date.now() < deadline, `no refusal of ${id}: ${JSON.stringify(operations)}`);
  }
}

async function assertToldEverywhere(id, info, name) {
  const page = await openPage(browser, `${fleet.agent.url}#/pending`);
  await shows(page, id.split("/").pop(), ".grid-body");
  await page.locator(".grid-body [role=row] .cell-reason").first().click();
  await shows(page, info.reason, "#drawer");
  for (const value of Object.values(info.metadata)) await shows(page, value, "#drawer");
  await assertAccessible(page, "a refusal");
  await screenshot(page, name);
  await page.getByRole("link", { name: "The instance" }).click();
  await shows(page, "register at main", "#drawer .owed");
  await closePage(page);

  const [row] = JSON.parse(await fleet.ctl(fleet.agent, "pending", "-o", "json"));
  assert.equal(row.id, id);
  assert.equal(row.lastStatus.details[0].reason, info.reason);
  assert.match(await fleet.ctl(fleet.agent, "pending", "-o", "yaml"), new RegExp(info.reason));
  const [, namespace, key, instance] = id.match(/ (.*)\/(.*)\/(.*)/);
  const described = JSON.parse(
    await fleet.ctl(fleet.agent, "describe", key, "--id", instance, "-o", "json"),
  );
  assert.equal(described.pending[0].lastStatus.details[0].reason, info.reason, namespace);
  assert.equal(described.instance.state, "INSTANCE_STATE_PARKED");
}

test("denied by the policy: parked, with the permission that is missing", async () => {
  const policy = fleet.policyFlags([
    // Nothing may be read: what is shown is what the agent knows itself.
    { tokens: ["fleet"], allow: ["register"], namespaces: ["default"], services: ["orders"] },
  ]);
  await fleet.startRegistry(...policy);
  await fleet.startAgent(
    [service("orders", 1), service("billing", 1)],
    "--token-file",
    fleet.tokenFile,
  );
  const { row, info } = await refused("register default/billing/billing-1");
  assert.equal(row.state, "PENDING_STATE_PARKED");
  assert.equal(info.reason, "ACCESS_DENIED");
  await assertToldEverywhere(row.id, info, "console-denied");
  // The registry answers, and denies: it is not called away, and what it never had is not healthy.
  const described = await fleet.ctl(fleet.agent, "describe", "billing", "--id", "billing-1");
  assert.match(described, /the registry does not list it \(UNAVAILABLE: main does not let this agent read default\/billing: PERMISSION_DENIED/);
  assert.match(described, /status +parked: not acknowledged by the registry/);
  assert.doesNotMatch(described, /away/);
});

test("beyond the registry's limit: with the limit", async () => {
  await fleet.startRegistry("--limits-max-instances", "1");
  await fleet.startAgent([service("orders", 1)]);
  await fleet.ctl(fleet.agent, "wait-ready");
  await fleet.ctl(fleet.agent, "register", "late", "--id", "late-1", "--address", "h", "--port", "1");
  const { row, info } = await refused("register default/late/late-1");
  assert.equal(info.reason, "LIMIT_REACHED");
  await assertToldEverywhere(row.id, info, "console-limit");
});

test("a token that the registry no longer takes: refused, and not called away", async () => {
  const rules = [
    { tokens: ["fleet"], allow: ["register", "read"], namespaces: ["default"], services: "*" },
  ];
  await fleet.startRegistry(...fleet.policyFlags(rules), "--reload-interval", "50ms");
  const options = ["--token-file", fleet.tokenFile, "--session-ttl", "2s"];
  await fleet.startAgent([service("orders", 1)], ...options);
  await fleet.ctl(fleet.agent, "wait-ready");
  fleet.policyFlags(rules, "another-token");
  const deadline = Date.now() + 60_000;
  let upstream;
  do {
    assert.ok(Date.now() < deadline, JSON.stringify(upstream));
    [upstream] = (await jsonOf("status")).upstreams;
  } while (!upstream.refused || !upstream.lapsedSince);
  assert.equal(upstream.state, "UPSTREAM_STATE_CONNECTING");
  assert.match(
    await fleet.ctl(fleet.agent, "status"),
    /state +connecting since .*: the registry refuses this agent's token or certificate\n/,
  );
  const described = await fleet.ctl(fleet.agent, "describe", "orders", "--id", "orders-1");
  assert.doesNotMatch(described, /away/);
  const page = await openPage(browser, `${fleet.agent.url}#/status`);
  await shows(page, "main refuses this agent", "#banners");
  await shows(page, "UNAUTHENTICATED", "main");
  await shows(page, "refuses this agent", "main");
  await assertAccessible(page, "a refused agent");
  await screenshot(page, "console-refused-agent");
  await closePage(page);
});

test("a damaged journal: told until its file is removed", async () => {
  const state = join(fleet.folder, "state");
  await fleet.startRegistry();
  await fleet.startAgent([service("orders", 1)], "--state-dir", state);
  await fleet.ctl(fleet.agent, "wait-ready");
  await fleet.agent.kill();
  const [journal] = readdirSync(state, { recursive: true }).filter((name) => name.endsWith("journal.db"));
  const file = openSync(join(state, journal), "r+");
  writeSync(file, "no database", 0);
  closeSync(file);
  await fleet.startAgent([service("orders", 1)], "--state-dir", state);
  const page = await openPage(browser, `${fleet.agent.url}#/status`);
  await shows(page, "The intent journal of main was damaged", "#banners");
  await assertAccessible(page, "a damaged journal");
  await closePage(page);
  assert.match(await fleet.ctl(fleet.agent, "status"), /journal +was damaged, kept as .*journal\.db\.corrupt-/);
});
