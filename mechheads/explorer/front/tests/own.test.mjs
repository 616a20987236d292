/** Scores of the reader's own: the page begins with them, and everything in it takes them. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chosen, counts, faults, head, launch, open, press } from "./browser.mjs";
import { HOSTILE, small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const HEAD = 13; // L1H4, which carries capitals
const TITLE = "my <b>ablation</b>";

/** A page of two results of the reader's own, and nothing else. */
function own({ n = 2, titles = [TITLE, "theirs"], labels = ["France", "<img src=x>", "Spain", "3", "4", "5", "6", "7"] } = {}) {
  const { page, blocks } = small();
  const { model } = page;
  const sources = ["patching", "direct"].slice(0, n);
  const mine = ["my_ablation", "theirs"];
  const named = (name) => sources.reduce((text, source, at) => (name === source || name?.startsWith(`${source}_`) ? name.replace(source, mine[at]) : text), name);
  const columns = model.columns.filter(({ name }) => ["layer", "head"].includes(name) || sources.some((source) => name === source || name.startsWith(`${source}_`)));
  model.columns = columns.map((column) => {
    const at = sources.indexOf(column.of ?? column.name);
    return at < 0 ? column : { ...column, ...Object.fromEntries(["name", "of", "low", "high", "q"].map((key) => [key, named(column[key])])), label: titles[at], group: "Your own" };
  });
  const rows = [{ head: "L1H4", measured: titles[0], column: "my_ablation", value: 0.7, low: 0.6, high: 0.8, null: 0, p: 0.01, n: 8, unit: "share restored", rank: 1, of: 36, note: "" }];
  const questions = [{ key: "own", title: titles[0], kind: "own", views: mine.slice(0, n), varies: "8 prompts", warnings: [], rows, contradictions: [], view: "my_ablation" }];
  for (const each of model.columns) each.question = "own";
  Object.assign(model, { categories: null, behaviours: null, questions, circuits: [], cautions: [], notes: [], panes: ["cause"] });
  for (const [id, block] of Object.entries(blocks)) {
    if (!id.startsWith("mh-heads")) continue;
    block.heads = block.heads.map((card) => ({
      ...Object.fromEntries(Object.keys(card).map((key) => [key, null])),
      ...{ head: card.head, layer: card.layer, index: card.index },
      rows: mine.slice(0, n).map((column, at) => ({ ...rows[0], question: "own", head: card.head, column, measured: titles[at] })),
      cause: sources.map((source, at) => ({ ...card.cause[0], name: mine[at], title: titles[at] })),
    }));
  }
  blocks["mh-shared"] = { words: [], windows: [], prompts: [], pairs: [], requests: [], labels: Object.fromEntries(mine.slice(0, n).map((name) => [name, labels])) };
  return { page, blocks };
}

const selected = (page, label) => page.getByLabel(label, { exact: true }).inputValue();

test("two results: the map is coloured by the first, the scatter has both, the table the first heads first", async (t) => {
  const page = await open(t, browser, own());
  assert.equal(await selected(page, "Colour"), "my_ablation");
  assert.deepEqual([await selected(page, "Up"), await selected(page, "Across")], ["my_ablation", "theirs"]);
  assert.equal(await page.locator(".mh-view-table tbody tr[data-head]").first().getAttribute("data-head"), String(HEAD));
  assert.match(await page.locator(".mh-legend").first().innerText(), /my <b>ablation<\/b>/);
  assert.match(await page.locator(".mh-search-line").getAttribute("placeholder"), /my_ablation > \d/);
  assert.deepEqual(await faults(page), []);
});

test("beside an atlas, the reader's own scores come first everywhere", async (t) => {
  const { page: about, blocks } = small();
  const { model: its } = about;
  its.columns.find(({ name }) => name === "direct").question = "own";
  const rows = its.questions[0].rows.filter(({ column }) => column === "direct");
  its.questions.unshift({ ...its.questions[0], key: "own", kind: "own", title: "mine", views: ["direct"], view: "direct", rows, contradictions: [] });
  for (const [id, block] of Object.entries(blocks)) if (id.startsWith("mh-heads")) for (const card of block.heads) for (const row of card.rows) if (row.column === "direct") row.question = "own";
  const page = await open(t, browser, { page: about, blocks });
  assert.equal(await selected(page, "Up"), "direct");
  assert.equal(await selected(page, "Rank heads by"), "direct");
  assert.match(await page.locator(".mh-view-table th[aria-sort]:not([aria-sort=none])").first().innerText(), /^Direct effect/);
  assert.match(await page.locator(".mh-search-line").getAttribute("placeholder"), /^L\d+H\d+, direct > [\d.]+, mine$/);
  await press(page, "map", HEAD);
  assert.equal(await page.locator(".card-lines th[scope=row]").first().innerText(), "Direct effect");
  await page.getByRole("button", { name: "Help" }).click();
  assert.equal(await page.locator(".mh-help dt").first().innerText(), "Direct effect");
});

test("the menu of conditions begins with the tables of the questions, and says how many heads each has", async (t) => {
  const page = await open(t, browser, own());
  const options = await page.getByLabel("Add a condition").locator("option").allTextContents();
  assert.deepEqual(options.slice(1), [`${TITLE} (1)`, `${TITLE} (1)`]);
});

test("one result stands against layers", async (t) => {
  const page = await open(t, browser, own({ n: 1 }));
  assert.deepEqual([await selected(page, "Across"), await selected(page, "Up")], ["layer", "my_ablation"]);
});

test("conditions, and the names that the reader gave", async (t) => {
  const page = await open(t, browser, own());
  const line = page.locator(".mh-search-line");
  for (const [typed, count] of [["my_ablation > 0.5", "1 of 36"], ['"my <b>ablation</b>" > 0.5', "1 of 36"], ["my_ablation and L1H4", "1 of 36"]]) {
    await line.fill(typed);
    await page.getByText(count).first().waitFor();
  }
  await page.getByLabel("Add a condition").selectOption({ index: 1 });
  assert.match(chosen(page).filter, /my_ablation and L1H4 and "my <b>ablation<\/b>"$/);
});

test("the card has a line for each, the values of every prompt, and no empty panes", async (t) => {
  const page = await open(t, browser, own());
  await press(page, "map", HEAD);
  const card = page.locator(".mh-detail");
  await card.locator(".card-panel svg.card-drawing").first().waitFor();
  assert.deepEqual(await card.getByRole("tab").allInnerTexts(), ["effects"]);
  assert.deepEqual(await card.locator(".card-lines th[scope=row]").allInnerTexts(), [TITLE, "theirs"]);
  assert.match(await card.innerText(), /Not measured here: ordinary text, patterns, weights, fed by \/ feeds, safety\. mh\.build_atlas\(model\) measures them\./);
  const row = card.locator(".card-row").first();
  await row.focus();
  for (let at = 0; at < 8; at++) await page.keyboard.press("ArrowLeft");
  const said = await card.locator(".card-readout").first().innerText();
  assert.match(said, /: prompt \d+, (France|<img src=x>|Spain|\d)$/);
  assert.deepEqual(await faults(page), []);
});

test("hostile names and labels stay text", async (t) => {
  const page = await open(t, browser, own({ titles: [HOSTILE, HOSTILE], labels: Array(8).fill(HOSTILE) }), { hash: "head=L1H4" });
  await page.locator(".card-panel svg.card-drawing").first().waitFor();
  await counts(page.locator("#mh-root script, #mh-root img"), 0);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});

test("tables stand at the end, open if there is nothing else", async (t) => {
  const payload = own();
  const { model } = payload.page;
  Object.assign(model, { columns: model.columns.slice(0, 2), questions: [], panes: [] });
  model.tables = [{ name: "sets", unit: "logits", columns: ["heads", "score"], rows: [["L0H1", "<b>"]], of: 300 }];
  const page = await open(t, browser, payload);
  const table = page.getByRole("region", { name: "sets (logits), the first 1 of 300 rows" });
  assert.equal(await table.innerText(), "heads\tscore\nL0H1\t<b>");
  await counts(page.locator(".mh-view-scatter, .mh-view-table"), 0);
  await head(page, "map", HEAD).click({ force: true });
  await page.locator(".mh-detail .card").waitFor();
  await counts(page.locator(".mh-detail").getByRole("tab"), 0);
  assert.deepEqual(await faults(page), []);
});
