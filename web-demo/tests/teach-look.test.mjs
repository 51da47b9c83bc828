// Goal: the picture stays in view in every window, controls are large enough, and nothing stutters.
import assert from "node:assert/strict";
import { test } from "node:test";
import { browser, isInView, open, page, shownMs } from "./lesson-page.mjs";
import { trace } from "./trace.mjs";

test("what can be touched is large enough, and nothing sticks out of a phone", async () => {
  await page.setViewportSize({ width: 360, height: 740 });
  await open("#chapter=quorum");
  const small = await page.evaluate(() =>
    // Close cables have smaller buttons; cards have the same switch in full size.
    [...document.querySelectorAll("button:not(.cable), select, summary")]
      .filter((one) => one.checkVisibility())
      .filter((one) => one.getBoundingClientRect().height < 43.5 || one.getBoundingClientRect().width < 43.5)
      .map((one) => one.outerHTML.slice(0, 80)),
  );
  assert.deepEqual(small, []);
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0);
});

for (const [width, height] of [
  [1280, 800],
  [1366, 768],
  [1920, 1080],
  [360, 740],
]) {
  test(`the picture never leaves a window of ${width} × ${height}`, async () => {
    await page.setViewportSize({ width, height });
    await open();
    for (const selector of ["#picture", "#sentence", "#play", "#invite"]) assert.ok(await isInView(selector), selector);
    await page.locator("#knob-islands").scrollIntoViewIfNeeded();
    assert.ok(await isInView("#picture"), "while settings are read");
    await open("#chapter=quorum");
    await page.click("#answers button >> nth=1");
    await page.locator("#break").evaluate((one) => one.scrollIntoView({ block: "nearest" }));
    for (const selector of ["#picture", "#break"]) assert.ok(await isInView(selector), `${selector} in a chapter`);
    // In a wide window the whole question is in view at once.
    if (width >= 1280)
      for (const selector of ["#chapter-title", "#break-hint"]) assert.ok(await isInView(selector), selector);
    // It does not cover scroll targets either.
    await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
    await page.locator("#break").evaluate((one) => one.scrollIntoView({ block: "nearest" }));
    const isBare = await page.locator("#break").evaluate((one) => {
      const { left, right, top, bottom } = one.getBoundingClientRect();
      return one.contains(document.elementFromPoint((left + right) / 2, (top + bottom) / 2));
    });
    assert.ok(isBare, "the picture lies upon the button");
  });
}

test("the picture stays where it is, whatever is said below it while the run goes on", async () => {
  for (const [width, height] of [
    [1280, 800],
    [360, 740],
  ]) {
    await page.setViewportSize({ width, height });
    await open("#v=1&m=8&x=1");
    const places = await page.evaluate(async () => {
      const [picture, pace] = ["picture", "pace"].map((id) => document.getElementById(id));
      const place = () => JSON.stringify(picture.getBoundingClientRect());
      const seen = new Set();
      for (const said of ["", "This machine keeps up with 0.4× of 64×.", ""]) {
        pace.textContent = said;
        seen.add(place());
      }
      // Also at a speed that no machine reaches.
      const speed = document.getElementById("speed");
      speed.value = [...speed.options].at(-1).value;
      speed.dispatchEvent(new Event("change"));
      const until = performance.now() + 2_500;
      while (performance.now() < until) {
        await new Promise((drawn) => requestAnimationFrame(drawn));
        seen.add(place());
      }
      return [...seen];
    });
    assert.equal(places.length, 1, places.join(" | "));
  }
});

test("the switch between the pictures covers no lane and no island", async () => {
  const box = (selector) =>
    page
      .locator(selector)
      .first()
      .evaluate((element) => element.getBoundingClientRect().toJSON());
  for (const viewport of [
    { width: 1280, height: 800 },
    { width: 360, height: 740 },
  ]) {
    await page.setViewportSize(viewport);
    await open("#m=8&view=lanes");
    await page.waitForSelector("#timeline");
    const { bottom, left } = await box(".choice");
    assert.ok((await box("#timeline")).top >= bottom, `lanes of ${viewport.width} px`);
    await page.click("#view-map");
    for (let at = 0; at < 8; at += 1) {
      const pin = await box(`[data-pin="${at}"] .pin-name`);
      assert.ok(pin.top >= bottom || pin.right <= left, `island ${at + 1} at ${viewport.width} px`);
    }
  }
});

test("names of lanes are large on a projector, and squeezed nowhere", async () => {
  await page.addInitScript(() => {
    window.names = {};
    const { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
      const [, , roomPx] = at;
      if (this.canvas.id === "timeline" && roomPx !== undefined)
        window.names[text] = { px: Number.parseFloat(this.font), isWhole: this.measureText(text).width <= roomPx };
      fillText.call(this, text, ...at);
    };
  });
  for (const [hash, px] of [
    ["#view=lanes", 12],
    ["#view=lanes&presenter=1", 18],
  ]) {
    await open(hash);
    const names = await page.evaluate(() => window.names);
    assert.equal(Object.keys(names).length, 7);
    for (const [name, drawn] of Object.entries(names)) assert.deepEqual(drawn, { px, isWhole: true }, name);
    await page.goto("about:blank");
  }
});

test("those who want no motion get no flashes", async () => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await open("#chapter=lockstep");
  const moving = await page.evaluate(
    () => document.getAnimations().filter(({ playState }) => playState === "running").length,
  );
  assert.equal(moving, 0);
});

test("the page's thread is never busy for long", async () => {
  await open("#v=1&m=8&x=2");
  // Measures the running page, without loading and the first pictures.
  await page.waitForTimeout(2_000);
  // Other programs may slow a core for a moment; a busy page stays busy.
  let long_ms = [];
  for (let stretch = 0; stretch < 3; stretch += 1) {
    long_ms = await longTasks();
    if (long_ms.length === 0) return;
  }
  assert.deepEqual(long_ms, []);
});

/** Tasks of the page's thread above 50 ms within 5 s. */
async function longTasks() {
  const from = await shownMs();
  const { tasks } = await trace(browser, page, 5_000);
  assert.ok((await shownMs()) > from, "it stands still");
  assert.ok(tasks.length > 100, `${tasks.length} tasks were traced`);
  return tasks.map(({ ms }) => ms).filter((ms) => ms > 50);
}
