// Goal: a run continues with a changed setting if possible; other settings announce that they start a new run.
import assert from "node:assert/strict";
import { test } from "node:test";
import { canBreak, context, figure, open, page, says, shownMs } from "./lesson-page.mjs";
import { until } from "./support.mjs";

/** Settings that are fixed during a run. */
const FIXED = ["islands", "bounds", "syncEvery", "fragments", "code", "apply", "late", "lateMs", "seed"];

/** Returns the settings that announce a new run. */
function marked() {
  return page
    .locator("#knobs .anew:visible")
    .evaluateAll((marks) => marks.map((mark) => mark.parentElement.id.replace(/^knob-(.*)-hint$/, "$1")));
}

test("a run goes on with a new setting, and its link replays to the same digest", async () => {
  await open("#v=1&x=2");
  await page.click("[data-does=kill-0]");
  await says("#sentence", /Island 1 is gone/);
  const [at, trained] = [await shownMs(), await figure("trained-ours")];
  await page.focus("#knob-quorum");
  await page.keyboard.press("ArrowRight");
  await page.selectOption("#knob-merge", "mean");
  await page.focus("#knob-stepMs");
  await page.keyboard.press("ArrowRight");
  await until("the address", () => /a=k1@\d+&w=k:2@\d+~r:mean@\d+~ms:110@\d+$/.test(page.url().replace("&x=2", "")));
  assert.ok((await shownMs()) >= at);
  assert.ok((await figure("trained-ours")) >= trained);
  assert.match(await page.textContent("#sentence"), /Island 1 is gone/);
  // Long enough after the last change for merges by the new rule.
  const changedMs = await shownMs();
  await until("some more of it", async () => (await shownMs()) > changedMs + 3_000);
  await page.click("#play");
  await says("#digest", /^At/);
  const digest = await page.textContent("#digest");
  const link = await page.inputValue("#link");
  const other = await context.newPage();
  await other.goto(link);
  await until("the same digest", async () => (await other.textContent("#digest")) === digest);
  assert.equal(await other.inputValue("#knob-quorum"), "2");
  await other.goto("about:blank");
  await other.goto(link.replace(/~r:mean@\d+/, ""));
  await until("a digest", async () => /^At/.test(await other.textContent("#digest")));
  assert.notEqual(await other.textContent("#digest"), digest);
});

test("what begins a new run says so before, to everybody", async () => {
  await open();
  assert.deepEqual((await marked()).sort(), FIXED.toSorted());
  const described = await page.locator("#knob-fragments").getAttribute("aria-describedby");
  assert.match(await page.textContent(`#${described}`), /begins a new run$/);
  await until("some of it", async () => (await shownMs()) > 2_000);
  await page.selectOption("#knob-code", "int2");
  await until("a new run", async () => (await shownMs()) < 2_000);
  await until("the address", () => page.url().endsWith("#v=1&c=int2"));
});

test("a chapter that compares two runs says of its setting that it begins another", async () => {
  await open("#chapter=rda&x=16");
  assert.ok((await marked()).includes("merge"));
  await page.click("#answers button >> nth=0");
  await until("it to be time to break", canBreak);
  await page.click("#break");
  await says("#found-text", /\d/);
  await until("the mark to go", async () => !(await marked()).includes("merge"));
  // The finding stayed, and the run continues.
  const at = await shownMs();
  await page.selectOption("#knob-merge", "radial");
  await until("the address", () => /w=r:radial@\d+/.test(page.url()));
  assert.ok((await shownMs()) >= at);
  assert.match(await page.textContent("#found-text"), /\d/);
});

test("a chapter asks no run whose settings were changed", async () => {
  await open("#chapter=lockstep");
  await says("#break-hint", /^Choose an answer first/);
  await page.focus("#knob-grace");
  await page.keyboard.press("ArrowLeft");
  await says("#break-hint", /^This run has been changed/);
  await until("the address", () => /w=g:0\.75@\d+/.test(page.url()));
  await page.reload();
  await says("#break-hint", /^This run has been changed/);
});

test("in the challenge each change begins a new run, and says so", async () => {
  await open("#chapter=challenge");
  await says("#settings-said", /each change begins a new run/);
  await until("all to be marked", async () => (await marked()).length === 20);
});

test("changes that a link holds come when they are due, and take nothing back", async () => {
  await open("#v=1&w=k:3@4000");
  assert.equal(await page.inputValue("#knob-quorum"), "1");
  await page.focus("#knob-grace");
  await page.keyboard.press("Home");
  await until("the change", async () => (await page.inputValue("#knob-quorum")) === "3");
  assert.ok((await shownMs()) > 3_000, "it came too early");
  assert.equal(await page.inputValue("#knob-grace"), "0");
  await until("the address", () => /w=g:0@\d+~k:3@4000$/.test(page.url()));
});
