// Goal: every viewer can read a run's settings; its owner changes the changeable ones, and sees why others are fixed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { until } from "./support.mjs";
import { open, page, says, syncer } from "./watched.mjs";

const fixed = () =>
  page.$$eval("#settings-fixed dl > div", (rows) =>
    rows.map((row) => [...row.children].slice(0, 2).map((one) => one.textContent)),
  );

test("all settings are shown, and the owner changes some", async () => {
  await page.addInitScript(axe);
  await open();
  assert.ok(!syncer.asked.includes("GET /v1/settings"), "nothing is fetched that is folded away");
  await page.click("#settings-details summary");
  await until("the settings", async () => (await fixed()).length === 2);
  assert.deepEqual(await fixed(), [
    ["preset", "small"],
    ["lr", "not given"],
  ]);
  // Readable without the token.
  assert.equal(await page.inputValue("#setting-merge"), "radial");
  assert.ok((await page.isDisabled("#setting-merge")) && (await page.isHidden("#settings-actions")));
  assert.deepEqual(await faults(page), []);

  await page.click("#owner-summary");
  await page.fill("#owner-token", syncer.token);
  assert.ok(await page.isVisible("#settings-actions"));
  await page.click("#settings-actions button");
  await says("#settings-said", /^Nothing is changed yet\.$/);
  await page.selectOption("#setting-merge", "mean");
  syncer.settings = syncer.settings.map((one) => (one.key === "merge" ? { ...one, value: "mean" } : one));
  await page.click("#settings-actions button");
  await says("#settings-said", /^From now on: merge mean\.$/);
  assert.deepEqual(syncer.orders, [["/v1/admin/settings", { merge: "mean" }]]);

  // Changes from another tab arrive; a value being typed stays.
  await page.fill("#setting-min-quorum", "3");
  syncer.settings = syncer.settings.map((one) => (one.key === "merge" ? { ...one, value: "radial" } : one));
  syncer.say("log", syncer.logView([{ ...syncer.log[0], seq: 2, kind: "owner", text: "The owner changed merge." }]));
  await until("the other tab's change", async () => (await page.inputValue("#setting-merge")) === "radial");
  assert.equal(await page.inputValue("#setting-min-quorum"), "3");
  await page.fill("#owner-token", "a wrong one");
  await page.click("#settings-actions button");
  await says("#settings-said", /^That is not the token of this run/);

  for (const [width, height] of [
    [1280, 800],
    [360, 740],
  ]) {
    await page.setViewportSize({ width, height });
    assert.deepEqual(await faults(page), []);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `${width}`);
    if (process.env.PICTURES) {
      await page.locator("#settings").screenshot({ path: `${process.env.PICTURES}/settings-${width}.png` });
    }
  }
});
