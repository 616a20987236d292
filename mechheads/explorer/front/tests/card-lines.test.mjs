import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

const { agreementOf, linesOf, listed } = await load("verdicts.ts");

function column(name, values, more = {}) {
  return { name, label: name, unit: "", meaning: "", kind: "number", role: "value", of: null, values, ...more };
}

function view(name, values, more = {}) {
  const texts = { yes: "matters", no: "no evidence", unclear: "unclear" };
  return {
    name, title: name, unit: "nats", value: name, low: null, high: null, range: false, q: null, rankBy: "value",
    sentence: "Moves {value} {unit} ({low} to {high}) of {relation}; {other}.",
    verdict: { rule: "", texts, change: texts, values },
    group: null, ...more,
  };
}

const model = {
  nLayers: 2, nHeads: 2, interrupted: false,
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

test("disagreement of views is said first, then the tension that holds", () => {
  const of = (head) => agreementOf(model, linesOf(model, head));
  assert.deepEqual(of(0), { disagree: true, text: "The views disagree: patching found something, ships did not. They differ." });
  assert.deepEqual(of(1), { disagree: false, text: "No view found evidence that this head matters." });
  assert.deepEqual(of(2), { disagree: false, text: "ships found something." });
  assert.deepEqual(of(3), { disagree: false, text: "ships found something; patching cannot tell." });
  const unclear = (no) => agreementOf(model, [{ view: { title: "phi" }, verdict: "unclear" }, ...(no ? [{ view: { title: "ships" }, verdict: "no" }] : [])]).text;
  assert.equal(unclear(true), "phi cannot tell; the other views found no evidence that this head matters.");
  assert.equal(unclear(false), "phi cannot tell.");
  assert.equal(listed(["a", "b", "c"]), "a, b and c");
});

test("views of one group do not speak against each other, and irrelevance says that a head does not matter", () => {
  const line = (name, verdict, group = null) => ({ view: { name, title: name, group }, verdict });
  const text = (...lines) => agreementOf({ ...model, tensions: [] }, lines).text;
  const roles = (...verdicts) => ["facilitation", "interference", "irrelevance"].map((name, at) => line(name, verdicts[at], "roles"));
  assert.equal(text(...roles("yes", "no", "no")), "facilitation found something.");
  assert.equal(text(line("patching", "yes"), ...roles("no", "no", "yes")), "The views disagree: patching found something, facilitation, interference and irrelevance did not.");
  assert.equal(text(line("Ships, scaling", "yes", "ships"), line("Ships, other", "no", "ships"), line("phi", "no")), "The views disagree: Ships (scaling) found something, phi did not.");
});
