/** Accessibility, hostile texts, every width, paper and the content security policy. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { counts, faults, head, launch, open, press } from "./browser.mjs";
import { html } from "./pages.mjs";
import { HOSTILE, hostile, small } from "./samples.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

for (const colorScheme of ["light", "dark"]) {
  test(`no serious fault of accessibility, ${colorScheme}`, async (t) => {
    const page = await open(t, browser, small(), { colorScheme, hash: "pins=L1H4,L0H4" });
    assert.deepEqual(await faults(page), []);
    await page.locator(".mh-view-map [data-head='13']").click();
    await page.locator(".card-panel > *").first().waitFor();
    assert.deepEqual(await faults(page), []);
    await page.keyboard.press("Escape");
    await page.locator(".mh-search-line").fill("pachting");
    await page.getByText("Columns", { exact: true }).click();
    await page.getByLabel("Colour", { exact: true }).selectOption("patching");
    assert.deepEqual(await faults(page), []);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Help" }).click();
    await page.locator("dialog.mh-help").waitFor();
    assert.deepEqual(await faults(page), []);
    await page.getByRole("button", { name: "Close", exact: true }).last().click();
    for (const summary of await page.locator(".mh-end summary").all()) await summary.click();
    assert.deepEqual(await faults(page), []);
  });
}

test("light and dark differ, and follow the reader's choice", async (t) => {
  const page = await open(t, browser, small(), { colorScheme: "dark" });
  const paper = () => page.evaluate(() => getComputedStyle(document.getElementById("mh-root")).backgroundColor);
  const dark = await paper();
  await page.emulateMedia({ colorScheme: "light" });
  assert.deepEqual([dark, await paper()], ["rgb(20, 23, 29)", "rgb(255, 255, 255)"]);
});

test("Tab goes to a skip link first, then through every control, and the focus can be seen", async (t) => {
  const page = await open(t, browser, small(), { hash: "pins=L1H4,L3H8" });
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the heads");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.className), "mh-main");
  assert.doesNotMatch(page.url(), /main/);
  const reached = [];
  for (let i = 0; i < 45; i++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const element = document.activeElement;
      const style = getComputedStyle(element);
      const inside = element.querySelector("rect");
      const seen = style.outlineStyle !== "none" || (inside && getComputedStyle(inside).strokeWidth === "3px") || style.strokeWidth === "3px";
      return [element.getAttribute("role") ?? element.localName, (element.getAttribute("aria-label") ?? element.textContent).slice(0, 30), Boolean(seen)];
    });
    if (at[0] === "body") break;
    reached.push(at);
  }
  assert.deepEqual(reached.filter(([, , seen]) => !seen), []);
  const roles = new Set(reached.map(([role]) => role));
  for (const role of ["gridcell", "option", "select", "input", "button", "rowheader", "summary"]) assert.ok(roles.has(role), role);
});

test("hostile texts stay texts, with what cannot be seen made visible", async (t) => {
  const page = await open(t, browser, hostile(), { hash: "head=L1H4&pins=L1H4,L0H2" });
  await page.locator(".card-panel > *").first().waitFor();
  for (const summary of await page.locator("summary").all()) await summary.click({ force: true }).catch(() => {});
  await head(page, "map", 13).hover({ force: true });
  assert.notEqual(await page.title(), "broken");
  const body = page.locator("body");
  await counts(body.locator("img, iframe, object"), 0);
  await counts(body.locator("script:not([type])"), 0);
  const shown = await page.evaluate(() => document.querySelector(".mh-app").innerText);
  assert.match(shown, /<script>document\.title="broken"<\/script>\u27e8U\+202E\u27e9\u27e8U\+0007\u27e9&amp;/);
  const raw = [...shown.matchAll(/.{20}[\u0007\u202e\u2066].{20}/gu)].map(String);
  assert.deepEqual(raw, []);
  const labels = await page.evaluate(() => Array.from(document.querySelectorAll("[aria-label], [title]"), (each) => `${each.getAttribute("aria-label")} ${each.getAttribute("title")}`));
  assert.deepEqual(labels.filter((label) => /[\u0007\u202e\u2066]/u.test(label)).slice(0, 3), []);
});

test("a hostile link changes nothing but what is chosen", async (t) => {
  const text = encodeURIComponent(HOSTILE);
  const page = await open(t, browser, small(), { hash: `filter=${text}&x=${text}&colour=${text}&columns=${text}&pane=${text}&sort=${text}&__proto__=1&constructor=1` });
  assert.equal(await page.title(), "The attention heads of small");
  assert.match(await page.locator(".mh-search-note").textContent(), /Not understood/);
  assert.doesNotMatch(await page.locator(".mh-search-note").textContent(), /[\u0007\u202e\u2066]/u);
  await counts(page.locator(".mh-view-map [role=gridcell]"), 36);
});

for (const width of [360, 800, 1440, 3840]) {
  test(`nothing is wider than a window of ${width} pixels`, async (t) => {
    const page = await open(t, browser, small(), { viewport: { width, height: 900 }, hash: "pins=L1H4,L0H4,L0H2,L0H3,L0H5" });
    const over = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok((await over()) <= 0, "overview");
    await press(page, "map", 13);
    await page.locator(".card-panel > *").first().waitFor();
    assert.ok((await over()) <= 0, "card");
    const tabs = await page.locator(".card-tablist").first().evaluate((list) => ({
      over: list.scrollWidth - list.clientWidth,
      outside: Array.from(list.children).filter((tab) => tab.getBoundingClientRect().right > list.getBoundingClientRect().right + 1).length,
    }));
    assert.deepEqual(tabs, { over: 0, outside: 0 });
    await page.keyboard.press("?");
    await page.locator("dialog.mh-help").waitFor();
    assert.ok((await over()) <= 0, "help");
  });
}

test("on a phone everything that is pressed is at least 24 pixels high and wide", async (t) => {
  const page = await open(t, browser, small(), { viewport: { width: 390, height: 800 }, hash: "head=L1H4&pins=L1H4,L0H2&pane=foo" });
  await page.locator(".card-panel > *").first().waitFor();
  await page.locator(".mh-unknown button").waitFor();
  for (const tab of await page.locator(".card > div > .card-tabs > [role=tablist] [role=tab]").all()) {
    await tab.click();
    const small = await page.evaluate(() =>
      Array.from(document.querySelectorAll("button:not(.card-link), summary, select, input[type=range], label:has(input)"), (each) => [each.className, each.textContent, each.getBoundingClientRect()])
        .filter(([, , { width, height }]) => width > 0 && (width < 24 || height < 24))
        .map(([name, text, { width, height }]) => `${name} ${text} ${width} x ${height}`),
    );
    assert.deepEqual(small, []);
  }
});

test("on paper there are no buttons, and nothing is cut off", async (t) => {
  const page = await open(t, browser, small(), { hash: "head=L1H4&pins=L1H4" });
  await page.emulateMedia({ media: "print", colorScheme: "dark" });
  assert.equal(await page.getByRole("button", { name: "Copy link" }).isVisible(), false);
  assert.equal(await page.evaluate(() => getComputedStyle(document.querySelector(".mh-detail")).maxHeight), "none");
  await page.locator(".mh-row").nth(35).waitFor();
  await counts(page.locator(".mh-table tr[role=presentation]"), 0);
  assert.equal(await page.evaluate(() => getComputedStyle(document.getElementById("mh-root")).backgroundColor), "rgb(255, 255, 255)");
  await page.emulateMedia({ media: "screen" });
  await page.waitForFunction(() => document.querySelectorAll(".mh-row").length < 36);
});

test("nothing moves if the reader wants no motion", async (t) => {
  for (const [reducedMotion, expected] of [["reduce", "0s"], ["no-preference", "0.12s"]]) {
    const page = await open(t, browser, small(), { reducedMotion });
    assert.equal(await head(page, "map", 0).evaluate((each) => getComputedStyle(each).transitionDuration), expected);
  }
});

test("the policy lets only the page's own script run", async (t) => {
  const page = await open(t, browser, small());
  const text = html(small());
  assert.match(text, /script-src 'sha256-[^']+';/);
  assert.doesNotMatch(text, /unsafe-|\son\w+="[^"]*"\s*>/);
  const ran = await page.evaluate(() => {
    const refused = [];
    document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
    return new Promise((done) => setTimeout(() => done(refused), 200));
  });
  assert.deepEqual(ran, []);
});

test("what the page says while it is being opened is replaced", async (t) => {
  const page = await open(t, browser, small());
  await counts(page.getByText("The page is being opened."), 0);
});
