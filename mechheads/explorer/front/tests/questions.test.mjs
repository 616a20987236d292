/** A block for each question at the top: what was found, the first heads drawn, and links that show or open what they name. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chosen, counts, faults, launch, open } from "./browser.mjs";
import { HOSTILE, hostile, small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const model = small().page.model;
const question = (key) => model.questions.find((each) => each.key === key);
const column = (name) => model.columns.find((each) => each.name === name);
const blocks = (page) => page.locator(".mh-block");
const block = (page, key) => page.locator(".mh-block", { has: page.getByRole("heading", { name: question(key).title }) });
const opens = (page, key) => block(page, key).locator("h3 a").click();
const title = (page) => page.locator(".mh-detail-title").textContent();
const marked = (page) => page.locator(".mh-view-map [data-head]:not(.is-dim)").count();
const options = (page, label) => page.getByLabel(label, { exact: true }).locator("option").allTextContents();

test("a block for each question, with what varies and its first heads on one axis, above the map in the first window", async (t) => {
  const page = await open(t, browser, small());
  await counts(blocks(page), model.questions.length);
  for (const { title, varies, rows } of model.questions) {
    const firsts = rows.filter(({ measured }, at) => rows.findIndex((row) => row.measured === measured) === at);
    const several = title === "ordinary text" || title === "the weights alone";
    const heads = several ? firsts.toSorted((a, b) => b.value - a.value).slice(0, 7) : rows.filter(({ measured }) => measured === rows[0].measured).slice(0, 5);
    const one = blocks(page).filter({ has: page.getByRole("heading", { name: title }) });
    const said = await one.textContent();
    for (const text of [varies, ...heads.map(({ head }) => head)]) assert.ok(said.includes(text), `${text} in ${said}`);
    const drawn = await one.locator(".mh-intervals li").evaluateAll((rows) =>
      rows.map((row) => {
        const at = (what) => row.querySelector(what)?.getBoundingClientRect();
        const zero = row.querySelector(".mh-track").style.getPropertyValue("--at");
        return { range: at(".mh-range")?.toJSON(), value: at(".mh-value")?.x, zero, track: at(".mh-track").toJSON() };
      }),
    );
    const ends = [0, ...heads.flatMap(({ value, low, high }) => [value, low ?? value, high ?? value])];
    const [from, to] = [Math.min(...ends), Math.max(...ends)];
    assert.equal(new Set(drawn.map(({ zero }) => zero)).size, 1, "0 is at one place");
    for (const [at, { value, low, high }] of heads.entries()) {
      const { track, range, value: x } = drawn[at];
      const place = (number) => track.x + track.width * (0.03 + (0.94 * (number - from)) / (to - from));
      assert.ok(Math.abs(x + 1 - place(value)) < 1.5, `${heads[at].head} stands at ${x}, not at ${place(value)}`);
      if (low !== null) assert.ok(Math.abs(range.x - place(low)) < 1.5 && Math.abs(range.right - place(high)) < 1.5);
    }
  }
  assert.match(await block(page, "pairs").locator(".mh-intervals").innerText(), /^L1H4\s+62% \[39%, 83%\]\s+L3H0\s.*share restored$/s);
  const { y } = await page.locator(".mh-view-map svg.mh-drawing").first().boundingBox();
  assert.ok(y < 800, `the map begins at ${y}`);
  assert.equal(new URL(page.url()).hash, "");
});

test("the open question colours the map and has the axes, and the order of the table", async (t) => {
  const page = await open(t, browser, small());
  const shows = async () => [await page.getByLabel("Colour", { exact: true }).inputValue(), await page.getByLabel("Across", { exact: true }).inputValue(), await page.getByLabel("Up", { exact: true }).inputValue()];
  assert.deepEqual(await shows(), ["patching", "phi_country_to_capital", "patching"]);
  const titles = question("pairs").views.map((name) => column(name).label);
  assert.ok(titles.every((title) => titles.includes(title)) && (await options(page, "Up")).includes(titles[0]));
  assert.deepEqual((await page.locator(".mh-view-table .mh-heading").allTextContents()).slice(0, 4), ["Head", ...model.columns.filter(({ name }) => question("pairs").views.includes(name)).map(({ label }) => label)]);
  assert.equal(await page.locator(".mh-row th").first().textContent(), "L1H4");
  await opens(page, "requests");
  assert.deepEqual(await shows(), ["ships_undifferentiated", "ships_scaling", "ships_undifferentiated"]);
  assert.deepEqual(chosen(page), { question: "requests" });
  assert.equal(await block(page, "requests").locator("h3 a").getAttribute("aria-current"), "true");
  await opens(page, "weights");
  assert.equal(await page.getByLabel("Colour", { exact: true }).inputValue(), "");
  await counts(page.locator(".mh-legend .mh-key-button"), model.categories.names.length + 1);
  await page.goBack();
  assert.equal(chosen(page).question, "requests");
  const again = await open(t, browser, small(), { hash: "colour=phi" });
  assert.equal(await block(again, "weights").locator("h3 a").getAttribute("aria-current"), "true", "a column opens its question");
});

test("a link to a head marks it under the pointer, opens its card at this evidence, and changes nothing else", async (t) => {
  const page = await open(t, browser, small(), { hash: "filter=L3&colour=phi&x=entropy" });
  const name = block(page, "pairs").locator(".mh-answer-head", { hasText: "L3H1" });
  await name.hover();
  assert.match(await page.locator(".mh-view-map .is-hovered").getAttribute("data-head"), /^28$/);
  await name.click();
  assert.equal(await title(page), "L3H1");
  assert.deepEqual(chosen(page), { head: "L3H1", filter: "L3", colour: "phi", x: "entropy", pane: "cause" });
  const drawn = block(page, "requests").locator(".mh-intervals a").first();
  await drawn.click();
  assert.equal(await title(page), question("requests").rows[0].head);
  assert.deepEqual([chosen(page).pane, chosen(page).filter, chosen(page).colour], ["safety", "L3", "phi"]);
  const href = await drawn.getAttribute("href");
  const again = await open(t, browser, small(), { hash: href.slice(1) });
  assert.equal(await title(again), question("requests").rows[0].head);
});

for (const [width, height] of [[1440, 900], [800, 900], [390, 844]]) {
  test(`the evidence of a head is in the first window of its card at ${width} pixels`, async (t) => {
    const page = await open(t, browser, small(), { viewport: { width, height } });
    await block(page, "pairs").locator(".mh-intervals a").first().click();
    await page.locator(".card-panel svg").first().waitFor();
    await page.waitForFunction(() => document.querySelector(".mh-detail").getBoundingClientRect().y < 60);
    const [tabs, evidence] = await page.evaluate(() => [".card-tablist", ".card-panel svg"].map((what) => document.querySelector(what).getBoundingClientRect().y));
    assert.ok(tabs > 0 && tabs < 0.7 * height && evidence < height, `tabs at ${tabs}, evidence at ${evidence}`);
    const rows = await page.locator(".card-lines tbody tr:has(td)").allInnerTexts();
    assert.match(rows[0], /^Patching\s+62% \[39%, 83%\].*1( of |\/)36/s);
    assert.ok((await page.locator(".card-lines").evaluate((box) => box.scrollWidth - box.clientWidth)) <= 0);
  });
}

test("all rows of the open question, with unit, null, family p, n and rank, and their calls", async (t) => {
  const page = await open(t, browser, small(), { hash: "section=rows" });
  const table = page.locator(".mh-rows").first();
  await counts(table.locator("tbody tr"), question("pairs").rows.length);
  const [row] = question("pairs").rows;
  assert.match(await table.locator("tbody tr").first().innerText(), new RegExp(`^${row.head}\\s+Patching\\s+62% \\[39%, 83%\\]\\s+share restored\\s+0%\\s+[\\d.< ]+\\s+8\\s+1 of 36`));
  await page.evaluate(() => (navigator.clipboard.writeText = async (text) => void (window.copied = text)));
  await block(page, "pairs").getByRole("button", { name: "Copy as Python: naming the capital" }).click();
  assert.match(await page.evaluate(() => window.copied), /^import mechheads as mh\n\nmodel = mh\.load\("small"\)\n.*patching = mh\.activation_patch\(/s);
  await table.locator("tbody tr").nth(1).locator("a").click();
  assert.equal(await title(page), question("pairs").rows[1].head);
});

test("by keyboard: a head opens its card and the focus goes there", async (t) => {
  const page = await open(t, browser, small());
  await block(page, "pairs").locator(".mh-intervals a").first().focus();
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement?.className === "mh-detail-title");
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "L1H4");
});

test("a narrow window shows of other questions their titles only", async (t) => {
  const page = await open(t, browser, small(), { viewport: { width: 390, height: 844 } });
  assert.equal(await page.locator(".mh-intervals:visible").count(), 1);
  await opens(page, "requests");
  assert.ok(await block(page, "requests").locator(".mh-intervals").isVisible());
  assert.ok(!(await block(page, "pairs").locator(".mh-intervals").isVisible()));
});

test("contradictions are those of one question, each head with its rows in both measures, and one click away", async (t) => {
  const page = await open(t, browser, small());
  const { contradictions } = question("pairs");
  const heads = new Set(contradictions.map(({ a }) => a.head));
  await counts(page.getByText(/^\d+ heads?: two measures in opposite directions/), 1);
  await block(page, "pairs").getByText(`${heads.size} heads: two measures in opposite directions, or one beyond its smallest effect and the other within`).click();
  assert.deepEqual(chosen(page), { question: "pairs", section: "contradictions" });
  const shown = page.locator(".mh-answer details[open]");
  await counts(shown.locator("tbody tr"), 2 * contradictions.length);
  const [{ a, b }] = contradictions;
  const texts = await shown.locator("tbody tr").allInnerTexts();
  assert.ok(texts[0].startsWith(`${a.head}\t${a.measured}`) && texts[1].startsWith(`${b.head}\t${b.measured}`), texts[1]);
  const same = contradictions.filter((each) => each.a.column === a.column && each.b.column === b.column);
  await shown.locator("section a").first().click();
  assert.equal(await marked(page), new Set(same.map((each) => each.a.head)).size);
  await shown.locator("tbody a").first().click();
  assert.equal(await title(page), a.head);
  assert.match(await page.locator(".card-disagreement").first().innerText(), /^Two measures in opposite directions, or one beyond its smallest effect and the other within: /);
  await opens(page, "requests");
  await counts(page.getByText(/, \d+ heads?: two measures/), 0);
});

test("hostile texts stay texts; no serious faults, folded and open, light and dark", async (t) => {
  const payload = hostile();
  for (const each of payload.page.model.questions) Object.assign(each, { title: HOSTILE, varies: HOSTILE, warnings: [HOSTILE], rows: each.rows.map((row) => ({ ...row, measured: HOSTILE, note: HOSTILE, unit: HOSTILE })) });
  const page = await open(t, browser, payload);
  await counts(blocks(page), model.questions.length);
  await counts(page.locator(".mh-answer img, .mh-answer script"), 0);
  assert.ok((await blocks(page).first().textContent()).includes("<img src=x"));
  for (const colorScheme of ["light", "dark"]) {
    const other = await open(t, browser, small(), { colorScheme, hash: "section=contradictions" });
    assert.deepEqual(await faults(other, ".mh-answer"), []);
  }
});
