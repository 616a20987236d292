/** A page of 1,024 heads stays quick. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chosen, counts, launch, open } from "./browser.mjs";
import { measure } from "./measure.mjs";
import { large } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

test("1,024 heads: every view marks a head within 50 ms", async (t) => {
  const { heads, hoverMs } = await measure(t, browser, large(32, 32));
  assert.equal(heads, 1024);
  for (const [view, { script }] of Object.entries(hoverMs)) assert.ok(script < 50, `${view}: ${script} ms`);
});

test("1,024 heads: only the rows in sight are in the document, and all can be reached", async (t) => {
  const page = await open(t, browser, large(32, 32), { hash: "sort=" });
  await counts(page.locator(".mh-view-map [role=gridcell]"), 1024);
  const rows = () => page.locator(".mh-row").count();
  assert.ok((await rows()) < 40);
  await page.locator(".mh-row th").first().focus();
  await page.keyboard.press("Control+End");
  await page.waitForFunction(() => document.activeElement.parentElement?.dataset.head === "1023");
  assert.ok((await rows()) < 40);
  await page.keyboard.press("Control+Home");
  await page.waitForFunction(() => document.activeElement.parentElement?.dataset.head === "0");
  await page.keyboard.press("[");
  assert.equal(chosen(page).head, "L31H31");
});
