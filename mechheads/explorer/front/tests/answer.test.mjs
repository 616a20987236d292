/** The answer at the top: its links show what its sentences say, and can be copied, opened and used by keyboard. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chosen, counts, faults, launch, open } from "./browser.mjs";
import { hostile, small, two } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const model = small().page.models[0];
const sentences = (page) => page.locator(".mh-answer > ul > li:visible");
const lead = (page, words) => page.locator(".mh-answer > ul > li > a:first-child", { hasText: new RegExp(`^${words}`) });
const title = (page) => page.locator(".mh-detail-title").textContent();
const marked = (page) => page.locator(".mh-view-map [data-head]:not(.is-dim)").count();
const folded = (page) => page.locator(".mh-disagreements summary");

test("every sentence stands at the top, above a map that is in the first window", async (t) => {
  const page = await open(t, browser, small());
  assert.deepEqual(await sentences(page).allTextContents(), model.answer.map(({ text }) => text));
  const { y, height } = await page.locator(".mh-view-map svg.mh-drawing").first().boundingBox();
  assert.ok(y + height <= 900, `the map ends at ${y + height}`);
  assert.equal(new URL(page.url()).hash, "");
});

test("a sentence shows what it says, the back button returns, and its address opens the same", async (t) => {
  const page = await open(t, browser, small());
  await lead(page, "Patched for the capital").click();
  const { head, pane, colour, filter } = model.answer[0].link;
  assert.equal(await title(page), head);
  assert.deepEqual({ head, pane, colour, filter }, Object.fromEntries(["head", "pane", "colour", "filter"].map((key) => [key, chosen(page)[key]])));
  const q = model.columns.find(({ name }) => name === "patching_q").values;
  assert.equal(await marked(page), q.filter((value) => value !== null && value <= 0.1).length);
  assert.match(await page.locator(".card [role=tab][aria-selected=true]").textContent(), /effects/);
  await page.goBack();
  await counts(page.locator(".mh-detail"), 0);
  const href = await lead(page, "Patched for the capital").getAttribute("href");
  const again = await open(t, browser, small(), { hash: href.slice(1) });
  assert.equal(await title(again), head);
});

test("pins stay when a sentence is followed; what was filtered before goes", async (t) => {
  const page = await open(t, browser, small(), { hash: "pins=L0H1&filter=L0&colour=phi&answer=all" });
  await lead(page, "By their weights").click();
  assert.deepEqual(chosen(page), { pins: "L0H1", answer: "all", filter: "Linguistic or Algorithmic" });
  const { names, of } = model.categories;
  const kinds = ["Linguistic", "Algorithmic"].map((name) => names.indexOf(name));
  assert.equal(await marked(page), of.filter((each) => each?.some((kind) => kinds.includes(kind))).length);
});

test("a head in a sentence is marked under the pointer and opens its card", async (t) => {
  const page = await open(t, browser, small());
  const name = page.locator(".mh-answer-head", { hasText: "L3H1" }).first();
  await name.hover();
  assert.match(await page.locator(".mh-view-map .is-hovered").getAttribute("data-head"), /^28$/);
  await name.click();
  assert.equal(await title(page), "L3H1");
  assert.equal(chosen(page).pane, "cause");
});

test("sections that lie folded open by a sentence, also from the address", async (t) => {
  const page = await open(t, browser, small());
  await lead(page, "With all other heads patched").click();
  const circuits = page.locator(".mh-end details.is-section");
  assert.match(await circuits.locator("summary").textContent(), /Circuits/);
  assert.match(await circuits.innerText(), /the first 4: 0\.91/);
  await page.waitForFunction(() => document.activeElement?.textContent === "Circuits");
  assert.equal(chosen(page).section, "circuits");
  await circuits.locator("summary").click();
  await page.waitForFunction(() => !location.hash.includes("section="));
  await lead(page, "Not measured").click();
  await page.waitForFunction(() => document.activeElement?.textContent === "What was left out");
  const again = await open(t, browser, small(), { hash: "section=agreement" });
  await again.waitForFunction(() => document.querySelector(".mh-end details[open]")?.getBoundingClientRect().top < innerHeight);
});

test("by keyboard: a sentence opens the card and the focus goes there", async (t) => {
  const page = await open(t, browser, small());
  await lead(page, "Patched for the capital").focus();
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement?.className === "mh-detail-title");
  await page.keyboard.press("Escape");
  assert.match(await page.evaluate(() => document.activeElement?.textContent), /^Patched/);
});

test("it folds, the address remembers it, and a narrow window shows three sentences at first", async (t) => {
  const page = await open(t, browser, small());
  const button = page.locator(".mh-answer > header button");
  await button.click();
  await counts(sentences(page), 0);
  assert.equal(chosen(page).answer, "none");
  assert.equal(await button.getAttribute("aria-expanded"), "false");
  await button.click();
  await counts(sentences(page), model.answer.length);
  assert.deepEqual(chosen(page), {});
  const narrow = await open(t, browser, small(), { viewport: { width: 390, height: 844 } });
  await counts(sentences(narrow), 3);
  await narrow.locator(".mh-answer-more").click();
  await counts(sentences(narrow), model.answer.length);
  assert.equal(chosen(narrow).answer, "all");
});

test("disagreements: the heads for which two verdicts hold, the furthest apart first", async (t) => {
  const page = await open(t, browser, small());
  const views = Object.fromEntries(model.views.map((view) => [view.name, view]));
  const held = model.tensions
    .map(({ a, b, text }) => ({ a, b, text, heads: model.columns[0].values.flatMap((_, head) => (views[a.view].verdict.values[head] === a.verdict && views[b.view].verdict.values[head] === b.verdict ? head : [])) }))
    .filter(({ heads }) => heads.length);
  assert.match(await folded(page).textContent(), new RegExp(`: ${new Set(held.flatMap(({ heads }) => heads)).size} heads?, ${held.length} kinds?$`));
  await folded(page).click();
  await page.waitForFunction(() => location.hash.includes("section=disagreements"));
  const kinds = page.locator(".mh-disagreements > ul > li");
  await counts(kinds, Math.min(3, held.length));
  if (held.length > 3) await page.getByRole("button", { name: /^Show all/ }).last().click();
  await counts(kinds, held.length);
  for (const [at, { text, heads }] of held.entries()) {
    assert.ok((await kinds.nth(at).innerText()).includes(text));
    const named = await kinds.nth(at).locator(".mh-answer-head").allTextContents();
    assert.deepEqual(named.toSorted(), heads.map((head) => `L${Math.floor(head / 9)}H${head % 9}`).toSorted());
  }
  await counts(page.locator(".mh-disagreeing button"), 0);
  await kinds.first().locator("a").first().click();
  assert.equal(await marked(page), held[0].heads.length);
  assert.equal(await folded(page).locator("xpath=..").getAttribute("open"), "");
  const first = kinds.first().locator(".mh-answer-head").first();
  const name = await first.textContent();
  await first.click();
  assert.equal(await title(page), name);
});

test("hostile sentences stay text; no serious faults, folded and open, light and dark", async (t) => {
  const { page: data, blocks } = hostile();
  const page = await open(t, browser, { page: data, blocks });
  await counts(sentences(page), 2);
  await counts(page.locator(".mh-answer img, .mh-answer script"), 0);
  assert.ok((await sentences(page).first().textContent()).includes("<img src=x"));
  for (const colorScheme of ["light", "dark"]) {
    const other = await open(t, browser, small(), { colorScheme, hash: "section=disagreements" });
    assert.deepEqual(await faults(other, ".mh-answer"), []);
  }
});

test("each model has its own answer", async (t) => {
  const both = two();
  both.page.models[1].answer = [{ text: "Of the other, L2H4 says most.", link: { head: "L2H4" } }];
  const page = await open(t, browser, both, { hash: "model=1" });
  assert.deepEqual(await sentences(page).allTextContents(), ["Of the other, L2H4 says most."]);
  await lead(page, "Of the other").click();
  assert.equal(await title(page), "other L2H4");
  assert.equal(chosen(page).model, "1");
});
