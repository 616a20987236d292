import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./card-bundle.mjs";

/** A notebook's side of the widget: keeps what is sent, and can answer. */
function notebook() {
  const listeners = new Set();
  const sent = [];
  return {
    sent,
    listeners,
    send: (message) => sent.push(message),
    on: (_, receive) => listeners.add(receive),
    off: (_, receive) => listeners.delete(receive),
    answer: (message) => [...listeners].forEach((receive) => receive(message)),
  };
}

test("a widget answers the text that it was sent, and no other", async () => {
  const { run, sendThrough } = await load("live.ts");
  const model = notebook();
  sendThrough(model);
  const { answer } = run("hello", "L0H1");
  const [{ type, id, text, head }] = model.sent;
  assert.deepEqual([type, text, head], ["text", "hello", "L0H1"]);
  assert.match(id, /^[a-z0-9-]{1,40}$/);
  model.answer({ type: "text", id: "another", text: "no" });
  model.answer({ type: "text", id, text: "yes" });
  assert.equal((await answer).text, "yes");
  assert.equal(model.listeners.size, 0);
});

test("an error of a widget is told, and cancelling tells the widget", async () => {
  const { run, sendThrough } = await load("live.ts");
  const model = notebook();
  sendThrough(model);
  const failed = run("a", null);
  model.answer({ type: "error", id: model.sent[0].id, error: "too long" });
  await assert.rejects(failed.answer, { message: "too long" });
  const stopped = run("b", null);
  stopped.cancel();
  await assert.rejects(stopped.answer, { message: "Cancelled." });
  assert.deepEqual(model.sent.at(-1), { type: "cancel", id: model.sent.at(-2).id });
  assert.equal(model.listeners.size, 0);
});

test("the kernel gives the page as a file", async () => {
  const { isWidget, pageOfKernel, sendThrough } = await load("live.ts");
  const model = notebook();
  sendThrough(model);
  assert.ok(isWidget());
  const page = pageOfKernel();
  assert.equal(model.sent[0].type, "page");
  model.answer({ type: "page", id: model.sent[0].id, html: "<p>" });
  assert.equal(await page, "<p>");
});

test("without a notebook there is an error that says so", async () => {
  const { run } = await load("live.ts");
  await assert.rejects(run("a", null).answer, /not connected/);
});

test("blocks come from where the reader is told, once each", async () => {
  const { deflateSync } = await import("node:zlib");
  const { layerOf, readBlocksFrom, sharedOf } = await load("load.ts");
  const asked = [];
  const packed = deflateSync(JSON.stringify({ layer: 3, heads: [] })).toString("base64");
  readBlocksFrom((id) => (asked.push(id), id === "mh-heads-3" ? packed : undefined));
  assert.deepEqual(await layerOf(3), { layer: 3, heads: [] });
  await layerOf(3);
  assert.deepEqual(asked, ["mh-heads-3"]);
  await assert.rejects(sharedOf(), { message: "This page holds no data of the texts that all heads share." });
});
