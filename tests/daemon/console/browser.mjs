// Debian's Chromium, headless, with what every page of a test has to keep: no error in its console, no
// request to anywhere but where it came from.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import axe from "axe-core";
import { chromium } from "playwright-core";

export const PATIENCE_MS = 60_000;
export const DESKTOP = { width: 1280, height: 800 };
export const PHONE = { width: 360, height: 740 };

export const launch = () =>
  chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--disable-gpu"],
    timeout: PATIENCE_MS,
  });

// A page of its own profile at `url`. `allowed` tells of a console error that is part of the test.
export async function openPage(
  browser,
  url,
  { viewport = DESKTOP, scheme = "light", allowed = () => false } = {},
) {
  const context = await browser.newContext({
    viewport,
    colorScheme: scheme,
    locale: "en-GB",
    reducedMotion: "reduce",
  });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  page.problems = [];
  const origin = new URL(url).origin;
  page.on("console", (message) => {
    if (message.type() === "error" && !allowed(message.text())) page.problems.push(message.text());
  });
  page.on("pageerror", (error) => page.problems.push(error.stack));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) page.problems.push(`asked for ${request.url()}`);
  });
  await page.goto(url);
  return page;
}

// Closes the page, which has kept the rules.
export async function closePage(page) {
  assert.deepEqual(page.problems, []);
  await page.context().close();
}

// Until `condition` holds in the page; else fails with what the page shows.
export async function until(page, condition, argument) {
  try {
    return await page.waitForFunction(condition, argument, { timeout: PATIENCE_MS });
  } catch (error) {
    throw new Error(
      `${error.message}\ncondition: ${condition}\nthe page: ${await page.innerText("body")}`,
    );
  }
}

// Until the page shows `text` somewhere in `selector`.
export const shows = (page, text, selector = "body") =>
  until(
    page,
    ([where, what]) =>
      [...document.querySelectorAll(where)].some((element) => element.innerText.includes(what)),
    [selector, text],
  );

// Nothing that axe finds wrong, WCAG 2.1 A and AA and best practices.
export async function assertAccessible(page, what) {
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => window.axe.run(document));
  const found = violations.map(({ id, help, nodes }) => ({
    id,
    help,
    where: nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).slice(0, 3),
  }));
  assert.deepEqual(found, [], `accessibility of ${what}`);
}

export async function assertNoSidewaysScroll(page, what) {
  const beyond = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
  );
  assert.equal(beyond, 0, `${what} is ${beyond} px too wide`);
}

// The top of the window as a picture, where the suite keeps what a test leaves behind.
export async function screenshot(page, name, height = page.viewportSize().height) {
  const folder = process.env.TEST_UNDECLARED_OUTPUTS_DIR;
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  const clip = { x: 0, y: 0, width: page.viewportSize().width, height };
  await page.screenshot({ path: join(folder, `${name}.png`), clip });
}
