// The console in a browser, on a fake daemon: what it shows, at every size, by mouse, keyboard and screen reader.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import {
  assertAccessible,
  assertNoSidewaysScroll,
  closePage,
  launch,
  openPage,
  PHONE,
  screenshot,
  shows,
  until,
} from "./browser.mjs";
import { startFakeAdmin, TOKEN } from "./fake_admin.mjs";
import { SCENARIOS } from "./fake_states.mjs";

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

// Runs `body` on a page over a fake daemon in the state of a scenario.
async function withPage(scenario, hash, options, body) {
  const fake = await startFakeAdmin(SCENARIOS[scenario]());
  const page = await openPage(browser, fake.url + hash, options);
  try {
    await body(page, fake);
    await closePage(page);
  } finally {
    await fake.stop();
  }
}

const rowsIn = (page) => page.locator(".grid-body [role=row]").count();

// Scenario, place, what is to be seen there, and whether it shows most of the colours.
const VIEWS = [
  ["registry", "#/services", "catalog", false],
  ["agent", "#/services/default/catalog?instance=catalog-8", "Take offline", true],
  ["outage", "#/pending", "Retry now", true],
  ["outage", "#/status", "acknowledged", false],
  ["unsettled", "#/intents", "held by failback-agent@web-8", true],
  ["registry", "#/agents", "In trouble", true],
  ["registry", "#/sessions", "held", false],
  ["registry", "#/status", "Guard off", false],
  ["unsettled", "#/services/default/orders", "superseded", true],
  ["empty", "#/services", "Nothing is registered", false],
  ["registry", "#/services/default/orders?q=nobody", "No instance matches", false],
];
for (const [scenario, hash, text, colourful] of VIEWS) {
  test(`everybody can read ${hash} (${scenario}), at every width, in light and dark`, async () => {
    await withPage(scenario, hash, {}, async (page) => {
      await shows(page, text);
      await assertAccessible(page, "the page");
      if (colourful) {
        await page.emulateMedia({ colorScheme: "dark" });
        await assertAccessible(page, "the dark page");
      }
      await page.setViewportSize(PHONE);
      await shows(page, text);
      await assertNoSidewaysScroll(page, "a phone's page");
      if (colourful) await assertAccessible(page, "a phone's page");
    });
  });
}

test("ten thousand instances: few rows in the document, all of them within reach", async () => {
  await withPage("large", "#/services/default/fleet", {}, async (page) => {
    await shows(page, "10,000 instances", "#count");
    await until(page, () => document.querySelector("[aria-rowcount='10001']"));
    // From the top to the very end, at places that no row's height divides: what is below the head and above
    // the window's end is told, row after row.
    const seen = await page.evaluate(async () => {
      const places = [];
      const end = document.documentElement.scrollHeight - innerHeight;
      for (let step = 0; step <= 40; step++) {
        scrollTo(0, (end * step) / 40);
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        const rows = [...document.querySelectorAll(".grid-body [role=row]")];
        const head = document.querySelector(".grid-head").getBoundingClientRect().bottom;
        const visible = rows.filter((row) => {
          const { top, bottom } = row.getBoundingClientRect();
          return bottom > head && top < innerHeight;
        });
        const covered = visible.reduce((sum, row) => sum + row.getBoundingClientRect().height, 0);
        const gap =
          Math.min(innerHeight, rows.at(-1).getBoundingClientRect().bottom) - head - covered;
        places.push({
          rows: rows.length,
          gap,
          ids: visible.map((row) => row.querySelector(".row-title").textContent),
          indices: visible.map((row) => Number(row.ariaRowIndex)),
        });
      }
      return places;
    });
    for (const { rows, gap, ids, indices } of seen) {
      assert.ok(rows < 60, `${rows} rows in the document`);
      assert.ok(gap <= 0, `${gap} px without a row`);
      assert.deepEqual(
        ids,
        indices.map((index) => `fleet-${index - 1}`),
      );
      assert.deepEqual(
        indices,
        ids.map((_, i) => indices[0] + i),
      );
    }
    assert.equal(seen[0].ids[0], "fleet-1");
    assert.equal(seen.at(-1).ids.at(-1), "fleet-10000");

    await page.fill("#filter", "track=canary eu-west-1b");
    await shows(page, "of 10,000 match", "#count");
    assert.match(await page.innerText("#count"), /^333 instances/);
    assert.match(page.url(), /q=track%3Dcanary\+eu-west-1b/);
    await page.locator("[data-parameter=status][data-value=unhealthy]").click();
    await until(
      page,
      () =>
        document.querySelector("#count").innerText.startsWith("0 instances") ||
        document.querySelector(".empty"),
    );
    await page.fill("#filter", "");
    await shows(page, "250 instances of 10,000 match", "#count");
  });
});

test("ten thousand intents pending come down to their reasons", async () => {
  await withPage("large", "#/pending", {}, async (page) => {
    await shows(page, "10,000 ×", ".reason");
    await shows(page, "Connection refused", ".reason");
    assert.ok((await rowsIn(page)) < 60);
    await page.fill("#filter", "orders-10000");
    await shows(page, "1 intent of 10,000 match", "#count");
  });
});

test("by keyboard alone: filter, rows, details, and back where one was", async () => {
  await withPage("agent", "#/services", {}, async (page) => {
    await shows(page, "catalog", ".grid-body");
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.id), "skip");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "content");
    await page.keyboard.press("/");
    await page.keyboard.type("catal");
    await shows(page, "1 service match", "#count");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await until(page, () => location.hash === "#/services/default/catalog");
    await shows(page, "180 instances", "#count");
    // Focus is told where it is now.
    assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1");
    for (const key of ["j", "j", "j", "k", "ArrowDown"]) await page.keyboard.press(key);
    assert.match(await page.evaluate(() => document.activeElement.innerText), /^catalog-3/);
    await page.keyboard.press("End");
    assert.match(await page.evaluate(() => document.activeElement.innerText), /^catalog-180/);
    assert.equal(await page.evaluate(() => document.activeElement.ariaRowIndex), "181");
    await page.keyboard.press("Enter");
    await shows(page, "Session and lease".toUpperCase(), "#drawer");
    assert.equal(await page.evaluate(() => document.activeElement.id), "drawer-title");
    await page.keyboard.press("Escape");
    await until(page, () => document.querySelector("#drawer").hidden);
    assert.match(await page.evaluate(() => document.activeElement.innerText), /^catalog-180/);
    // Scrolled far away the row with the focus is still there.
    await page.evaluate(() => scrollTo(0, 0));
    await until(page, () => document.querySelector("[aria-rowindex='2']"));
    assert.match(await page.evaluate(() => document.activeElement.innerText), /^catalog-180/);
    await page.keyboard.press("?");
    await shows(page, "close what is open", "#dialog");
    await page.keyboard.press("Escape");
    await page.keyboard.press("4");
    await until(page, () => location.hash === "#/status");
  });
});

test("a pending row opens by click and by Enter, and tells all that is known of it", async () => {
  await withPage("outage", "#/pending", {}, async (page) => {
    await shows(page, "orders-1", ".grid-body");
    await page.locator(".grid-body [role=row] .cell-reason").first().click();
    await shows(page, "Generation", "#drawer .facts");
    await shows(page, "UNAVAILABLE", "#drawer");
    await assertAccessible(page, "an open intent");
    await page.keyboard.press("Escape");
    await until(page, () => document.querySelector("#drawer").hidden);
    // The row that was open has the keyboard again.
    await until(page, () => document.activeElement?.getAttribute("role") === "row");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await until(page, () => !document.querySelector("#drawer").hidden);
    await page.reload();
    await shows(page, "Generation", "#drawer .facts");
    await page.goto(`${page.url().split("#")[0]}#/pending?row=main%20register%20default%2Fx%2Fy`);
    await shows(page, "It is not pending", "#drawer");
  });
});

test("own intents: by state, and each opens by click and by Enter", async () => {
  await withPage("unsettled", "#/intents", {}, async (page) => {
    await shows(page, "12 intents", "#count");
    await screenshot(page, "console-intents");
    await page.getByRole("button", { name: "Parked" }).click();
    await shows(page, "3 intents of 12 match", "#count");
    await shows(page, "may not register", ".grid-body");
    await page.locator(".grid-body [role=row] .cell-reason").first().click();
    await shows(page, "orders-4", "#drawer h2");
    await shows(page, "parked", "#drawer .rotation");
    await assertAccessible(page, "an open intent");
    await screenshot(page, "console-intent-open");
    await page.keyboard.press("Escape");
    await until(page, () => document.activeElement?.getAttribute("role") === "row");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await shows(page, "orders-8", "#drawer h2");
    await page.reload();
    await shows(page, "orders-8", "#drawer h2");
  });
});

test("what the registry denies is not called an outage", async () => {
  await withPage("denied", "#/services/default/orders", {}, async (page) => {
    await shows(page, "The registry does not list these (PERMISSION_DENIED", "#banners");
    assert.ok(!(await page.innerText("#banners")).includes("away"));
    await page.locator(".grid-body [role=row]").first().click();
    await shows(page, "What is shown is what this agent carries", "#drawer");
  });
});

test("certificates that end soon are on the status page", async () => {
  await withPage("certificates", "#/status", {}, async (page) => {
    await shows(page, "spiffe://prod/late");
    await assertAccessible(page, "certificates");
    await screenshot(page, "console-certificates");
  });
});

test("the fleet: which agents are in trouble and why, and whose sessions are held", async () => {
  const allowed = (text) => text.includes("401");
  await withPage("registry", "#/agents", { allowed }, async (page) => {
    await shows(page, "12 agents", "#count");
    await page.getByRole("button", { name: "In trouble" }).click();
    await shows(page, "3 agents of 12 match", "#count");
    await shows(page, "2 parked operations; 1 superseded registration", ".grid-body");
    await screenshot(page, "console-agents");
    await page.keyboard.press("3");
    await shows(page, "14 sessions", "#count");
    await shows(page, "s at most", ".grid-body");
    await screenshot(page, "console-sessions");
    await page.keyboard.press("4");
    await page.getByRole("button", { name: "Guard off" }).click();
    await page.getByRole("button", { name: "Switch it off" }).click();
    await page.getByLabel("Token", { exact: true }).fill(TOKEN);
    await page.getByRole("button", { name: "Go on" }).click();
    await shows(page, "2 sessions released", "#notices");
  });
});

test("what no registry has acknowledged is not shown as healthy", async () => {
  await withPage("unsettled", "#/services/default/orders", {}, async (page) => {
    await shows(page, "12 instances", "#count");
    assert.equal(await page.locator(".grid-body .badge.is-healthy").count(), 0);
    await screenshot(page, "console-unsettled");
    await page.getByRole("button", { name: "Lapsed" }).click();
    await shows(page, "3 instances of 12 match", "#count");
    assert.equal(await page.title(), "orders · failback-agent@web-7 · Failback agent");
    await shows(page, "failback-agent@web-7", "#top");
    await page.goto(`${page.url().split("#")[0]}#/services`);
    await shows(page, "3 pending, 3 parked, 3 superseded, 3 lapsed", ".grid-body");
  });
});

test("what a registry over etcd does not know is not shown as zero", async () => {
  await withPage("etcd", "#/status", {}, async (page) => {
    await shows(page, "Kept by etcd");
    const text = await page.textContent("main");
    for (const word of ["Epoch", "4,711", "12"]) assert.ok(text.includes(word), word);
    for (const word of ["Instances", "Writes", "Eviction"]) assert.ok(!text.includes(word), word);
  });
});

test("a link shows a colleague the same", async () => {
  const hash =
    "#/services/default/catalog?q=version%3D2.3.0&status=unhealthy&sort=-zone&instance=catalog-8";
  await withPage("agent", hash, {}, async (page) => {
    await shows(page, "5 instances of 180 match", "#count");
    assert.equal(await page.inputValue("#filter"), "version=2.3.0");
    assert.equal(await page.getAttribute("[data-value=unhealthy]", "aria-pressed"), "true");
    assert.equal(
      await page.getAttribute("[role=columnheader]:has([data-sort=zone])", "aria-sort"),
      "descending",
    );
    await shows(page, "catalog-8", "#drawer h2");
    await page.goBack();
  });
});

test("sorting: each column, up, down, and as it came", async () => {
  await withPage("registry", "#/services", {}, async (page) => {
    await shows(page, "catalog", ".grid-body");
    const first = () => page.locator(".grid-body .row-title").first().innerText();
    await page.click("[data-sort=total]");
    await until(page, () => document.querySelector(".grid-body .row-title").innerText === "mail");
    await page.click("[data-sort=total]");
    await until(
      page,
      () => document.querySelector(".grid-body .row-title").innerText === "catalog",
    );
    assert.match(page.url(), /sort=-total/);
    await page.click("[data-sort=total]");
    assert.doesNotMatch(page.url(), /sort/);
    assert.equal(await first(), "catalog");
  });
});

test("what has not changed is not sent again", async () => {
  await withPage("large", "#/services/default/fleet", {}, async (page, fake) => {
    await shows(page, "10,000 instances", "#count");
    const rounds = () => fake.asked.filter((path) => path === "/overview").length;
    const seen = rounds();
    const lists = () => fake.asked.filter((path) => path.endsWith("/fleet")).length;
    await until(
      page,
      (number) => performance.getEntriesByName(`${location.origin}/overview`).length > number,
      seen + 2,
    );
    // The overview has the time in it and is new each time; the four pages of the list came once.
    assert.ok(rounds() >= seen + 2);
    assert.equal(lists(), 4);
    fake.change(({ rows }) => rows.pop());
    await shows(page, "9,999 instances", "#count");
    assert.equal(lists(), 8);
  });
});

test("a daemon that cannot be reached is told at once, and so is its return", async () => {
  // What the browser calls it depends on how far it has come.
  const allowed = (text) => text.includes("net::ERR_");
  await withPage("registry", "", { allowed }, async (page, fake) => {
    await shows(page, "catalog");
    fake.hangUp();
    await shows(page, "This registry cannot be reached", "#banners");
    await shows(page, "cannot be reached", "#announcer");
    await shows(page, "unreachable", "#top");
    // What was known stays readable.
    await shows(page, "catalog", ".grid-body");
    await assertAccessible(page, "an unreachable daemon");
    await page.getByRole("button", { name: "Try now" }).click();
    await shows(page, "This registry cannot be reached", "#banners");
    fake.comeBack();
    await until(page, () => document.querySelector("#banners").childElementCount === 0);
    await shows(page, "Connected again", "#announcer");
  });
});

test("offline and back: a reason, a confirmation, the token once and in no address", async () => {
  await withPage(
    "agent",
    "#/services/default/orders?instance=orders-3",
    { allowed: (text) => text.includes("401") },
    async (page) => {
      await page.getByRole("button", { name: "Take offline" }).click();
      await assertAccessible(page, "the dialog");
      await page.keyboard.press("Escape");
      await until(page, () => !document.querySelector("#dialog").open);
      await page.getByRole("button", { name: "Take offline" }).click();
      await page.getByLabel("Reason").fill("disk <b>full</b>");
      await page.getByLabel("Your name").fill("ada");
      await page.getByRole("button", { name: "Take it offline" }).click();
      await page.getByLabel("Token", { exact: true }).fill("wrong");
      await page.getByRole("button", { name: "Go on" }).click();
      await shows(page, "not accepted", "#dialog");
      await page.getByLabel("Token", { exact: true }).fill("let-me-in");
      await page.getByRole("button", { name: "Go on" }).click();
      await shows(page, "orders-3 is offline.", "#notices");
      // As text, whatever it is.
      await shows(page, "disk <b>full</b>", "#drawer .mark");
      await shows(page, "taken offline by ada", "#drawer");
      await shows(page, "its owner says: healthy", "#drawer");
      await page.getByRole("button", { name: "Back into rotation" }).click();
      await page.getByRole("button", { name: "Put it back" }).click();
      await shows(page, "orders-3 is back in rotation.", "#notices");
      await shows(page, "back in rotation by ada", "#drawer");
      assert.doesNotMatch(page.url(), /let-me-in/);
      assert.equal(
        await page.evaluate(() => JSON.stringify({ ...localStorage }).includes("let-me-in")),
        false,
      );
    },
  );
});

test("retry one, retry those of a reason, give one up", async () => {
  await withPage(
    "outage",
    "#/pending",
    { allowed: (text) => text.includes("401") },
    async (page, fake) => {
      await page
        .getByRole("button", { name: "Retry now: register default/orders/orders-1" })
        .click();
      await page.getByLabel("Token", { exact: true }).fill("let-me-in");
      await page.keyboard.press("Enter");
      await shows(page, "Done: register default/orders/orders-1", "#notices");
      await shows(page, "under way", "[aria-rowindex='2']");
      await page.locator(".reason", { hasText: "PERMISSION_DENIED" }).click();
      await shows(page, "1 intent of 6 match", "#count");
      await page.getByRole("button", { name: "Retry the 1 shown" }).click();
      await shows(page, "Trying again: 1 intent", "#notices");
      assert.equal(
        fake.state.pending.filter(({ state }) => state === "PENDING_STATE_IN_FLIGHT").length,
        2,
      );
      await page.goto(`${fake.url}#/pending`);
      await page.getByRole("button", { name: "Cancel: register default/orders/orders-2" }).click();
      await page.getByRole("button", { name: "Give it up" }).click();
      await shows(page, "5 intents", "#count");
      await page.getByRole("button", { name: "Cancel: register default/orders/orders-1" }).click();
      await page.getByRole("button", { name: "Give it up" }).click();
      await shows(page, "It had been sent, and may still take effect.", "#notices");
    },
  );
});

test("light and dark can be chosen, and the choice lasts", async () => {
  await withPage("registry", "", { scheme: "dark" }, async (page) => {
    const ground = () =>
      page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const dark = await ground();
    await page.getByRole("button", { name: "Colours: auto" }).click();
    const light = await ground();
    assert.notEqual(light, dark);
    await page.reload();
    assert.equal(await ground(), light);
    await page.getByRole("button", { name: "Colours: light" }).click();
    assert.equal(await ground(), dark);
  });
});

test("a hidden page asks less and less", async () => {
  await withPage("registry", "#/services", {}, async (page) => {
    await shows(page, "catalog");
    const delays = await page.evaluate(async () => {
      Object.defineProperty(document, "hidden", { get: () => true });
      const { Poller } = await import("/console/poller.js");
      const waits = [];
      const wait = setTimeout;
      // The poller's own waits, taken at once.
      window.setTimeout = (run, delay) => {
        waits.push(delay);
        return waits.length < 9 ? wait(run, 0) : 0;
      };
      await new Promise((resolve) => {
        const poller = new Poller(
          async () => {},
          () => waits.length === 9 && resolve(),
        );
        poller.now();
      });
      window.setTimeout = wait;
      return waits;
    });
    assert.deepEqual(
      delays.map((delay) => Math.round(delay / 1000)),
      [2, 4, 8, 16, 32, 60, 60, 60, 60],
    );
  });
});
