// Shared parts of the lesson's tests: a new page for each test, on a host that serves only files, and its words.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, beforeEach } from "node:test";
import { chromiumFlagsWithoutGpu, launch, root, serve, until } from "./support.mjs";

export let browser, site, context, page;

before(async () => {
  // A static host: no syncer is needed.
  [browser, site] = await Promise.all([launch(chromiumFlagsWithoutGpu), serve(join(root, "dist"))]);
});
after(() => Promise.all([browser?.close(), site?.stop()]));
beforeEach(async (test) => {
  context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  page = await context.newPage();
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  page.on("console", (message) => message.type() === "error" && trouble.push(message.text()));
  page.on("request", (request) => request.url().startsWith(site.url) || trouble.push(`asks ${request.url()}`));
  test.after(async () => {
    await context.close();
    assert.deepEqual(trouble, []);
  });
});

/** Opens the lesson with this fragment, and waits until its run plays. */
export async function open(hash = "") {
  await page.goto(`${site.url}teach.html${hash}`);
  await until("the run to begin", async () => (await shownMs()) > 0);
}

/** Returns the displayed moment, in milliseconds. */
export async function shownMs() {
  return 1_000 * Number.parseFloat(await page.textContent("#time"));
}

/** Waits until an element's text matches. */
export function says(selector, pattern) {
  return until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
}

/** Returns a figure of the table as a number: "12.3 k" is 12,300. */
export async function figure(id) {
  const [, digits, unit] = /([\d.,]+)\s?([kM]?)/.exec(await page.textContent(`#${id}`)) ?? ["", "NaN", ""];
  return Number(digits.replace(",", "")) * ({ k: 1e3, M: 1e6 }[unit] ?? 1);
}

/** Whether the button for a chapter's break is active; it is always focusable. */
export async function canBreak() {
  return (await page.getAttribute("#break", "aria-disabled")) === null;
}

/** Whether an element is wholly in the window, within a fraction of a pixel. */
export function isInView(selector) {
  return page.locator(selector).evaluate((element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return Math.ceil(top) >= 0 && Math.floor(bottom) <= innerHeight && bottom > top;
  });
}
