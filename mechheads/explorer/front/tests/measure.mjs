/**
 * How fast a page is: `node tests/measure.mjs [PAYLOAD.json]` measures the page of the small sample, one of 1,024 heads made from
 * it, and the same of a payload ({page, blocks}), and writes the numbers to tests/measured.json.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { launch, open } from "./browser.mjs";
import { html } from "./pages.mjs";
import { large, small } from "./samples.mjs";

const TIMES = 20;

/** Runs before the page's own script: notes when the first cell of the map has been painted. */
function watch() {
  const seen = () => {
    if (!document.querySelector(".mh-cell")) return requestAnimationFrame(seen);
    requestAnimationFrame(() => setTimeout(() => (window.firstView = performance.now())));
  };
  requestAnimationFrame(seen);
}

/** Milliseconds from a movement of the pointer over a head's mark to the next painted frame, and how long the page worked on it. */
async function hover({ view, heads }) {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const [frames, scripts] = [[], []];
  for (const head of heads) {
    const mark = document.querySelector(`.mh-view-${view} [data-head="${head}"]`);
    const { left, top, width, height } = mark.getBoundingClientRect();
    const at = { bubbles: true, clientX: left + width / 2, clientY: top + height / 2 };
    await frame();
    const start = performance.now();
    (mark.querySelector("td") ?? mark).dispatchEvent(new PointerEvent("pointermove", at));
    scripts.push(performance.now() - start);
    await frame();
    frames.push(performance.now() - start);
    if (!document.querySelector(".mh-view-map .is-hovered")) throw new Error(`head ${head} was not marked`);
  }
  const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
  return { toFrame: median(frames), script: median(scripts) };
}

export async function measure(t, browser, payload) {
  const text = html(payload);
  const page = await open(t, browser, text, { before: watch, hash: "sort=" });
  await page.waitForFunction(() => window.firstView !== undefined);
  const rounded = (value) => Math.round(value * 10) / 10;
  const { nLayers, nHeads } = payload.page.model;
  const n = nLayers * nHeads;
  const spread = Array.from({ length: TIMES }, (_, at) => Math.floor((at * n) / TIMES));
  const firstViewMs = rounded(await page.evaluate(() => window.firstView));
  const hoverMs = {};
  for (const view of ["map", "scatter", "table"]) {
    const heads = view === "table" ? spread.map((_, at) => at % 10) : spread;
    const { toFrame, script } = await page.evaluate(hover, { view, heads });
    hoverMs[view] = { toFrame: rounded(toFrame), script: rounded(script) };
  }
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const heapMb = rounded(await page.evaluate(() => performance.memory.usedJSHeapSize / 1e6));
  const elements = await page.evaluate(() => document.querySelectorAll("*").length);
  return { heads: n, pageMb: rounded(text.length / 1e6), firstViewMs, hoverMs, heapMb, elements };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const payloads = [small()];
  if (process.argv[2]) payloads.push(JSON.parse(readFileSync(process.argv[2], "utf8")));
  const browser = await launch();
  const ends = [];
  const results = [];
  for (const payload of payloads) {
    const { name } = payload.page.model;
    for (const each of [payload, large(32, 32, payload)]) {
      results.push({ from: name, ...(await measure({ after: (end) => ends.push(end) }, browser, each)) });
    }
  }
  for (const end of ends) await end();
  const version = browser.version();
  await browser.close();
  writeFileSync(new URL("measured.json", import.meta.url), `${JSON.stringify({ chromium: version, medianOf: TIMES, results }, null, 2)}\n`);
  console.log(JSON.stringify(results, null, 1));
}
