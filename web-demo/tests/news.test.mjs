// Goal: a page stays truthful while its server cannot be reached. The sentence reports it, old figures are paler and
// show their age, and the page calls nothing missing before it has asked for it.
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { learner, startCanned } from "./canned.mjs";
import { chromiumFlagsWithoutGpu, launch, load, until } from "./support.mjs";

let syncer, browser, context, page;

before(async () => {
  browser = await launch(chromiumFlagsWithoutGpu);
});
after(() => browser?.close());
beforeEach(async (test) => {
  syncer = await startCanned();
  context = await browser.newContext({ viewport: { width: 360, height: 740 } });
  await context.addInitScript(axe);
  page = await context.newPage();
  test.after(async () => {
    await context.close();
    await syncer.stop();
  });
});

const open = (path) => page.goto(new URL(path, syncer.url).href);
const text = (selector) => page.textContent(selector);
const says = (selector, pattern) =>
  until(`${selector} to say ${pattern}`, async () => pattern.test(await text(selector)));
/** Returns the colour of the first figure and the ages that the page shows. */
const looks = () =>
  page.evaluate(() => ({
    figure: getComputedStyle(document.querySelector(".figures dd")).color,
    ages: [...document.querySelectorAll(".age")].filter((age) => age.checkVisibility()).map((age) => age.textContent),
  }));

for (const [path, known, selector] of [
  ["dashboard", /^3$/, "#live"],
  ["", /3 machines take part now/, "#about"],
  ["runs", /1 model/, "#sentence"],
]) {
  test(`old figures of /${path} are paler and carry their age, and the sentence says why`, async () => {
    syncer.runs = [
      {
        name: "poems",
        path: "runs/poems/",
        link: null,
        state: "open",
        why: null,
        figures: {
          run: "00",
          model: "tiny",
          params: 117_056,
          corpus: "a text",
          live: 3,
          learnersTotal: 4,
          tokensMerged: 900,
          totalTokens: 1e5,
          participation: 0.9,
          valLossLast: 3.25,
          inviteRequired: false,
          alerts: 0,
        },
      },
    ];
    await open(path);
    // The canned stream sends its status once. Later requests get answers.
    await says(selector, known);
    const fresh = await looks();
    assert.deepEqual(fresh.ages, []);
    syncer.silent = true;
    await says("#sentence", /^The run's server hasn't answered for \d+ s\. /);
    await until("the ages", async () => (await looks()).ages.length > 0);
    const old = await looks();
    assert.ok(
      old.ages.every((age) => /^As of \d+ s ago$/.test(age)),
      String(old.ages),
    );
    assert.notEqual(old.figure, fresh.figure);
    assert.deepEqual(await faults(page), []);
    await context.setOffline(true);
    await says("#sentence", /^You are offline\. /);
    await context.setOffline(false);
    syncer.silent = false;
    await until("fresh figures", async () => (await looks()).ages.length === 0);
    assert.equal((await looks()).figure, fresh.figure);
  });
}

test("a learner that waits for data says that it is offline, or that nobody answers", async () => {
  const { unreachable } = await load("shared/reach.ts");
  const then = { offline: "Training goes on when you are back.", silent: "Nothing is lost." };
  const online = (onLine) => Object.defineProperty(globalThis, "navigator", { value: { onLine }, configurable: true });
  online(true);
  assert.equal(unreachable(0, then), null);
  const { tone, text, untold } = unreachable(24_900, then);
  assert.deepEqual([tone, text + untold], ["trouble", "The run's server hasn't answered for 24 s. Nothing is lost."]);
  online(false);
  assert.equal(unreachable(0, then).text, "You are offline. Training goes on when you are back.");
});

test("sections that were not fetched yet do not say that there is nothing, and are filled out of view", async () => {
  const waiting = ["#lanes-said", "#learners-range", "#log-newest", "#first-text", "#sample-text"];
  let answer;
  const answered = new Promise((resolve) => {
    answer = resolve;
  });
  await page.route(/\/v1\/(series|rounds|log|learners)/, async (route) => {
    await answered;
    await route.continue();
  });
  await open("dashboard");
  await says("#live", /^3$/);
  for (const selector of waiting) {
    assert.deepEqual([await text(selector), await page.getAttribute(selector, "aria-busy")], ["…", "true"], selector);
  }
  answer();
  // These sections stay out of view.
  for (const [selector, pattern] of [
    ["#lanes-said", /^Newest: Round 12/],
    ["#learners-range", /^1–1 of 1 learner$/],
    ["#log-newest", /anna joined\.$/],
    ["#first-text", /^once$/],
    ["#sample-text", /^once$/],
  ]) {
    await says(selector, pattern);
    assert.equal(await page.getAttribute(selector, "aria-busy"), null, selector);
  }
  assert.equal(await page.evaluate(() => scrollY), 0);
});

test("where nothing was trained there is no share of it", async () => {
  syncer.status = { ...syncer.status, tokensTrained: 0, tokensMerged: 0, participation: 1 };
  await open("dashboard");
  await says("#live", /^3$/);
  assert.equal(await text("#participation"), "–");
});

test("a visitor without an invite reads so before the button, and types its code", async () => {
  syncer.status = { ...syncer.status, inviteRequired: true };
  await open("");
  await until("the field", () => page.isVisible("#invite-code"));
  assert.match(await text("#invited-note"), /only invited learners may join/i);
  const isBefore = await page.evaluate(() => {
    const [field, start] = ["#invite-code", "#start"].map((one) => document.querySelector(one));
    return Boolean(field.compareDocumentPosition(start) & Node.DOCUMENT_POSITION_FOLLOWING);
  });
  assert.ok(isBefore, "it stands before the button");
  await page.click("#start");
  await says("#error", /^Type the code of your invite first/);
  await page.fill("#invite-code", "no code");
  await page.click("#start");
  await says("#error", /^That is not an invite code/);
  assert.deepEqual(await faults(page), []);
  await page.fill("#invite-code", "https://host/runs/a/#invite=a-b_C9&token=x");
  await page.click("#start");
  assert.equal(new URL(page.url()).hash, "#invite=a-b_C9");
  assert.ok(!(await page.isVisible("#invite-code")));
});

test("what was merged after a tab was closed counts once it is opened again", async () => {
  await context.addInitScript(() => {
    const [run, all] = ["00", { tokens: 855, trainMs: 5_000 }];
    localStorage.setItem("archipelago.given", JSON.stringify({ runs: [{ run, ...all }], days: [], all }));
    localStorage.setItem("archipelago.learner", JSON.stringify({ run, learner: 7 }));
  });
  const others = [learner(6, { tokensMerged: 0 })];
  syncer.status = { ...syncer.status, learners: [...others, learner(7, { state: null, tokensMerged: 900 })] };
  await open("");
  await says(
    "#thanks-text",
    /900 tokens of that are in the model\. 100 % of what this model has learnt came from this/,
  );
});

test("an invite that is refused is told apart from one that is missing", async () => {
  const { codeIn, refusedInvite } = await load("contribute/invited.ts");
  const codes = ["a-b", " a-b ", "http://h:1/#invite=a-b", "http://h:1/#x&invite=a-b&token=t", "a b", "", "é"];
  assert.deepEqual(codes.map(codeIn), ["a-b", "a-b", "a-b", "a-b", "", "", ""]);
  const said = (reason, had) => refusedInvite(reason, had).text;
  assert.match(said("this run asks for an invite", false), /only invited learners may join this run/);
  assert.match(
    said("there is no such invite", true),
    /your invite is not valid for this run\. Ask the person who invited you/,
  );
  assert.match(said("this invite is used up: ask", true), /your invite is used up\./);
  assert.match(said("this invite has expired: ask", true), /your invite has expired\./);
  assert.match(said("the run's owner has revoked this invite", true), /your invite was revoked\./);
});

test("no page is wider than a phone of 320 pixels", async () => {
  await page.setViewportSize({ width: 320, height: 640 });
  for (const path of ["", "dashboard", "runs", "missing.html"]) {
    await open(path);
    if (path === "") await until("the browser's facts", () => page.isVisible("#browser dt"));
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `/${path}`);
    if (path === "missing.html") assert.deepEqual(await faults(page), []);
  }
});
