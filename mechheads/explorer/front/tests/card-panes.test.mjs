import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { load } from "./card-bundle.mjs";

const { inflate } = await load("load.ts");
const { spread } = await load("spread.ts");
const { linksOf, strongest, trace } = await load("paths.ts");
const { asChip, asLabel, inText, pieces } = await load("tokens.ts");
const { joined } = await load("NextTokens.tsx");
const { around } = await load("TextPane.tsx");
const { reasons } = await load("Missing.tsx");
const { nameOf, numberOf, sharedWith } = await load("heads.ts");
const { fault } = await load("live.ts");

const model = { nLayers: 3, nHeads: 4 };

test("a block is base64 of deflated JSON", async () => {
  const block = { layer: 1, heads: [{ head: "L1H0", text: "\u00e9 \u2603" }] };
  assert.deepEqual(await inflate(`\n${deflateSync(JSON.stringify(block)).toString("base64")}\n`), block);
  await assert.rejects(inflate(deflateSync("{").toString("base64")));
});

test("names and numbers of heads", () => {
  assert.equal(nameOf(model, 7), "L1H3");
  assert.equal(numberOf(model, "L1H3"), 7);
  assert.equal(numberOf(model, "L3H0"), null);
  assert.equal(numberOf(model, "L0H4"), null);
  assert.equal(numberOf(model, "final"), null);
  assert.deepEqual(sharedWith({ ...model, nKvHeads: 2 }, 7), [6]);
  assert.deepEqual(sharedWith({ ...model, nKvHeads: 1 }, 9), [8, 10, 11]);
  assert.deepEqual(sharedWith({ ...model, nKvHeads: 4 }, 7), []);
  assert.deepEqual(sharedWith({ ...model, nKvHeads: null }, 7), []);
});

test("dots at one place are moved apart, others stay on the line", () => {
  assert.deepEqual(spread([10, 10, 10, 50], 4, 10), [0, 4, -4, 0]);
  assert.deepEqual(spread([0, 100], 4, 10), [0, 0]);
  assert.deepEqual(spread([0, 0, 0, 0], 4, 0), [0, 0, 0, 0]);
});

test("links, the strongest of each way first", () => {
  const pane = {
    senders: [
      { head: "L0H0", way: "v", score: 0.1, low: 0, high: 0.2, q: 0.04 },
      { head: "L0H2", way: "q", score: -0.3, low: -0.4, high: -0.2, q: 0.01 },
      { head: "L0H3", way: "q", score: null, low: null, high: null, q: null },
    ],
    receivers: [{ head: null, way: "final", score: 0.5, low: 0.4, high: 0.6, q: 0 }],
  };
  const measured = linksOf(model, pane);
  assert.deepEqual(measured.senders.map(({ name, way }) => `${name} ${way}`), ["L0H2 Q", "L0H0 V"]);
  assert.deepEqual(measured.receivers.map(({ name, head }) => [name, head]), [["logits", null]]);
  assert.equal(strongest(Array.from({ length: 9 }, (_, at) => ({ way: "Q", value: at })), 2).map(({ value }) => value).join(), "8,7");
});

test("a trace follows the strongest sender, never in a circle, to the end", async () => {
  const senders = { 9: [[5, 0.1], [6, -0.4]], 6: [[1, 0.2], [9, 3]], 1: [] };
  const of = async (head) => (senders[head] ?? []).map(([at, value]) => ({ head: at, name: `h${at}`, way: "K", value }));
  assert.deepEqual((await trace(9, of)).map(({ head }) => head), [6, 1]);
  assert.deepEqual((await trace(9, of, 1)).map(({ head }) => head), [6]);
  assert.deepEqual(await trace(1, of), []);
});

test("characters that cannot be seen are shown", () => {
  assert.equal(asChip(" a\n"), "\u00b7a\u21b5");
  assert.equal(asChip(""), "\u2205");
  assert.equal(asChip("\u202ex\u0007"), "\u27e8U+202E\u27e9x\u27e8U+0007\u27e9");
  assert.equal(inText(" a\nb"), " a\u21b5\nb");
  assert.equal(asLabel("internationally", 6), "inter\u2026");
  assert.equal(asLabel(" <0xE2><0x80>"), "\u00b7<E2><80>");
  assert.deepEqual(pieces(" a<0xE2>b<0x80>").map(({ text, byte }) => [text, byte]), [[" a", null], ["<E2>", "E2"], ["b", null], ["<80>", "80"]]);
  assert.deepEqual(pieces("<0xe2>"), [{ text: "<0xe2>", byte: null }]);
  assert.deepEqual(pieces(""), [{ text: "", byte: null }]);
  assert.equal(asLabel("\u{1f600}\u{1f600}", 2), "\u{1f600}\u{1f600}");
});

test("next tokens of both runs in one list", () => {
  const next = (token, probability) => ({ token, probability });
  assert.deepEqual(joined([next("a", 0.5), next("b", 0.2)], [next("b", 0.6), next("c", 0.1)]), [
    { token: "a", before: 0.5, after: null },
    { token: "b", before: 0.2, after: 0.6 },
    { token: "c", before: null, after: 0.1 },
  ]);
});

test("an example shows the query, and the key if it is near", () => {
  assert.deepEqual(around({ query: 100, key: 95 }, 256), [68, 116]);
  assert.deepEqual(around({ query: 100, key: 20 }, 256), [14, 116]);
  assert.deepEqual(around({ query: 200, key: 3 }, 210), [168, 209]);
  assert.deepEqual(around({ query: 5, key: 2 }, 256), [0, 21]);
});

test("why a stage is missing", () => {
  assert.deepEqual(reasons(["paths left out: too quick", "paths are a first look", "safety heads left out: no"], "path"), ["paths left out: too quick"]);
});

test("a text is checked before it is sent", () => {
  const live = { maxCharacters: 5 };
  assert.equal(fault(live, "abc"), null);
  assert.match(fault(live, "  "), /Type a text/);
  assert.match(fault(live, "abcdef"), /6 characters; at most 5/);
});
