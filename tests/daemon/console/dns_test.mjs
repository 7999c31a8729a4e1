// The card of an agent's DNS server, and failbackctl, after queries that were answered, refused and limited.

import assert from "node:assert/strict";
import { createSocket } from "node:dgram";
import { Resolver } from "node:dns/promises";
import { once } from "node:events";
import { networkInterfaces } from "node:os";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { assertAccessible, closePage, launch, openPage, screenshot, until } from "./browser.mjs";
import { Fleet } from "./daemons.mjs";

const NAME = "orders.service.failback";

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

const dnsOf = async () => (await (await fetch(`${fleet.agent.url}overview`)).json()).dns;

// Until the card has these facts, by their names.
const showsFacts = (page, facts) =>
  until(
    page,
    (expected) => {
      const card = document.querySelector("section[aria-label=DNS]");
      if (!card) return false;
      const shown = new Map(
        [...card.querySelectorAll("dl > div")].map((row) => [
          row.querySelector("dt").innerText,
          row.querySelector("dd").innerText,
        ]),
      );
      return Object.entries(expected).every(([name, value]) => (shown.get(name) ?? null) === value);
    },
    facts,
  );

// A query for the address of NAME, by UDP to an address of another network than loopback.
async function flood(host, port, queries) {
  const header = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
  const question = NAME.split(".").flatMap((label) => [label.length, ...Buffer.from(label)]);
  const query = Buffer.from([...header, ...question, 0, 0, 1, 0, 1]);
  const socket = createSocket("udp4");
  socket.bind(0, host);
  await once(socket, "listening");
  for (let i = 0; i < queries; ++i)
    await new Promise((resolve) => socket.send(query, port, host, resolve));
  socket.close();
}

test("the zone, what was answered, and what was refused", async () => {
  const policy = fleet.policyFlags([
    { tokens: ["fleet"], allow: ["register"], namespaces: ["default"], services: "*" },
    { tokens: ["fleet"], allow: ["read"], namespaces: ["default"], services: ["orders", "nobody"] },
  ]);
  await fleet.startRegistry(...policy);
  const service = (name) => ({ name, id: `${name}-1`, address: "10.0.0.1", port: 80 });
  await fleet.startAgent(
    [service("orders"), service("secret")],
    "--token-file",
    fleet.tokenFile,
    "--zone",
    "eu-1",
    "--dns",
    "127.0.0.1:0",
  );
  await fleet.ctl(fleet.agent, "wait-ready");
  const page = await openPage(browser, `${fleet.agent.url}#/status`);
  const [address] = (await dnsOf()).addresses;
  await showsFacts(page, {
    Domain: "failback.",
    Addresses: address,
    "Zone that comes first": "eu-1",
    Queries: "0",
    "With records": "0",
    Refused: "0",
    "Beyond the rate": null,
  });

  const resolver = new Resolver({ timeout: 10_000, tries: 1 });
  resolver.setServers([address]);
  assert.deepEqual(await resolver.resolve4(NAME), ["10.0.0.1"]);
  await assert.rejects(resolver.resolve4("nobody.service.failback"), { code: "ENOTFOUND" });
  await assert.rejects(resolver.resolve6(NAME), { code: "ENODATA" });
  await assert.rejects(resolver.resolve4("secret.service.failback"), { code: "EREFUSED" });
  const dns = await dnsOf();
  assert.ok(Number(dns.refused) > 0, JSON.stringify(dns));
  await showsFacts(page, {
    Queries: dns.queries,
    "With records": dns.answered,
    "Without records": dns.noData,
    "No such name": dns.nxDomain,
    Refused: dns.refused,
  });
  assert.ok(Number(dns.answered) > 0 && Number(dns.noData) > 0 && Number(dns.nxDomain) > 0);
  await assertAccessible(page, "the DNS card");
  await screenshot(page, "console-dns");
  await closePage(page);

  // The admin endpoint says the same as failbackctl.
  const explained = await (await fetch(`${fleet.agent.url}dns/${NAME}`)).json();
  assert.deepEqual(explained, JSON.parse(await fleet.ctl(fleet.agent, "dns", NAME, "-o", "json")));
  assert.equal(explained.rcode, "NOERROR");
  assert.deepEqual(explained.records[0], { type: "A", data: "10.0.0.1" });
  const table = await fetch(`${fleet.agent.url}dns/${NAME}`, { headers: { accept: "text/plain" } });
  assert.equal(await table.text(), await fleet.ctl(fleet.agent, "dns", NAME));
  assert.equal((await fetch(`${fleet.agent.url}dns/${"a".repeat(1025)}`)).status, 400);

  const status = await fleet.ctl(fleet.agent, "status");
  assert.ok(status.includes(`dns           ${address} for failback., zone eu-1\n`), status);
  assert.match(status, new RegExp(`${dns.queries} queries: .* ${dns.refused} refused, 0 failed, 0 limited\n`));
  const said = await fleet.ctl(fleet.agent, "dns", "secret.service.failback");
  assert.match(said, /^REFUSED: service secret of namespace default: the server's reader may not read it/);
});

const [outside] = Object.values(networkInterfaces())
  .flat()
  .filter(({ family, internal }) => family === "IPv4" && !internal);

test(
  "beyond the rate of a network",
  { skip: !outside && "this machine has no network but loopback, which has no rate" },
  async () => {
    await fleet.startRegistry();
    const rate = ["--dns-allow-remote", "true", "--dns-responses-per-second", "1"];
    await fleet.startAgent([], "--dns", `${outside.address}:0`, ...rate);
    await fleet.ctl(fleet.agent, "wait-ready");
    const [address] = (await dnsOf()).addresses;
    await flood(outside.address, Number(address.split(":").pop()), 50);
    const deadline = Date.now() + 60_000;
    let dns;
    do {
      assert.ok(Date.now() < deadline, JSON.stringify(dns));
      dns = await dnsOf();
    } while (Number(dns.queries) < 50);
    assert.ok(Number(dns.limited) > 0, JSON.stringify(dns));
    const page = await openPage(browser, `${fleet.agent.url}#/status`);
    await showsFacts(page, { "Beyond the rate": dns.limited, Queries: dns.queries });
    await closePage(page);
    assert.match(await fleet.ctl(fleet.agent, "status"), new RegExp(` ${dns.limited} limited\n`));
  },
);
