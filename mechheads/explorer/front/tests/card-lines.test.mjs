import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

const { linesOf: groupsOf, listed, shown, shownOf, tensionsOf } = await load("verdicts.ts");

function column(name, values, more = {}) {
  return { name, label: name, unit: "", meaning: "", kind: "number", role: "value", of: null, values, ...more };
}

function view(name, values, more = {}) {
  const texts = { yes: "matters", no: "no evidence", unclear: "unclear" };
  return {
    name, title: name, unit: "nats", value: name, low: null, high: null, range: false, q: null, rankBy: "value",
    sentence: "Moves {value} {unit} ({low} to {high}) of {relation}; {other}.",
    verdict: { rule: "", texts, change: texts, values },
    ...more,
  };
}

const linesOf = (of, head) => groupsOf(of, head).flatMap(({ lines }) => lines);

const model = {
  nLayers: 2, nHeads: 2, interrupted: false, questions: [],
  columns: [
    column("patching", [0.1, -0.5, null, 0.3]),
    column("patching_ci_low", [0.05, -0.6, null, 0.2]),
    column("patching_ci_high", [0.15, -0.4, null, 0.4]),
    column("ships", [0.5, 0.25, 2, 3]),
    column("best_relation", ["a_to_b", "", "", ""], { kind: "text" }),
  ],
  views: [
    view("patching", ["yes", "no", null, "unclear"], { low: "patching_ci_low", high: "patching_ci_high", rankBy: "absolute" }),
    view("ships", ["no", "no", "yes", "yes"]),
  ],
  tensions: [{ a: { view: "patching", verdict: "yes" }, b: { view: "ships", verdict: "no" }, text: "They differ." }],
};

test("a line has the value, its interval, its rank by size and its sentence", () => {
  const [line] = linesOf(model, 0);
  assert.deepEqual([line.value, line.low, line.high], [0.1, 0.05, 0.15]);
  assert.deepEqual(line.rank, { rank: 3, of: 3 });
  assert.equal(line.sentence, "Moves 0.10 nats (0.05 to 0.15) of a to b; {other}.");
  assert.deepEqual(linesOf(model, 1)[0].rank, { rank: 1, of: 3 });
});

test("a share is a percentage in its sentence, as at the top of the page", () => {
  const views = [{ ...model.views[0], unit: "share restored", sentence: "It restores {value} of it." }];
  const [line] = linesOf({ ...model, views }, 0);
  assert.equal(line.sentence, "It restores 10% of it.");
  const negative = linesOf({ ...model, views }, 1)[0];
  assert.equal(negative.sentence, "It restores \u221250% of it.");
  const [named] = linesOf({ ...model, views: [{ ...views[0], sentence: "It changes by {value} {unit}." }] }, 0);
  assert.equal(named.sentence, "It changes by 10%.");
});

test("what is missing says so, and whether the work was interrupted", () => {
  assert.equal(linesOf(model, 2)[0].value, null);
  assert.equal(linesOf(model, 2)[0].rank, null);
  assert.equal(linesOf(model, 2)[0].sentence, "Not measured for this head.");
  assert.match(linesOf({ ...model, interrupted: true }, 2)[0].sentence, /interrupted/);
});

test("disagreements are those of both verdicts, and the views of each question stand together", () => {
  const found = (head) => tensionsOf(model, head).map(({ a, b, text }) => [a.name, b.name, text]);
  assert.deepEqual(found(0), [["patching", "ships", "They differ."]]);
  assert.deepEqual(found(1), []);
  const named = (key, views) => ({ key, title: key, kind: "pairs", views });
  const views = model.views.map((each, at) => ({ ...each, question: at ? "asked" : null }));
  const groups = groupsOf({ ...model, views, questions: [named("empty", []), named("asked", ["ships"])] }, 0);
  assert.deepEqual(groups.map(({ question, lines }) => [question?.key, lines.map((line) => line.view.name)]), [["asked", ["ships"]], [undefined, ["patching"]]]);
  assert.equal(listed(["a", "b", "c"]), "a, b and c");
});

test("the card shows shares as percentages, with what their intervals earn", () => {
  assert.equal(shown({ unit: "share restored", range: false }, 0.703, 0.599, 0.811), "70% [60%, 81%]");
  assert.equal(shown({ unit: "share of pairs", range: true }, -0.703, -0.811, -0.599), "\u221270% (two clusters: \u221281% to \u221260%)");
  assert.equal(shown({ unit: "nats", range: false }, 0.5, null, null), "0.500");
  assert.equal(shownOf(model, model.views[0], 0), "0.10 [0.05, 0.15]");
});
