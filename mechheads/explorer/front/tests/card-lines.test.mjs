import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

const { chance, placesOf, shown } = await load("numbers.ts");
const { listed } = await load("../text.ts");
const { asCalls } = await load("../lists.ts");

test("values are shown with what their intervals earn, shares as percentages", () => {
  const row = (value, low, high, unit, n = 8) => ({ value, low, high, unit, n });
  assert.equal(shown(row(0.703, 0.599, 0.811, "share restored")), "70% [60%, 81%]");
  assert.equal(shown(row(-0.703, -0.811, -0.599, "share of pairs")), "\u221270% [\u221281%, \u221260%]");
  assert.equal(shown(row(0.00065, -0.0014, 0.0001, "share restored")), "0.07% [\u22120.14%, 0.01%]");
  assert.equal(shown(row(1.4836, 1.1775, 1.7982, "nats")), "1.5 [1.2, 1.8]");
});

test("too few prompts and equal values stand in place of the interval", () => {
  assert.equal(shown({ value: 0.5, low: null, high: null, unit: "share restored", n: 4 }), "50% [too few]");
  assert.equal(shown({ value: -1, low: -1, high: -1, unit: "nats", n: 8 }), "\u22121.0 [all 8 equal]");
  assert.equal(shown({ value: 0.5, low: null, high: null, unit: "nats", n: 0 }), "0.50");
  assert.equal(shown({ value: null, low: null, high: null, unit: "nats", n: 8 }), "not measured");
});

test("a column has one number of decimals, by its widest interval", () => {
  const rows = [{ value: 0.65, low: 0.53, high: 0.75 }, { value: -0.0006, low: -0.0014, high: 0.0001 }];
  assert.equal(placesOf(rows), 2);
  assert.deepEqual(rows.map((row) => shown({ ...row, unit: "nats", n: 8 }, placesOf(rows))), ["0.65 [0.53, 0.75]", "0.00 [0.00, 0.00]"]);
  assert.equal(placesOf([{ value: 12.3, low: null, high: null }]), 0);
});

test("chances, lists and calls", () => {
  assert.deepEqual([chance(0.0004), chance(0.0213), chance(null)], ["< 0.001", "0.021", "\u2013"]);
  assert.equal(listed(["a", "b", "c"]), "a, b and c");
  const sources = [{ name: "patching", call: "mh.activation_patch(model, pairs)" }, { name: "my sweep", call: "mh.sweep(model, x)" }, { name: "old", call: "" }];
  const model = { name: 'a "b"', sources };
  assert.equal(asCalls(model, ["patching", "old", null]), 'import mechheads as mh\n\nmodel = mh.load("a \\"b\\"")\npatching = mh.activation_patch(model, pairs)\n');
  assert.match(asCalls(model, ["my sweep"]), /\nmy_sweep = mh\.sweep\(model, x\)\n$/);
  assert.equal(asCalls(model, ["old"]), "");
});
