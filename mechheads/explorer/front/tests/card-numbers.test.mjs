import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

const { exact, extent, interval, measured, percent, plural, rankOf, scale, show, showQ, ticks, tickText, withInterval } = await load("numbers.ts");

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
  assert.equal(showQ(0.0123), "q = 0.012");
  assert.equal(showQ(0), "q < 0.001");
  assert.equal(showQ(null), "no q value");
  assert.equal(plural(1, "prompt"), "1 prompt");
  assert.equal(plural(0, "prompt"), "0 prompts");
});

test("a number and the ends of its interval have the digits that the interval earns", () => {
  for (const [value, low, high, expected] of [
    [0.703, 0.599, 0.811, "0.70 [0.60, 0.81]"],
    [2.706, 2.17, 3.17, "2.7 [2.2, 3.2]"],
    [0.00474, 0.00337, 0.00661, "0.0047 [0.0034, 0.0066]"],
    [-0.002, -0.11, 0.1, "0.00 [\u22120.11, 0.10]"],
    [-0.25, -0.31, -0.19, "\u22120.25 [\u22120.31, \u22120.19]"],
    [123.4, 80, 160, "120 [80, 160]"],
    [0.903, 0.58, 1.23, "0.9 [0.6, 1.2]"],
    [1.2, 0.02, 2.6, "1.20 [0.02, 2.60]"],
    [12345, 11000, 13000, "12,300 [11,000, 13,000]"],
    [-12345, -13000, -11000, "\u221212,300 [\u221213,000, \u221211,000]"],
    [2.9e-5, 1.2e-5, 5.1e-5, "2.9e\u22125 [1.2e\u22125, 5.1e\u22125]"],
    [0, 0, 3e-5, "0 [0, 3.0e\u22125]"],
    [0.5, 0.5, 0.5, "0.500 [0.500, 0.500]"],
    [0.5, null, 0.7, "0.500"],
    [0.5, null, null, "0.500"],
    [null, null, null, "missing"],
  ]) assert.equal(withInterval(value, low, high), expected);
  assert.equal(measured(0.703, 0.599, 0.811), "0.70");
  assert.equal(interval(-0.1, 0.25), "[\u22120.10, 0.25]");
  assert.equal(interval(null, 0.25), "too few");
  assert.equal(interval(0.19, 1, "two clusters"), "(two clusters: 0.2 to 1.0)");
  assert.equal(exact(0.7031, 0.59912, 0.81), "0.7031 [0.59912, 0.81]");
  assert.equal(exact(1 / 3, null, null), "0.3333333333333333");
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
