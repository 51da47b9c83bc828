// Goal: a link leads to the displayed moment, and replays to the same bits.
import assert from "node:assert/strict";
import { test } from "node:test";
import { context, open, page, says, shownMs, site } from "./lesson-page.mjs";
import { until } from "./support.mjs";

/** Presses `keys` in sequence as soon as the page reports a replay, which may be over soon. */
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
  // At once: intermediate displays do not matter here.
  await whileReplaying("2", "2", "2");
  await page.goto(`${site.url}teach.html#v=1&t=8000`);
  await says("#digest", /^At 8001 ms/);
  await says("#sentence", /^Island 2 is gone/);
  await until("the address", () => page.url().endsWith("#v=1&a=k2@8001&t=8001"));
});

test("a step while the Workers are behind comes when they are there, and the run goes on after it", async () => {
  // During a replay to a moment far ahead.
  await whileReplaying(".");
  await page.goto(`${site.url}teach.html#v=1&t=20000`);
  await says("#digest", /^At 20(?!000)\d{3} ms/);
  // At full speed.
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

test("settings that no run can take while it goes on begin a new one, and are in the address", async () => {
  await open();
  await page.click("[data-does=kill-0]");
  await says("#sentence", /Island 1 is gone/);
  await page.focus("#knob-islands");
  await page.keyboard.press("ArrowRight");
  await until("another island", async () => (await page.locator(".island").count()) === 6);
  await says("#sentence", /^6 islands train/);
  await until("the address", () => /[#&]m=6/.test(page.url()));
  assert.ok(!/a=k/.test(page.url()));
  await page.selectOption("#knob-code", "int2");
  await until("the address", () => /c=int2/.test(page.url()));
  await page.reload();
  await until(
    "the same settings",
    async () => (await page.inputValue("#knob-islands")) === "6" && (await page.inputValue("#knob-code")) === "int2",
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
