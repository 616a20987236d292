/** The page of a run: coloured by what the run says of each head, and no word of what it does not have. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { cardsRead, chosen, counts, faults, head, launch, open } from "./browser.mjs";
import { small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const COLUMNS = ["layer", "head", "to_first", "to_previous"];

/** The small sample as a run of its first prompt. */
function run() {
  const { page, blocks } = small();
  const [model] = page.models;
  const columns = model.columns
    .filter(({ name }) => COLUMNS.includes(name))
    .map((column) => ({ ...column, low: null, high: null, q: null }));
  const emptied = { notes: [], methods: [], cautions: [], views: [], tensions: [], questions: [], circuits: [], categories: null, behaviours: null, summary: "", provenance: {}, citations: {}, seconds: {}, panes: ["pattern"] };
  const start = { model: 0, head: "L1H2", chosen: { colour: "to_previous", by: "to_previous" } };
  const cards = Object.fromEntries(
    Object.entries(blocks).map(([id, block]) => [
      id,
      block.heads ? { ...block, heads: block.heads.map(({ head, layer, index, pattern }) => ({ head, layer, index, pattern })) } : block,
    ]),
  );
  return { page: { ...page, kind: "run", title: "Attention patterns of a run", start, models: [{ ...model, ...emptied, columns }] }, blocks: cards };
}

test("the map has the colours of a column, the scatter two of them, the table all", async (t) => {
  const page = await open(t, browser, run());
  await counts(page.locator(".mh-view-map .mh-cell.is-scaled"), await page.locator(".mh-view-map .mh-cell").count());
  assert.match(await page.locator(".mh-view-map .mh-legend").textContent(), /To the previous token/);
  const axes = page.locator(".mh-view-scatter select");
  assert.deepEqual([await axes.nth(0).inputValue(), await axes.nth(1).inputValue()], ["to_previous", "to_first"]);
  assert.deepEqual(await page.locator(".mh-view-table thead th").allTextContents(), ["Head", "To the first token", "To the previous token"].map((name, at) => (at ? name : `${name}\u25b2`)));
  assert.equal(await page.locator(".mh-detail-title").textContent(), "L1H2");
  const long = (await page.locator(".mh-table .is-number").allTextContents()).filter((text) => /[1-9]\d\d|\d\.\d*[1-9]\d{2,}/.test(text));
  assert.deepEqual(long, [], "without an interval, a number has two digits");
  assert.deepEqual(chosen(page), {});
  assert.deepEqual(await faults(page), []);
});

test("no word of categories and views that it does not have; each example of the search line is understood", async (t) => {
  const page = await open(t, browser, run());
  const line = page.locator(".mh-search-line");
  assert.match(await line.getAttribute("placeholder"), /^L\d+H\d+, to_first > 0\.\d+, /);
  await page.getByRole("button", { name: "Help" }).click();
  const lines = await page.locator(".mh-help dl").last().locator("code").allTextContents();
  assert.equal(lines.length, 3);
  assert.doesNotMatch(await page.locator(".mh-app").textContent(), /Knowledge|induction|patching|Categories|category/);
  await page.keyboard.press("Escape");
  for (const example of lines) {
    await line.fill(example);
    assert.match(await page.locator(".mh-search-note").textContent(), /of \d+ heads/, example);
  }
});

test("prompts that have a number for a name show their words", async (t) => {
  const payload = run();
  payload.blocks["mh-shared-0"].prompts[0].name = "mine, prompt 0";
  const page = await open(t, browser, payload, { hash: "head=L1H4" });
  await cardsRead(page);
  const options = await page.locator(".card-panel select").first().locator("option").allTextContents();
  const words = payload.blocks["mh-shared-0"].prompts[0].tokens.join("").trim();
  assert.match(options[0], /^mine, prompt 0: \S.* \(\d+ tokens\)$/);
  assert.ok(options[0].includes(words.slice(0, 10)), options[0]);
});

test("a colour that is taken away stays away in a link", async (t) => {
  const page = await open(t, browser, run());
  await page.locator(".mh-view-map select").first().selectOption("");
  await counts(page.locator(".mh-view-map .mh-cell.is-scaled"), 0);
  assert.deepEqual(chosen(page), { colour: "" });
  await page.reload();
  await counts(page.locator(".mh-view-map .mh-cell.is-scaled"), 0);
});

test("a narrow page begins with its map and not with the card", async (t) => {
  const page = await open(t, browser, run(), { viewport: { width: 390, height: 800 } });
  await page.locator(".card-panel > *").first().waitFor();
  assert.equal(await page.evaluate(() => scrollY), 0);
  await head(page, "map", 3).click();
  await page.waitForFunction(() => scrollY > 0);
  const tops = await page.locator(".mh-header .mh-buttons button").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().y));
  assert.deepEqual(tops, tops.map(() => tops[0]), "the buttons stand on one line");
  const ends = await page.locator(".mh-view-map .mh-ends > *").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().x));
  assert.deepEqual(ends, [...ends].sort((a, b) => a - b), "the two ends of the scale stand beside it");
});

test("closing a card that stands below the rest leads back to what opened it", async (t) => {
  const page = await open(t, browser, small(), { viewport: { width: 390, height: 800 } });
  const title = page.locator(".mh-detail-title");
  await head(page, "map", 3).click();
  await title.waitFor();
  await page.waitForFunction(() => Math.abs(document.querySelector(".mh-detail").getBoundingClientRect().y) < 100);
  await page.getByRole("button", { name: "Next head" }).click();
  await page.getByRole("button", { name: "Close" }).click();
  const mark = await head(page, "map", 3).boundingBox();
  assert.ok(mark.y > 0 && mark.y < 800, `the head stands at ${mark.y}`);
});
