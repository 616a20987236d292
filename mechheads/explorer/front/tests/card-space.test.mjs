/** Coordinates of the space of a head, and kinds of tokens. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

const { cloudOf, kindOf, places, square, unpacked, wordsOf } = await load("space.ts");

const cloud = { points: "A/ff/A", ends: [[-2, 4], [10, 12]], shares: [0.5, 0.2], held: 0.6 };

test("a sign stands for a number of 63rds, and coordinates lie between their ends", () => {
  assert.deepEqual(unpacked("A/f"), [0, 1, 31 / 63]);
  const rounded = places(cloud).map(({ x, y }) => [x.toFixed(6), y.toFixed(6)]);
  assert.deepEqual(rounded, [["-2.000000", "10.984127"], ["4.000000", "12.000000"], ["0.952381", "10.000000"]]);
});

test("both coordinates are drawn on one scale, in the middle of the square", () => {
  const { x, y } = square(cloud, 100, 20);
  assert.deepEqual([x(-2), x(1), x(4)], [20, 50, 80]);
  assert.deepEqual([y(10), y(11), y(12)].map((each) => Number(each.toFixed(9))), [60, 50, 40]);
  assert.equal(square({ ...cloud, ends: [[0, 0], [0, 0]] }, 100, 20).x(0), 50);
});

test("heads that share keys have the k of one of them", () => {
  const space = { heads: { L0H0: { q: cloud, k: cloud }, L0H1: { q: cloud, k: "L0H0" }, L0H2: { k: "L9H9" } } };
  assert.equal(cloudOf(space, space.heads.L0H1, "k"), cloud);
  assert.equal(cloudOf(space, space.heads.L0H2, "k"), null);
});

test("tokens are found in their windows, and have a kind", () => {
  assert.deepEqual(wordsOf({ windows: [[5, 6], [7, 8]], window: [1, 0], position: [0, 1] }), [7, 6]);
  assert.deepEqual([" a", "ing", " 12", "3rd", ",", "\n", " \u05e9", "", "<b>"].map(kindOf), [0, 1, 2, 2, 3, 3, 0, 3, 1]);
});
