import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

const { decode, moved } = await load("attention.ts");
const { column, firstShare, leftAtMost, row, sparse, weightAt } = await load("sparse.ts");
const heat = await load("heat.ts");

const tokens = ["a", "b", "c"];
const attention = { first: [255, 51, 51], keys: [[], [1], [2, 1]], weights: [[], [204], [102, 51]] };

function near(value, expected) {
  assert.ok(Math.abs(value - expected) < 1e-6, `${value} is not ${expected}`);
}

test("kept attention is decoded to shares, by query and by key", () => {
  const found = decode(tokens, attention);
  assert.deepEqual([...found.starts], [0, 1, 3, 6]);
  assert.deepEqual(row(found, 2).map(({ key }) => key), [0, 1, 2]);
  near(weightAt(found, 2, 2), 0.4);
  near(weightAt(found, 1, 1), 0.8);
  assert.equal(weightAt(found, 0, 1), null);
  assert.deepEqual(column(found, 1).map(({ query }) => query), [1, 2]);
  near(firstShare(found), 0.2);
  // of row 2, 0.2, 0.4 and 0.2 are kept, and of row 1, all
  near(leftAtMost(found, 2), 0.2);
  near(leftAtMost(found, 1), 0);
});

test("what is moved is attention times size, and each row sums to 1", () => {
  const found = moved(tokens, attention, [0, 255, 51]);
  assert.equal(weightAt(found, 1, 0), null);
  near(weightAt(found, 1, 1), 1);
  // 0.2 x 1 against 0.4 x 0.2
  near(weightAt(found, 2, 1), 0.2 / 0.28);
  near(weightAt(found, 2, 2), 0.08 / 0.28);
});

test("entries without weight are left out, and the later of two counts", () => {
  const found = sparse(tokens, [
    { query: 1, key: 0, weight: 0 },
    { query: 2, key: 1, weight: 0.5 },
    { query: 2, key: 1, weight: 0.25 },
  ]);
  assert.deepEqual([...found.starts], [0, 0, 0, 1]);
  assert.equal(weightAt(found, 2, 1), 0.25);
  assert.equal(firstShare(sparse(["a"], [])), 0);
});

test("a window stays on the map, and zooming keeps its point in place", () => {
  assert.deepEqual(heat.within(100, { query: 95, key: -3, span: 10 }), { query: 90, key: 0, span: 10 });
  assert.deepEqual(heat.within(100, { query: 5, key: 5, span: 1 }), { query: 5, key: 5, span: 4 });
  assert.deepEqual(heat.within(2, { query: 0, key: 0, span: 1 }), { query: 0, key: 0, span: 2 });
  assert.deepEqual(heat.zoom(100, heat.whole(100), 2, 50, 20), { query: 25, key: 10, span: 50 });
  assert.deepEqual(heat.zoom(100, { query: 25, key: 10, span: 50 }, 0.1, 50, 20), heat.whole(100));
  assert.deepEqual(heat.reveal(100, { query: 0, key: 0, span: 10 }, 15, 3), { query: 6, key: 0, span: 10 });
  assert.deepEqual(heat.reveal(100, { query: 50, key: 50, span: 10 }, 55, 20), { query: 50, key: 20, span: 10 });
});

test("a cell is in sight if it is in the window", () => {
  const window = { query: 10, key: 0, span: 10 };
  assert.deepEqual([[10, 0], [19, 9], [20, 9], [19, 10], [9, 0]].map(([query, key]) => heat.inside(window, query, key)), [true, true, false, false, false]);
});

test("a point of the map is a cell, if there is one", () => {
  const window = { query: 10, key: 0, span: 10 };
  assert.deepEqual(heat.cellAt(20, window, 100, 55, 5), [10, 5]);
  assert.equal(heat.cellAt(20, heat.whole(20), 100, 99, 1), null);
  assert.equal(heat.cellAt(20, heat.whole(20), 100, 0, 101), null);
});

test("the largest entries are drawn last, and labels have room", () => {
  const found = decode(tokens, attention);
  const order = heat.drawOrder(found);
  assert.equal(order.at(-1), 0);
  assert.deepEqual([...heat.queriesOf(found)], [0, 1, 1, 2, 2, 2]);
  assert.equal(heat.labelStep(10, 200, 12), 1);
  assert.equal(heat.labelStep(100, 200, 12), 10);
  assert.equal(heat.labelStep(2000, 600, 12), 50);
  assert.equal(heat.shade(0.25), 0.5);
});
