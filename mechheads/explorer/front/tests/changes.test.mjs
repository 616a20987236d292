/** Two models of the same sizes: the page opens on what changed most. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chosen, counts, faults, launch, open } from "./browser.mjs";
import { HOSTILE, small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const ROWS = [
  { head: "L1H2", view: "patching", before: 0.1, after: 0.6, difference: 0.5, low: 0.4, high: 0.6, q: 0.02, size: 5, beyond: true },
  { head: "L0H3", view: "patching", before: 0.1, after: 0, difference: -0.1, low: null, high: null, q: null, size: 1, beyond: false },
];

/** The small model twice. */
function twice({ rows = ROWS, beyond = 1, surely = 1, name = "tuned", within = [] } = {}) {
  const { page, blocks } = small();
  const [model] = page.models;
  const differences = { ...model.columns.find((column) => column.name === "patching"), name: "patching_change", label: "Patching, change", group: "Changed from small", low: null, high: null, q: null, signed: true };
  const tuned = { ...structuredClone(model), name, columns: [...model.columns, differences] };
  const views = [{ name: "patching", title: "Patching", unit: "share restored", how: "Differences on the same 8 prompts.", known: 36, beyond, surely }];
  const start = { model: 1, head: null, chosen: { versus: 0, together: true, colour: "patching_change", by: "patching_change" } };
  const more = Object.fromEntries(Object.entries(blocks).map(([id, block]) => [id.replace("-0", "-1"), block]));
  return { page: { ...page, title: "Two models", models: [model, tuned], start, changes: [{ model: 1, of: 0, views, unlike: "", rows, within }] }, blocks: { ...blocks, ...more } };
}

test("the page opens on the changes, the maps of both models beside it, and nothing is in the address", async (t) => {
  const page = await open(t, browser, twice());
  assert.deepEqual(chosen(page), {});
  assert.equal(await page.evaluate(() => scrollY), 0);
  const rows = await page.locator(".mh-changed tbody tr").allTextContents();
  assert.deepEqual(rows, ["L1H2Patching (share restored)0.1000.600+0.50 [0.40, 0.60]yes, q = 0.020", "L0H3Patching (share restored)0.1000\u22120.100no"]);
  assert.match(await page.locator(".mh-changes > p").textContent(), /with a family p of at most 0.05/);
  await counts(page.locator(".mh-one-map"), 2);
  assert.match(await page.locator(".mh-one-map").nth(1).locator(".mh-legend").textContent(), /Patching, change/);
  assert.deepEqual(await faults(page), []);
});

test("a row opens the two heads side by side; Escape goes back to the list", async (t) => {
  const page = await open(t, browser, twice());
  await page.getByRole("button", { name: "L1H2 of both models, side by side" }).press("Enter");
  assert.deepEqual(chosen(page), { compared: "1.L1H2,L1H2" });
  await counts(page.locator(".mh-cards .card"), 2);
  await counts(page.locator(".mh-differences tbody th", { hasText: "change" }), 0);
  await page.keyboard.press("Escape");
  await page.locator(".mh-changes").waitFor();
});

test("it says so if nothing changed beyond the intervals, or at all", async (t) => {
  const rows = ROWS.map((row) => ({ ...row, beyond: false }));
  const page = await open(t, browser, twice({ rows, beyond: 0, surely: 0 }));
  assert.match(await page.locator(".mh-changes > p").textContent(), /^Nothing changed beyond the intervals/);
  const same = await open(t, browser, twice({ rows: [], beyond: 0, surely: 0 }));
  assert.match(await same.locator(".mh-changes > p").textContent(), /^No head changed at all/);
});

test("it says which views of the two are of different questions", async (t) => {
  const payload = twice();
  payload.page.changes[0].unlike = "Phi is not compared.";
  const page = await open(t, browser, payload);
  assert.equal(await page.locator(".mh-unlike").textContent(), "Phi is not compared.");
});

test("larger changes within their intervals are named below the list", async (t) => {
  const [row] = ROWS;
  const page = await open(t, browser, twice({ within: [{ ...row, head: "L2H3", difference: 0.9, beyond: false }] }));
  assert.match(await page.locator(".mh-within").textContent(), /within their intervals; more prompts would tell: L2H3 Patching \+0\.900$/);
  await page.locator(".mh-within button").click();
  assert.deepEqual(chosen(page), { compared: "1.L2H3,L2H3" });
});

test("a hostile name stays text, and the other way round there is no list", async (t) => {
  const page = await open(t, browser, twice({ name: HOSTILE }));
  await counts(page.locator(".mh-changes img, .mh-changes script"), 0);
  await page.getByLabel("Model", { exact: true }).selectOption("0");
  await page.getByLabel("Compare with").selectOption("1");
  await page.locator(".mh-compare").waitFor();
  await counts(page.locator(".mh-changes"), 0);
});
