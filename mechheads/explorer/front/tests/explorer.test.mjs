/** Walks the explorer by mouse and by keyboard. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chosen, counts, faults, head, launch, open, press, saved } from "./browser.mjs";
import { load } from "./card-bundle.mjs";
import { small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const N_HEADS = 9;
const model = small().page.model;
const column = (name) => model.columns.find((each) => each.name === name).values;
const count = (holds) => column("layer").filter((_, at) => holds(at)).length;
const title = (page) => page.locator(".mh-detail-title").textContent();
const note = (page) => page.locator(".mh-search-note").textContent();
const marked = (page, view) => page.locator(`.mh-view-${view} [data-head]:not(.is-dim)`).count();
const focused = (page) => page.evaluate(() => document.activeElement?.getAttribute("data-head"));
const hoveredIn = (page) => page.evaluate(() => Array.from(document.querySelectorAll(".is-hovered"), (each) => `${each.closest(".mh-view").className.split("-").at(-1)} ${each.dataset.head}`).sort());

test("the first view: the map, the scatter and the table of all heads", async (t) => {
  const page = await open(t, browser, small());
  assert.equal(await page.title(), "The attention heads of small");
  await counts(page.locator(".mh-view-map [role=gridcell]"), 36);
  await counts(page.locator(".mh-view-scatter [role=option]"), 36);
  assert.equal(await page.locator(".mh-view-table [role=grid]").getAttribute("aria-rowcount"), "37");
  assert.equal(await note(page), "All 36 heads");
  assert.equal(new URL(page.url()).hash, "");
});

test("categories have hues and shapes", async (t) => {
  const page = await open(t, browser, small(), { hash: "question=weights" });
  const of = model.categories.of.findIndex((each) => each?.length === 1);
  const none = model.categories.of.findIndex((each) => each?.length === 0);
  await counts(head(page, "map", of).locator("path"), 1);
  await counts(head(page, "map", none).locator("path"), 0);
  const shapes = await page.locator(".mh-legend li").evaluateAll((keys) => keys.map((key) => key.querySelector("path")?.getAttribute("d") ?? ""));
  const hues = await page.locator(".mh-legend li rect").evaluateAll((keys) => keys.map((key) => getComputedStyle(key).fill));
  assert.equal(new Set(shapes).size, shapes.length);
  assert.equal(new Set(hues).size, hues.length);
  assert.ok(hues.includes("rgb(255, 127, 14)"));
});

test("a head of several categories shows all their colours, or one as in the paper", async (t) => {
  const { page: about, blocks } = small();
  const { categories } = about.model;
  categories.of.splice(12, 3, [0, 1], [0, 1, 2], [1]);
  const page = await open(t, browser, { page: about, blocks }, { hash: "question=weights" });
  const parts = (view, number, what) => head(page, view, number).locator(what).evaluateAll((all) => all.map((each) => getComputedStyle(each).fill));
  const hues = await page.locator(".mh-legend rect").evaluateAll((all) => all.map((each) => getComputedStyle(each).fill));
  assert.deepEqual(await parts("map", 12, "polygon"), hues.slice(0, 2));
  assert.deepEqual(await parts("map", 13, "polygon"), hues.slice(0, 3));
  assert.deepEqual(await parts("map", 14, "polygon"), []);
  assert.deepEqual(await parts("scatter", 13, "path"), hues.slice(0, 3));
  assert.deepEqual([await head(page, "map", 13).locator("path").count(), await page.locator(".mh-legend li").count()], [3, categories.names.length + 1]);
  await page.getByLabel(/^One colour for the \d+ heads with several$/).check();
  assert.deepEqual(chosen(page), { question: "weights", oneColour: "1" });
  await counts(head(page, "map", 13).locator("polygon"), 0);
  assert.deepEqual(await parts("map", 13, "rect"), ["rgb(140, 86, 75)"]);
  await page.getByRole("button", { name: /^3 categories/ }).click();
  assert.equal(chosen(page).filter, '"3 categories"');
  assert.equal(await marked(page, "map"), categories.of.filter((of) => of?.length === 3).length);
});

test("a click on a category in the legend marks its heads", async (t) => {
  const page = await open(t, browser, small(), { hash: "question=weights" });
  const { names, of } = model.categories;
  const key = (at) => page.locator(".mh-key-button").nth(at);
  const having = (...wanted) => of.filter((each) => wanted.some((at) => each?.includes(at))).length;
  const line = () => page.locator(".mh-search-line").inputValue();
  await key(0).click();
  assert.deepEqual([await line(), await marked(page, "map"), await key(0).getAttribute("aria-pressed")], [names[0], having(0), "true"]);
  assert.equal(await key(0).locator(".mh-count").textContent(), String(having(0)));
  await key(1).press("Control+Enter");
  assert.deepEqual([await line(), await marked(page, "map")], [`${names[0]}, ${names[1]}`, having(0, 1)]);
  await key(1).click({ modifiers: ["Control"] });
  assert.equal(await line(), names[0]);
  await key(2).click();
  assert.deepEqual([await line(), await key(0).getAttribute("aria-pressed")], [names[2], "false"]);
  await key(2).press("Enter");
  assert.deepEqual([await line(), await marked(page, "map")], ["", 36]);
  await page.locator(".mh-search-line").fill("phi > 0.1 or L0");
  await key(0).press(" ");
  assert.equal(await line(), `(phi > 0.1 or L0) and ${names[0]}`);
  await key(1).click({ modifiers: ["Meta"] });
  assert.equal(await line(), `(phi > 0.1 or L0) and (${names[0]}, ${names[1]})`);
  await key(0).click({ modifiers: ["Meta"] });
  await key(1).click();
  assert.equal(await line(), "phi > 0.1 or L0");
});

test("a head under the pointer is marked in every view", async (t) => {
  const page = await open(t, browser, small(), { viewport: { width: 1440, height: 1400 }, hash: "sort=" });
  for (const [view, number] of [["map", 13], ["scatter", 13], ["table", 3]]) {
    await head(page, view, number).locator(view === "table" ? "td >> nth=1" : "xpath=.").hover({ force: true });
    const expected = number === 3 ? ["map 3", "scatter 3", "table 3"] : ["map 13", "scatter 13", "table 13"];
    assert.deepEqual(await hoveredIn(page), expected, view);
    if (view !== "table") assert.match(await page.locator(".mh-hint").textContent(), /L1H4.*Patching 0\.6\d* \[.*family p 0\.\d+, q 0\.\d+, rank 1 of 36/);
    await page.mouse.move(2, 2);
    assert.deepEqual(await hoveredIn(page), [], view);
  }
  await head(page, "scatter", 13).hover({ force: true });
  assert.match(await page.locator(".mh-bar").last().getAttribute("d"), /^M[\d.]+ [\d.]+L/);
});

test("a click opens the card, with Ctrl it pins; Esc closes and the back button returns", async (t) => {
  const page = await open(t, browser, small(), { hash: "sort=" });
  await press(page, "map", 13);
  assert.equal(await title(page), "L1H4");
  assert.equal(chosen(page).head, "L1H4");
  assert.equal(await head(page, "map", 13).getAttribute("aria-selected"), "true");
  await press(page, "table", 2);
  assert.equal(await title(page), "L0H2");
  await page.goBack();
  assert.equal(await title(page), "L1H4");
  await page.goForward();
  assert.equal(await title(page), "L0H2");
  await press(page, "scatter", 13, { modifiers: ["Control"] });
  assert.equal(chosen(page).pins, "L1H4");
  assert.equal(await title(page), "L0H2");
  assert.match(await head(page, "map", 13).getAttribute("class"), /is-pinned/);
  await page.keyboard.press("Escape");
  await counts(page.locator(".mh-detail"), 0);
  assert.deepEqual(chosen(page), { sort: "", pins: "L1H4" });
  await press(page, "map", 13, { modifiers: ["Control"] });
  assert.deepEqual(chosen(page), { sort: "" });
});

test("the map by keyboard: arrows, Home, End, Enter, and the focus goes to the card and back", async (t) => {
  const page = await open(t, browser, small(), { hash: "sort=" });
  await page.locator(".mh-view-map [tabindex='0'][role=gridcell]").focus();
  assert.equal(await focused(page), String(N_HEADS - 1));
  for (const [key, expected] of [["ArrowRight", 17], ["ArrowDown", 16], ["ArrowUp", 17], ["ArrowLeft", 8], ["End", 35], ["Control+Home", 8], ["Control+End", 27], ["PageUp", 32]]) {
    await page.keyboard.press(key);
    assert.equal(await focused(page), String(expected), key);
  }
  assert.deepEqual(await hoveredIn(page), ["map 32", "scatter 32", "table 32"].filter((each) => !each.startsWith("table")));
  await counts(page.locator(".mh-view-map [role=gridcell][tabindex='0']"), 1);
  await page.keyboard.press("Enter");
  assert.equal(await title(page), "L3H5");
  await page.waitForFunction(() => document.activeElement?.className === "mh-detail-title");
  await page.keyboard.press("Escape");
  assert.equal(await focused(page), "32");
});

test("the scatter by keyboard goes along its axes", async (t) => {
  const page = await open(t, browser, small(), { hash: "x=phi" });
  const phi = column("phi");
  const order = [...phi.keys()].sort((a, b) => phi[a] - phi[b] || a - b);
  await head(page, "scatter", order[0]).focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await focused(page), String(order[1]));
  await page.keyboard.press("ArrowLeft");
  assert.equal(await focused(page), String(order[0]));
  await page.keyboard.press(" ");
  assert.equal(await title(page), `L${Math.floor(order[0] / N_HEADS)}H${order[0] % N_HEADS}`);
});

test("keys that work everywhere: [ ] / p ? Esc", async (t) => {
  const page = await open(t, browser, small());
  await page.keyboard.press("]");
  assert.equal(await title(page), "L0H0");
  await page.keyboard.press("[");
  assert.equal(await title(page), "L3H8");
  for (const [modifiers, expected] of [[{ altKey: true }, "L3H7"], [{ ctrlKey: true }, "L3H7"], [{ metaKey: true }, "L3H7"]]) {
    await page.evaluate((each) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "[", bubbles: true, ...each })), modifiers);
    assert.equal(await title(page), expected);
  }
  await page.keyboard.press("]");
  await page.keyboard.press("p");
  assert.equal(chosen(page).pins, "L3H8");
  await page.keyboard.press("]");
  assert.equal(await title(page), "L0H0");
  await page.keyboard.press("?");
  await page.locator("dialog.mh-help").waitFor();
  await page.keyboard.press("Escape");
  await page.locator("dialog.mh-help").waitFor({ state: "hidden" });
  assert.equal(await title(page), "L0H0");
  await page.keyboard.press("/");
  await page.keyboard.type("p[]c");
  await page.waitForFunction(() => new URLSearchParams(location.hash.slice(1)).get("filter") === "p[]c");
  assert.equal(chosen(page).pins, "L3H8");
});

test("the search line filters every view, opens a single head, and says what it did not understand", async (t) => {
  const page = await open(t, browser, small());
  await page.locator(".mh-search-line").fill("phi > 0.3");
  const hits = count((at) => column("phi")[at] > 0.3);
  assert.equal(await note(page), `${hits} of 36 heads`);
  for (const view of ["map", "scatter", "table"]) assert.equal(await marked(page, view), hits, view);
  await page.keyboard.press("]");
  await page.locator(".mh-search-line").fill("L1H4");
  await page.keyboard.press("Enter");
  assert.equal(await title(page), "L1H4");
  await page.locator(".mh-search-line").fill("pachting > 0.1");
  assert.match(await note(page), /Not understood: pachting is not the name of a question, column/);
  assert.equal(await page.locator(".mh-search-line").getAttribute("aria-invalid"), "true");
  assert.equal(await marked(page, "map"), 36);
  await page.locator(".mh-search-note button").first().focus();
  await page.keyboard.press("Enter");
  assert.equal(await page.locator(".mh-search-line").inputValue(), "patching > 0.1");
  assert.equal(await note(page), `${count((at) => column("patching")[at] > 0.1)} of 36 heads`);
});

test("the slider marks the first heads by a column", async (t) => {
  const page = await open(t, browser, small(), {});
  const slider = page.getByRole("slider", { name: "How many heads to mark" });
  await slider.focus();
  await page.keyboard.press("Home");
  assert.equal(await slider.getAttribute("aria-valuetext"), "the first 1");
  assert.equal(await marked(page, "map"), 1);
  await page.getByLabel("Rank heads by").selectOption("phi");
  assert.equal(chosen(page).by, "phi");
  const best = column("phi").indexOf(Math.max(...column("phi")));
  assert.doesNotMatch(await head(page, "map", best).getAttribute("class"), /is-dim/);
  await page.keyboard.press("]");
  assert.equal(chosen(page).head, `L${Math.floor(best / N_HEADS)}H${best % N_HEADS}`);
});

test("one mark of each drawing stays in the tab order when others are drawn", async (t) => {
  const page = await open(t, browser, small(), {});
  const stops = (view) => page.locator(`.mh-view-${view} [data-head][tabindex="0"]`).count();
  await head(page, "map", 8).focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("]");
  await page.locator(".mh-search-line").fill("L3");
  await page.getByLabel("Across", { exact: true }).selectOption("ships_scaling");
  assert.deepEqual([await stops("map"), await stops("scatter")], [1, 1]);
});

test("axes and colours are free, and stand in the address", async (t) => {
  const page = await open(t, browser, small(), {});
  await page.getByLabel("Across", { exact: true }).selectOption("entropy");
  await page.getByLabel("Up", { exact: true }).selectOption("distance");
  await page.getByLabel("Colour", { exact: true }).selectOption("patching");
  assert.deepEqual(chosen(page), { x: "entropy", y: "distance", colour: "patching" });
  assert.match(await page.locator(".mh-view-scatter .mh-axis-title").allTextContents().then(String), /Entropy.*Distance/);
  assert.match(await head(page, "map", 13).getAttribute("class"), /is-high/);
  const transforms = () => page.locator(".mh-view-scatter [data-head]").evaluateAll((all) => all.map((each) => each.getAttribute("transform")));
  const before = await transforms();
  await page.reload();
  await page.locator(".mh-app").waitFor();
  assert.deepEqual(await transforms(), before);
  assert.equal(await page.getByLabel("Across", { exact: true }).inputValue(), "entropy");
});

test("the table sorts, scrolls by keyboard and shows chosen columns", async (t) => {
  const page = await open(t, browser, small(), { hash: "sort=" });
  const first = () => page.locator(".mh-row th").first().textContent();
  await page.getByRole("button", { name: "Patching" }).first().click();
  const patching = column("patching");
  const best = patching.indexOf(Math.max(...patching));
  assert.equal(await first(), `L${Math.floor(best / N_HEADS)}H${best % N_HEADS}`);
  assert.equal(await page.getByRole("columnheader", { name: "Patching" }).getAttribute("aria-sort"), "descending");
  await page.getByRole("columnheader", { name: "Patching" }).getByRole("button").press("Enter");
  const least = patching.indexOf(Math.min(...patching));
  assert.equal(await first(), `L${Math.floor(least / N_HEADS)}H${least % N_HEADS}`);
  assert.equal(chosen(page).sort, "patching");
  await page.locator(".mh-row th").first().focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-colindex")), "2");
  await page.keyboard.press("Control+End");
  await page.waitForFunction(() => document.activeElement.parentElement?.getAttribute("aria-rowindex") === "37");
  const last = await focused(page).then(() => page.evaluate(() => document.activeElement.parentElement.dataset.head));
  await page.keyboard.press("Enter");
  assert.equal(chosen(page).head, `L${Math.floor(last / N_HEADS)}H${last % N_HEADS}`);
  await page.getByText("Columns", { exact: true }).click();
  await page.getByLabel("with intervals, p and q").check();
  await page.getByRole("checkbox", { name: "Entropy (nats)", exact: true }).check();
  assert.ok(chosen(page).columns.split(",").includes("entropy"));
  await page.getByRole("columnheader", { name: "Entropy" }).waitFor();
  await page.getByRole("button", { name: "Usual columns" }).click();
  assert.equal(chosen(page).columns, undefined);
  await page.keyboard.press("Escape");
  assert.equal(await page.getByRole("button", { name: "Usual columns" }).isVisible(), false);
  assert.equal(chosen(page).head, `L${Math.floor(last / N_HEADS)}H${last % N_HEADS}`);
});

test("the table shows as many usual columns as there is room for; more scroll beside the heads' names", async (t) => {
  const usual = model.columns.filter((each) => each.kind === "text").length + model.questions.flatMap(({ views }) => views).length;
  const payload = small();
  for (const each of payload.page.model.columns) if (each.question !== "pairs") each.question = null; // about none, so usual for all
  const before = [];
  for (const width of [1600, 800, 390]) {
    const page = await open(t, browser, payload, { viewport: { width, height: 900 }, hash: "question=pairs" });
    const table = page.locator(".mh-table");
    const names = () => page.getByRole("columnheader").locator("button").evaluateAll((all) => all.map((each) => each.getAttribute("aria-label") ?? each.textContent));
    assert.ok((await table.evaluate((box) => box.scrollWidth - box.clientWidth)) <= 0, `${width}: the table scrolls`);
    before.push((await names()).length - 1);
    assert.ok((await names()).some((name) => name.startsWith("Patching")));
    const cut = await page.locator(".mh-heading, .mh-table .is-number").evaluateAll((all) => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent));
    assert.deepEqual(cut, []);
    if (width !== 390) continue;
    await page.getByRole("button", { name: `${usual - before[2]} more columns` }).click();
    assert.equal((await names()).length, usual + 1);
    const first = page.locator(".mh-row th").first();
    const left = (await first.boundingBox()).x;
    await table.evaluate((box) => (box.scrollLeft = 200));
    assert.equal((await first.boundingBox()).x, left);
  }
  assert.equal(before[0], usual);
  assert.ok(before[1] < usual && before[2] < before[1] && before[2] >= 3, String(before));
});

test("what is typed stands as code in the notes", async (t) => {
  const payload = small();
  payload.page.model.notes = ["safety left out; `mechheads atlas` measures it"];
  const page = await open(t, browser, payload);
  assert.equal(await page.locator(".mh-end li code").textContent(), "mechheads atlas");
  assert.doesNotMatch(await page.locator(".mh-end-lists").textContent(), /`/);
});

test("the numbers of a column have one number of decimals, a tooltip all digits, a heading the unit and the meaning", async (t) => {
  const page = await open(t, browser, small(), { hash: "columns=patching,patching_ci_low,ships_undifferentiated" });
  const cell = head(page, "table", 3).locator("td").first();
  const [value, low, high] = ["patching", "patching_ci_low", "patching_ci_high"].map((name) => column(name)[3]);
  assert.equal(await cell.getAttribute("title"), `Patching: ${value} [${low}, ${high}] share restored`);
  const cells = await page.locator(".mh-row td:nth-of-type(1)").allTextContents();
  assert.deepEqual([...new Set(cells.map((text) => text.split(".")[1]?.length))], [2]);
  const shown = Number((await cell.textContent()).replace("\u2212", "-"));
  assert.ok(Math.abs(shown - value) <= 0.005, `${shown} is not ${value}`);
  const heading = page.getByRole("columnheader", { name: "Ships, undiff.: Ships, undifferentiated (nats)" });
  assert.equal(await heading.locator(".mh-heading").textContent(), "Ships, undiff.");
  assert.deepEqual(await faults(page), []);
  assert.match(await heading.getAttribute("title"), /^Ships, undifferentiated \(nats\): The KL divergence of/);
  await page.getByText("Columns", { exact: true }).click();
  await page.getByRole("checkbox", { name: "Ships, undifferentiated (nats)", exact: true, description: /^The KL divergence of/ }).uncheck();
  assert.equal(chosen(page).columns, "patching,patching_ci_low");
});

test("the table as filtered and sorted is given as CSV, with every column", async (t) => {
  const page = await open(t, browser, small(), { hash: "filter=layer%201&sort=-patching" });
  const file = await saved(page, () => page.getByRole("region", { name: "Table" }).getByRole("button", { name: "CSV" }).click());
  const [heading, ...rows] = String(file.content).trimEnd().split("\r\n").map((line) => line.split(","));
  const patching = heading.indexOf("patching");
  assert.equal(heading.length, model.columns.length + 2);
  assert.deepEqual([...new Set(rows.map((row) => row[1].replace(/H.*/, "")))], ["L1"]);
  assert.equal(rows.length, N_HEADS);
  const values = rows.map((row) => Number(row[patching]));
  assert.deepEqual(values, [...values].sort((a, b) => b - a));
});

test("on a phone a head of the map is 20 pixels wide and high, and the map is panned", async (t) => {
  const payload = small();
  const page = await open(t, browser, payload, { viewport: { width: 390, height: 800 } });
  const cell = await page.locator('.mh-map [role="gridcell"] rect').first().boundingBox();
  assert.ok(cell.width >= 18 && cell.height >= 18, `${cell.width} x ${cell.height}`);
  const { sizes } = await load("../views/layout.ts");
  const thirty = sizes(30, 9, 360);
  assert.ok(thirty.cell === 20 && thirty.row >= 20 && thirty.width > 360);
});

test("pins: opened, taken away, exported as Python and CSV", async (t) => {
  const page = await open(t, browser, small(), { hash: "pins=L1H4,L3H8" });
  const tray = page.getByRole("region", { name: "Pinned heads" });
  const csv = String((await saved(page, () => tray.getByRole("button", { name: "CSV" }).click())).content).split("\r\n");
  assert.deepEqual([csv.length, csv[0].split(",").slice(0, 2), csv[1].split(",").slice(0, 2)], [4, ["model", "name"], ["small", "L1H4"]]);
  await tray.getByRole("button", { name: "Copy for Python" }).click();
  await page.locator(".mh-told", { hasText: "copied" }).waitFor();
  await page.locator(".mh-search-line").focus();
  await page.keyboard.press("Control+V");
  assert.equal(await page.locator(".mh-search-line").inputValue(), 'heads=["L1H4", "L3H8"]');
  await tray.getByRole("button", { name: "L3H8", exact: true }).click();
  assert.equal(await title(page), "L3H8");
  await tray.getByRole("button", { name: "Unpin L3H8" }).press("Enter");
  assert.equal(chosen(page).pins, "L1H4");
  await tray.getByRole("button", { name: "Unpin all" }).click();
  await counts(tray, 0);
});

test("figures are saved as SVG and PNG, in colours that every program knows", async (t) => {
  const page = await open(t, browser, small(), { hash: "colour=patching" });
  for (const view of ["map", "scatter"]) {
    const svg = await saved(page, () => page.getByRole("button", { name: `Save the ${view} as SVG` }).click());
    assert.equal(svg.name, `mechheads-${view}.svg`);
    const text = String(svg.content);
    assert.equal(text.match(/data-head=/g).length, 36);
    assert.doesNotMatch(text, /style=|class=|color\(|var\(|oklab/);
    assert.ok(new Set(text.match(/ fill="rgb[^"]*"/g)).size > 10);
    assert.equal(await page.evaluate((each) => new DOMParser().parseFromString(each, "image/svg+xml").querySelector("parsererror"), text), null);
    const png = await saved(page, () => page.getByRole("button", { name: `Save the ${view} as PNG` }).click());
    assert.equal(png.content.subarray(1, 4).toString(), "PNG");
    assert.equal(png.content.readUInt32BE(16), 2 * Number(/ width="(\d+)"/.exec(text)[1]));
  }
});

test("a link shows the same, and Copy link copies it", async (t) => {
  const page = await open(t, browser, small(), { hash: "head=L1H4&pins=L0H2&filter=phi+%3E+0.1&sort=-phi&pane=weights&top=5&colour=phi" });
  assert.equal(await title(page), "L1H4");
  assert.equal(await page.locator(".mh-search-line").inputValue(), "phi > 0.1");
  assert.equal(await page.getByRole("tab", { name: "weights" }).getAttribute("aria-selected"), "true");
  const address = page.url();
  await page.getByRole("button", { name: "Copy link" }).click();
  await page.locator(".mh-told", { hasText: "copied" }).waitFor();
  await page.locator(".mh-search-line").fill("");
  await page.keyboard.press("Control+V");
  assert.equal(await page.locator(".mh-search-line").inputValue(), address);
});

test("the address follows a slider that moves a thousand times", async (t) => {
  const page = await open(t, browser, small());
  const slider = page.getByRole("slider", { name: "How many heads to mark" });
  await slider.evaluate((element) => {
    for (let i = 0; i <= 1000; i++) {
      element.value = String(i % 5);
      element.dispatchEvent(new InputEvent("input", { bubbles: true }));
    }
  });
  await page.waitForFunction(() => location.hash === "#top=1");
});

test("an address that makes no sense opens the page as it is at first", async (t) => {
  const page = await open(t, browser, small(), { hash: "head=L99H9&model=7&pins=L99H9,5.L0H1&x=nothing&colour=nothing&columns=nothing&top=0" });
  await counts(page.locator(".mh-detail"), 0);
  await counts(page.locator(".mh-view-map [role=gridcell]"), 36);
  assert.equal(await note(page), "All 36 heads");
});

test("what the address names and the page does not have is said in lines that can be dismissed", async (t) => {
  const page = await open(t, browser, small(), { hash: "head=L99H9&question=other&pins=L1H4,5.L0H1&pane=foo&colour=pathcing&columns=phi,nothing&sort=-phi&x=names" });
  const said = page.locator(".mh-unknown");
  assert.equal(await said.getAttribute("role"), "status");
  await said.locator("p").first().waitFor();
  const lines = await said.locator("p").allTextContents();
  for (const expected of [
    /head \u201cL99H9\u201d that this page does not have; heads are L0H0 to L3H8\.$/,
    /head \u201c5\.L0H1\u201d/,
    /question \u201cother\u201d that this page does not have; the questions are pairs, requests, text and weights\.$/,
    /pane \u201cfoo\u201d that this page does not have; the panes are ordinary text, patterns,.* and safety\.$/,
    /column of numbers \u201cpathcing\u201d that this page does not have; most like it: patching/,
    /column of numbers \u201cnames\u201d that this page does not have\.$/,
    /column \u201cnothing\u201d that this page does not have; most like it: /,
  ]) assert.equal(lines.filter((line) => expected.test(line)).length, 1, `${expected} in ${lines.join("\n")}`);
  assert.equal(lines.length, 7);
  assert.deepEqual(await page.getByRole("columnheader").locator(".mh-heading").allTextContents(), ["Head", "Phi"]);
  await said.getByRole("button", { name: "Dismiss" }).press("Enter");
  assert.equal(await said.isVisible(), false);
  await press(page, "map", 13);
  assert.equal(await page.getByRole("tab", { selected: true }).first().textContent(), "effects");
});

test("the end of the page: cautions, what was left out, circuits, where the numbers come from, citation", async (t) => {
  const { page: about, blocks } = small();
  about.model.circuits = [{ name: "capitals", heads: ["L1H4", "L3H8"], metric: "share restored", source: "circuit", curve: [{ k: 1, value: 0.5, low: 0.4, high: 0.6 }, { k: 2, value: 0.8, low: 0.7, high: 0.9 }] }];
  about.model.interrupted = true;
  const page = await open(t, browser, { page: about, blocks });
  const end = page.locator(".mh-end");
  assert.match(await end.textContent(), /What may not be concluded.*What was left out.*The work was interrupted/);
  for (const title of ["Circuits", "Where the numbers come from", "Citation"]) {
    const part = end.locator("details", { hasText: title }).first();
    await part.locator("summary").press("Enter");
    assert.ok((await part.textContent()).length > title.length + 5, title);
  }
  assert.match(await end.textContent(), /the first 2: 0\.80 \[0\.70, 0\.90\]L1H4 L3H8/);
  await end.getByRole("slider").press("ArrowLeft");
  assert.match(await end.textContent(), /the first 1: 0\.50 \[0\.40, 0\.60\]L1H4/);
  await end.getByRole("button", { name: "Pin these heads" }).click();
  assert.equal(chosen(page).pins, "L1H4");
});

test("a page of one run has a map and cards of patterns", async (t) => {
  const { page: about, blocks } = small();
  const { model: its } = about;
  const empty = { ...its, columns: [], categories: null, behaviours: null, questions: [], cautions: [], notes: [], sources: [], citation: "" };
  const page = await open(t, browser, { page: { ...about, kind: "run", model: empty }, blocks });
  await counts(page.locator(".mh-view-scatter, .mh-view-table"), 0);
  await press(page, "map", 13);
  assert.equal(await title(page), "L1H4");
  await page.getByRole("tab", { name: "pattern" }).waitFor();
});

test("a page can begin with a card", async (t) => {
  const { page: about, blocks } = small();
  const page = await open(t, browser, { page: { ...about, start: "L1H4" }, blocks });
  assert.equal(await title(page), "L1H4");
  await page.keyboard.press("Escape");
  await counts(page.locator(".mh-detail"), 0);
  await page.reload();
  await page.locator(".mh-app").waitFor();
  await counts(page.locator(".mh-detail"), 0);
});
