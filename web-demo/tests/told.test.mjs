// Goal: the visible or announced state is true within seconds, and screen readers hear it once.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, load, relay, startSyncer, until } from "./support.mjs";

let syncer, browser;

before(async () => {
  [syncer, browser] = await Promise.all([startSyncer("--total-tokens", "2000000"), launch(chromiumFlagsWithoutGpu)]);
});
after(() => Promise.all([syncer?.stop(), browser?.close()]));

/** Opens a visitor's page; `window.told` counts live announcements, and `window.shown` changes of the sentence. */
async function open(url) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const kept = { engine: "cpu", mode: "gentle" };
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), kept);
  await page.goto(url);
  await says(page, "#about", /language model/);
  return { context, page };
}

function watch(page) {
  return page.evaluate(() => {
    [window.told, window.shown] = [[], []];
    const listen = (element, heard) =>
      new MutationObserver(() => heard.push(element.textContent)).observe(element, {
        childList: true,
        characterData: true,
        subtree: true,
      });
    for (const element of document.querySelectorAll("[role=status], [role=alert], [aria-live]"))
      listen(element, window.told);
    listen(document.querySelector("#sentence"), window.shown);
  });
}

function says(page, selector, pattern) {
  return until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
}

test("by the page's clock the state is true within 5 s, whenever the last news came", async () => {
  const { ANSWER_MS, STATUS_MS, silenceMs, TICK_MS, TRAINING_MS } = await load("contribute/listening.ts");
  for (let newsMs = 10_000; newsMs < 10_000 + TICK_MS; newsMs += 50) {
    let nowMs = 10_000 + TICK_MS;
    while (silenceMs(nowMs, newsMs, 0) === 0 && nowMs < 60_000) nowMs += TICK_MS;
    assert.ok(nowMs - newsMs <= 5_000, `news of ${newsMs} ms are old at ${nowMs} ms`);
    // Answered requests keep the syncer from counting as silent.
    assert.equal(silenceMs(newsMs + TRAINING_MS + TICK_MS + ANSWER_MS - 1, newsMs, 0), 0);
  }
  // Without training, only status requests show a silent syncer.
  assert.ok(STATUS_MS + TICK_MS + ANSWER_MS <= 5_000);
  // The page was not listening before: that does not count as silence.
  assert.equal(silenceMs(61_000, 1_000, 60_000), 0);
  assert.equal(silenceMs(66_000, null, 60_000), 6_000);
});

test("while the connection is lost the seconds are shown, and none of them is told", async () => {
  const network = await relay(syncer.url);
  const { context, page } = await open(network.url);
  await page.click("#start");
  await says(page, "#sentence-told", /^Training, gentle\.$/);
  await watch(page);
  network.cut();
  await says(page, "#sentence", /Not connected \(.+\), trying again (in \d+ s|now)\.$/);
  await until("many changes", () => page.evaluate(() => window.shown.length >= 6));
  const told = await page.evaluate(() => window.told);
  // Announces training without a connection and its reason, but never the remaining time.
  assert.ok(told.length >= 1 && told.length <= 4, told.join(" | "));
  assert.ok(!told.some((text) => /\d s\.$| now\.$/.test(text)), told.join(" | "));
  network.mend();
  await says(page, "#sentence-told", /^Training, gentle\.$/);
  await context.close();
  await network.stop();
});

test("a browser that goes offline says so, and how old the last news are", async () => {
  const { context, page } = await open(syncer.url);
  await says(page, "#news", /^Last news from the syncer: just now$/);
  await page.click("#start");
  await says(page, "#sentence", /^Training, gentle\.$/);
  await context.setOffline(true);
  await says(page, "#sentence", /^You are offline\. /);
  await says(page, "#news", /^Last news from the syncer: 1\d s ago$/);
  assert.equal(await page.getAttribute("#news", "data-tone"), "trouble");
  await context.setOffline(false);
  await says(page, "#sentence", /^Training, gentle\.$/);
  await says(page, "#news", /^Last news from the syncer: just now$/);
  assert.equal(await page.getAttribute("#news", "data-tone"), null);
  await context.close();
});

test("a page that trains nothing says that the syncer stands still", async () => {
  const { context, page } = await open(syncer.url);
  syncer.freeze(true);
  await says(page, "#sentence", /^The run's server hasn't answered for \d+ s\. This page tries again\.$/);
  syncer.freeze(false);
  await says(page, "#sentence", /^Nothing computes yet\.$/);
  await context.close();
});

test("in a pause nothing has a speed", async () => {
  const { context, page } = await open(syncer.url);
  await page.click("#start");
  await says(page, "#speed", /^[\d,.]+( k)?$/);
  await page.click("#pause");
  await says(page, "#sentence", /^Paused by you: nothing computes\.$/);
  await says(page, "#speed", /^–$/);
  // A later report does not bring it back.
  await page.waitForTimeout(1_500);
  assert.equal(await page.textContent("#speed"), "–");
  await context.close();
});
