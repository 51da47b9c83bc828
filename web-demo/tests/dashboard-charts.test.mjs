// Goal: the dashboard's charts work as engineers expect: zoomed together, smoothed, compared and saved.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { load, until } from "./support.mjs";
import { page, says, syncer } from "./watched.mjs";

/** A run of 900 s in points of 3 s whose first learner joins after 600 s. */
function late() {
  const timeS = Array.from({ length: 301 }, (_, at) => 3 * at);
  const trained = timeS.map((time) => Math.max(0, time - 600));
  return {
    spanS: 3,
    timeS,
    trainLoss: trained.map((since, at) => (since > 0 ? 2 + 4 * Math.exp(-since / 100) + (at % 2) / 10 : null)),
    tokensPerS: trained.map((since) => (since > 0 ? 1_000 : 0)),
    participation: timeS.map(() => 1),
    live: trained.map((since) => (since > 0 ? 2 : 0)),
    bytesUp: trained.map((since) => since * 100),
    bytesDown: trained.map((since) => since * 200),
    tokensMerged: trained.map((since) => Math.max(0, since - 30) * 1_000),
    rounds: trained.map((since) => Math.floor(since / 3)),
    evaluations: [0, 690, 780, 900].map((timeS) => ({
      timeS,
      tokensMerged: Math.max(0, timeS - 630) * 1_000,
      rounds: 1,
      loss: 6 - timeS / 300,
    })),
    samples: [],
  };
}

const loss = "#charts figure:nth-child(1)";
const speed = "#charts figure:nth-child(2)";

/** Returns the chart's text for its first or last moment. */
async function moment(chart, key) {
  await page.focus(`${chart} .plot`);
  await page.keyboard.press(key);
  return page.textContent(`${chart} .keys > :last-child`);
}

async function openLate(query = "") {
  syncer.series = late();
  await page.goto(new URL(`dashboard${query}`, syncer.url).href);
  await until("plots", async () => (await page.locator("#charts .plot canvas").count()) === 4);
}

async function drag(chart, from, to) {
  const { x, y, width, height } = await page.locator(`${chart} .u-over`).boundingBox();
  await page.mouse.move(x + width * from, y + height / 2);
  await page.mouse.down();
  await page.mouse.move(x + width * ((from + to) / 2), y + height / 2);
  await page.mouse.move(x + width * to, y + height / 2);
  await page.mouse.up();
}

const panel = () => page.click("#charts-controls summary");
const pressed = () => page.locator('#charts-controls [aria-pressed="true"]').allTextContents();

async function saved(button) {
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: button }).click(),
  ]);
  return { name: download.suggestedFilename(), bytes: await readFile(await download.path()) };
}

test("curves begin with the first learner, and of one place the newest value counts", async () => {
  const { curveOf, startOf, rangeOf, wholeOf } = await load("dashboard/columns.ts");
  const run = late();
  assert.equal(startOf(run), 600);
  assert.equal(startOf({ ...run, live: [0], trainLoss: [null], timeS: [12] }), 12, "nobody yet");
  const trained = { values: ({ trainLoss }) => trainLoss };
  const held = { rows: "evaluations", values: ({ evaluations }) => evaluations.map(({ loss }) => loss) };
  assert.deepEqual(curveOf(run, trained, "time").x.slice(0, 3), [0, 3, 6]);
  assert.deepEqual(curveOf(run, held, "time"), { x: [0, 90, 180, 300], y: run.evaluations.map(({ loss }) => loss) });
  assert.deepEqual(wholeOf(run, "time"), { from: 0, to: 300 });
  // Ten points without merged tokens share one position.
  const byTokens = curveOf(run, trained, "tokens");
  assert.deepEqual(byTokens.x.slice(0, 3), [0, 3_000, 6_000]);
  assert.equal(byTokens.y[0], run.trainLoss[210]);
  // After a rollback to its snapshot the syncer merges from there again.
  const again = {
    ...run,
    timeS: [0, 1, 2, 3],
    tokensMerged: [0, 10, 5, 8],
    live: [1, 1, 1, 1],
    trainLoss: [4, 3, 3.5, 3.2],
  };
  assert.deepEqual(curveOf(again, trained, "tokens"), { x: [0, 5, 8], y: [4, 3.5, 3.2] });
  assert.deepEqual(rangeOf({ lastS: 60 }, run, "time"), { from: 240, to: 300 });
  assert.deepEqual(rangeOf({ lastS: 60 }, run, "tokens"), { from: 210_000, to: 270_000 });
  assert.equal(rangeOf({ lastS: 300 }, run, "time"), null, "the run is no older");
});

test("smoothing goes by distance, keeps gaps and forgets what is far", async () => {
  const { smoothed } = await load("dashboard/columns.ts");
  const check = (x, y, reach, expected) =>
    smoothed({ x, y }, reach).y.forEach((value, at) =>
      assert.ok(value === expected[at] || Math.abs(value - expected[at]) < 1e-9, `${value}, not ${expected[at]}`),
    );
  check([0, 1, 5], [3, 3, 3], 2, [3, 3, 3]);
  check([0, 1, 2], [3, null, 5], 0, [3, null, 5]);
  const kept = Math.exp(-2 / 4);
  check([0, 1, 2], [3, null, 5], 4, [3, null, (3 * kept + 5) / (kept + 1)]);
  check([0, 1_000], [3, 5], 1, [3, 5]);
});

test("a zoom stays within the run, about the place that was read", async () => {
  const { moved } = await load("dashboard/columns.ts");
  const whole = { from: 0, to: 100 };
  assert.deepEqual(moved(whole, whole, { factor: 0.5, about: 20 }), { from: 10, to: 60 });
  assert.deepEqual(moved({ from: 80, to: 100 }, whole, { steps: 0.5 }), { from: 80, to: 100 });
  assert.deepEqual(moved({ from: 40, to: 60 }, whole, { steps: -0.5 }), { from: 30, to: 50 });
  assert.equal(moved({ from: 30, to: 90 }, whole, { factor: 2 }), null);
  assert.equal(moved({ from: 0, to: 0 }, { from: 0, to: 0 }, { factor: 0.5 }), null);
  const least = moved({ from: 50, to: 50.1 }, whole, { factor: 0.01 });
  assert.ok(least.to - least.from > 0.09, "no deeper than a thousandth");
});

test("a choice comes back from the address, beside what else is in it", async () => {
  const { DEFAULTS, readChoice, writeChoice } = await load("dashboard/choice.ts");
  const check = (choice, query) => {
    assert.equal(writeChoice(choice, "?from=1&to=2&x=tokens"), query);
    assert.deepEqual(readChoice(query), choice);
  };
  check(DEFAULTS, "");
  check({ ...DEFAULTS, axis: "tokens", log: true, smoothing: "strong" }, "?x=tokens&loss=log&smooth=strong");
  check({ ...DEFAULTS, shown: { lastS: 300 } }, "?last=300");
  check({ ...DEFAULTS, shown: { from: 1.5, to: 20 } }, "?from=1.5&to=20");
  assert.equal(writeChoice({ ...DEFAULTS, log: true }, "?a=b"), "?a=b&loss=log");
  assert.deepEqual(readChoice("?x=rubbish&last=-3&from=7&to=7&smooth=9"), DEFAULTS);
});

test("a run is the same after it was a file, and a file that is none is refused in words", async () => {
  const { readRun, toCsv } = await load("dashboard/table.ts");
  const { spanS, samples, ...run } = late();
  const csv = toCsv(run);
  const [head] = csv.split("\r\n");
  assert.match(
    head,
    /^time \(s\),tokens merged,.*training loss \(nats per token\),.*held-out loss \(nats per token\)$/,
  );
  assert.deepEqual(readRun(csv), run);
  assert.deepEqual(readRun(JSON.stringify(late())), run);
  const refused = (text, words) => assert.throws(() => readRun(text), { message: words });
  refused("a picture", "It has no column “time (s)”.");
  refused("{oops", "It begins like JSON, but is not valid JSON.");
  refused("{}", "It has no list “timeS”.");
  refused(JSON.stringify({ ...run, live: [1] }), "Its list “live” has 1 values instead of 301.");
  refused(
    JSON.stringify({ ...run, live: run.live.map(() => "1") }),
    "Its list “live” has values that are not numbers.",
  );
  refused(
    JSON.stringify({ ...run, evaluations: [{}] }),
    "Its list “evaluations” has values that are not measurements.",
  );
  refused(JSON.stringify({ ...run, timeS: run.timeS.toReversed() }), "Its times do not ascend.");
  refused(`${head}\r\n1,2,3`, "Line 2 has 3 cells instead of 10.");
  refused(`${head}\r\n1,2,3,4,x,6,7,8,9,`, "Line 2: “x” is not a number.");
  refused(`${head}\r\n1,2,3,4,,6,7,8,9,`, "Line 2 has nothing under “speed (tokens per s)”.");
  refused(head, "It has no points.");
});

test("the time before the first learner takes no room", async () => {
  await openLate();
  assert.equal(await moment(loss, "Home"), "after 0 s");
  assert.equal(await moment(loss, "End"), "after 5 min");
  assert.match(await page.textContent(`${loss} figcaption`), /From 6\.000 to 3\.000 in 5 min,/);
});

test("a drag over one chart zooms all, and three ways lead back", async () => {
  await openLate();
  await drag(loss, 0.25, 0.5);
  await says("#charts-range", /^1 min 1[345] s to 2 min 3[012]? s$|^1 min 15 s to 2 min 30 s$/);
  assert.deepEqual(await pressed(), []);
  for (const chart of [loss, speed]) {
    await until("the zoom", async () => /1 min 1[5678] s/.test(await moment(chart, "Home")));
    assert.match(await moment(chart, "End"), /2 min (2[789]|30) s/);
  }
  assert.match(page.url(), /\?from=7[45]\.?\d*&to=1(49|50)\.?\d*$/);
  const ways = [
    () => page.getByRole("button", { name: "All", exact: true }).click(),
    () => page.keyboard.press("Escape"),
    () => page.locator(`${speed} .u-over`).dblclick(),
  ];
  for (const back of ways) {
    await drag(speed, 0.25, 0.5);
    await says("#charts-range", /to/);
    await back();
    await says("#charts-range", /^$/);
    await until("all of it", async () => (await moment(loss, "Home")) === "after 0 s");
    assert.equal(new URL(page.url()).search, "");
  }
  // A click is not a drag.
  await page.locator(`${speed} .u-over`).click();
  assert.equal(await page.textContent("#charts-range"), "");
});

test("what one points at in one chart is told in all", async () => {
  await openLate();
  const { x, y, width, height } = await page.locator(`${loss} .u-over`).boundingBox();
  await page.mouse.move(x + width / 2, y + height / 2);
  for (const chart of [loss, speed])
    await until("that moment", async () =>
      /^after 2 min (2[789]|3\d) s$|^after 2 min 30 s$/.test(await page.textContent(`${chart} .keys > :last-child`)),
    );
});

test("keys and buttons alone zoom, and follow the newest", async () => {
  await openLate();
  await moment(loss, "End");
  await page.keyboard.press("+");
  await says("#charts-range", /^2 min 30 s to 5 min$/);
  await page.keyboard.press("-");
  await says("#charts-range", /^$/);
  await page.focus("#charts-controls summary");
  await page.keyboard.press("Enter");
  for (const [name, range] of [
    ["Zoom in", /^1 min 15 s to 3 min 45 s$/],
    ["Earlier", /^0 s to 2 min 30 s$/],
    ["Later", /^1 min 15 s to 3 min 45 s$/],
    ["Zoom out", /^$/],
  ]) {
    await page.getByRole("button", { name, exact: true }).focus();
    await page.keyboard.press("Enter");
    await says("#charts-range", range);
  }
  syncer.series = { ...late(), timeS: late().timeS.map((time) => time * 10) };
  await page.reload();
  await until("plots", async () => (await page.locator("#charts .plot canvas").count()) === 4);
  await page.getByRole("button", { name: "Last 5 min" }).click();
  assert.deepEqual(await pressed(), ["Last 5 min"]);
  await until("the last 300 s of 3,000", async () => (await moment(speed, "Home")) === "after 45 min");
  await page.reload();
  await until("the same", async () => (await pressed()).join() === "Last 5 min");
});

test("axis, scale and smoothing are chosen for all charts, and kept in the address", async () => {
  await openLate("?smooth=light#invite=abc");
  await says(`${loss} .keys`, /training text, smoothed/);
  await panel();
  await page.selectOption("#charts-axis", "tokens");
  await page.selectOption("#charts-scale", "log");
  await page.selectOption("#charts-smoothing", "strong");
  assert.equal(new URL(page.url()).search, "?x=tokens&loss=log&smooth=strong");
  assert.equal(new URL(page.url()).hash, "#invite=abc");
  await until("tokens", async () => (await moment(speed, "End")) === "at 270 k tokens");
  await page.click(`${loss} details >> nth=0 >> summary`);
  await until(
    "heads",
    async () => (await page.locator(`${loss} th[scope=col]`).allTextContents())[0] === "Tokens merged",
  );
  // The noise is 0.1 between neighbouring points.
  const rows = await page.locator(`${loss} tbody tr td:nth-child(3)`).allTextContents();
  assert.ok(Math.abs(Number(rows[0]) - Number(rows[1])) < 0.05, rows.slice(0, 3).join());
  await page.reload();
  assert.equal(await page.inputValue("#charts-scale"), "log");
});

test("an earlier run lies beside this one, named, and a bad file is said to be one", async () => {
  await openLate();
  await panel();
  const asked = syncer.asked.length;
  const { toCsv } = await load("dashboard/table.ts");
  const earlier = late();
  earlier.tokensPerS = earlier.tokensPerS.map((rate) => rate / 2);
  const give = (name, text) =>
    page.setInputFiles("#charts-file", { name, mimeType: "text/csv", buffer: Buffer.from(text) });
  await give("<b>first</b> run.csv", toCsv(earlier));
  await says(`${speed} .keys`, /tokens a second 1,000tokens a second, <b>first<\/b> run 500/);
  await says(`${loss} .keys`, /unseen text, <b>first<\/b> run 3\.000/);
  await says("#charts-file-said", /<b>first<\/b> run\.csv is the dotted line\./);
  // Charts are drawn one after another.
  await until("each line beside its own", async () => (await page.locator(".dotted").count()) === 7);
  await give("cat.csv", "meow");
  await says("#charts-file-said", /^cat\.csv cannot be shown\. It has no column “time \(s\)”\.$/);
  await until("it to be gone", async () => (await page.locator(".dotted").count()) === 0);
  await give("again.json", JSON.stringify(earlier));
  await says(`${speed} .keys`, /again 500/);
  await page.click("#charts-remove");
  await until("it to be gone", async () => (await page.locator(".dotted").count()) === 0);
  assert.ok(!syncer.asked.slice(asked).some((one) => !one.startsWith("GET /v1/")), "nothing leaves the browser");
});

test("columns and pictures are saved", async () => {
  await openLate();
  await panel();
  const { readRun } = await load("dashboard/table.ts");
  const csv = await saved("All columns as CSV");
  assert.match(csv.name, /^archipelago-00-\d{4}-\d\d-\d\d\.csv$/);
  const { spanS, samples, ...run } = late();
  assert.deepEqual(readRun(csv.bytes.toString()), run);
  // Observes words while they are drawn into a picture.
  await page.evaluate(() => {
    window.written = [];
    const { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
      window.written.push(text);
      return fillText.call(this, text, ...more);
    };
  });
  const png = await saved("Loss as PNG");
  assert.match(png.name, /^archipelago-00-loss-\d{4}-\d\d-\d\d\.png$/);
  assert.equal(png.bytes.subarray(1, 4).toString(), "PNG");
  assert.ok(png.bytes.readUInt32BE(16) > 300 && png.bytes.readUInt32BE(20) > 300);
  const written = (await page.evaluate(() => window.written)).join("|");
  for (const text of [
    "How badly it guesses",
    "Run 00 · 20",
    "unseen text",
    "nats per token",
    "Time since the first learner",
  ])
    assert.ok(written.includes(text), `no ${text} in ${written}`);
});

for (const colorScheme of ["light", "dark"])
  test(`nobody is kept out, and nothing sticks out of a phone, in the ${colorScheme} theme`, async () => {
    await page.addInitScript(axe);
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width: 360, height: 4_000 });
    await openLate("?smooth=strong&from=10&to=200");
    await panel();
    await page.setInputFiles("#charts-file", {
      name: `${"long".repeat(20)}.json`,
      mimeType: "application/json",
      buffer: Buffer.from(JSON.stringify(late())),
    });
    await says(`${loss} .keys`, /longlong…/);
    assert.deepEqual(await faults(page), []);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `${wider} px stick out`);
  });
