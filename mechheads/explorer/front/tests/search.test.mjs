/** What the search line understands. */
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { load } from "./card-bundle.mjs";

/** Six heads in two layers; head 5 was never measured. */
const MODEL = {
  nLayers: 2,
  nHeads: 3,
  columns: [
    ["layer", "place", [0, 0, 0, 1, 1, 1]],
    ["patching", "value", [0.5, -0.3, 0.1, 0.25, 0.05, null], { q: "patching_q" }],
    ["patching_q", "q", [0.01, 0.2, 0.04, 0.5, 0.5, null], { of: "patching" }],
    ["phi_q", "q", [0.9, 0.01, 0.9, 0.9, 0.9, null]],
    ["ships_scaling", "value", [0.05, 0.4, 0.02, 0.3, 0.01, null]],
    ["ships_undifferentiated", "value", [1, 2, 3, 4, 5, null]],
    ["mine", "value", [1, 2, 3, 4, 5, 6], { label: "my sweep" }],
    ["names", "value", ["induction", "", "previous token; induction", "", "", ""], { kind: "text" }],
  ].map(([name, role, values, more]) => ({ name, label: name, unit: "", meaning: "", kind: "number", role, group: "", of: null, low: null, high: null, q: null, signed: false, range: false, values, ...more })),
  questions: [
    { key: "pairs", title: "naming the city", views: ["patching"], rows: [{ head: "L0H0", column: "patching", measured: "Patching" }, { head: "L1H0", column: "patching", measured: "Patching" }, { head: "L0H1", column: "phi", measured: "Phi" }] },
    { key: "own_1", title: "my sweep", views: ["mine"], rows: [] },
  ],
  categories: {
    names: ["Knowledge", "Linguistic"],
    of: [[0], [], [0, 1], [1], [], null],
    below: [[], [], [], [], [], []],
    relations: [{ name: "country_to_capital", category: 0 }, { name: "verb_to_past_tense", category: 1 }],
    phi: [[0.4, 0], [0.05, 0], [0.02, 0.3], [0.3, 0.2], [0, 0], [null, null]],
    floor: 0.1,
  },
  behaviours: { names: [{ name: "induction" }, { name: "previous token" }], of: [[0], [], [0, 1], [], [], []] },
};
let understand, namedIn, toggled;
before(async () => {
  ({ understand } = await load("../search/parse.ts"));
  ({ namedIn, toggled } = await load("../search/conditions.ts"));
});

function found(line) {
  const { test: holds, error } = understand(line, MODEL);
  assert.equal(error, null, error?.message);
  return [0, 1, 2, 3, 4, 5].filter(holds);
}

for (const [line, heads] of [
  ["", [0, 1, 2, 3, 4, 5]],
  ['"2 categories"', [2]],
  ["L1H0", [3]],
  ["l1h0", [3]],
  ["L0H0 L1H0", [0, 3]],
  ["L0H1, L1H2", [1, 5]],
  ["L1", [3, 4, 5]],
  ["H2 L1", [5]],
  ["layer 1", [3, 4, 5]],
  ["head 2 and Layer 0", [2]],
  ["layer 1 or head 0", [0, 3, 4, 5]],
  ["layer = 1", [3, 4, 5]],
  ["induction", [0, 2]],
  ["previous token", [2]],
  ["previous_token", [2]],
  ['"Previous token"', [2]],
  ["knowledge", [0, 2]],
  ["Knowledge, Linguistic", [0, 2, 3]],
  ["Knowledge and Linguistic", [2]],
  ["Knowledge Linguistic", [2]],
  ["unclassified", [1, 4]],
  ["country_to_capital", [0]],
  ["verb_to_past_tense", [2, 3]],
  ["capital", [0]],
  ["Induc and L0H2", [2]],
  ["past or know", [0, 2, 3]],
  ["country_to_capital > 0.2", [0, 3]],
  ["patching > 0.2", [0, 3]],
  ["patching>0.2 and ships < 0.1", [0]],
  ["patching>0.2 and ships_scaling < 0.1", [0]],
  ["patching>.2 & ships_scaling<.1 | L1H2", [0, 5]],
  ["ships_scaling < 0.03", [2, 4]],
  ["patching >= 25%", [0, 3]],
  ["patching ≤ −0.3", [1]],
  ["0 < patching < 0.2", [2, 4]],
  ["0.2 <= patching", [0, 3]],
  ["patching != 0.5", [1, 2, 3, 4]],
  ["q < .05", [0, 1, 2]],
  ["not patching > 0.2", [1, 2, 4, 5]],
  ["!(L0 or L1H0)", [4, 5]],
  ["not L0 and not L1H0", [4, 5]],
  ["L0H0 or L0H1 and L1", [0]],
  ["naming the city", [0, 1, 3]],
  ["city and patching > 0", [0, 3]],
  ["patching", [0, 3]],
  ["patching and Linguistic", [3]],
  ["my sweep", []],
  ["names = induction", [0, 2]],
  ["names != induction", [1, 3, 4, 5]],
  ["layer = 1 and induction", []],
]) {
  test(`understands ${line || "nothing"}`, () => assert.deepEqual(found(line), heads));
}

for (const [line, message, at, near] of [
  ["pachting > 0.2", /pachting is not the name/, [0, 8], ["patching", "patching_q"]],
  ["inductoin", /inductoin is not the name/, [0, 9], ["induction"]],
  ["L0 and knowlege", /knowlege is not the name/, [7, 15], ["Knowledge"]],
  ["L9H1", /not in this model, whose heads are L0H0 to L1H2/, [0, 4], null],
  ["pita", /pita is not the name/, [0, 4], ["country_to_capital"]],
  ["cap", /cap is not the name/, [0, 3], ["country_to_capital"]],
  ["patching >", /line ends where/, [10, 10], null],
  ["ships", /ships needs a condition, such as ships > 0.2/, [0, 5], null],
  ["induction and min", /min needs a condition, such as min > 0.2/, [14, 17], null],
  ["(L0 or L1", /this \( is never closed/, [0, 1], null],
  ["L0)", /this \) has no \( before it/, [2, 3], null],
  ["L0 or", /line ends where/, [5, 5], null],
  ["and L0", /and stands where/, [0, 3], null],
  ["0.3", /0.3 needs a name beside it/, [0, 3], null],
  ["names > 3", /names holds texts/, [0, 5], null],
  ["patching # 3", /# has no meaning here/, [9, 10], null],
]) {
  test(`says what is wrong with ${line}`, () => {
    const { error, test: holds } = understand(line, MODEL);
    assert.match(error.message, message);
    assert.deepEqual([error.start, error.end], at);
    if (near) assert.deepEqual(error.near.slice(0, near.length), near);
    assert.ok(holds(0) && holds(5));
  });
}

test("says what a short name and q stand for", () => {
  assert.deepEqual(understand("ships < 1", MODEL).notes, ["ships stands for ships_scaling; also: ships_undifferentiated"]);
  assert.deepEqual(understand("q < 1", MODEL).notes, ["q is the smallest of patching_q, phi_q"]);
});

test("says what the beginning of a word stands for", () => {
  assert.deepEqual(understand("capi", MODEL).notes, ["capi stands for country_to_capital: heads of its category whose phi is at least 0.1"]);
  assert.deepEqual(understand("know", MODEL).notes, ["know stands for Knowledge"]);
  assert.deepEqual(understand("city", MODEL).notes, ["city stands for the heads in the table of naming the city"]);
});

test("a beginning that several names share is not guessed", () => {
  const categories = { ...MODEL.categories, relations: [{ name: "country_to_capital", category: 0 }, { name: "state_to_capital", category: 0 }] };
  const { error } = understand("capital", { ...MODEL, categories });
  assert.match(error.message, /capital is not the name/);
  assert.deepEqual(error.near.slice(0, 2).sort(), ["country_to_capital", "state_to_capital"]);
});

test("a name of the model itself never breaks the line", () => {
  for (const line of ["constructor", "__proto__ > 1", "toString", '"', '""', "(((", "!".repeat(500), "𝔸 > 1", "<".repeat(20)]) {
    const { error } = understand(line, MODEL);
    assert.ok(error?.message, line);
  }
});

test("the legend finds its names at the end of the line, and changes nothing else", () => {
  const names = ["Knowledge", "Linguistic", "2 categories", "a (b)"];
  for (const [line, expected] of [
    ["", []],
    ["knowledge", ["Knowledge"]],
    ['Knowledge or "2 categories"', ["Knowledge", "2 categories"]],
    ['(Linguistic, "a (b)")', ["Linguistic", "a (b)"]],
    ["phi > 0.1 and Knowledge", ["Knowledge"]],
    ["phi > 0.1 and (Knowledge, Linguistic)", ["Knowledge", "Linguistic"]],
    ["L1 or L2 and Knowledge", []],
    ["(L1, L2) and Knowledge", ["Knowledge"]],
    ["not Knowledge", []],
    ["phi > 0.1 and not Knowledge", []],
    ["not (phi > 0.1 and Knowledge)", []],
    ["(phi > 0.1 and Knowledge", []],
    ["Knowledges", []],
    ["Knowledge, phi > 0.1", []],
  ]) assert.deepEqual([line, namedIn(line, names)], [line, expected]);
  assert.equal(toggled("phi > 0.1", names, "2 categories", false), 'phi > 0.1 and "2 categories"');
  assert.equal(toggled('phi > 0.1 and "2 categories"', names, "2 categories", false), "phi > 0.1");
  assert.equal(toggled("L1 or L2 and Knowledge", names, "Linguistic", false), "(L1 or L2 and Knowledge) and Linguistic");
  assert.equal(toggled("Knowledge, Linguistic", names, "Knowledge", false), "Knowledge");
});
