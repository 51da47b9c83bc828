// Goal: a visitor sees the own contribution, learns of a lost syncer within seconds, and stays within the data limit.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, load, startSyncer, until } from "./support.mjs";

let syncer, browser;

before(async () => {
  [syncer, browser] = await Promise.all([startSyncer(), launch(chromiumFlagsWithoutGpu)]);
});
after(() => Promise.all([syncer?.stop(), browser?.close()]));

async function open(settings = {}, viewport = { width: 1280, height: 800 }) {
  const context = await browser.newContext({ viewport });
  const page = await context.newPage();
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), {
    engine: "cpu",
    mode: "gentle",
    ...settings,
  });
  await page.goto(syncer.url);
  return { context, page };
}

function says(page, selector, pattern) {
  return until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
}

test("a visitor sees their part, what the model wrote before, and a card at the end and on the next day", async () => {
  const { context, page } = await open({ name: "Ada @ Physics" });
  await page.evaluate(() => {
    window.written = [];
    const { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
      window.written.push(text);
      return fillText.call(this, text, ...more);
    };
  });
  await page.click("#start");
  await says(page, "#part", /^\d+(\.\d)? % of what this model has learnt came from this machine\.$/);
  await says(page, "#sample", /\S{3}/);
  assert.equal(await page.textContent("#sample-before-title"), "When you came");
  await until("the title to say so", async () => /^Training · /.test(await page.title()));
  assert.equal(await page.locator("#islands .own").count(), 1);
  await until("the syncer to know of it all", async () => (await syncer.status()).tokensMerged > 0);
  await page.click("#stop");
  await says(
    page,
    "#thanks-text",
    /^This machine has trained for .+ in all, and [\d.,]+( k| M)? tokens of that are in the model\. \d/,
  );
  const { y, height } = await page.locator("#thanks-text").boundingBox();
  assert.ok(y >= 0 && y + height <= 720, "what one gave is in sight where one pressed Stop");
  assert.equal(await page.textContent("#speed"), "–");
  assert.doesNotMatch(await page.title(), /Training/);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save-picture")]);
  assert.equal(download.suggestedFilename(), "my-island.png");
  const [title, about] = await page.evaluate(() => window.written);
  assert.equal(title, "The island of Ada @ Physics in the archipelago");
  assert.match(about, /^\d{4}-\d\d-\d\d · http:\/\/127\.0\.0\.1:\d+\/$/);
  await page.reload();
  await says(page, "#thanks-text", /^This machine has trained for /);
  await context.close();
});

test("a code for phones is shown where a phone can open the link, and else what to do", async () => {
  const page = await browser.newPage();
  const status = await syncer.status();
  const show = async (links) => {
    await page.route("**/v1/status", (route) => route.fulfill({ json: { ...status, links } }));
    await page.goto(syncer.url);
    await says(page, "#about", /language model/);
  };
  await show([]);
  await says(page, "#link-local", /^Only this machine can open this link\..* --listen/);
  assert.ok(await page.isHidden("#qr"));
  await show(["http://192.168.7.5:7700/"]);
  await until("the code", () => page.isVisible("#qr"));
  assert.ok(await page.isHidden("#link-local"));
  assert.equal(await page.inputValue("#link"), "http://192.168.7.5:7700/");
  await page.close();
});

test("the board adds teams up, and is away where the owner hides names", async () => {
  const page = await browser.newPage();
  await page.goto(syncer.url);
  const learner = (id, name, tokens) => ({ learner: id, name, tokensMerged: tokens, mergedShare: tokens / 1_000 });
  const status = await syncer.status();
  const show = async (more) => {
    await page.route("**/v1/status", (route) => route.fulfill({ json: { ...status, ...more } }));
    await page.route("**/v1/learners?*", (route) => route.fulfill({ json: { learners } }));
    await page.reload();
  };
  const learners = [
    learner(1, "Ada @ Physics", 300),
    learner(2, "<b>Bob</b> @physics", 250),
    learner(3, "Cleo", 400),
    learner(4, "Dan @ Chess", 0),
    learner(5, "browser", 30),
    learner(6, "browser", 20),
  ];
  await show({});
  // The default, unless the owner hides names.
  await says(page, "#costs", /Everyone who opens this page sees the name that you choose, your device, and how much/);
  const rows = (id) => page.locator(`#${id} tr`).allTextContents();
  await until("the board", () => page.isVisible("#board"));
  assert.deepEqual(await rows("board-people-rows"), [
    "Cleo40040.0 %",
    "Ada @ Physics30030.0 %",
    "<b>Bob</b> @physics25025.0 %",
    // A learner without a name has a number.
    "browser #5303.0 %",
    "browser #6202.0 %",
  ]);
  assert.deepEqual(await rows("board-teams-rows"), ["Physics55055.0 %"]);
  await show({ namesHidden: true });
  await says(page, "#costs", /The run's owner hides names and devices/);
  assert.ok(!(await page.isVisible("#board")) && !(await page.isVisible("#name-field")));
  await page.close();
});

test("a syncer that stands still is said within seconds, and training goes on", async () => {
  const { context, page } = await open();
  await page.click("#start");
  await says(page, "#sentence", /^Training, gentle\.$/);
  const [watch] = [await context.newPage()];
  await watch.goto(new URL("dashboard", syncer.url).href);
  await says(watch, "#sentence", /^Training: /);
  await page.bringToFront();
  await says(page, "#sentence", /^Training, gentle\.$/);
  syncer.freeze(true);
  const from = Date.now();
  await says(page, "#sentence", /^The run's server hasn't answered for \d+ s\. Nothing is lost\./);
  await says(watch, "#sentence", /^The run's server hasn't answered for \d+ s\./);
  assert.ok(Date.now() - from < 20_000, `after ${Date.now() - from} ms`);
  syncer.freeze(false);
  await says(page, "#sentence", /^Training, gentle\.$/);
  await says(watch, "#sentence", /^Training: /);
  await context.close();
});

test("the data cap counts what is fetched, and what came before on the same day", async () => {
  // The parameters of `tiny` alone are 234 kB.
  const { context, page } = await open({ bytesMax: 200_000 });
  await page.click("#start");
  await says(page, "#sentence", /data cap/);
  // Messages in flight at the end are recorded until its Worker has ended.
  const bytes = async () => {
    await until("the learner to be gone", () => page.workers().length === 0);
    return JSON.parse(await page.evaluate(() => localStorage.getItem("archipelago.traffic"))).bytes;
  };
  const first = await bytes();
  assert.ok(first >= 200_000 && first < 1_500_000, `${first} bytes`);
  await page.click("#start");
  await says(page, "#sentence", /data cap/);
  const second = await bytes();
  assert.ok(second - first < 100_000, `${second} bytes after ${first}`);
  await context.close();
});

test("on a phone the button is in sight, also while the page is read", async () => {
  const { context, page } = await open({}, { width: 360, height: 740 });
  const isInView = () =>
    page.locator("#start").evaluate((button) => {
      const { top, bottom } = button.getBoundingClientRect();
      return top >= 0 && bottom <= innerHeight;
    });
  assert.ok(await isInView());
  await page.evaluate(() => scrollTo(0, 200));
  assert.ok(await isInView());
  await context.close();
});

test("traffic is booked for the day on which it came, and by all tabs together", async () => {
  const kept = new Map();
  globalThis.localStorage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
  // Two tabs: each has its own modules.
  const [one, other] = [await load("contribute/given.ts"), await load("contribute/given.ts")];
  const [evening, morning] = [new Date(2026, 10, 22, 23, 59), new Date(2026, 10, 23, 0, 1)];
  one.addTraffic(evening, 700);
  other.addTraffic(evening, 300);
  assert.equal(one.readTraffic(evening), 1_000);
  one.addTraffic(morning, 5);
  assert.deepEqual([one.readTraffic(morning), other.readTraffic(morning)], [5, 5]);
  // A browser without storage counts as long as the page is open.
  globalThis.localStorage = {
    getItem: () => null,
    setItem: () => {
      throw new Error("no room");
    },
  };
  one.addTraffic(morning, 10);
  assert.equal(one.readTraffic(morning), 15);
  delete globalThis.localStorage;
});

test("what was given is kept by day and for all runs, in bounded room", async () => {
  const kept = new Map();
  globalThis.localStorage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
  const { keepGiven, readBook, readGiven, RUNS_MAX, DAYS_MAX } = await load("contribute/given.ts");
  const { allOf } = await load("contribute/days.ts");
  const day = (at) => new Date(2026, 10, at, 12);
  keepGiven("one", { tokens: 100, trainMs: 1_000 }, day(1));
  keepGiven("one", { tokens: 150, trainMs: 1_500 }, day(1));
  assert.equal(allOf(readBook()), "", "one run on one day is what the card says anyway");
  keepGiven("one", { tokens: 400, trainMs: 4_000 }, day(2));
  keepGiven("two", { tokens: 50, trainMs: 60_000 }, day(2));
  // Tokens that only the syncer remembers belong to no day.
  keepGiven("three", { tokens: 1_000, trainMs: 0 }, null);
  assert.deepEqual(readBook().days, [
    { day: "2026-11-01", tokens: 150, trainMs: 1_500 },
    { day: "2026-11-02", tokens: 300, trainMs: 62_500 },
  ]);
  assert.deepEqual(readGiven("one"), { tokens: 400, trainMs: 4_000 });
  assert.equal(allOf(readBook()), "On 2 days this browser has given 1 min 4 s and 1,450 tokens, to 3 runs.");
  for (let at = 1; at <= 100; at += 1) keepGiven(`run ${at}`, { tokens: 1, trainMs: 0 }, new Date(2027, 0, at));
  const { runs, days, all } = readBook();
  assert.deepEqual([runs.length, days.length], [RUNS_MAX, DAYS_MAX]);
  assert.equal(days.at(-1).day, "2027-04-10");
  assert.deepEqual([all.tokens, all.runs, all.days], [1_550, 103, 102]);
  // Invalid stored content does no harm.
  for (const text of ["null", "7", '{"runs":[null,{"run":3}],"days":7,"all":[]}', "{"]) {
    kept.set("archipelago.given", text);
    assert.deepEqual([readBook().runs, readBook().days, readBook().all.tokens], [[], [], 0]);
  }
  delete globalThis.localStorage;
});

test("a visitor who comes back sees what was given on earlier days", async () => {
  const { context, page } = await open();
  const given = (name, value, tokens) => ({ [name]: value, tokens, trainMs: 60_000 });
  const book = {
    runs: [given("run", "another", 5_000)],
    days: [given("day", "2026-11-01", 2_000), given("day", "2026-11-02", 3_000)],
    all: { tokens: 5_000, trainMs: 120_000, runs: 1, days: 2 },
  };
  await page.evaluate((book) => localStorage.setItem("archipelago.given", JSON.stringify(book)), book);
  await page.reload();
  await says(page, "#thanks-all", /^On 2 days this browser has given 2 min and 5,000 tokens, to 1 run\.$/);
  await says(page, "#thanks-text", /^Nothing of this machine is in this run's model yet\.$/);
  await page.click("#thanks-days summary");
  assert.deepEqual(await page.locator("#thanks-rows tr").allTextContents(), [
    "2026-11-021 min3,000",
    "2026-11-011 min2,000",
  ]);
  await context.close();
});

test("what the model was given is set apart from what it wrote, once two texts tell", async () => {
  const page = await browser.newPage();
  const status = await syncer.status();
  let sample = "Once upon a time";
  await page.route("**/v1/status", (route) => route.fulfill({ json: { ...status, sample, live: 1 } }));
  await page.goto(syncer.url);
  await says(page, "#sample", /^Once upon a time$/);
  assert.equal(await page.locator(".prompt").count(), 0, "one text alone does not tell");
  assert.equal(await page.getAttribute("#islands", "aria-label"), "1 island round the syncer.");
  sample = "Once upon <b>us</b>";
  await says(page, "#sample", /^Once upon <b>us<\/b>$/);
  assert.deepEqual(await page.locator(".prompt").allTextContents(), ["Once upon ", "Once upon "]);
  await page.close();
});

test("a part is said in words that do not claim more than is known", async () => {
  const { partOf, thanksOf } = await load("contribute/reward.ts");
  assert.equal(partOf(12, 100), "12 % of what this model has learnt came from this machine.");
  assert.equal(partOf(1, 5_000), "Less than 0.1 % of what this model has learnt came from this machine.");
  assert.equal(partOf(0, 100), "");
  assert.equal(partOf(10, 0), "");
  assert.equal(partOf(200, 100), "100 % of what this model has learnt came from this machine.");
  assert.match(
    thanksOf({ tokens: 885_000, trainMs: 720_000 }, 0),
    /^This machine has trained for 12 min.* and 885 k tokens/,
  );
});
