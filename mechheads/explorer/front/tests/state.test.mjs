/** What is chosen, as the address says it. */
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { load } from "./card-bundle.mjs";

let store;
beforeEach(async () => (store = await load("../state.ts")));

const CHOSEN = {
  head: 12,
  pins: [3, 5],
  question: "pairs",
  x: "phi",
  y: "patching",
  colour: "a&b=c#d",
  filter: "patching > 0.2 & \u202e, 100%",
  sort: "-phi",
  columns: ["a,b", "%zz", "c d"],
  top: 10,
  by: "phi",
  oneColour: true,
  pane: "cause",
  prompt: 2,
  token: 7,
  beside: 1,
  part: "50-60%",
  section: "circuits",
};

test("everything that is chosen comes back from the address", () => {
  store.choose(CHOSEN);
  const hash = store.toHash();
  assert.doesNotMatch(hash, /\s/);
  assert.deepEqual(store.fromHash(`#${hash}`), CHOSEN);
});

test("heads stand in the address by their names", () => {
  store.nameHeads({
    name: (head) => `L${Math.floor(head / 4)}H${head % 4}`,
    number: (name) => {
      const [, layer, head] = /^L(\d)H(\d)$/.exec(name) ?? [];
      return layer === undefined ? null : Number(layer) * 4 + Number(head);
    },
  });
  store.choose({ head: 5, pins: [5, 6] });
  assert.equal(store.toHash(), "head=L1H1&pins=L1H1%2CL1H2");
  assert.deepEqual(store.fromHash("#head=L1H2").head, 6);
  assert.deepEqual(store.fromHash("#pins=L1H1,1.L1H2,L1H2,12,L1").pins, [5, 6]);
  assert.equal(store.fromHash("#head=5").head, null);
});

test("the address is empty at the start, and says only what differs", () => {
  assert.equal(store.toHash(), "");
  store.choose({ head: 0, oneColour: true });
  assert.equal(store.toHash(), "head=0&oneColour=1");
  store.choose({ head: null, oneColour: false });
  assert.equal(store.toHash(), "");
});

test("what makes no sense in an address is as at the start", () => {
  const start = store.fromHash("");
  assert.deepEqual(store.fromHash("#head=x&pins=x,2.x,3.4.5&top=1e9&nonsense=1&prompt=%00"), start);
});

test("a page can begin with a head, which the address can close", () => {
  store.beginWith({ head: 4 });
  assert.equal(store.fromHash("").head, 4);
  assert.equal(store.fromHash("#head=").head, null);
  assert.equal(store.fromHash("#head=2").head, 2);
});

test("a pin is put in and taken away", () => {
  store.pin(3);
  store.pin(5);
  assert.deepEqual(store.state.pins.value, [3, 5]);
  store.pin(3);
  assert.deepEqual(store.state.pins.value, [5]);
});
