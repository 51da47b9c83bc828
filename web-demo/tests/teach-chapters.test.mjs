// Goal: each chapter can be completed, is answered by measurement, and asks about its own run only.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ANSWERS } from "./answers.mjs";
import { canBreak, isInView, open, page, says, shownMs } from "./lesson-page.mjs";
import { until } from "./support.mjs";

Object.entries(ANSWERS).forEach(([id, answer], at, { length }) => {
  test(`chapter ${id}: predict, break, see`, async () => {
    await open(`#chapter=${id}`);
    await says("#chapter-number", new RegExp(`^Chapter ${at + 1} of ${length}$`));
    assert.ok(!(await canBreak()));
    await page.selectOption("#speed", "16");
    await page.click(`#answers button >> nth=${answer}`);
    await until("it to be time to break", canBreak);
    const whole = page.url();
    await page.click("#break");
    await says("#found-text", /\d/);
    assert.match(await page.textContent("#found-text"), /^As you predicted\. /);
    assert.equal(await page.locator("#answers li").nth(answer).locator("[data-found]").count(), 1);
    if (id === "rda") {
      // The finding is wholly in view, and the chapter's text is one click away.
      await page.setViewportSize({ width: 1280, height: 800 });
      for (const selector of ["#arrows li:last-child", "#moral", "#again summary"])
        assert.ok(await isInView(selector), selector);
      await page.click("#again summary");
      assert.match(await page.textContent("#text-again"), /Think of what an island learnt as an arrow/);
    }
    assert.equal(await page.textContent("#chapter-after"), at === length - 1 ? "How you did" : "Next chapter");
    if (at === length - 1) {
      await page.click("#chapter-after");
      const score = `^Of the one chapter that you tried, 1 came as you predicted; ${length - 1} are left\\.$`;
      await says("#score", new RegExp(score));
      assert.match(await page.textContent("#scores li >> nth=-1"), /as you predicted$/);
      await page.click("#scores button >> nth=-1");
      await says("#break-hint", /^Choose an answer first/);
      return;
    }
    // Names this kind of lock-step, and the place of the other kind.
    assert.equal(await page.locator("#moral a[href='./scale.html']").isVisible(), id === "lockstep");
    // The link leads to the broken run: nothing is left to break or to compare.
    await until("the address to follow", () => page.url() !== whole);
    await page.reload();
    await says("#break-hint", /^This run has been changed/);
    assert.ok(!(await canBreak()));
    await page.click("#anew");
    await says("#break-hint", /^Choose an answer first/);
  });
});

test("a chapter asks only its own run", async () => {
  await open("#chapter=lockstep&x=16");
  await page.click("#answers button >> nth=2");
  await page.click("[data-does=slow-0]");
  await says("#break-hint", /^This run has been changed/);
  assert.ok(!(await canBreak()));
  await page.click("#anew");
  await says("#break-hint", /^Choose an answer first/);
  assert.equal(await page.evaluate(() => document.activeElement.id), "chapter-title");
  await page.focus("#knob-islands");
  await page.keyboard.press("ArrowLeft");
  await says("#break-hint", /^This run has been changed/);
  await page.click("#defaults");
  await says("#break-hint", /^Choose an answer first/);
});

test("a chapter with fewer islands than it does something to still runs", async () => {
  await open("#chapter=rejoin&m=1");
  await says("#break-hint", /^This run has been changed/);
  const at = await shownMs();
  await until("it to go on", async () => (await shownMs()) > at + 1_000);
  assert.ok(await page.isHidden("#notice"));
});

test("what a chapter asks for counts once all of it is done", async () => {
  await open("#chapter=scavenging&x=16");
  await page.click("#answers button >> nth=2");
  await until("it to be time to break", canBreak);
  await page.click("[data-does=kill-4]");
  await says("#sentence", /^Island 5 is gone/);
  assert.match(await page.textContent("#break-hint"), /^Go on: Islands 6, 7 and 8 too\.$/);
  for (const island of [5, 6, 7]) await page.click(`[data-does=kill-${island}]`);
  await says("#found-text", /^As you predicted\. /);
});

test("what a chapter found stays while somebody tries what it says", async () => {
  await open("#chapter=quorum&x=16");
  await page.click("#answers button >> nth=1");
  await until("it to be time to break", canBreak);
  await page.click("#break");
  await says("#found-text", /^As you predicted\. /);
  await page.focus("#knob-quorum");
  await page.keyboard.press("ArrowLeft");
  await until("the address", () => /w=k:4@\d+/.test(page.url()));
  assert.match(await page.textContent("#found-text"), /^As you predicted\. /);
  // The chapter itself has slowed island 5.
  await page.click("[data-does=slow-3]");
  await says("#sentence", /Islands 4 and 5 are slowed down/);
  assert.match(await page.textContent("#break-hint"), /^Done/);
});
