/** The explorer in a notebook: anywidget calls `render`. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { deflateSync } from "node:zlib";
import { readFileSync } from "node:fs";
import { launch } from "./browser.mjs";
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
  assert.equal(await two.locator(".mh-detail").count(), 0);
  await two.locator(".mh-view-map [data-head='2']").focus();
  await page.keyboard.press("p");
  assert.deepEqual([await one.locator(".mh-tray").count(), await two.locator(".mh-tray li").count()], [0, 1]);
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("]");
  assert.equal(await one.locator(".mh-detail-title").textContent(), "L1H4");
  assert.equal(await page.evaluate(() => location.hash), "");
  assert.equal(await one.getByRole("button", { name: "Copy link" }).count(), 0);
  await page.evaluate(() => window.one());
  assert.equal(await one.locator("*").count(), 0);
  assert.deepEqual(said, []);
});
