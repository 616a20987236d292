/** The page of a run: its tokens and patterns, and no word of what it does not have. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { cardsRead, counts, faults, head, launch, open } from "./browser.mjs";
import { small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

/** The small sample as a run of its first prompt. */
function run() {
  const { page, blocks } = small();
  const { model } = page;
  const emptied = { notes: [], cautions: [], questions: [], circuits: [], columns: [], categories: null, behaviours: null, sources: [], citation: "", panes: ["pattern"] };
  const start = "L1H2";
  const cards = Object.fromEntries(
    Object.entries(blocks).map(([id, block]) => [
      id,
      block.heads ? { ...block, heads: block.heads.map(({ head, layer, index, pattern }) => ({ head, layer, index, pattern, rows: [] })) } : block,
    ]),
  );
  return { page: { ...page, kind: "run", title: "Attention patterns of a run", start, model: { ...model, ...emptied } }, blocks: cards };
}

test("the page begins with the tokens of the prompt; the map chooses the head", async (t) => {
  const page = await open(t, browser, run());
  await cardsRead(page);
  assert.equal(await page.locator(".mh-detail-title").textContent(), "L1H2");
  const [tokens, map] = [await page.locator(".card-tokens-box").first().boundingBox(), await page.locator(".mh-view-map").boundingBox()];
  assert.ok(tokens.y < map.y, "the tokens stand above the map");
  await counts(page.locator(".mh-view-scatter, .mh-view-table, .mh-block"), 0);
  assert.doesNotMatch(await page.locator(".mh-app").textContent(), /Knowledge|induction|patching|Categories|category/);
  await head(page, "map", 3).click();
  assert.equal(await page.locator(".mh-detail-title").textContent(), "L0H3");
  assert.deepEqual(await faults(page), []);
});

test("prompts that have a number for a name show their words", async (t) => {
  const payload = run();
  payload.blocks["mh-shared"].prompts[0].name = "mine, prompt 0";
  const page = await open(t, browser, payload, { hash: "head=L1H4" });
  await cardsRead(page);
  const options = await page.locator(".card-panel select").first().locator("option").allTextContents();
  const words = payload.blocks["mh-shared"].prompts[0].tokens.join("").trim();
  assert.match(options[0], /^mine, prompt 0: \S.* \(\d+ tokens\)$/);
  assert.ok(options[0].includes(words.slice(0, 10)), options[0]);
});

test("a narrow page begins with its tokens too", async (t) => {
  const page = await open(t, browser, run(), { viewport: { width: 390, height: 800 } });
  await page.locator(".card-panel > *").first().waitFor();
  assert.equal(await page.evaluate(() => scrollY), 0);
  const tops = await page.locator(".mh-header .mh-buttons button").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().y));
  assert.deepEqual(tops, tops.map(() => tops[0]), "the buttons stand on one line");
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
