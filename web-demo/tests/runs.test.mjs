// Goal: a server's owner creates, pauses, archives and deletes runs on one page, and a visitor lends a machine to one.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { chromiumFlagsWithoutGpu, launch, startHouse, until } from "./support.mjs";

test("an owner makes and deletes runs, and a visitor trains in one of them", async (context) => {
  const [house, browser] = await Promise.all([startHouse(), launch(chromiumFlagsWithoutGpu)]);
  context.after(() => Promise.all([house.stop(), browser.close()]));
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  await page.addInitScript(axe);
  const card = (name) => page.locator(`#runs > li[data-name="${name}"]`);
  const says = (locator, pattern) =>
    until(`${pattern} to be said`, async () => pattern.test((await locator.textContent()) ?? ""));

  await page.goto(house.url);
  await says(page.locator("#sentence"), /^No model is in training here yet\./);
  await page.click("#owner-title");
  await page.fill("#owner-token", "wrong");
  await page.fill("#new-name", "poems");
  await page.selectOption("#new-preset", "tiny");
  await page.fill("#new-settings", 'corpus-bytes = "256KiB"');
  await page.click("#create [type=submit]");
  await says(page.locator("#said"), /^That is not the token of this server/);
  await page.fill("#owner-token", (await readFile(join(house.folder, "admin.token"), "utf8")).trim());
  await page.click("#create [type=submit]");
  await says(page.locator("#said"), /^The run poems is open\./);
  await says(card("poems").locator(".state"), /^Waiting for machines$/);
  await page.fill("#new-name", "tales");
  await page.uncheck("#new-invite");
  await page.click("#create [type=submit]");
  await says(card("tales").locator(".about"), /^tiny, 117 k parameters/);
  assert.deepEqual(await faults(page), []);

  // A visitor needs the owner's link, which includes the invite.
  const link = await card("poems").locator(".link a").last().getAttribute("href");
  assert.match(link, /\/runs\/poems\/#invite=.{8}/);
  const visitor = await browser.newPage({ viewport: { width: 360, height: 740 } });
  await visitor.goto(link);
  await visitor.click("#start");
  await says(card("poems").locator("dd").first(), /^1$/);
  await until("its work to be merged", async () => (await house.figures("poems")).tokensMerged > 10_000);
  await says(card("poems").locator(".state"), /^In training$/);
  assert.equal((await house.figures("tales")).learnersTotal, 0);
  // Its other pages belong to the same run.
  await visitor.goto(new URL("dashboard", link).href);
  await says(visitor.locator("#about"), /poems|tiny|small|built-in/);
  assert.equal(new URL(visitor.url()).pathname, "/runs/poems/dashboard");

  await card("tales").getByText("Pause").click();
  await says(card("tales").locator(".state"), /^Paused by its owner$/);
  await card("tales").getByText("Archive").click();
  await says(card("tales").locator(".state"), /^Put away$/);
  await card("tales").getByText("Start").click();
  await says(card("tales").locator(".state"), /^Paused by its owner$/);

  await page.setViewportSize({ width: 360, height: 740 });
  const wide = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.equal(await wide(), 0, "nothing sticks out");
  await card("tales").getByText("Delete…").click();
  await says(page.locator("#sure-title"), /^Delete this run for good\?$/);
  assert.ok(await page.isDisabled("#sure-yes"));
  await page.fill("#sure-name", "poems");
  assert.ok(await page.isDisabled("#sure-yes"), "the name of another run deletes nothing");
  assert.deepEqual(await faults(page), []);
  await page.fill("#sure-name", "tales");
  await page.click("#sure-yes");
  await says(page.locator("#said"), /^The run tales is deleted\./);
  await until("it to be gone", async () => (await card("tales").count()) === 0);
  assert.equal((await house.figures("poems")).learnersTotal, 1);

  await card("poems").getByText("Finish…").click();
  await says(page.locator("#sure-title"), /^Finish this run for good\?$/);
  await page.fill("#sure-name", "poems");
  await page.keyboard.press("Enter");
  await says(card("poems").locator(".state"), /^Complete$/);

  // A viewer without the token has no buttons, and sees no invite.
  const stranger = await (await browser.newContext()).newPage();
  await stranger.goto(house.url);
  await says(stranger.locator("#sentence"), /^1 model, and/);
  assert.equal(await stranger.locator("#runs button:visible").count(), 0);
  assert.equal(await stranger.getByText("invite=").count(), 0);
});
