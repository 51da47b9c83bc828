// Goal: within a minute a visitor has killed an island and seen training continue, by mouse, touch or keyboard.
import assert from "node:assert/strict";
import { test } from "node:test";
import { figure, open, page, says, shownMs } from "./lesson-page.mjs";
import { until } from "./support.mjs";

/** The visitor's time, in milliseconds. */
const MINUTE_MS = 60_000;

test("a new visitor kills an island, and training goes on", async () => {
  const began = Date.now();
  await open();
  await page.click("text=Kill island 3");
  await says("#sentence", /^Island 3 is gone\. 4 others train on; the run in lock-step has stood still for \d+ s\.$/);
  assert.ok(Date.now() - began < MINUTE_MS, "it took more than a minute");
  const [ours, twin] = [await figure("trained-ours"), await figure("trained-twin")];
  await until("the others to train on", async () => (await figure("trained-ours")) > 1.05 * ours);
  assert.equal(await figure("trained-twin"), twin);
  await says("#sentence-told", /Island 3 is gone/);
  await page.click("text=Start island 3 again");
  await says("#sentence", /^5 islands train/);
  await until("the twin to go on", async () => (await figure("trained-twin")) > twin);
});

test("a key that is held down does its deed once", async () => {
  await open();
  await page.keyboard.down("3");
  await says("#sentence", /^Island 3 is gone/);
  await page.keyboard.down("3");
  await page.keyboard.down("3");
  await page.keyboard.up("3");
  await page.waitForTimeout(500);
  assert.match(await page.textContent("#sentence"), /^Island 3 is gone/);
  await until("the address", () => /[#&]a=k3@\d+$/.test(page.url()));
});

test("islands are touched: a click kills, a cut cable keeps one alone, a drag sends it far away", async () => {
  await open();
  await page.click("[data-pin='2']");
  await says("#sentence", /^Island 3 is gone\./);
  await page.click("[data-pin='2']");
  await says("#sentence", /^5 islands train/);
  await page.click("[data-cable='0']");
  await says("#sentence", /^Island 1 is cut off, and trains alone\./);
  await page.click("[data-cable='0']");
  await says("#sentence", /^5 islands train/);
  const { x, y, width, height } = await page.locator("[data-pin='0']").boundingBox();
  await page.mouse.move(x + width / 2, y + height / 2);
  await page.mouse.down();
  await page.mouse.move(x + width / 2 - 20, y + height / 2, { steps: 3 });
  await page.mouse.move(x - 400, y + height / 2, { steps: 3 });
  await page.mouse.up();
  await says("#sentence", /^Island 1 is far away: a round trip takes 2\.04 s\. 5 islands train; /);
  await says("[data-pin='0']", /1\.98 s farther/);
  // A key for the run does not act on the last touched island.
  await page.keyboard.press("Space");
  await says("#play", /^Play$/);
  await page.keyboard.press("Space");
  await says("#play", /^Pause$/);
  // It was dragged, not clicked.
  await until("the address", () => /~d1x100@\d+$/.test(page.url()));
  await page.focus("[data-pin='0']");
  for (let key = 0; key < 11; key += 1) await page.keyboard.press("ArrowDown");
  await says("#sentence", /^5 islands train/);
  await page.keyboard.press("Enter");
  await says("#sentence", /^Island 1 is gone/);
});

test("an island that has not come yet cannot be broken", async () => {
  await open("#v=1&n=2&nt=60000");
  await says("#sentence", /^Islands 4 and 5 come later\. 3 islands train/);
  assert.equal(await page.textContent(".island >> nth=3 >> .badge"), "comes later");
  assert.ok(await page.isDisabled("[data-does=kill-3]"));
  assert.ok(await page.isHidden("#invited"));
  await page.keyboard.press("4");
  await until("the run to go on", async () => (await shownMs()) > 3_000);
  assert.doesNotMatch(page.url(), /[#&]a=/);
});

test("an island that sends poison for long is sent away, with 32 bits too", async () => {
  await open("#v=1&c=f32&x=16");
  await page.click("[data-does=poison-3]");
  await says("#sentence", /^Island 4 was sent away: \d+ forged updates were refused\. 4 others train on/);
  await says(".island >> nth=3 >> .badge", /^sent away$/);
  await says(".island >> nth=3", /sent away: 16 updates in a row were refused/);
});

test("one event after the other", async () => {
  await open();
  await page.click("#play");
  await says("#digest", /^At/);
  for (let event = 0; event < 3; event += 1) {
    const before = await page.textContent("#digest");
    await page.click("#step");
    await until(
      "the next event",
      async () => /^At/.test(await page.textContent("#digest")) && (await page.textContent("#digest")) !== before,
    );
    await says("#step-said", /^[\d.]+ s {2}\S/);
  }
});

test("everything can be done with the keyboard", async () => {
  await open();
  const reach = async (id) => {
    for (let i = 0; i < 60; i += 1) {
      if ((await page.evaluate(() => document.activeElement?.id)) === id) return;
      await page.keyboard.press("Tab");
    }
    assert.fail(`Tab never reaches #${id}`);
  };
  await reach("invite");
  await page.keyboard.press("Enter");
  await says("#sentence", /^Island 3 is gone/);
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("3");
  await says("#sentence", /^5 islands train/);
  await page.keyboard.press("Space");
  await says("#play", /^Play$/);
  await page.keyboard.press("?");
  assert.ok(await page.isVisible("#help"));
  await page.keyboard.press("Escape");
  await page.keyboard.press("p");
  // Chapters point to the settings, and the legend explains the colours.
  assert.ok(await page.isVisible("#settings"));
  assert.ok(await page.isVisible(".legend"));
  await page.keyboard.press("ArrowRight");
  await says("#chapter-number", /^Chapter 1 of 11$/);
  const focused = () => page.evaluate(() => document.activeElement.id);
  assert.deepEqual(
    [await focused(), await page.title()],
    ["chapter-title", "Why lock-step fails · Break a run · Archipelago"],
  );
  await page.keyboard.press("ArrowRight");
  await says("#chapter-title", /^Quorum$/);
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("ArrowLeft");
  assert.ok(await page.isVisible("#opening"));
  assert.deepEqual([await focused(), await page.title()], ["invite", "Break a run · Archipelago"]);
  await page.keyboard.press("p");
  const shortcuts = async (off) => {
    await page.click("#help-open");
    await page.setChecked("#keys-off", off);
    await page.keyboard.press("Escape");
  };
  await shortcuts(true);
  await page.keyboard.press("1");
  await shortcuts(false);
  await page.keyboard.press("2");
  await says("#sentence", /^Island 2 is gone/);
});
