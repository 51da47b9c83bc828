// Goal: whoever opens the page has killed an island within a minute and seen training go on; links replay; nothing stutters.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { ANSWERS } from "./answers.mjs";
import { chromiumFlagsWithoutGpu, launch, root, serve, until } from "./support.mjs";

/** What a visitor has, in milliseconds. */
const MINUTE_MS = 60_000;
let browser, site, context, page;

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

async function open(hash = "") {
  await page.goto(`${site.url}teach.html${hash}`);
  await until("the run to begin", async () => (await shownMs()) > 0);
}

/** Presses `keys` one after the other as soon as the page says that it replays, which may be over soon. */
function whileReplaying(...keys) {
  return page.addInitScript((keys) => {
    const watch = () =>
      new MutationObserver((_, observer) => {
        if (!/^Replaying to/.test(document.getElementById("pace").textContent)) return;
        observer.disconnect();
        for (const key of keys) document.dispatchEvent(new KeyboardEvent("keydown", { key }));
      }).observe(document.getElementById("pace"), { childList: true, characterData: true, subtree: true });
    document.addEventListener("DOMContentLoaded", watch);
  }, keys);
}

async function shownMs() {
  return 1_000 * Number.parseFloat(await page.textContent("#time"));
}

function says(selector, pattern) {
  return until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
}

/** A figure of the table as a number: "12.3 k" is 12,300. */
async function figure(id) {
  const [, digits, unit] = /([\d.,]+)\s?([kM]?)/.exec(await page.textContent(`#${id}`)) ?? ["", "NaN", ""];
  return Number(digits.replace(",", "")) * ({ k: 1e3, M: 1e6 }[unit] ?? 1);
}

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

test("a link replays to the same digest", async () => {
  await open("#v=1&x=2");
  await page.click("[data-does=kill-1]");
  await page.click("[data-does=poison-3]");
  await page.click("[data-does=slow-0]");
  await says("#sentence", /Island 2 is gone/);
  await page.click("[data-does=kill-1]");
  await page.click("[data-does=partition-4]");
  const at = await shownMs();
  await until("some more of it", async () => (await shownMs()) > at + 4_000);
  await page.click("#play");
  await says("#digest", /^At \d+ ms: \S+ decoupled, \S+ in lock-step\.$/);
  const digest = await page.textContent("#digest");
  await page.click("#copy");
  const link = await page.inputValue("#link");
  const other = await context.newPage();
  await other.goto(link);
  await until("the same digest", async () => (await other.textContent("#digest")) === digest);
  assert.equal(await other.textContent("#play"), "Play");
  await other.goto(link.replace("#v=1", "#v=1&s=2"));
  await other.reload();
  await until("a digest", async () => /^At/.test(await other.textContent("#digest")));
  assert.notEqual(await other.textContent("#digest"), digest);
});

test("a page that plays plays on when it is loaded anew, and one that stands still stands still", async () => {
  await open();
  await page.click("[data-does=kill-2]");
  await says("#sentence", /^Island 3 is gone/);
  await until("the address", () => /#v=1&a=k3@\d+$/.test(page.url()));
  await page.reload();
  await says("#sentence", /^Island 3 is gone/);
  assert.equal(await page.textContent("#play"), "Pause");
  const at = await shownMs();
  await until("it to go on", async () => (await shownMs()) > at + 1_000);
  await page.click("#play");
  await says("#digest", /^At/);
  const digest = await page.textContent("#digest");
  await until("the moment", () => page.url().endsWith(`&t=${/^At (\d+)/.exec(digest)[1]}`));
  await page.reload();
  await until("the same moment", async () => (await page.textContent("#digest")) === digest);
  assert.equal(await page.textContent("#play"), "Play");
});

test("presenter mode and the fragment that is followed are in the address", async () => {
  await open("#chapter=int4");
  assert.equal(await page.inputValue("#follow"), "0");
  await page.keyboard.press("p");
  await page.keyboard.press("f");
  await until("the address", () => page.url().endsWith("#v=1&chapter=int4&follow=2&presenter=1"));
  await page.reload();
  await says("#chapter-title", /^Four bits$/);
  await until("the same fragment", async () => (await page.inputValue("#follow")) === "1");
  assert.equal(await page.getAttribute("#presenter", "aria-pressed"), "true");
  await page.keyboard.press("p");
  await page.selectOption("#follow", "");
  await until("the address", () => page.url().endsWith("#v=1&chapter=int4&follow=all"));
});

test("what is done to a run that is paused shows at once, and replays", async () => {
  await open();
  await page.click("#play");
  await says("#digest", /^At/);
  const before = await page.textContent("#digest");
  await page.click("[data-does=kill-1]");
  await says("#sentence", /^Island 2 is gone/);
  await until(
    "another digest",
    async () => /^At/.test(await page.textContent("#digest")) && (await page.textContent("#digest")) !== before,
  );
  assert.equal(await page.textContent("#play"), "Play");
  await page.click("[data-does=slow-0]");
  await says("#sentence", /Island 1 is slowed down/);
  await until("the address", () => /[#&]a=k2@\d+~s1x4@\d+&/.test(page.url()));
  await until("it to rest", async () =>
    new RegExp(`^At ${/t=(\d+)/.exec(page.url())[1]} ms`).test(await page.textContent("#digest")),
  );
  const digest = await page.textContent("#digest");
  const other = await context.newPage();
  await other.goto(page.url());
  await until("the same digest", async () => (await other.textContent("#digest")) === digest);
});

test("what does not show yet is done once, however often it is tried", async () => {
  // At once: what shows between two of them is another matter.
  await whileReplaying("2", "2", "2");
  await page.goto(`${site.url}teach.html#v=1&t=8000`);
  await says("#digest", /^At 8001 ms/);
  await says("#sentence", /^Island 2 is gone/);
  await until("the address", () => page.url().endsWith("#v=1&a=k2@8001&t=8001"));
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

test("a step while the Workers are behind comes when they are there, and the run goes on after it", async () => {
  // On its way to a moment far ahead.
  await whileReplaying(".");
  await page.goto(`${site.url}teach.html#v=1&t=20000`);
  await says("#digest", /^At 20(?!000)\d{3} ms/);
  // In full flight.
  await page.selectOption("#speed", "16");
  await page.click("#play");
  await until("some more of it", async () => (await shownMs()) > 24_000);
  await page.click("#step");
  await says("#digest", /^At \d+ ms/);
  assert.equal(await page.textContent("#play"), "Play");
  const at = await shownMs();
  await page.selectOption("#speed", "1");
  await page.click("#play");
  await until("it to go on", async () => (await shownMs()) > at + 1_000);
});

test("the link to this moment is there when it is looked for, and each copy is told", async () => {
  await open();
  assert.equal(await page.inputValue("#link"), "");
  await page.focus("#link");
  assert.match(await page.inputValue("#link"), /[#&]t=\d+/);
  await page.click("#play");
  await says("#digest", /^At/);
  const moment = async () => /^At (\d+) ms/.exec(await page.textContent("#digest"))[1];
  assert.match(await page.inputValue("#link"), new RegExp(`[#&]t=${await moment()}$`));
  await page.click("#copy");
  await says("#link-said", /\S/);
  const said = await page.textContent("#link-said");
  await page.evaluate(() => {
    window.heard = [];
    const node = document.getElementById("link-said");
    new MutationObserver(() => window.heard.push(node.textContent)).observe(node, {
      childList: true,
      characterData: true,
      subtree: true,
    });
  });
  await page.click("#copy");
  await until("it to be told again", () => page.evaluate(() => window.heard.length === 2));
  assert.deepEqual(await page.evaluate(() => window.heard), ["", said]);
  await page.click("#play");
  await until("the link to go", async () => (await page.inputValue("#link")) === "");
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

test("settings begin the run anew, and are in the address", async () => {
  await open();
  await page.click("[data-does=kill-0]");
  await says("#sentence", /Island 1 is gone/);
  await page.focus("#knob-islands");
  await page.keyboard.press("ArrowRight");
  await until("another island", async () => (await page.locator(".island").count()) === 6);
  await says("#sentence", /^6 islands train/);
  await until("the address", () => /[#&]m=6/.test(page.url()));
  assert.ok(!/a=k/.test(page.url()));
  await page.selectOption("#knob-merge", "mean");
  await until("the address", () => /r=mean/.test(page.url()));
  await page.reload();
  await until(
    "the same settings",
    async () => (await page.inputValue("#knob-islands")) === "6" && (await page.inputValue("#knob-merge")) === "mean",
  );
});

test("the link to the content leads there, and the run goes on", async () => {
  await open();
  await page.click("[data-does=kill-2]");
  await says("#sentence", /^Island 3 is gone/);
  const at = await shownMs();
  await page.focus(".skip");
  await page.keyboard.press("Enter");
  await until("the address", () => /#v=1&a=k3@\d+$/.test(page.url()));
  assert.ok((await shownMs()) >= at);
  assert.match(await page.textContent("#sentence"), /^Island 3 is gone/);
});

test("a damaged link plays all the same, and says what was wrong", async () => {
  await open("#v=1&m=99&a=q~k1@x&chapter=none");
  await says("#notice", /no chapter "none".*Islands, M.*left out/);
  await says("#sentence", /^5 islands train/);
});

/** The button stays one that can have the focus. */
async function canBreak() {
  return (await page.getAttribute("#break", "aria-disabled")) === null;
}

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
      // What was found is in view as a whole, and what was said before is a press away.
      await page.setViewportSize({ width: 1280, height: 800 });
      for (const selector of ["#arrows li:last-child", "#moral", "#again summary"])
        assert.ok(await isInView(selector), selector);
      await page.click("#again summary");
      assert.match(await page.textContent("#text-again"), /Think of what an island learnt as an arrow/);
    }
    assert.equal(await page.textContent("#chapter-after"), at === length - 1 ? "How you did" : "Next chapter");
    if (at === length - 1) {
      await page.click("#chapter-after");
      await says("#score", /^Of the one chapter that you tried, 1 came as you predicted; 9 are left\.$/);
      assert.match(await page.textContent("#scores li >> nth=-1"), /as you predicted$/);
      await page.click("#scores button >> nth=-1");
      await says("#break-hint", /^Choose an answer first/);
      return;
    }
    // Which lock-step this is, and where the other kind is.
    assert.equal(await page.locator("#moral a[href='./scale.html']").isVisible(), id === "lockstep");
    // The link leads to the broken run: in it there is nothing left to break, nor anything to compare with.
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
  assert.equal(await page.textContent(".island >> nth=3 >> .badge"), "sent away");
  await says(".island >> nth=3", /sent away: 16 updates in a row were refused/);
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
  // Chapters point to the settings, and the legend tells the colours of what is seen.
  assert.ok(await page.isVisible("#settings"));
  assert.ok(await page.isVisible(".legend"));
  await page.keyboard.press("ArrowRight");
  await says("#chapter-number", /^Chapter 1 of 10$/);
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

test("what can be touched is large enough, and nothing sticks out of a phone", async () => {
  await page.setViewportSize({ width: 360, height: 740 });
  await open("#chapter=quorum");
  const small = await page.evaluate(() =>
    // Where cables lie close together their buttons are smaller; cards have the same switch in full size.
    [...document.querySelectorAll("button:not(.cable), select, summary")]
      .filter((one) => one.checkVisibility())
      .filter((one) => one.getBoundingClientRect().height < 43.5 || one.getBoundingClientRect().width < 43.5)
      .map((one) => one.outerHTML.slice(0, 80)),
  );
  assert.deepEqual(small, []);
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0);
});

/** Whether all of an element is in the window. */
function isInView(selector) {
  return page.locator(selector).evaluate((element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight && bottom > top;
  });
}

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
    await page.locator("#break").scrollIntoViewIfNeeded();
    for (const selector of ["#picture", "#break"]) assert.ok(await isInView(selector), `${selector} in a chapter`);
    // Where there is room for a column, the whole question is in view at once.
    if (width >= 1280)
      for (const selector of ["#chapter-title", "#break-hint"]) assert.ok(await isInView(selector), selector);
  });
}

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
  assert.match(await page.textContent("[data-pin='0']"), /1\.98 s farther/);
  // A key for the run is none for the island that was touched last.
  await page.keyboard.press("Space");
  await says("#play", /^Play$/);
  await page.keyboard.press("Space");
  await says("#play", /^Pause$/);
  // It was dragged, and not clicked.
  await until("the address", () => /~d1x100@\d+$/.test(page.url()));
  await page.focus("[data-pin='0']");
  for (let key = 0; key < 11; key += 1) await page.keyboard.press("ArrowDown");
  await says("#sentence", /^5 islands train/);
  await page.keyboard.press("Enter");
  await says("#sentence", /^Island 1 is gone/);
});

test("what a chapter found stays while somebody tries what it says", async () => {
  await open("#chapter=quorum&x=16");
  await page.click("#answers button >> nth=1");
  await until("it to be time to break", canBreak);
  await page.click("#break");
  await says("#found-text", /^As you predicted\. /);
  await page.focus("#knob-quorum");
  await page.keyboard.press("ArrowLeft");
  await until("the run to begin anew", () => /k=4/.test(page.url()));
  assert.match(await page.textContent("#found-text"), /^As you predicted\. /);
  await page.click("[data-does=slow-4]");
  await says("#sentence", /Island 5 is slowed down/);
  assert.match(await page.textContent("#break-hint"), /^Done/);
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
  // Loading and the first pictures are one thing, going on is another.
  await page.waitForTimeout(2_000);
  // A core that somebody else slows down for a moment is no fault of the page's; one that is busy stays so.
  let long_ms = [];
  for (let stretch = 0; stretch < 3; stretch += 1) {
    long_ms = await longTasks();
    if (long_ms.length === 0) return;
  }
  assert.deepEqual(long_ms, []);
});

/** Tasks of the page's thread above 50 ms within 5 s. */
async function longTasks() {
  await browser.startTracing(page, {
    categories: ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"],
  });
  const from = await shownMs();
  await page.waitForTimeout(5_000);
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  assert.ok((await shownMs()) > from, "it stands still");
  const main = new Set(
    traceEvents
      .filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain")
      .map(({ pid, tid }) => `${pid} ${tid}`),
  );
  const tasks = traceEvents.filter(
    ({ name, pid, tid, tdur }) => /RunTask$/.test(name) && main.has(`${pid} ${tid}`) && tdur !== undefined,
  );
  assert.ok(tasks.length > 100, `${tasks.length} tasks were traced`);
  // In time of the processor: what else this machine has to do does not count.
  return tasks.map(({ tdur }) => tdur / 1_000).filter((ms) => ms > 50);
}
