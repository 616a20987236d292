/** Walks the panes of the card by keyboard, in Chromium. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { readFileSync } from "node:fs";
import { deflateSync } from "node:zlib";
import { cardsRead, counts, faults, launch, saved } from "./browser.mjs";
import { HARMFUL, answer, made } from "./card-page.mjs";
import { html } from "./pages.mjs";

const ADDRESS = "http://127.0.0.1/";
const PANES = ["ordinary text", "patterns", "weights", "effects", "fed by / feeds", "safety", "own text"];
const LIVE = { maxCharacters: 40, maxTokens: 16 };
let browser;

before(async () => (browser = await launch()));
after(() => browser.close());

/** A page that shows a pane; it must not log an error. */
async function opened(t, hash, { content = made(), viewport = { width: 1280, height: 900 }, colorScheme = "light" } = {}) {
  const page = await browser.newPage({ viewport, colorScheme });
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  t.after(async () => {
    await page.close();
    assert.deepEqual(errors, []);
  });
  await page.route(`${ADDRESS}**`, (route) => route.fulfill({ contentType: "text/html", body: html(content) }));
  await page.goto(`${ADDRESS}#${hash}`);
  await cardsRead(page);
  return page;
}

const built = (kind) => readFileSync(new URL(`../../static/explorer.${kind}`, import.meta.url), "utf8");

/** The pane of own texts of L1H0, in a notebook's widget; `reply` gives the answer to a message, or nothing. */
async function asked(t, reply) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  t.after(async () => {
    await page.close();
    assert.deepEqual(errors, []);
  });
  const content = made({ live: LIVE });
  content.page.start = "L1H0";
  const blocks = Object.fromEntries(Object.entries(content.blocks).map(([name, each]) => [name, deflateSync(JSON.stringify(each)).toString("base64")]));
  await page.setContent('<!doctype html><html lang="en"><title>Notebook</title><main></main></html>');
  await page.addStyleTag({ content: built("css") });
  await page.exposeFunction("askPython", (message) => reply(message) ?? null);
  await page.evaluate(
    async ([text, data]) => {
      const { default: widget } = await import(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
      const listeners = new Set();
      const send = async (message) => {
        const answer = await window.askPython(message);
        if (answer) [...listeners].forEach((receive) => receive(answer));
      };
      const model = { get: (name) => data[name], send: (message) => void send(message), on: (_, receive) => listeners.add(receive), off: (_, receive) => listeners.delete(receive) };
      widget.render({ model, el: document.querySelector("main") });
    },
    [built("js"), { page: JSON.stringify(content.page), blocks }],
  );
  await page.getByRole("tab", { name: "own text" }).click();
  return page;
}

const read = (page) => page.locator(".card-panel .card-readout").first().textContent();

test("every pane is reached by arrow keys, and none breaks a rule of accessibility or is wider than the screen", async (t) => {
  for (const colorScheme of ["light", "dark"]) {
    const page = await opened(t, "head=L1H0&pane=text", { content: made({ live: LIVE }), viewport: { width: 360, height: 800 }, colorScheme });
    await page.getByRole("tab", { name: "ordinary text" }).focus();
    for (const [at, pane] of PANES.entries()) {
      if (at) await page.keyboard.press("ArrowRight");
      const tab = page.getByRole("tab", { name: pane, exact: true });
      assert.equal(await tab.getAttribute("aria-selected"), "true", pane);
      assert.equal(await tab.evaluate((element) => element === document.activeElement), true, pane);
      assert.deepEqual(await faults(page, ".card"), [], pane);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, pane);
    }
    assert.match(page.url(), /pane=live/);
  }
});

test("what was measured stands at the top as rows of numbers, and their calls can be copied", async (t) => {
  const page = await opened(t, "head=L0H0");
  const rows = () => page.locator(".card-lines tr:has(td)").allInnerTexts();
  const [effect, ships] = await rows();
  assert.match(effect, /^effect\s+0\.10\s+nats\s+0\.00?\s+\u2013\s+\u2013\s+3\/4$/);
  assert.match(ships, /^ships\s+0\.20\s+nats.*3\/3$/s);
  const button = page.getByRole("button", { name: "Copy as Python: L0H0" });
  assert.match(await button.getAttribute("title"), /mh\.load\("made-up"\)\neffects = mh\.ablate\(model, prompts\)/);
  await page.goto(`${ADDRESS}#head=L1H1`);
  await page.locator(".card-lines").getByText("1/4").waitFor();
  await counts(page.locator(".card-lines tr:has(td)"), 1);
});

test("tokens of a text show their keys and readers, and markup stays text", async (t) => {
  const page = await opened(t, "head=L1H0&pane=text");
  assert.match(await read(page), /\u00b7sat\u201d \(token 3\) takes from \u201c\u00b7cat\u201d 80%; is read by .*60%/);
  await counts(page.locator(".card-tokens-box").first().locator("b"), 0);
  assert.match(await page.locator(".card-tokens-box").first().textContent(), /<b>\u27e8U\+202E\u27e9/);
  const lines = page.locator(".card-overlay path");
  await counts(lines, 2);
  await page.getByText("show the first token").click();
  await counts(lines, 3);
  await page.getByText("keys", { exact: true }).click();
  await counts(lines, 2);
  await page.locator("[data-at='3']").focus();
  await page.keyboard.press("ArrowLeft");
  assert.match(await read(page), /\(token 2\) takes from \u201c\u00b7The\u201d 40%, \u201c<s>\u201d 20%, \u201c\u00b7cat\u201d 20%/);
  await page.getByText("by what is moved").click();
  assert.match(await page.locator(".card-example header").first().textContent(), /of what is moved comes from the first token/);
  await page.locator("[data-at='4']").hover();
  assert.match(await read(page), /\(token 4\)/);
});

test("a pattern is read by arrow keys, zoomed by keys, and its token stands in the address", async (t) => {
  const page = await opened(t, "head=L1H0&pane=pattern&prompt=0&token=3");
  const heat = () => page.locator(".card-panel .card-readout").last().textContent();
  assert.match(await heat(), /\(3\) gives .*\(2\) of its attention: 80%/);
  await page.locator("canvas").focus();
  await page.keyboard.press("ArrowUp");
  assert.match(await heat(), /\(2\) gives .*\(2\) of its attention: 20%/);
  assert.match(page.url(), /token=2/);
  await page.keyboard.press("+");
  assert.equal(await page.getByRole("button", { name: "show all" }).isEnabled(), true);
  await page.keyboard.press("0");
  const all = page.getByRole("button", { name: "show all" });
  assert.equal(await all.isEnabled(), false);
  await page.locator("canvas").hover({ position: { x: 120, y: 100 } });
  const { x, y } = await page.locator("canvas").boundingBox();
  await page.mouse.move(x + 125, y + 105);
  await page.mouse.wheel(0, -100);
  await page.waitForFunction(() => ![...document.querySelectorAll(".card-zoom button")].at(-1).disabled);
});

/** The made-up page with two more prompts: one as long as the first, one shorter. */
function withPrompts() {
  const content = made();
  const [first] = content.blocks["mh-shared"].prompts;
  content.blocks["mh-shared"].prompts.push({ name: "as long", tokens: ["<s>", " A", " dog", " sat", " down"] }, { name: "short", tokens: first.tokens.slice(0, 2) });
  const prompts = content.blocks["mh-heads-1"].heads[0].pattern;
  const [{ attention }] = prompts;
  const changed = structuredClone(attention);
  [changed.keys[3], changed.weights[3]] = [[1], [102]];
  const cut = (rows) => rows.slice(0, 2);
  prompts.push({ prompt: 1, attention: changed }, { prompt: 2, attention: { first: cut(attention.first), keys: cut(attention.keys), weights: cut(attention.weights) } });
  return content;
}

test("two prompts stand side by side, with their difference", async (t) => {
  const page = await opened(t, "head=L1H0&pane=pattern", { content: withPrompts() });
  await page.getByLabel("Beside it").selectOption({ label: "as long (5 tokens)" });
  assert.match(page.url(), /beside=1/);
  await counts(page.locator("canvas"), 3);
  const row = await page.getByRole("row", { name: /to the previous token/ }).innerText();
  // (128/255 + 0.4 + 0.8 + 0.6) / 4, and the same without the 0.8
  assert.match(row, /58%\s+38%\s+20%/);
  const map = page.getByRole("application", { name: /^Difference of the attention/ });
  await map.focus();
  for (const key of ["ArrowUp", "ArrowLeft", "ArrowRight"]) await page.keyboard.press(key);
  const words = () => page.locator(".card-readout").last().textContent();
  for (let i = 0; i < 8 && !/^\u201c\u00b7sat\u201d \(3\)/.test(await words()); i++) await page.keyboard.press("ArrowDown");
  for (let i = 0; i < 8 && !/\(2\) /.test((await words()).split("gives")[1]); i++) await page.keyboard.press("ArrowRight");
  assert.match(await words(), /\(3\) gives .*\(2\) 80% more of its attention on the left/);
  await page.keyboard.press("ArrowLeft");
  assert.match(await words(), /\(3\) gives .*\(1\) 40% more of its attention on the right/);
  assert.deepEqual(await faults(page, ".card"), []);
  await page.getByLabel("Beside it").selectOption({ label: "short (2 tokens)" });
  await counts(page.locator("canvas"), 2);
  assert.match(await page.locator(".card-panel").innerText(), /The prompts have 5 and 2 tokens, so their positions do not match/);
  await page.getByLabel("Beside it").selectOption({ label: "no other prompt" });
  await counts(page.locator("canvas"), 1);
});

test("a page without the analysis says so", async (t) => {
  const content = made();
  content.blocks["mh-heads-1"].heads.forEach((head) => (head.weights = null));
  const page = await opened(t, "head=L1H0&pane=weights", { content });
  await page.getByRole("tab", { name: "weights (nothing measured)" }).waitFor();
});

test("effects are read dot by dot", async (t) => {
  const page = await opened(t, "head=L1H0&pane=cause");
  await page.getByRole("slider", { name: /^direct:/ }).focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await read(page), /0\.200 logits: clean 1 yes \(instead of no; corrupted: corrupted 1\)/);
  await page.keyboard.press("ArrowRight");
  assert.match(await read(page), /0\.400 logits: clean 0/);
});

test("bytes of a character that several tokens make up are set apart, in texts and in lists of tokens", async (t) => {
  const content = made();
  content.blocks["mh-shared"].words[1] = " <0xF0><0x9F>";
  for (const head of content.blocks["mh-heads-1"].heads) head.weights[0].pairs[0].target = "<0xE2>";
  const page = await opened(t, "head=L1H0&pane=text", { content });
  const bytes = page.locator(".card-word .card-byte");
  assert.deepEqual(await bytes.allTextContents(), ["<F0>", "<9F>"]);
  assert.equal(await bytes.first().getAttribute("title"), "byte F0: a part of a character that several tokens make up");
  assert.deepEqual(await faults(page, ".card-panel"), []);
  await page.getByRole("tab", { name: "weights" }).click();
  await page.locator(".card-relations summary").click();
  assert.deepEqual(await page.locator(".card-token .card-byte").allTextContents(), ["<E2>"]);
});

test("a pane of the address that the page does not have is named", async (t) => {
  const page = await opened(t, "head=L1H0&pane=nothing");
  await page.locator(".mh-unknown", { hasText: "The address names a pane \u201cnothing\u201d that this page does not have; the panes are ordinary text, patterns," }).waitFor();
});

test("paths lead to other heads and back, and upstream", async (t) => {
  const page = await opened(t, "head=L1H0&pane=paths");
  await counts(page.locator(".mh-unknown p"), 0);
  await page.getByRole("button", { name: /trace upstream/ }).click();
  await page.getByText("Strongest way back").waitFor();
  await page.getByRole("link", { name: /^L0H1/ }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("article", { name: "Head L0H1" }).waitFor();
  await page.waitForFunction(() => document.activeElement?.textContent === "L0H1");
  await page.goBack();
  await page.getByRole("article", { name: "Head L1H0" }).waitFor();
});

test("harmful requests are folded until asked for", async (t) => {
  const page = await opened(t, "head=L1H0&pane=safety");
  await counts(page.getByText(HARMFUL), 0);
  await page.getByLabel(/show the texts/).check();
  await counts(page.getByText(HARMFUL), 2);
});

test("drawings are saved as SVG and PNG", async (t) => {
  const page = await opened(t, "head=L1H0&pane=pattern");
  for (const [kind, start] of [["SVG", "<svg"], ["PNG", "\u0089PNG"]]) {
    const { name, content } = await saved(page, () => page.getByRole("button", { name: `Save L1H0-pattern as ${kind}` }).click());
    assert.equal(name, `L1H0-pattern.${kind.toLowerCase()}`);
    assert.equal(content.toString("latin1").slice(0, 4), start);
  }
});

test("an empty pane says what is missing, why, and what measures it; damaged data says so", async (t) => {
  const content = made();
  content.blocks["mh-heads-1"].heads[0].paths = null;
  const page = await opened(t, "head=L1H0&pane=paths", { content });
  assert.match(await page.locator(".card-panel").textContent(), /Nothing is known of the paths of this head\. mechheads atlas measures it\..*too quick/);
  content.blocks["mh-heads-1"] = "AAAA";
  const broken = await opened(t, "head=L1H0&pane=text", { content });
  assert.equal(await broken.locator(".card-panel [role=alert]").textContent(), "The data of layer 1 is damaged and cannot be read.");
});

test("two tokens of an own text are chosen by click, key and menu, and the model is asked why", async (t) => {
  const pairs = [];
  const page = await asked(t, ({ type, ...request }) => {
    if ("query" in request) pairs.push([request.head, request.query, request.key]);
    return request.key === 1 ? { type: "error", id: request.id, error: "<b>no</b> parts" } : { type, ...answer(request) };
  });
  await page.getByRole("button", { name: "run", exact: true }).click();
  const said = (words) => page.locator(".card-readout", { hasText: words }).waitFor();
  await said("(4), 80% of the attention goes to \u201c\u00b7sat\u201d (3)");
  const rows = async (at) => (await page.locator(".card-why-parts").nth(at).locator("tbody tr").allInnerTexts()).map((row) => row.trim().split(/\t\s*/).slice(0, 2).join(" "));
  assert.deepEqual(await rows(0), ["L0.mlp +2.00", "embedding \u22120.750", "the 3 other parts +0.250", "sum +1.50"]);
  assert.deepEqual(await rows(1), ["L0H1 +1.25", "L0H0 +0.250", "sum +1.50"]);
  await page.locator(".card-tokens-box [data-at='3']").click();
  await said("(3), 80% of the attention goes to \u201c\u00b7cat\u201d (2)");
  await page.keyboard.press("ArrowLeft");
  await page.getByRole("alert").getByText("<b>no</b> parts").waitFor();
  await page.getByRole("combobox", { name: "Key" }).selectOption("0");
  await said("(2), 80% of the attention goes to \u201c<s>\u201d (0)");
  await page.getByRole("application", { name: /^Attention between/ }).focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await said("80% of the attention goes to \u201c\u00b7cat\u201d (2)");
  assert.deepEqual(pairs.slice(0, 4), [["L1H0", 4, 3], ["L1H0", 3, 2], ["L1H0", 2, 1], ["L1H0", 2, 0]]);
  assert.deepEqual(await faults(page, ".card"), []);
});

test("an own text is run, refused, and cancelled", async (t) => {
  let act = ({ type, ...request }) => ({ type, ...answer(request) });
  const cancelled = [];
  const page = await asked(t, (message) => (message.type === "cancel" ? void cancelled.push(message.id) : act(message)));
  const run = page.getByRole("button", { name: "run", exact: true });
  await run.click();
  await page.getByText("Next token, with and without L1H0").waitFor();
  await page.getByText("its score is 1.50 above").waitFor();
  assert.match(await page.locator(".card-panel").textContent(), /moves by 0\.250 nats, and \u201c\u00b7sofa\u201d takes the place of \u201c\u00b7mat\u201d/);
  const [first, second, later] = await page.locator(".card-part").evaluateAll((parts) => parts.map((part) => part.getBoundingClientRect()));
  assert.ok(first.y > second.y && first.x === second.x && later.x > first.x, "layers across, heads up");
  await page.getByRole("application", { name: /^Parts of/ }).focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowUp");
  assert.match(await page.locator(".card-readout").first().textContent(), /^L1H1: /);
  await page.getByRole("textbox", { name: "Text for the model" }).fill("x".repeat(41));
  await run.click();
  assert.match(await page.getByRole("alert").textContent(), /41 characters; at most 40/);
  await page.getByRole("textbox", { name: "Text for the model" }).fill("x");
  act = ({ id }) => ({ type: "error", id, error: "text is empty for this model" });
  await run.click();
  await page.getByText("text is empty for this model").waitFor();
  act = () => undefined;
  await run.click();
  await page.getByRole("button", { name: "cancel" }).click();
  await page.getByText("Cancelled.").waitFor();
  assert.equal(cancelled.length, 1);
  assert.equal(await run.isEnabled(), true);
});
