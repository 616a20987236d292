import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

const { extent, interval, percent, plural, rankOf, scale, show, showQ, ticks, tickText } = await load("numbers.ts");

test("numbers keep three digits and a true minus sign", () => {
  assert.equal(show(0.123456), "0.123");
  assert.equal(show(-12.345), "\u221212.3");
  assert.equal(show(1234.5), "1235");
  assert.equal(show(12345), "12,345");
  assert.equal(show(0), "0");
  assert.equal(show(0.0000123), "1.2e\u22125");
  assert.equal(show(null), "missing");
  assert.equal(show(Number.NaN), "missing");
});

test("shares, intervals, q values and counts as text", () => {
  assert.equal(percent(0.1234), "12%");
  assert.equal(percent(0.0456), "4.6%");
  assert.equal(percent(0), "0%");
  assert.equal(percent(0.0001), "less than 0.1%");
  assert.equal(percent(null), "missing");
  assert.equal(interval(-0.1, 0.25), "\u22120.100 to 0.250");
  assert.equal(interval(null, 0.25), "no interval");
  assert.equal(interval(0.666, 0.908, percent), "67% to 91%");
  assert.equal(showQ(0.0123), "q = 0.012");
  assert.equal(showQ(0), "q < 0.001");
  assert.equal(showQ(null), "no q value");
  assert.equal(plural(1, "prompt"), "1 prompt");
  assert.equal(plural(0, "prompt"), "0 prompts");
});

test("a rank counts what is known, and equal values share the better rank", () => {
  const values = [0.5, null, 2, 0.5, -1, 2];
  assert.deepEqual(rankOf(values, 0), { rank: 3, of: 5 });
  assert.deepEqual(rankOf(values, 2), { rank: 1, of: 5 });
  assert.deepEqual(rankOf(values, 5), { rank: 1, of: 5 });
  assert.deepEqual(rankOf(values, 4), { rank: 5, of: 5 });
  assert.equal(rankOf(values, 1), null);
});

test("scales, their ends and ticks", () => {
  assert.deepEqual(extent([null, 0.2, -0.4], 0), [-0.4, 0.2]);
  assert.deepEqual(extent([]), [0, 1]);
  assert.deepEqual(extent([2]), [1.5, 2.5]);
  assert.equal(scale([0, 10], 100, 200)(5), 150);
  assert.equal(scale([3, 3], 100, 200)(3), 100);
  assert.deepEqual(ticks([0, 1], 4), [0, 0.5, 1]);
  assert.deepEqual(ticks([-1, 3], 4), [-1, 0, 1, 2, 3]);
  assert.deepEqual(ticks([5, 5]), [5]);
  assert.deepEqual([0, 0.5, -0.1, 1.0, 0.30000000000000004, 2e7].map(tickText), ["0", "0.5", "\u22120.1", "1", "0.3", "2e7"]);
});
