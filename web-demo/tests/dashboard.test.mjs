// Goal: the dashboard says what the syncer says, goes on when the syncer comes back, and trusts nobody's text.
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { learner, round, startCanned } from "./canned.mjs";
import { chromiumFlagsWithoutGpu, launch, until } from "./support.mjs";

let browser, syncer, page;

before(async () => {
  browser = await launch(chromiumFlagsWithoutGpu);
});
after(() => browser?.close());
beforeEach(async (context) => {
  syncer = await startCanned();
  page = await browser.newPage({ viewport: { width: 1280, height: 4_000 } });
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  context.after(async () => {
    await page.close();
    await syncer.stop();
    assert.deepEqual(trouble, []);
  });
});

async function open() {
  await page.goto(new URL("dashboard", syncer.url).href);
  await says("#participation", /90.0 %/);
}

/** Waits until the element's text matches. */
function says(selector, pattern) {
  return until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
}

test("figures and the sentence follow the status", async () => {
  await open();
  await says("#sentence", /^Training: 3 learners, 1 paused by their owners\.$/);
  const { status } = syncer;
  syncer.say("status", { ...status, paused: true, valLossLast: 3.125 });
  await says("#sentence", /^Paused by its owner: 4 learners wait\.$/);
  await says("#sentence-told", /^Paused/);
  await says("#loss", /^3.125$/);
  syncer.say("status", { ...status, connected: 0, live: 0, learnersTotal: 0 });
  await says("#sentence", /^Waiting for the first learner: share the link\.$/);
  syncer.say("status", { ...status, finishing: true });
  await says("#sentence", /^Finishing/);
});

test("a change of numbers alone is shown, but not read out at once", async () => {
  await open();
  await says("#sentence-told", /3 learners/);
  const { status } = syncer;
  syncer.say("status", { ...status, learnersByState: { ...status.learnersByState, training: 2 } });
  await says("#sentence", /2 learners/);
  assert.match(await page.textContent("#sentence-told"), /3 learners/);
});

test("a lost connection is said, and made good with what was missed", async () => {
  await open();
  await until("the stream", () => syncer.streams() === 1);
  syncer.refusing = true;
  syncer.hangUp();
  await says("#sentence", /^Connection to the syncer lost, trying again in \d+ s\.$/);
  assert.equal(await page.textContent("#sentence-told"), "Connection to the syncer lost, trying again");
  syncer.asked.length = 0;
  syncer.refusing = false;
  await says("#sentence", /^Training/);
  await until("what was missed", () => ["GET /v1/series", "GET /v1/rounds"].every((one) => syncer.asked.includes(one)));
});

test("points are added; columns are fetched anew only when a point stands for more", async () => {
  await open();
  const fetched = () => syncer.asked.filter((one) => one === "GET /v1/series").length;
  const speed = "#charts figure:nth-child(2) .keys";
  await says(speed, /700/);
  const point = {
    spanS: 1,
    timeS: 3,
    trainLoss: 3,
    tokensPerS: 812,
    participation: 0.9,
    live: 3,
    bytesUp: 500,
    bytesDown: 500,
    tokensMerged: 300,
    rounds: 3,
  };
  syncer.say("point", point);
  await says(speed, /812/);
  assert.equal(fetched(), 1);
  syncer.series = { ...syncer.series, spanS: 2, tokensPerS: [0, 600, 333] };
  syncer.say("point", { ...point, spanS: 2, timeS: 2 });
  await says(speed, /333/);
  assert.equal(fetched(), 2);
});

test("names and texts are shown as they are", async () => {
  const markup = "<img src=x onerror=alert(1)>";
  syncer.learners = [learner(1, { name: markup, device: markup })];
  syncer.series = { ...syncer.series, samples: [{ timeS: 0, tokensMerged: 0, loss: 5, text: `${markup}\u0007` }] };
  await open();
  await says("#learners-rows .name", /^<img src=x onerror=alert\(1\)>$/);
  await says("#sample-text", /^<img src=x onerror=alert\(1\)>·$/);
  assert.equal(await page.locator("main img").count(), 0);
});

test("how far a learner is and how thin its link stands beside its device", async () => {
  syncer.learners = [learner(1, { answerMs: 1_312.4, thin: true }), learner(2, { batch: 0, answerMs: 0 })];
  await open();
  const about = page.locator("#learners-rows .device");
  await until("two learners", async () => (await about.count()) === 2);
  assert.deepEqual(await about.allTextContents(), [
    "cpu, 1 thread; batch 8; answers within 1.31 s; its link is thin",
    "cpu, 1 thread",
  ]);
});

test("learners come in pages, in the order asked for", async () => {
  syncer.learners = Array.from({ length: 120 }, (_, index) => learner(index + 1));
  await open();
  await says("#learners-range", /^1–50 of 120 learners$/);
  await page.click("th[data-sort=speed] button");
  await until("that order", () => page.$("th[data-sort=speed][aria-sort=descending]"));
  await page.click("#learners-after");
  await says("#learners-range", /^51–100 of 120/);
  assert.ok(syncer.asked.includes("GET /v1/learners?offset=50&limit=50&sort=speed"));
  await page.click("#learners-after");
  await says("#learners-range", /^101–120 of 120/);
  assert.equal(await page.locator("#learners-rows tr").count(), 20);
  assert.ok(await page.isDisabled("#learners-after"));
});

test("rounds are read by keyboard and as a table", async () => {
  await open();
  // Rounds are fetched apart from the status, and drawn later.
  await says("#lanes-said", /^Newest: Round 12/);
  await page.focus("#lanes");
  await page.keyboard.press("ArrowDown");
  await says("#lanes-said", /^Round 12, fragment 2: 2 of 3 answered; quorum after 10 ms; .*\(grace over\)\.$/);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await says("#lanes-said", /(islet|Learner) 2 answered after 30 ms: too late, the round was over/);
  // Nothing moves under a reader; afterwards the newest is there.
  syncer.say("rounds", { nowMs: 14_000, rounds: [round(13)] });
  await page.keyboard.press("ArrowDown");
  await says("#lanes-said", /^Round 11/);
  await page.keyboard.press("Escape");
  await says("#lanes-said", /^Newest: Round 13/);
  await page.click("#rounds-table summary");
  await until("three rows", async () => (await page.locator("#rounds-rows tr").count()) === 3);
});

test("only who has the token pauses and finishes, and is asked before the end", async () => {
  await open();
  await page.click("text=I own this run");
  await page.click("#owner-pause");
  await says("#owner-said", /admin\.token/);
  assert.ok(!syncer.asked.some((one) => one.includes("/v1/admin/")));
  await page.fill("#owner-token", "a wrong one");
  await page.click("#owner-pause");
  await says("#owner-said", /^That is not the token of this run/);
  await page.fill("#owner-token", syncer.token);
  await page.click("#owner-pause");
  await says("#owner-said", /^The run is paused\.$/);
  syncer.say("status", { ...syncer.status, paused: true });
  await says("#owner-pause", /^Resume/);
  await page.click("#owner-finish");
  await page.click("#finish-no");
  assert.ok(!syncer.asked.includes("POST /v1/admin/finish"));
  await page.click("#owner-finish");
  await page.click("#finish-yes");
  await says("#owner-said", /^The run finishes\.$/);
  assert.ok(syncer.asked.includes("POST /v1/admin/finish"));
  assert.ok(!(syncer.asked.join() + page.url()).includes("token"));
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage)), "{}");
});

test("the invite in a link goes along, and is sent to nobody", async () => {
  await page.goto(new URL("dashboard#invite=abc", syncer.url).href);
  await until("the link", async () => (await page.inputValue("#share-link")) === `${syncer.url}#invite=abc`);
  assert.equal(await page.getAttribute("header nav a", "href"), `${syncer.url}#invite=abc`);
  assert.ok(!syncer.asked.join().includes("abc"));
});

/** A run for a class of three: one at full speed, one slowed down, one sent away. */
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
  // A link that others can open, not this machine's own name for itself.
  await says("#classroom-link", /^http:\/\/192\.168\.7\.5:7700\/#invite=abc$/);
  // Parts of the page are drawn each in its own time.
  await until(
    "the same link to share",
    async () => (await page.inputValue("#share-link")) === "http://192.168.7.5:7700/#invite=abc",
  );
  await until("the code", () => page.evaluate(() => document.querySelector("#classroom-code").width > 21));
  const badges = await page.locator("#islands .badge").allTextContents();
  assert.deepEqual(badges, [
    "training",
    "slowed ×4 by the owner",
    "dropped by the owner, may return in 12 s; slowed ×2",
  ]);
  await says("#islands-count", /^2$/);
  await until("the table too", async () =>
    /^training, slowed ×4 by the owner$/.test(await page.locator("#learners-rows .badge").nth(1).textContent()),
  );
  assert.ok(await page.isHidden("#islands .controls >> nth=0"));
});

test("who has the token slows islands down, sends them away and lets them back", async () => {
  await open();
  syncer.say("status", classOf(syncer));
  await says("#classroom-note", /invite is missing/);
  await page.click("#islands-token");
  await page.keyboard.type("a wrong one");
  const row = (number) => page.locator("#islands li").nth(number);
  const press = (number, name) => row(number).getByRole("button", { name, exact: true }).click();
  await press(0, "×8 slower");
  await says("#islands-said", /^That is not the token/);
  await page.fill("#owner-token", syncer.token);
  syncer.orders.length = 0;
  // One after the other: each goes over a connection of its own, and they may overtake each other.
  const order = async (number, name) => {
    const count = syncer.orders.length + 1;
    await press(number, name);
    await until(`order ${count}`, () => syncer.orders.length === count);
  };
  await order(0, "×8 slower");
  await until("no complaint", () => page.isHidden("#islands-said"));
  await order(1, "Full speed");
  await page.fill("#drop-seconds", "7");
  await order(1, "Drop");
  await order(2, "Let it back");
  const learners = "/v1/admin/learners";
  assert.deepEqual(syncer.orders, [
    [`${learners}/1/pace`, { share: 0.125 }],
    [`${learners}/2/pace`, { share: 1 }],
    [`${learners}/2/drop`, { seconds: 7 }],
    [`${learners}/3/drop`, { seconds: 0 }],
  ]);
  await page.fill("#drop-seconds", "0");
  await press(0, "Drop");
  assert.equal(syncer.orders.length, 4, "no time at all is none");
  const pressed = await row(1).locator("[aria-pressed=true]").allTextContents();
  assert.deepEqual(pressed, ["×4 slower"]);
  // Rows stay: a button that has the keyboard keeps it when somebody comes or goes.
  await row(1).getByRole("button", { name: "×2 slower" }).focus();
  const status = classOf(syncer);
  syncer.say("status", { ...status, learners: status.learners.slice(1) });
  await until("one row less", async () => (await page.locator("#islands li").count()) === 2);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "×2 slower");
});

test("a page that nobody looks at gives its stream back", async () => {
  await page.clock.install();
  await open();
  const hide = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  await until("the stream", () => syncer.streams() === 1);
  await hide(true);
  await page.clock.fastForward(50_000);
  assert.equal(syncer.streams(), 1);
  await page.clock.fastForward(20_000);
  await until("the end of the stream", () => syncer.streams() === 0);
  await hide(false);
  await until("the stream again", () => syncer.streams() === 1);
});
