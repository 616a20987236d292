/** Chromium without a network. A test fails if its page asks for anything, or writes to the console. */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { html } from "./pages.mjs";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? PLACES.find((place) => existsSync(place));
  if (!executablePath) throw new Error("Chromium is missing: install it, or say where it is with CHROMIUM=/path/to/chromium");
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--enable-precise-memory-info"] });
}

/**
 * Opens a payload from a file, as a reader would.
 *
 * `t` is node's test context, `hash` the part of the address after "#", `before` a function that runs in the page first; other
 * options are those of a browser context.
 */
export async function open(t, browser, payload, { hash = "", before, ...options } = {}) {
  const folder = await mkdtemp(join(tmpdir(), "explorer-"));
  const file = join(folder, "index.html");
  await writeFile(file, typeof payload === "string" ? payload : html(payload));
  const address = pathToFileURL(file).href;
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, acceptDownloads: true, ...options });
  await context.setOffline(true);
  const page = await context.newPage();
  if (before) await page.addInitScript(before);
  const said = [];
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("request", (request) => {
    const url = request.url();
    if (url.split("#")[0] !== address && !/^(data|blob):/.test(url)) said.push(`asks for ${url}`);
  });
  t.after(async () => {
    await context.close();
    await rm(folder, { recursive: true });
    assert.deepEqual(said, []);
  });
  await page.goto(hash ? `${address}#${hash}` : address);
  await page.locator(".mh-app").waitFor();
  return page;
}

/** Waits until a locator matches so many elements: parts of a page come when they are read. */
export async function counts(locator, wanted) {
  const until = Date.now() + 10_000;
  let found = await locator.count();
  while (found !== wanted && Date.now() < until) {
    await new Promise((wake) => setTimeout(wake, 20));
    found = await locator.count();
  }
  assert.equal(found, wanted, `${locator} matches ${found} elements`);
}

/** Waits until a page reads nothing any more. */
export const allRead = (page) => counts(page.locator(".card-reading"), 0);

/** Waits until the cards of a page show what they read. */
export async function cardsRead(page) {
  await page.locator(".card-panel > *").first().waitFor();
  await allRead(page);
}

/** What the address says is chosen. */
export function chosen(page) {
  return Object.fromEntries(new URLSearchParams(new URL(page.url()).hash.slice(1)));
}

/** The element of a head in a view. */
export function head(page, view, number) {
  return page.locator(`.mh-view-${view} [data-head="${number}"]`);
}

/** Clicks a head in a view, with keys held down if wanted. */
export function press(page, view, number, options = {}) {
  const mark = head(page, view, number);
  return view === "table" ? mark.locator("th").click(options) : mark.click({ force: true, ...options });
}

/** Serious faults of accessibility. */
export async function faults(page, within = "body") {
  const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const { violations } = await page.evaluate((each) => window.axe.run(each), within);
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(({ id, nodes }) => [id, nodes.length, nodes[0].html.slice(0, 300)]);
}

/** The text of a file that `act` makes the page save, and its name. */
export async function saved(page, act) {
  const [download] = await Promise.all([page.waitForEvent("download"), act()]);
  return { name: download.suggestedFilename(), content: await readFile(await download.path()) };
}
