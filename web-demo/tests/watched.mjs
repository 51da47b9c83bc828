// A dashboard with a canned syncer, new for each test of the importing file.
import assert from "node:assert/strict";
import { after, before, beforeEach } from "node:test";
import { startCanned } from "./canned.mjs";
import { chromiumFlagsWithoutGpu, launch, until } from "./support.mjs";

/** The syncer and the page of the current test. */
export let syncer, page;
let browser;

before(async () => {
  browser = await launch(chromiumFlagsWithoutGpu);
});
after(() => browser?.close());
beforeEach(async (context) => {
  syncer = await startCanned();
  page = await browser.newPage({ viewport: { width: 1280, height: 4_000 } });
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  context.after(async () => {
    await page.close();
    await syncer.stop();
    assert.deepEqual(trouble, []);
  });
});

/** Opens the dashboard, and waits for its figures. */
export async function open() {
  await page.goto(new URL("dashboard", syncer.url).href);
  await says("#participation", /90.0 %/);
}

/** Waits until the element's text matches. */
export function says(selector, pattern) {
  return until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
}
