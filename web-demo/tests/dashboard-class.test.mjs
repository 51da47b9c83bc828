// Goal: a class sees on one screen its members and the model's progress, and its owner controls each island.
import assert from "node:assert/strict";
import { test } from "node:test";
import { learner, round } from "./canned.mjs";
import { until } from "./support.mjs";
import { open, page, says, syncer } from "./watched.mjs";

/** A run for a class of three: one at full speed, one slowed, one dropped. */
function classOf(syncer) {
  const learners = [
    learner(1),
    learner(2, { share: 0.25 }),
    learner(3, { state: null, live: false, share: 0.5, returnsS: 11.2 }),
    learner(4, { state: null, live: false }),
  ];
  return { ...syncer.status, classroom: true, links: ["http://192.168.7.5:7700/"], inviteRequired: true, learners };
}

test("a class sees the code, who is there, and what the owner did to whom", async () => {
  syncer.learners = classOf(syncer).learners;
  await page.goto(new URL("dashboard#invite=abc", syncer.url).href);
  await says("#participation", /90.0 %/);
  assert.ok(await page.isHidden("#classroom"));
  syncer.say("status", classOf(syncer));
  // A link that other machines can open, not the name for this machine alone.
  await says("#classroom-link", /^http:\/\/192\.168\.7\.5:7700\/#invite=abc$/);
  // Parts of the page are drawn only in view.
  const look = (selector) => page.locator(selector).scrollIntoViewIfNeeded();
  await look("#share-link");
  await until(
    "the same link to share",
    async () => (await page.inputValue("#share-link")) === "http://192.168.7.5:7700/#invite=abc",
  );
  await until("the code", () => page.evaluate(() => document.querySelector("#classroom-code").width < 100));
  const badges = await page.locator("#islands .badge").allTextContents();
  assert.deepEqual(badges, ["training", "slowed ×4", "dropped, 12 s"]);
  await says("#islands-count", /^2$/);
  await look("#learners-title");
  await until("the table too", async () =>
    /^training, slowed ×4 by the owner$/.test(await page.locator("#learners-rows .badge").nth(1).textContent()),
  );
  // A viewer without a token sees an island's state, and only a field for the token instead of buttons.
  await page.click("#islands .spot >> nth=2");
  await says(
    ".island-card",
    /^islet 3: dropped by the owner, may return in 12 s; slowed ×2\. 50\.0 % of the model is its work\./,
  );
  assert.ok((await page.isHidden(".island-card .controls")) && (await page.isVisible(".island-card .ask")));
});

for (const [width, height] of [
  [1280, 800],
  [1366, 768],
]) {
  test(`a class is on one screen of ${width} × ${height}, and its code in a corner once somebody came`, async () => {
    await page.setViewportSize({ width, height });
    syncer.status = { ...classOf(syncer), learners: [] };
    await page.goto(new URL("dashboard#invite=abc", syncer.url).href);
    await says("#classroom-link", /^http:\/\/192\.168\.7\.5:7700\/#invite=abc$/);
    // An untouched canvas is 300 wide.
    await until("the code", () => page.evaluate(() => document.querySelector("#classroom-code").width < 100));
    const wide = async () => (await page.locator("#classroom-code").boundingBox()).width;
    const isWhole = () =>
      page.evaluate(() =>
        [
          ...document.querySelectorAll(
            "#classroom :is(#classroom-code, #classroom-link, .spot, #class-loss, #class-text)",
          ),
        ]
          .filter((part) => part.checkVisibility())
          .map((part) => part.getBoundingClientRect())
          .every(({ top, bottom, right }) => top >= 0 && bottom <= innerHeight && right <= innerWidth),
      );
    assert.ok((await wide()) > 300 && (await isWhole()));
    await page.keyboard.press("Enter");
    const learners = Array.from({ length: 30 }, (_, at) => learner(at + 1, { name: `a name of some length ${at}` }));
    syncer.say("status", { ...classOf(syncer), learners });
    await until("an island for each", async () => (await page.locator("#islands .spot").count()) === 30);
    assert.ok((await wide()) < 120 && (await isWhole()));
    // Islands of a merged round pulse; a repeated round does not pulse again.
    const pulses = () => page.locator("#islands .ring.now").count();
    syncer.say("rounds", { nowMs: 13_000, rounds: [round(12)] });
    await until("one pulse", async () => (await pulses()) === 1);
    await page.evaluate(() => document.querySelector("#islands .ring.now").classList.remove("now"));
    syncer.say("rounds", { nowMs: 14_000, rounds: [round(12), round(13, { merged: null })] });
    // The next status confirms the order; the rounds themselves are out of view, and not drawn.
    syncer.say("status", { ...classOf(syncer), learners, valLossLast: 2.125 });
    await says("#class-loss", /^2.125$/);
    assert.equal(await pulses(), 0);
    // The code is still there, and reachable by keyboard.
    await page.focus("#classroom-grow");
    await page.keyboard.press("Enter");
    await until("the code to grow", async () => (await wide()) > 300);
    await page.keyboard.press("Enter");
    await until("the islands again", () => page.isVisible("#sea"));
  });
}

test("who leaves a class by itself is seen to be away, then no more", async () => {
  await page.clock.install();
  await open();
  const status = { ...syncer.status, classroom: true, links: ["http://192.168.7.5:7700/"] };
  syncer.say("status", { ...status, learners: [learner(1), learner(2)] });
  await until("two islands", async () => (await page.locator("#islands .spot").count()) === 2);
  const left = { ...status, learners: [learner(1), learner(2, { state: null, live: false })] };
  syncer.say("status", left);
  await says("#islands li:nth-child(2) .badge", /^away$/);
  await says("#islands-count", /^1$/);
  // After this long without news the page reopens its stream, and gets the current status.
  syncer.status = left;
  await page.clock.fastForward(121_000);
  syncer.say("status", left);
  await until("one island", async () => (await page.locator("#islands .spot").count()) === 1);
});

test("an owner's link brings the token, which is in the address no more", async () => {
  await page.goto(new URL(`dashboard#token=${encodeURIComponent("the token")}&invite=abc`, syncer.url).href);
  await until("the token", async () => (await page.inputValue("#owner-token")) === syncer.token);
  assert.equal(page.url(), new URL("dashboard#invite=abc", syncer.url).href);
  await until("the link", async () => (await page.inputValue("#share-link")) === `${syncer.url}#invite=abc`);
  // A link opened over the loaded page.
  await page.evaluate(() => (location.hash = "#token=another"));
  await until("the other token", async () => (await page.inputValue("#owner-token")) === "another");
  assert.equal(page.url(), new URL("dashboard", syncer.url).href);
  // In any order of fields, and never in the shared link.
  await page.evaluate(() => (location.hash = "#invite=abc&token=another"));
  await until("the address without it", () => page.url().endsWith("dashboard#invite=abc"));
  syncer.say("status", classOf(syncer));
  await says("#classroom-link", /#invite=abc$/);
  await page.reload();
  await until("the token kept", async () => (await page.inputValue("#owner-token")) === "another");
  assert.ok(!syncer.asked.join().includes("another"));
});

test("who has the token slows islands down, sends them away and lets them back", async () => {
  await open();
  syncer.say("status", classOf(syncer));
  await says("#classroom-note", /invite is missing/);
  const row = (number) => page.locator("#islands li").nth(number);
  const press = async (number, name) => {
    if (await row(number).locator(".spot[aria-expanded=false]").count()) await row(number).locator(".spot").click();
    await row(number).getByRole("button", { name, exact: true }).click();
  };
  await row(0).locator(".spot").click();
  await page.fill(".island-card .ask input", "a wrong one");
  await page.keyboard.press("Enter");
  await press(0, "×8 slower");
  await says(".island-card .notice", /^That is not the token/);
  await page.fill(".island-card .ask input", syncer.token);
  await page.keyboard.press("Enter");
  syncer.orders.length = 0;
  // One after another: each request has its own connection, and one could overtake another.
  const order = async (number, name) => {
    const count = syncer.orders.length + 1;
    await press(number, name);
    await until(`order ${count}`, () => syncer.orders.length === count);
  };
  await order(0, "×8 slower");
  await until("no complaint", () => page.isHidden(".island-card .notice"));
  await order(1, "Full speed");
  await page.fill(".island-card [type=number]", "7");
  await order(1, "Drop");
  await order(2, "Let it back");
  const learners = "/v1/admin/learners";
  assert.deepEqual(syncer.orders, [
    [`${learners}/1/pace`, { share: 0.125 }],
    [`${learners}/2/pace`, { share: 1 }],
    [`${learners}/2/drop`, { seconds: 7 }],
    [`${learners}/3/drop`, { seconds: 0 }],
  ]);
  await page.fill(".island-card [type=number]", "0");
  await press(0, "Drop");
  assert.equal(syncer.orders.length, 4, "no time at all is none");
  await row(1).locator(".spot").click();
  const pressed = await row(1).locator("[aria-pressed=true]").allTextContents();
  assert.deepEqual(pressed, ["×4 slower"]);
  // Rows stay: a focused button keeps the focus when learners join or leave.
  await row(1).getByRole("button", { name: "×2 slower" }).focus();
  const status = classOf(syncer);
  syncer.say("status", { ...status, learners: [...status.learners, learner(7)] });
  await until("one island more", async () => (await page.locator("#islands li").count()) === 4);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "×2 slower");
  await page.keyboard.press("Escape");
  assert.ok(await page.evaluate(() => document.activeElement.matches(".spot[aria-expanded=false]")));
});
