// Goal: a player of the challenge gets a score that others can check, and links with untrusted scores are safe.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { chromiumFlagsWithoutGpu, launch, load, root, serve, until } from "./support.mjs";

let browser, site, board, challenge, stage;

before(async () => {
  [browser, site] = await Promise.all([launch(chromiumFlagsWithoutGpu), serve(join(root, "dist"))]);
  board = await load("teach/challenge/board.ts");
  challenge = await load("teach/challenge/challenge.ts");
  stage = { seed: 1, syncEvery: 24, roundsInFlight: 2, late: 0, apply: "keep", ...challenge.CHALLENGE.stage };
});
after(() => Promise.all([browser?.close(), site?.stop()]));

const HELPED = [
  { atMs: 12_000, island: 1, deed: "restart", factor: 1 },
  { atMs: 22_000, island: 3, deed: "slow", factor: 1 },
  { atMs: 32_000, island: 4, deed: "heal", factor: 1 },
  { atMs: 42_000, island: 0, deed: "restart", factor: 1 },
];
const entry = (more = {}) => ({
  name: "Ada",
  result: { loss: 1.4008, goodput: 0.9126 },
  spec: { ...stage, quorum: 1, grace: 0.8, code: "int4" },
  deeds: HELPED,
  ...more,
});

test("scores go into a link and come back, the best first and no more than a link holds", () => {
  const odd = entry({ name: "A&b=9!é", result: { loss: 1.2, goodput: 1 }, deeds: [] });
  assert.deepEqual(board.readBoard(`#v=1${board.writeBoard([entry(), odd])}`, stage), {
    entries: [odd, entry()],
    notices: [],
  });
  const many = Array.from({ length: 12 }, (_, at) => entry({ name: `N${at}` }));
  const read = board.readBoard(`#${board.writeBoard(many)}`, stage);
  assert.equal(read.entries.length, board.ENTRIES_MAX);
  assert.deepEqual(read.notices, ["This link has more than 8 scores; the rest is left out."]);
  // The same run under the same name is there once.
  assert.equal(board.readBoard(`#${board.writeBoard([entry(), entry()])}`, stage).entries.length, 1);
});

test("what somebody set and did is said in a few words", () => {
  const said = "K 1, γ 80.0 %, H 24, P 4, τ 2, 4 bits, plain weighted mean; 4 deeds by hand";
  assert.equal(board.wayInWords(entry()), said);
  assert.match(board.wayInWords(entry({ deeds: [] })), /; nothing done by hand$/);
});

test("a name is a short line, whatever somebody wrote", () => {
  const check = (name, tidied) => assert.equal(board.tidy(name), tidied);
  check("  Ada \n Lovelace ", "Ada Lovelace");
  check("", "Somebody");
  check("\u202egnp.exe", "·gnp.exe");
  check("🦊".repeat(30), "🦊".repeat(board.NAME_MAX));
});

test("a score that cannot be is left out, and said", () => {
  const way = "k:1,g:0.8!r2@12000";
  const check = (text) => {
    const { entries, notices } = board.readBoard(`#v=1&b=${text}`, stage);
    assert.deepEqual(entries, [], text);
    assert.deepEqual(notices, ["One score of this link cannot be read, and is left out."], text);
  };
  assert.equal(board.readBoard(`#v=1&b=1.4!0.91!${way}!Ada`, stage).entries.length, 1);
  check("");
  check("1.4");
  check(`NaN!0.91!${way}!Ada`);
  check(`99!0.91!${way}!Ada`);
  check(`1.4!0.5!${way}!Ada`);
  check(`1.4!1.5!${way}!Ada`);
  check("1.4!0.91!k:99!!Ada");
  // Settings that decide the difficulty are fixed.
  check("1.4!0.91!m:1!!Ada");
  check("1.4!0.91!__proto__:1!!Ada");
  check("1.4!0.91!k:1!k9@5!Ada");
  check(`1.4!0.91!k:1!${Array(41).fill("k1@5").join("~")}!Ada`);
});

test("only runs of the challenge are attempts: its settings, and all that breaks by itself", () => {
  const { isAttempt, CHALLENGE } = challenge;
  const run = (spec, actions, changes = []) => isAttempt({ spec: { ...stage, ...spec }, actions, changes }, stage);
  assert.ok(run({}, CHALLENGE.actions));
  assert.ok(run({ quorum: 1, code: "int1" }, [...CHALLENGE.actions, ...HELPED]));
  assert.ok(!run({ seed: 2 }, CHALLENGE.actions));
  assert.ok(!run({ islands: 8 }, CHALLENGE.actions));
  assert.ok(!run({}, CHALLENGE.actions.slice(1)));
  assert.ok(!run({}, HELPED));
  assert.ok(!run({}, CHALLENGE.actions, [{ atMs: 5_000, to: { quorum: 1 } }]));
});

test("a run is scored, entered, carried by the link, and checked by whoever opens it", async (t) => {
  const { CHALLENGE } = challenge;
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  t.after(() => page.close());
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  const { writeAction } = await load("teach/run/address.ts");
  const actions = [...CHALLENGE.actions, ...HELPED].map(writeAction).join("~");
  await page.goto(`${site.url}teach.html#v=1&chapter=challenge&k=1&g=0.8&c=int4&r=radial&p=8&a=${actions}&t=60000`);
  await until("the end", async () => /That counts/.test(await page.textContent("#challenge-ended")));
  const ended = await page.textContent("#challenge-ended");
  // Actions after the end do not count.
  await page.keyboard.press("1");
  await page.fill("#challenge-name", "<b>Ada</b>");
  await page.keyboard.press("Enter");
  await until("the board", async () => (await page.locator("#board li").count()) === 1);
  assert.equal(await page.textContent(".board-name"), "<b>Ada</b>");
  assert.match(await page.textContent(".board-proof"), /seen in this page/);
  const [loss, goodput] = /Loss ([\d.]+), goodput ([\d.]+ %)/.exec(ended).slice(1);
  assert.equal(await page.textContent(".board-result"), `loss ${loss}, goodput ${goodput}`);
  await until("it in the address", () => page.url().includes("&b="));
  const link = page.url().replace(/#.*?&b=/, "#v=1&chapter=challenge&b=");
  const forged = link
    .match(/b=.*/)[0]
    .replace(/b=[\d.]+!/, "b=0.5!")
    .replace(/[^!]*$/, "Eve");
  await page.goto("about:blank");
  await page.goto(`${link}&${forged}`);
  await until("both claims", async () => (await page.locator("#board li").count()) === 2);
  assert.deepEqual(await page.locator(".board-proof").allTextContents(), Array(2).fill("claimed by the link"));
  assert.deepEqual(await page.locator(".board-name").allTextContents(), ["Eve", "<b>Ada</b>"]);
  for (const check of await page.locator(".board-check").all()) await check.click();
  const proofOf = async (name) => {
    const row = page.locator("#board li").filter({ hasText: name });
    return `${await row.locator(".board-result").textContent()}: ${await row.locator(".board-proof").textContent()}`;
  };
  await until("Ada's to hold", async () => /✓ seen in this page/.test(await proofOf("Ada")));
  await until("Eve's not to", async () => /✗ not as claimed/.test(await proofOf("Eve")));
  assert.ok((await proofOf("Eve")).startsWith(`loss ${loss}, goodput ${goodput}`), await proofOf("Eve"));
  assert.deepEqual(trouble, []);
});

test("the challenge is reached and begun with keys alone, and what makes it hard cannot be set", async (t) => {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  t.after(() => page.close());
  await page.addInitScript(axe);
  await page.goto(`${site.url}teach.html#v=1${board.writeBoard([entry()])}`);
  await until("the run", async () => /train/.test(await page.textContent("#sentence")));
  await page.focus("#opening .to-challenge");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "challenge-title");
  assert.ok(await page.isHidden("#opening"));
  assert.equal(await page.getAttribute(".dot[data-chapter=challenge]", "aria-current"), "step");
  for (const [knob, isFree] of [
    ["islands", false],
    ["seed", false],
    ["kilobytesPerS", false],
    ["quorum", true],
    ["code", true],
  ])
    assert.equal(await page.isEnabled(`#knob-${knob}`), isFree, knob);
  assert.deepEqual(await faults(page), []);
  // The board stays in every link; a changed setting keeps the faults and the place.
  await page.selectOption("#knob-code", "int4");
  await until("the address", () => /chapter=challenge.*c=int4|c=int4.*chapter=challenge/.test(page.url()));
  assert.match(page.url(), /a=k2@10000~s4x8@20000~p5@30000~k1@40000&.*&b=1\.4008!/);
  await page.focus("#chapter-title, #challenge-title");
  await page.keyboard.press("b");
  await until("what was predicted", () => page.isVisible("#ending-title"));
  await page.keyboard.press("b");
  await until("the last chapter", async () => (await page.textContent("#chapter-title")) === "Scavenging");
  assert.ok(await page.isEnabled("#knob-islands"));
  assert.match(page.url(), /&b=1\.4008!/);
});

test("who is faster than the Workers gets there once they are ready", async (t) => {
  const page = await browser.newPage();
  t.after(() => page.close());
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  // Holds messages to the Workers until they are ready.
  await page.addInitScript(() => {
    const Real = Worker;
    const held = new Promise((resolve) => (window.goOn = resolve));
    window.Worker = class extends Real {
      postMessage(message) {
        held.then(() => super.postMessage(message));
      }
    };
  });
  await page.goto(`${site.url}teach.html#v=1${board.writeBoard([entry()])}`);
  await page.evaluate(() => {
    document.querySelector("#opening .to-challenge").click();
    window.goOn();
  });
  await until("the board", async () => (await page.locator("#board li").count()) === 1);
  await until("the run", async () => /train/.test(await page.textContent("#sentence")));
  assert.ok(await page.isVisible("#challenge-goal"));
  assert.deepEqual(trouble, []);
});

test("a run that is over begins anew when somebody plays it", async (t) => {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  t.after(() => page.close());
  await page.goto(`${site.url}teach.html#v=1&chapter=challenge&t=60000`);
  await until("the end", async () => /^Loss/.test(await page.textContent("#challenge-ended")));
  // The faults are not in this link, so it is another run.
  assert.match(await page.textContent("#challenge-ended"), /this run differs from the challenge/);
  assert.equal(await page.textContent("#play"), "Play");
  await page.click("#play");
  await until("a new run", async () => Number.parseFloat(await page.textContent("#time")) < 30);
  assert.equal(await page.textContent("#challenge-ended"), "");
});
