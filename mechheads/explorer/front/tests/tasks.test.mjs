/**
 * What people come with, each answered with at most six actions from the first view. An action is a click, a
 * choice from a menu, a line that is typed, or a key. What is clicked is found by the text that stands on the page.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { allRead, cardsRead, launch, open, saved } from "./browser.mjs";
import { small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const MOST = 6;

/** A reader of the page, whose actions are counted: what each brings is there before the next. */
function reader(page) {
  let actions = 0;
  const once = (act) => async (...given) => {
    actions++;
    await act(...given);
    await allRead(page);
  };
  return {
    page,
    click: once((role, name) => page.getByRole(role, { name }).first().click()),
    pick: once(async (label, option) => {
      const menu = page.getByLabel(label);
      const [text] = (await menu.locator("option").allTextContents()).filter((each) => (option instanceof RegExp ? option.test(each) : each === option));
      await menu.selectOption({ label: text });
    }),
    type: once((label, text) => page.getByLabel(label).fill(text)),
    press: once((key) => page.keyboard.press(key)),
    card: () => page.locator(".mh-detail"),
    done: (expected) => {
      assert.equal(actions, expected, "this many actions are said to be enough");
      assert.ok(actions <= MOST);
    },
  };
}

async function opened(t, change = (payload) => payload) {
  const payload = small();
  change(payload.page.model, payload.blocks);
  return reader(await open(t, browser, payload, { viewport: { width: 1440, height: 1000 } }));
}

/** The card of the head that carries capitals: the first one drawn. */
async function carrier(you) {
  await you.click("link", "L1H4");
}

test("what was found: no action", async (t) => {
  const you = await opened(t);
  const said = await you.page.locator(".mh-blocks").innerText();
  assert.match(said, /^Naming the capital/);
  assert.match(said, /L1H4\s+62% \[39%, 83%\]/);
  you.done(0);
});

test("which head carries capitals, and how sure is that: 1 action", async (t) => {
  const you = await opened(t);
  await carrier(you);
  const card = await you.card().innerText();
  assert.match(card, /^L1H4/);
  assert.match(card, /Naming the capital \(8 pairs.*\)\s+Patching\s+62% \[39%, 83%\]\s+0%\s+0\.0\d+\s+8\s+1\/36/);
  you.done(1);
});

test("what does that head do besides: the same card, 1 action", async (t) => {
  const you = await opened(t);
  await carrier(you);
  assert.deepEqual(await you.card().locator("th[scope=rowgroup]").allInnerTexts(), ["Naming the capital (8 pairs, 8 countries, 4 wordings, as plain text)", "Harmful requests (4 requests)", "Ordinary text (12 windows)", "The weights alone (4 relations)"]);
  assert.match(await you.card().innerText(), /On ordinary text:\s+sink/);
  you.done(1);
});

test("where measures contradict each other: 1 action", async (t) => {
  const you = await opened(t);
  await you.click("link", /^\d+ heads: two measures in opposite directions/);
  assert.match(await you.page.locator(".mh-answer details[open]").innerText(), /L3H0\s+Patching\s+\u221219.*\s+L3H0\s+Phi, country to capital/s);
  you.done(1);
});

test("where a number comes from: 2 actions", async (t) => {
  const you = await opened(t);
  await you.page.evaluate(() => (navigator.clipboard.writeText = async (text) => void (window.copied = text)));
  await carrier(you);
  await you.click("button", "Copy as Python: L1H4");
  assert.match(await you.page.evaluate(() => window.copied), /patching = mh\.activation_patch\(\n    model,\n    mh\.PromptPairs\(/);
  you.done(2);
});

test("which head carries capitals, by a typed word and a sorted table: 3 actions", async (t) => {
  const you = await opened(t);
  await you.type("Search heads", "capital");
  await you.click("button", /^Direct effect/);
  await you.click("rowheader", /^L\d/);
  assert.match(await you.card().innerText(), /^L1H4/);
  you.done(3);
});

test("does it do the same on ordinary text: 2 actions", async (t) => {
  const you = await opened(t);
  await carrier(you);
  assert.match(await you.card().innerText(), /On ordinary text:\s+sink/);
  await you.click("tab", "ordinary text");
  const measures = await you.page.getByRole("row", { name: /^sink/ }).innerText();
  assert.match(measures, /\d+% \[\d+%, \d+%\]\s+[\d.]+%\s+[\d.< ]+\s+12\s+\d+\/36/);
  assert.ok((await you.page.locator(".card-example").count()) > 0);
  you.done(2);
});

test("which heads feed it: 2 actions", async (t) => {
  const sender = { head: "L0H7", way: "v", score: -0.4, low: -0.5, high: -0.3, q: 0.01 };
  const you = await opened(t, (_, blocks) => blocks["mh-heads-1"].heads[4].paths.senders.push(sender));
  await carrier(you);
  await you.click("tab", "fed by / feeds");
  const plot = you.page.getByRole("group", { name: /senders and .* receivers of L1H4/ });
  assert.match(await plot.textContent(), /senders: they feed this head/);
  assert.match(await plot.getByRole("link").first().textContent(), /^L0H7 V .*sends to V/);
  you.done(2);
});

test("show a colleague exactly what one sees: 1 more action", async (t) => {
  const you = await opened(t);
  await carrier(you);
  await you.click("tab", "fed by / feeds");
  await you.page.evaluate(() => {
    navigator.clipboard.writeText = async (text) => void (window.copied = text);
  });
  await you.click("button", "Copy link");
  assert.match(await you.page.locator(".mh-told").innerText(), /The link is copied.*send the file too/);
  const link = new URL(await you.page.evaluate(() => window.copied));
  const theirs = reader(await open(t, browser, small(), { hash: link.hash.slice(1), viewport: { width: 1440, height: 1000 } }));
  await theirs.page.getByRole("group", { name: /receivers of L1H4/ }).waitFor();
  const box = await theirs.page.getByRole("tablist").boundingBox();
  assert.ok(box.y >= 0 && box.y < 650, `the pane that the link names is in sight: its tabs stand at ${box.y}`);
  for (const part of [".card", ".mh-search-note", ".mh-table"]) {
    assert.equal(await theirs.page.locator(part).innerText(), await you.page.locator(part).innerText(), part);
  }
  assert.equal(link.hash, "#head=L1H4&pane=paths");
  you.done(3);
});

test("send a colleague exactly what one sees as one file: 1 more action", async (t) => {
  const you = await opened(t);
  await carrier(you);
  const file = await saved(you.page, () => you.click("button", "Save as a file"));
  assert.match(await you.page.locator(".mh-told").innerText(), /saved as a file that opens as you see it now\.$/);
  const theirs = await open(t, browser, String(file.content), { viewport: { width: 1440, height: 1000 } });
  await cardsRead(theirs);
  for (const part of [".card-lines", ".mh-search-note", ".mh-table"]) {
    assert.equal(await theirs.locator(part).innerText(), await you.page.locator(part).innerText(), part);
  }
  you.done(2);
});

test("all induction heads that a refusal hangs on: 2 actions", async (t) => {
  const induction = 4;
  const you = await opened(t, (model) => {
    for (const head of [0, 13]) model.behaviours.of[head] = [induction];
  });
  await you.pick("Add a condition", "induction");
  assert.match(await you.page.locator(".mh-search-note").innerText(), /^2 of 36 heads/);
  await you.pick("Add a condition", /^Ships, undifferentiated/);
  assert.match(await you.page.locator(".mh-search-note").innerText(), /^1 of 36 heads/);
  assert.deepEqual(await you.page.locator(".mh-row th").allInnerTexts(), ["L0H0"]);
  you.done(2);
});

test("the same by typed words: 2 actions", async (t) => {
  const you = await opened(t, (model) => (model.behaviours.of[0] = [4]));
  await you.type("Search heads", "induction and refusals");
  await you.click("button", "ships_undifferentiated");
  assert.deepEqual(await you.page.locator(".mh-row th").allInnerTexts(), ["L0H0"]);
  you.done(2);
});
