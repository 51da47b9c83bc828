// Goal: the dashboard shows the syncer's data, recovers when the syncer returns, and never trusts foreign text.
import assert from "node:assert/strict";
import { test } from "node:test";
import { learner, round } from "./canned.mjs";
import { until } from "./support.mjs";
import { open, page, says, syncer } from "./watched.mjs";

test("figures and the sentence follow the status", async () => {
  await open();
  await says("#sentence", /^Training: 3 learners, 1 paused by their owners\.$/);
  const { status } = syncer;
  syncer.say("status", { ...status, paused: true, valLossLast: 3.125 });
  await says("#sentence", /^Paused by its owner: 4 learners wait\.$/);
  await says("#sentence-told", /^Paused/);
  await says("#loss", /^3.125$/);
  await says("#loss-age", /^Measured 1 min ago; on the text that it trains on it is at 3\.400 now\.$/);
  await says("#up-more", /^each number in 4\.10 bits, not 32$/);
  await says("#merged-more", /^tokens, 0\.90 % of the plan$/);
  syncer.say("evaluation", { tokensMerged: 900, rounds: 12, loss: 3.062, timeS: 57 });
  await says("#loss-age", /^Measured just now; /);
  assert.equal(await page.textContent("#loss"), "3.062");
  syncer.say("status", { ...status, tokensMerged: 28_000, totalTokens: 100_000, tokensPerS: 20, participation: 0.5 });
  await says("#merged-more", /^tokens, 28\.0 % of the plan, 2\u00a0h to its end$/);
  syncer.say("status", { ...status, disk: { ...status.disk, tapeFault: "no space left" } });
  await says("#sentence", /^The run stands still: .*\(no space left\)\. It continues by itself once the disk does\.$/);
  syncer.say("status", { ...status, disk: { ...status.disk, servicesFault: "NATS does not answer" } });
  await says(
    "#sentence",
    /^Nothing is merged, because NATS does not answer\. Learners train on, .* by itself once it does\.$/,
  );
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
  // The seconds count up without an announcement to screen readers.
  const shown = await page.textContent("#sentence");
  await page.evaluate(() => {
    const changed = () => (window.toldAnew = true);
    const options = { childList: true, characterData: true, subtree: true };
    new MutationObserver(changed).observe(document.querySelector("#sentence-told"), options);
  });
  await until("another second", async () => (await page.textContent("#sentence")) !== shown);
  await says("#sentence", /in 2 s\.$/);
  assert.ok(!(await page.evaluate(() => window.toldAnew)));
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

test("what the model was given is set apart from what it wrote", async () => {
  const wrote = (timeS, text) => ({ timeS, tokensMerged: 100 * timeS, loss: 5, text });
  syncer.series = { ...syncer.series, samples: [wrote(0, "Once upon zq")] };
  await open();
  await says("#sample-text", /^Once upon zq$/);
  assert.equal(await page.locator(".prompt").count(), 0, "one text alone does not tell");
  syncer.say("sample", wrote(30, "Once upon a time"));
  await says("#sample-text", /^Once upon a time$/);
  assert.deepEqual(await page.locator("#samples .prompt").allTextContents(), ["Once upon ", "Once upon "]);
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

test("a click on a learner tells its history, and its owner has a hand on it in any run", async () => {
  const fates = { merged: 7, late: { round_over: 1 }, refused: { norm: 2 } };
  syncer.learners = [
    learner(1),
    learner(2, { name: "<i>Ada</i>", tokensTrained: 2_000, tokensMerged: 1_500, updates: 10, fates }),
  ];
  await open();
  await page.locator("#learners-rows .name >> nth=1").click();
  await says("#learner-name", /^<i>Ada<\/i>$/);
  await says("#learner-told", /It trained on [\d.,]+( k)? tokens; [\d.,]+( k)? of them are merged \(75\.0 %\)\./);
  await says("#learner-told", /10 updates, of which 7 were merged; 1 late, 2 refused \(norm\)/);
  // Its speed is recorded from the opening of the page, even while its card is closed.
  for (const tokensPerS of [800, 200])
    syncer.say("status", { ...syncer.status, learners: [learner(1), learner(2, { tokensPerS })] });
  await says(
    "#learner-course",
    /^Its speed since this page was opened: 200 tokens a second at the end, 800 at most\.$/,
  );
  await page.fill("#learner-card .ask input", syncer.token);
  await page.press("#learner-card .ask input", "Enter");
  await page.getByRole("button", { name: "×4 slower" }).click();
  await until("the order", () => syncer.orders.length === 1);
  assert.deepEqual(syncer.orders, [["/v1/admin/learners/2/pace", { share: 0.25 }]]);
  await page.keyboard.press("Escape");
  assert.ok(await page.isHidden("#learner-card"));
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "<i>Ada</i>");
});

test("of learners that are away few are shown until somebody wants all", async () => {
  const away = { state: null, live: false };
  syncer.learners = Array.from({ length: 30 }, (_, index) => learner(index + 1, index < 28 ? away : {}));
  await open();
  const rows = () => page.locator("#learners-rows tr").count();
  await says("#learners-away", /^Show all: 20 more are away$/);
  assert.equal(await rows(), 10);
  await says("#learners-range", /^1–30 of 30 learners$/);
  await page.click("#learners-away");
  await until("all", async () => (await rows()) === 30);
  await page.click("#learners-away");
  await until("few", async () => (await rows()) === 10);
});

test("a table beneath one chart leaves its neighbour's plot where it is", async () => {
  await open();
  // Relative to the first chart's own top, at one moment: content above the charts may still load.
  const tops = () =>
    page.locator("#charts").evaluate((charts) => {
      const top = (of) => Math.round(charts.querySelector(of).getBoundingClientRect().top);
      return [1, 2].map((nth) => top(`figure:nth-child(${nth}) .plot`) - top("figure:nth-child(1)"));
    });
  const plots = "#charts figure:nth-child(-n+2) .plot canvas";
  await until("both plots", async () => (await page.locator(plots).count()) === 2);
  await until("what they show in words", async () => {
    const captions = await page.locator("#charts figcaption").allTextContents();
    return !captions.slice(0, 2).some((caption) => caption.includes("Nothing measured"));
  });
  const before = await tops();
  assert.equal(before[0], before[1], "side by side");
  await page.click("#charts figure:nth-child(1) summary");
  await page.waitForSelector("#charts figure:nth-child(1) tbody tr");
  assert.deepEqual(await tops(), before);
});

test("rounds are read by keyboard and as a table", async () => {
  await open();
  // Rounds are fetched separately from the status, and drawn later.
  await says("#lanes-said", /^Newest: Round 12/);
  await page.focus("#lanes");
  await page.keyboard.press("ArrowDown");
  await says("#lanes-said", /^Round 12, fragment 2: 2 of 3 answered; quorum after 10 ms; .*\(grace over\)\.$/);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await says("#lanes-said", /(islet|Learner) 2 answered after 30 ms: too late, the round was over/);
  // Nothing moves during reading; afterwards the newest is there.
  // A late answer counts in the next round, which then has more answers than invited learners.
  syncer.say("rounds", { nowMs: 14_000, rounds: [round(13, { answered: 4 })] });
  await page.keyboard.press("ArrowDown");
  await says("#lanes-said", /^Round 11/);
  await page.keyboard.press("Escape");
  await says(
    "#lanes-said",
    /^Newest: Round 13, fragment 2: 4 answered, 3 asked: late answers of earlier rounds count too;/,
  );
  await page.click("#rounds-table summary");
  await until("three rows", async () => (await page.locator("#rounds-rows tr").count()) === 3);
  assert.deepEqual(await page.locator("#rounds-rows td:nth-child(3)").allTextContents(), [
    "3 of 3 + 1 late",
    "2 of 3",
    "2 of 3",
  ]);
});

test("only who has the token pauses and finishes, and is asked before the end", async () => {
  await open();
  await page.click("#owner-summary");
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
  const told = syncer.asked.join() + page.url();
  assert.ok(!told.includes(syncer.token) && !told.includes("token="));
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage)), "{}");
});

test("the invite in a link goes along, and is sent to nobody", async () => {
  await page.goto(new URL("dashboard#invite=abc", syncer.url).href);
  await until("the link", async () => (await page.inputValue("#share-link")) === `${syncer.url}#invite=abc`);
  assert.equal(await page.getAttribute("header nav a", "href"), `${syncer.url}#invite=abc`);
  assert.ok(!syncer.asked.join().includes("abc"));
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
  assert.equal(syncer.streams(), 1, "not before a minute, and a syncer that says nothing meanwhile is left alone");
  // A lost connection in the meantime does not delay closing the stream.
  syncer.hangUp();
  await until("the end of the stream", () => syncer.streams() === 0);
  await page.clock.fastForward(2_000);
  await until("the next stream", () => syncer.streams() === 1);
  await page.clock.fastForward(9_000);
  await until("the end of the stream at its minute", () => syncer.streams() === 0);
  await hide(false);
  await until("the stream again", () => syncer.streams() === 1);
});

test("a complete run is shown as such, now and after a reload, and nobody is asked to join", async () => {
  await open();
  for (const classroom of [false, true]) {
    const complete = { ...syncer.status, classroom, finishing: true, finished: true, connected: 0, live: 0 };
    syncer.status = complete;
    syncer.say("status", complete);
    for (const again of [false, true]) {
      if (again) await page.reload();
      await says("#sentence", /^The run is complete/);
      await until("the model to take home", () => page.isVisible("#complete a[href='./v1/export.zip']"));
      assert.ok(!(await page.isVisible("#join")), "there is nothing to join");
      // A reload restores the scroll position, and content out of view is not painted.
      await page.locator("#share").scrollIntoViewIfNeeded();
      await says("#share-label", /sees the result of the run/);
      for (const [id, file] of [
        ["#report-page", "report.html"],
        ["#report-lines", "history.jsonl"],
      ]) {
        assert.equal(await page.getAttribute(id, "href"), `./v1/runs/${complete.run}/${file}`);
      }
      await page.locator("#samples").scrollIntoViewIfNeeded();
      await says("#first-text", /once/);
      assert.ok(await page.isDisabled("#owner-finish"));
      assert.equal(await page.isVisible("#class-text"), classroom);
    }
  }
});
