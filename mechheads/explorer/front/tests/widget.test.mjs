/** The explorer in a notebook: anywidget calls `render`. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { deflateSync } from "node:zlib";
import { readFileSync } from "node:fs";
import { chosen, counts, launch, open } from "./browser.mjs";
import { html } from "./pages.mjs";
import { small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const [script, style] = ["js", "css"].map((kind) => readFileSync(new URL(`../../static/explorer.${kind}`, import.meta.url), "utf8"));

/** Draws a widget in an element of its own, as a notebook does: each has its own copy of the module. */
async function drawn(page, { page: about, blocks }, id) {
  const packed = Object.fromEntries(Object.entries(blocks).map(([name, each]) => [name, deflateSync(JSON.stringify(each)).toString("base64")]));
  await page.evaluate(
    async ([text, data, id]) => {
      const { default: widget } = await import(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
      const el = document.body.appendChild(document.createElement("div"));
      el.id = id;
      const model = { get: (name) => data[name], send() {}, on() {}, off() {} };
      window[id] = await widget.render({ model, el });
    },
    [script, { page: JSON.stringify(about), blocks: packed }, id],
  );
}

test("two widgets in a notebook: each has its own state and keys, and neither touches the address", async (t) => {
  const page = await browser.newPage();
  t.after(() => page.close());
  const said = [];
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  await page.addStyleTag({ content: style });
  for (const id of ["one", "two"]) await drawn(page, small(), id);
  const one = page.locator("#one");
  const two = page.locator("#two");
  await one.locator(".mh-view-map [data-head='13']").click();
  assert.equal(await one.locator(".mh-detail-title").textContent(), "L1H4");
  await one.locator(".card-panel > *").first().waitFor();
  await counts(two.locator(".mh-detail"), 0);
  await two.locator(".mh-view-map [data-head='2']").focus();
  await page.keyboard.press("p");
  assert.deepEqual([await one.locator(".mh-tray").count(), await two.locator(".mh-tray li").count()], [0, 1]);
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("]");
  assert.equal(await one.locator(".mh-detail-title").textContent(), "L1H4");
  assert.equal(await page.evaluate(() => location.hash), "");
  await counts(one.getByRole("button", { name: "Copy link" }), 0);
  await page.evaluate(() => window.one());
  await counts(one.locator("*"), 0);
  assert.deepEqual(said, []);
});

test("a widget has the theme of the notebook, and tells JupyterLab which keys are its own", async (t) => {
  const page = await browser.newPage({ colorScheme: "dark" });
  t.after(() => page.close());
  await page.addStyleTag({ content: style });
  await page.evaluate(() => document.body.setAttribute("data-jp-theme-light", "true"));
  await drawn(page, small(), "one");
  const paper = () => page.locator("#one").evaluate((element) => getComputedStyle(element).backgroundColor);
  assert.equal(await paper(), "rgb(255, 255, 255)");
  await page.emulateMedia({ colorScheme: "light" });
  await page.evaluate(() => document.body.setAttribute("data-jp-theme-light", "false"));
  assert.equal(await paper(), "rgb(20, 23, 29)");
  await page.evaluate(() => document.body.removeAttribute("data-jp-theme-light"));
  assert.equal(await paper(), "rgb(255, 255, 255)");
  const cell = page.locator("#one .mh-view-map [data-head='2']");
  const isOurs = () => cell.evaluate((element) => element.hasAttribute("data-lm-suppress-shortcuts"));
  await cell.press("x");
  assert.equal(await isOurs(), true);
  await cell.press("Control+s");
  assert.equal(await isOurs(), false);
});

test("a page in a frame has the theme that the notebook tells it, and no other window can", async (t) => {
  const page = await browser.newPage({ colorScheme: "light" });
  t.after(() => page.close());
  await page.evaluate((source) => {
    window.said = [];
    addEventListener("message", ({ data }) => window.said.push(data));
    const frame = Object.assign(document.createElement("iframe"), { srcdoc: source });
    frame.setAttribute("sandbox", "allow-scripts");
    document.body.append(frame);
  }, html(small()));
  await page.waitForFunction(() => window.said.some((data) => data?.mechheads === "drawn"));
  const root = page.frameLocator("iframe").locator("#mh-root");
  const paper = () => root.evaluate((element) => getComputedStyle(element).backgroundColor);
  assert.equal(await paper(), "rgb(255, 255, 255)");
  await root.evaluate(() => window.postMessage({ mechheads: "theme", light: false }, "*"));
  await page.waitForTimeout(100);
  assert.equal(await paper(), "rgb(255, 255, 255)");
  await page.evaluate(() => document.querySelector("iframe").contentWindow.postMessage({ mechheads: "theme", light: false }, "*"));
  for (let tries = 0; tries < 100 && (await paper()) !== "rgb(20, 23, 29)"; tries++) await page.waitForTimeout(50);
  assert.equal(await paper(), "rgb(20, 23, 29)");
});

test("a page in a frame is saved as a file that opens at the same view", async (t) => {
  const outer = await browser.newPage({ acceptDownloads: true });
  t.after(() => outer.close());
  await outer.evaluate((source) => {
    const frame = Object.assign(document.createElement("iframe"), { srcdoc: source, width: "1200", height: "800" });
    frame.setAttribute("sandbox", "allow-scripts allow-downloads");
    document.body.append(frame);
  }, html(small()));
  const page = outer.frameLocator("iframe");
  await page.locator(".mh-view-map [data-head='13']").click();
  await page.locator(".mh-search-line").fill("phi < 0.5");
  await counts(page.getByRole("button", { name: "Copy link" }), 0);
  const [saved] = await Promise.all([outer.waitForEvent("download"), page.getByRole("button", { name: "Save as a file" }).click()]);
  assert.equal(saved.suggestedFilename(), "mechheads-view.html");
  const again = await open(t, browser, readFileSync(await saved.path(), "utf8"));
  assert.equal(await again.locator(".mh-detail-title").textContent(), "L1H4");
  assert.deepEqual([chosen(again).head, chosen(again).filter], ["L1H4", "phi < 0.5"]);
  await again.locator(".card-panel > *").first().waitFor();
  await again.locator(".mh-search-line").fill("");
  await again.getByRole("button", { name: "Close", exact: true }).first().click();
  await counts(again.locator(".mh-detail"), 0);
});
