// Goal: the first view of a page uses words that every visitor knows, and includes the button.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, startLearner, startSyncer, until } from "./support.mjs";

/** Terms that must not appear in a first view. */
const TERMS = /\bnats\b|fragment|quorum|participation|held-out|per parameter|median step/i;
const WIDE = { width: 1280, height: 800 };
const PHONE = { width: 360, height: 740 };
/** A window of 1280 × 800 at 200 %. */
const ZOOMED = { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 };

const INVITE = "#invite=open-sesame";

let plain, school, browser;
const learners = [];

before(async () => {
  [plain, school, browser] = await Promise.all([
    startSyncer(),
    startSyncer("--classroom", "--invite", INVITE.replace("#invite=", "")),
    launch(chromiumFlagsWithoutGpu),
  ]);
  learners.push(...[plain.url, school.url + INVITE].map((url) => startLearner(url, "islander", 0.1)));
});
after(async () => {
  await Promise.all(learners.map((learner) => learner.stop()));
  await Promise.all([plain?.stop(), school?.stop(), browser?.close()]);
});

/** Records words drawn on canvases. */
function listenToCanvases() {
  const { fillText } = CanvasRenderingContext2D.prototype;
  window.written = new Map();
  CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
    window.written.set(this.canvas, [...(window.written.get(this.canvas) ?? []), text]);
    return fillText.call(this, text, ...more);
  };
}

/** Returns all readable or audible text in view: text, names of parts, words on canvases. */
function wordsInView() {
  const isInView = ({ left, right, top, bottom, width }) =>
    width > 1 && right > 0 && left < innerWidth && bottom > 0 && top < innerHeight;
  const words = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(node);
    if (node.parentElement.checkVisibility() && [...range.getClientRects()].some(isInView))
      words.push(node.data.trim());
  }
  for (const element of document.querySelectorAll("[aria-label], canvas")) {
    if (!element.checkVisibility() || !isInView(element.getBoundingClientRect())) continue;
    words.push(element.getAttribute("aria-label") ?? "", ...(window.written.get(element) ?? []));
  }
  return words.filter(Boolean);
}

async function open(url, options) {
  const context = await browser.newContext(options);
  await context.addInitScript(listenToCanvases);
  const page = await context.newPage();
  const kept = { engine: "cpu", mode: "gentle" };
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), kept);
  await page.goto(url);
  return { context, page };
}

const says = (page, selector, pattern) =>
  until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));

const PAGES = [
  ["the visitor's page", () => plain.url, (page) => says(page, "#about", /language model/)],
  ["the dashboard", () => new URL("dashboard", plain.url).href, (page) => says(page, "#loss", /^\d/)],
  ["a class", () => new URL(`dashboard${INVITE}`, school.url).href, (page) => says(page, "#class-loss", /^\d/)],
  ["the lesson", () => new URL("teach", plain.url).href, (page) => says(page, "#held-out-ours", /^\d/)],
  ["the page of large machines", () => new URL("scale", plain.url).href, (page) => says(page, "main", /%/)],
];

for (const [name, url, isThere] of PAGES) {
  test(`${name}: the first view has no terms in it`, async () => {
    for (const viewport of [WIDE, PHONE]) {
      const { context, page } = await open(url(), { viewport });
      await isThere(page);
      await page.waitForTimeout(500);
      const words = await page.evaluate(wordsInView);
      assert.ok(words.length > 10, words.join(" | "));
      const terms = words.filter((text) => TERMS.test(text));
      assert.deepEqual(terms, [], `${viewport.width} px wide`);
      await context.close();
    }
  });

  test(`${name}: nothing sticks out at 200 %, and its first button can be reached`, async () => {
    const { context, page } = await open(url(), ZOOMED);
    await isThere(page);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `${wider} px stick out`);
    const button = page.locator("main :is(button, summary):visible").first();
    await button.focus();
    await button.scrollIntoViewIfNeeded();
    const { x, y, width, height } = await button.boundingBox();
    const hit = await button.evaluate(
      (button, [x, y]) => button.contains(document.elementFromPoint(x, y)),
      [x + width / 2, y + height / 2],
    );
    assert.ok(hit && x >= 0 && x + width <= 640, JSON.stringify({ x, y, width, height }));
    await context.close();
  });
}

test("a page that trains has no terms in its first view either, and its answers need none", async () => {
  const { context, page } = await open(plain.url, { viewport: WIDE });
  await page.click("#start");
  await says(page, "#receipts", /Part \d+ of the model: /);
  await page.locator("#live").scrollIntoViewIfNeeded();
  const words = await page.evaluate(wordsInView);
  assert.deepEqual(
    words.filter((text) => TERMS.test(text)),
    [],
  );
  await context.close();
});

/** Whether an element is wholly in view, and nothing covers it. */
const isInSight = (page, selector) =>
  page.locator(selector).evaluate((element) => {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    return top >= 0 && bottom <= innerHeight && right <= innerWidth && element.contains(hit);
  });

for (const [kind, url] of [
  ["any run", () => plain.url],
  ["a class", () => school.url + INVITE],
]) {
  test(`on a phone Start and Stop are in sight, in ${kind}`, async () => {
    const { context, page } = await open(url(), { viewport: PHONE });
    await says(page, "#about", /language model/);
    assert.ok(await isInSight(page, "#start"));
    await page.click("#start");
    await says(page, "#sentence", /^Training/);
    for (const selector of ["#stop", "#pause"]) assert.ok(await isInSight(page, selector), selector);
    // The reward is not below the fold either.
    await says(page, "#part", /came from this machine/);
    await page.click("#stop");
    await says(page, "#thanks-text", /^This machine has trained for /);
    assert.ok(await isInSight(page, "#thanks-text"));
    await context.close();
  });
}

test("what it costs is said before one scrolls", async () => {
  for (const viewport of [WIDE, PHONE]) {
    const { context, page } = await open(plain.url, { viewport });
    await says(page, "#cost-line", /^Costs .+ of data to begin with, .+ power\..+ Stop ends it at once\.$/);
    assert.ok(await isInSight(page, "#cost-line"), `${viewport.width} px wide`);
    await context.close();
  }
});

test("who wants to move nothing sees nothing move", async () => {
  for (const url of [plain.url, new URL(`dashboard${INVITE}`, school.url).href]) {
    const { context, page } = await open(url, { viewport: WIDE, reducedMotion: "reduce" });
    if (url === plain.url) {
      await says(page, "#about", /language model/);
      await page.click("#start");
      await until("something of it to be merged", async () => /\d/.test(await page.textContent("#receipts")));
    } else await until("an island", async () => (await page.locator("#islands .spot").count()) > 0);
    await page.waitForTimeout(1_000);
    const moving = await page.evaluate(() => document.getAnimations().map(({ animationName }) => animationName));
    assert.deepEqual(moving, [], url);
    await context.close();
  }
});
