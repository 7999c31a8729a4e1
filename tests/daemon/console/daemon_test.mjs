// The console of real daemons: an outage from beginning to end, and an instance taken out of rotation and
// back. What these pages show are the pictures in the documents.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";
import {
  assertAccessible,
  closePage,
  launch,
  openPage,
  PHONE,
  screenshot,
  shows,
  until,
} from "./browser.mjs";
import { Fleet, TOKEN } from "./daemons.mjs";

let browser;
let fleet;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());
beforeEach(async () => {
  fleet = new Fleet();
  await fleet.startRegistry();
});
afterEach(() => fleet.stop());

// What a browser says of its own accord of answers that are part of the test, and of a daemon that is away: that
// has several names, by how far the browser has come.
const allowed = (text) => /401|net::ERR_/.test(text);

// A shop: an agent that registers what its configuration says. One instance fails its health check.
const SHOP = { catalog: 9, checkout: 6, ledger: 4, mail: 3, orders: 12, payments: 8, search: 5 };

function shop() {
  return Object.entries(SHOP).flatMap(([name, number]) =>
    Array.from({ length: number }, (_, i) => ({
      name,
      id: `${name}-${i + 1}`,
      address: `10.0.${name.length}.${i + 1}`,
      port: 8080,
      zone: `eu-west-1${"abc"[i % 3]}`,
      metadata: { version: `2.${i % 3}.0`, track: i % 6 ? "stable" : "canary" },
      ...(name === "catalog" && i === 4
        ? { checks: [{ command: { argv: ["false"] }, fall: 1 }] }
        : {}),
    })),
  );
}

const register = (service, id) =>
  fleet.ctl(
    fleet.agent,
    "register",
    service,
    "--id",
    id,
    "--address",
    "10.0.6.13",
    "--port",
    "8080",
  );

async function giveToken(page) {
  await page.getByLabel("Token", { exact: true }).fill(TOKEN);
  await page.getByRole("button", { name: "Go on" }).click();
}

// Asked again, a list that has not changed is not sent.
async function assertUnchangedIsNotSent(url) {
  const etag = (await fetch(url)).headers.get("etag");
  assert.ok(etag);
  assert.equal((await fetch(url, { headers: { "if-none-match": etag } })).status, 304);
}

test("an outage: told at once, with what is owed, why, and until when; over by itself", async () => {
  await fleet.startAgent(shop());
  const page = await openPage(browser, fleet.agent.url, { allowed });
  await shows(page, "payments", ".grid-body");
  await shows(page, "all acknowledged", ".summary");
  await shows(page, "47", ".summary");
  await until(page, () => document.querySelector(".grid-body .is-unhealthy .number"));
  await screenshot(page, "console-services");

  await assertUnchangedIsNotSent(`${fleet.agent.url}services/default/orders`);

  await fleet.registry.kill();
  await shows(page, "No session at main", "#banners");
  await register("orders", "orders-13");
  await register("payments", "payments-9");
  await fleet.ctl(fleet.agent, "unregister", "payments", "--id", "payments-9");
  await page.getByRole("link", { name: "Pending" }).click();
  await shows(page, "2 intents", "#count");
  for (const text of [
    "orders-13",
    "register default/orders",
    "payments-9",
    "unregister default/payments",
    "UNAVAILABLE",
  ]) {
    await shows(page, text, ".grid-body");
  }
  // A countdown that counts.
  const left = () => page.locator(".countdown").first().innerText();
  await until(page, () => /^in \d/.test(document.querySelector(".countdown")?.innerText ?? ""));
  const before = await left();
  await until(page, (text) => document.querySelector(".countdown")?.innerText !== text, before);
  await assertAccessible(page, "an outage");
  await screenshot(page, "console-outage", 420);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.setViewportSize(PHONE);
  await screenshot(page, "console-outage-phone");
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.emulateMedia({ colorScheme: "light" });

  await page.getByRole("button", { name: "Retry now: register default/orders/orders-13" }).click();
  await giveToken(page);
  await shows(page, "Still waiting: register default/orders/orders-13", "#notices");
  await shows(page, "orders-13", ".grid-body");

  await fleet.startRegistry();
  await shows(page, "Nothing is pending", "#content");
  await until(page, () => document.querySelector("#banners").childElementCount === 0);
  await shows(page, "Nothing is pending any more", "#announcer");
  await page.getByRole("link", { name: "Services" }).click();
  await shows(page, "catalog", ".grid-body");
  await page.getByRole("link", { name: "orders", exact: true }).click();
  await shows(page, "13 instances", "#count");
  await page.getByRole("link", { name: "orders-13" }).click();
  await shows(page, "10.0.6.13:8080", "#drawer .facts");
  await shows(page, "retrying at main", "#drawer .history");
  await shows(page, "acknowledged at main", "#drawer .history");
  await closePage(page);
});

test("a registry that is killed is told at its own console too", async () => {
  const page = await openPage(browser, fleet.registry.url, { allowed });
  await shows(page, "Nothing is registered");
  await shows(page, "registry", ".kind");
  await fleet.registry.kill();
  await shows(page, "This registry cannot be reached", "#banners");
  await closePage(page);
});

test("offline and back: a subscriber sees it, and what was registered is as it was", async () => {
  await fleet.startAgent(shop());
  const watcher = fleet.watch(fleet.registry, "orders");
  const page = await openPage(
    browser,
    `${fleet.registry.url}#/services/default/orders?instance=orders-2`,
    { allowed },
  );
  await shows(page, "version", "#drawer .metadata");
  await page.getByRole("button", { name: "Take offline" }).click();
  await page.getByLabel("Reason").fill("disk is full, ticket 4711");
  await page.getByLabel("Your name").fill("ada");
  await page.getByRole("button", { name: "Take it offline" }).click();
  await giveToken(page);
  await shows(page, "disk is full, ticket 4711", "#drawer .mark");
  await shows(page, "offline", "[aria-selected=true]");
  await shows(page, "taken offline", "#drawer .history");
  await screenshot(page, "console-instance");
  const marked = await watcher.until((instances) => instances.get("orders-2")?.offline);
  assert.equal(marked.get("orders-2").offline.reason, "disk is full, ticket 4711");
  assert.equal(marked.get("orders-1").offline, undefined);
  await page.getByRole("button", { name: "Back into rotation" }).click();
  await page.getByRole("button", { name: "Put it back" }).click();
  await shows(page, "healthy", "#drawer .rotation");
  const back = await watcher.until(
    (instances) => instances.get("orders-2") && !instances.get("orders-2").offline,
  );
  assert.deepEqual(back.get("orders-2").metadata, { version: "2.1.0", track: "stable" });
  assert.equal(back.get("orders-2").zone, "eu-west-1b");
  assert.doesNotMatch(page.url(), new RegExp(TOKEN));
  await closePage(page);
});
