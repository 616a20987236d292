/**
 * Figures and the explorer in JupyterLab: node tests/lab.mjs JUPYTER FOLDER, where the folder is for everything that Jupyter
 * writes. `.ci/lab` runs it. With SHOTS=FOLDER, it leaves pictures there.
 */
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { counts, launch } from "./browser.mjs";

const [jupyter, folder] = process.argv.slice(2);
const TOKEN = "lab-test";
const PATIENCE = 90_000;
const CELLS = [
  `import numpy as np
import mechheads as mh
from mechheads.testing.check import tiny_model

model = tiny_model()
scores = mh.HeadScores.from_scores(np.arange(8.0).reshape(2, 4), name="effect", kind="activation_patch")
atlas = mh.studies.Atlas("tiny", patching=scores)`,
  "scores.plot()",
  `model.cache(["The capital of France is"], sites=("pattern",)).attention.view()`,
  "mh.explore(atlas)",
  "mh.explore(atlas, model=model)",
];
const [PLOT, PATTERNS, EXPLORER, LIVE] = [1, 2, 3, 4];

function notebook(cells) {
  return JSON.stringify({
    nbformat: 4,
    nbformat_minor: 5,
    metadata: { kernelspec: { name: "python3", display_name: "Python 3", language: "python" } },
    cells: cells.map((source, at) => ({ cell_type: "code", id: `cell-${at}`, metadata: {}, execution_count: null, outputs: [], source })),
  });
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

async function answers(url, within) {
  for (const end = Date.now() + within; Date.now() < end; await new Promise((wait) => setTimeout(wait, 200))) {
    if (await fetch(url).then(({ ok }) => ok, () => false)) return;
  }
  throw new Error(`${url} does not answer`);
}

async function opened(said) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 1000 } });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && said.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => said.push(`error: ${error}`));
  page.on("request", (request) => {
    const { protocol, hostname } = new URL(request.url());
    if (!/^(data|blob):$/.test(protocol) && hostname !== "127.0.0.1") said.push(`asks for ${request.url()}`);
  });
  await page.goto(`${address}/lab/tree/test.ipynb?token=${TOKEN}&reset`);
  await page.locator(".jp-Notebook").waitFor();
  return page;
}

async function shot(page, name) {
  if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`) });
}

const output = (page, cell) => page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea");
/** The page in the frame of an output. */
const framed = (page, cell) => output(page, cell).frameLocator("iframe.mechheads-frame");
const map = (where, head) => where.locator(`.mh-view-map [data-head="${head}"]`);

async function menu(page, ...names) {
  const [first, ...others] = names;
  await page.getByRole("menuitem", { name: first, exact: true }).click();
  for (const name of others) await page.locator(".lm-Menu").getByText(name, { exact: true }).first().click();
}

/** As a reader does, goes to the page first: a browser puts off drawing in frames that are out of sight. */
async function opensACard(where, head, name) {
  await (where.owner?.() ?? where).scrollIntoViewIfNeeded();
  await map(where, head).click();
  await where.locator(".mh-detail-title", { hasText: name }).waitFor();
}

/** Whether text is lighter than its background, and their contrast, from 1 to 21. */
function contrast(where) {
  return where.locator(".mh").first().evaluate((element) => {
    const light = (colour) => {
      const [r, g, b] = colour.match(/[\d.]+/g).map((part) => (part / 255 <= 0.04 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const { color, backgroundColor } = getComputedStyle(element);
    const [ink, paper] = [light(color), light(backgroundColor)];
    return { dark: paper < ink, ratio: (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05) };
  });
}

/** A figure and pages are drawn, and a head can be clicked in each page. */
async function drawnAndClicked(page) {
  await output(page, PLOT).locator(".jp-RenderedPlotly :is(.main-svg, .plot-img)").first().waitFor();
  const patterns = framed(page, PATTERNS);
  await opensACard(patterns, 2, "L0H2");
  await counts(patterns.locator(".mh-view-map .mh-cell"), 8);
  await opensACard(framed(page, EXPLORER), 5, "L1H1");
}

/** The file opens at the view that was saved, without the kernel. */
async function isSavedAsAFile(page, live) {
  const [saved] = await Promise.all([page.waitForEvent("download"), live.getByRole("button", { name: "Save as a file" }).click()]);
  const file = join(folder, saved.suggestedFilename());
  await saved.saveAs(file);
  const copy = await page.context().newPage();
  await copy.goto(pathToFileURL(file).href);
  await copy.locator(".mh-detail-title", { hasText: "L1H1" }).waitFor();
  await counts(copy.getByRole("tab", { name: "own text" }), 0);
  await copy.close();
}

/** Own texts run, and keys are those of the page, not of the notebook. */
async function isLive(page) {
  const live = output(page, LIVE).locator(".mh");
  await opensACard(live, 5, "L1H1");
  await live.getByRole("tab", { name: "own text" }).click();
  await live.getByLabel("Text for the model").fill("The capital of France is");
  await live.getByRole("button", { name: "run", exact: true }).click();
  await live.getByText(/^\d+ tokens in /).waitFor();
  await isSavedAsAFile(page, live);
  await map(live, 5).focus();
  for (const key of ["ArrowUp", "p", "x", "c"]) await page.keyboard.press(key);
  assert.equal(await live.locator(".mh-tray li").textContent().then((text) => text.includes("L1H2")), true);
  await counts(page.locator(".jp-Notebook .jp-Cell"), CELLS.length);
}

/** All pages are as the notebook is, whatever the system prefers. */
async function isPaintedAsTheNotebook(page, dark) {
  await page.emulateMedia({ colorScheme: dark ? "light" : "dark" });
  await menu(page, "Settings", "Theme", dark ? "JupyterLab Dark" : "JupyterLab Light");
  await page.locator(`body[data-jp-theme-light="${!dark}"]`).waitFor({ state: "attached" });
  for (const where of [framed(page, PATTERNS), framed(page, EXPLORER), output(page, LIVE)]) {
    let found;
    for (let tries = 0; tries < 300 && found?.dark !== dark; tries++) {
      await page.waitForTimeout(100);
      found = await contrast(where);
    }
    assert.equal(found.dark, dark);
    assert.ok(found.ratio > 7, `contrast ${found.ratio}`);
  }
  await shot(page, dark ? "dark" : "light");
}

async function shutDown() {
  const sessions = await (await fetch(`${address}/api/sessions?token=${TOKEN}`)).json();
  for (const { id } of sessions) await fetch(`${address}/api/sessions/${id}?token=${TOKEN}`, { method: "DELETE" });
}

async function isSaved(page) {
  await map(output(page, LIVE).locator(".mh"), 5).focus();
  await page.keyboard.press("Control+s");
  const file = join(notebooks, "test.ipynb");
  const isThere = () => readFileSync(file, "utf8").includes("mechheads-frame");
  for (let tries = 0; tries < 300 && !isThere(); tries++) await page.waitForTimeout(100);
  await shot(page, "saved");
  assert.ok(isThere(), "Control+S did not save");
  await page.context().close();
}

/** The exported notebook has the pages, and asks for nothing but the libraries of nbconvert's own template. */
async function isExported() {
  const { status, stderr } = spawnSync(jupyter, ["nbconvert", "--to", "html", join(notebooks, "test.ipynb")], { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  const context = await browser.newContext({ viewport: { width: 1440, height: 1000 }, colorScheme: "dark" });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const asked = [];
  page.on("request", (request) => /^https?:/.test(request.url()) && asked.push(request.url()));
  await page.goto(pathToFileURL(join(notebooks, "test.html")).href);
  for (const [at, head, name] of [[0, 2, "L0H2"], [1, 5, "L1H1"], [2, 5, "L1H1"]]) {
    const where = page.frameLocator(`iframe.mechheads-frame >> nth=${at}`);
    await opensACard(where, head, name);
    assert.equal((await contrast(where)).dark, false);
  }
  assert.deepEqual(asked.filter((url) => !/require\.min\.js|mathjax/i.test(url)), []);
  await context.close();
}

async function whole() {
  const said = [];
  const page = await opened(said);
  await page.getByText(/Python 3.*\| Idle/).waitFor();
  await menu(page, "Run", "Run All Cells");
  await drawnAndClicked(page);
  await shot(page, "ran");
  await isLive(page);
  await shot(page, "live");
  for (const dark of [false, true]) await isPaintedAsTheNotebook(page, dark);
  await isSaved(page);
  assert.deepEqual(said, []);
  await shutDown();
  const again = [];
  const reopened = await opened(again);
  await drawnAndClicked(reopened);
  await shot(reopened, "reopened");
  await reopened.context().close();
  // The widget with a model needs its kernel; JupyterLab says so.
  assert.deepEqual(again.filter((line) => !line.includes("widget model not found")), []);
  await isExported();
}

const port = await freePort();
const notebooks = join(folder, "notebooks");
mkdirSync(notebooks);
writeFileSync(join(notebooks, "test.ipynb"), notebook(CELLS));
const lab = spawn(
  jupyter,
  [
    "lab",
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    `--ServerApp.port=${port}`,
    "--ServerApp.port_retries=0",
    `--IdentityProvider.token=${TOKEN}`,
    `--ServerApp.root_dir=${notebooks}`,
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=None",
  ],
  { stdio: ["ignore", "pipe", "pipe"] },
);
let log = "";
for (const stream of [lab.stdout, lab.stderr]) stream.on("data", (text) => (log += text));
const address = `http://127.0.0.1:${port}`;
const browser = await launch();
try {
  await answers(`${address}/api/status?token=${TOKEN}`, PATIENCE);
  await whole();
} catch (error) {
  console.error(log.slice(-3000));
  throw error;
} finally {
  await browser.close();
  lab.kill();
}
