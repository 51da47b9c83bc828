// Goal: the break and the measured stretches of a chapter's run show on the sea, on the lanes and on the loss chart,
// and nothing else is marked.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { ISLAND, pretendPage } from "./island.mjs";
import { load } from "./support.mjs";

let CHAPTERS, Inquiry, Live, History, drawSea, drawLanes, marksOf, words;

before(async () => {
  pretendPage(
    class {
      rect() {}
      moveTo() {}
      lineTo() {}
      closePath() {}
    },
  );
  ({ CHAPTERS } = await load("teach/guide/chapters/index.ts"));
  ({ Inquiry } = await load("teach/guide/inquiry.ts"));
  ({ Live } = await load("teach/live.ts"));
  ({ History } = await load("teach/timeline/history.ts"));
  ({ drawSea } = await load("teach/sea/draw.ts"));
  ({ draw: drawLanes } = await load("teach/timeline/draw.ts"));
  ({ marksOf } = await load("teach/figures/loss.ts"));
  words = await load("teach/guide/watched.ts");
});

const SPEC = { seed: 1, islands: 5, late: 0, lateMs: 0, latencyMs: 30 };
const STAGE = { spec: SPEC, actions: [] };
const RUN = { tokensTrained: 0, tokensMerged: 0, heldOut: 3, floor: 1, participation: 1, rounds: 0 };

/** Returns the chapter of this name with its run, and a function that lets time pass. */
function asked(id) {
  const inquiry = new Inquiry(
    CHAPTERS.find((one) => one.id === id),
    STAGE,
  );
  inquiry.began({ ...STAGE, changes: [] });
  const live = new Live(SPEC);
  const islands = Array.from({ length: 5 }, () => ISLAND);
  const to = (nowMs) => inquiry.take({ nowMs, islands, run: RUN, marks: [] }, live);
  return { inquiry, to };
}

const kill = { atMs: 8_000, island: 2, deed: "kill", factor: 1 };

test("a question knows what is measured before its break, the break, and what is measured after", () => {
  const { inquiry, to } = asked("lockstep");
  assert.deepEqual(inquiry.watched, words.NOTHING);
  // It has settled in at 4 s.
  for (const ms of [0, 4_000, 6_000]) to(ms);
  const begun = { of: "before", fromMs: 4_000, untilMs: null, dueMs: 3_000 };
  assert.deepEqual(inquiry.watched, { breaches: [], stretches: [begun] });
  to(7_500);
  inquiry.acted(kill);
  for (const ms of [8_000, 8_100, 9_000]) to(ms);
  const breaches = [{ atMs: 8_000, island: 2 }];
  const [first, second] = inquiry.watched.stretches;
  assert.deepEqual(inquiry.watched.breaches, breaches);
  assert.deepEqual(first, { ...begun, untilMs: 8_000 });
  assert.deepEqual([second.of, second.untilMs, second.dueMs], ["after", null, 8_000]);
  assert.ok(second.fromMs >= 8_000 && second.fromMs <= 8_100, `${second.fromMs}`);
  // The completed measurement stays marked.
  for (const ms of [16_200, 30_000]) to(ms);
  assert.equal(inquiry.phase.phase, "found");
  assert.deepEqual(inquiry.watched.stretches[1], { ...second, untilMs: 16_200 });
  inquiry.began({ ...STAGE, changes: [] });
  assert.deepEqual(inquiry.watched, words.NOTHING, "another run");
});

test("a run that somebody changed has nothing marked", () => {
  const { inquiry, to } = asked("lockstep");
  for (const ms of [0, 4_000, 8_000]) to(ms);
  inquiry.acted({ ...kill, island: 0 });
  assert.deepEqual(inquiry.watched, words.NOTHING);
});

test("a run that begins anew with a setting is broken from its start, and only measured after", () => {
  const { inquiry, to } = asked("grace");
  for (const ms of [0, 4_000, 11_000]) to(ms);
  inquiry.changing([]);
  inquiry.began({ spec: { ...SPEC, grace: 0 }, actions: [], changes: [] });
  for (const ms of [0, 4_000, 5_000]) to(ms);
  const { breaches, stretches } = inquiry.watched;
  assert.deepEqual(breaches, [{ atMs: 0, island: null }]);
  assert.deepEqual(stretches, [{ of: "after", fromMs: 4_000, untilMs: null, dueMs: 8_000 }]);
});

test("it is said in words how much of it is measured", () => {
  const stretch = { of: "before", fromMs: 2_000, untilMs: null, dueMs: 6_000 };
  const said = (nowMs, more = {}, watched = words.NOTHING, isShort = false) =>
    words.stretchInWords({ ...stretch, ...more }, watched, nowMs, isShort);
  assert.equal(said(5_100), "measured before the break: 3 of 6 s");
  assert.equal(said(9_000), "measured before the break: 6 s", "as long as is asked for");
  assert.equal(said(9_000, { untilMs: 8_000 }, words.NOTHING, true), "before the break: 6 s");
  assert.equal(said(4_000, { of: "after" }), "measured since the break: 2 of 6 s");
  const changed = { breaches: [{ atMs: 0, island: null }], stretches: [] };
  assert.equal(said(4_000, { of: "after" }, changed), "measured with the change: 2 of 6 s");
  assert.equal(words.breachInWords({ atMs: 6_240, island: 1 }), "broken at 6.2 s");
});

/** A context that records words, strokes and filled rectangles. */
function recording() {
  const seen = { words: [], strokes: [], rects: [], arcs: [] };
  const state = {
    measureText: (text) => ({ width: 6 * text.length }),
    createRadialGradient: () => ({ addColorStop() {} }),
    fillText: (text) => seen.words.push(text),
    fillRect: (x, y, width, height) => seen.rects.push({ x, y, width, height, fill: state.fillStyle }),
    arc: (x, y, radius, from, until) => seen.arcs.push({ x, y, radius, share: (until - from) / (2 * Math.PI) }),
    stroke: () => seen.strokes.push(state.strokeStyle),
  };
  const context = new Proxy(state, { get: (_, name) => (name in state ? state[name] : () => {}) });
  return { context, seen };
}

const islands = [ISLAND, ISLAND, ISLAND];
const WATCHED = {
  breaches: [{ atMs: 6_000, island: 1 }],
  stretches: [
    { of: "before", fromMs: 2_000, untilMs: 6_000, dueMs: 4_000 },
    { of: "after", fromMs: 6_000, untilMs: null, dueMs: 16_000 },
  ],
};

function history() {
  const all = new History();
  all.reset(islands.length);
  return all;
}

function sea(watched, more = {}) {
  const { context, seen } = recording();
  drawSea(context, {
    sea: { width: 860, height: 330, islands: islands.length },
    history: history(),
    islands,
    nowMs: 10_000,
    speed: 1,
    hopMs: 550,
    latencyMs: 30,
    code: "int4",
    followed: null,
    told: null,
    held: null,
    knowledge: 0.5,
    harbour: { steps: 12, waitsFor: null, standstillS: 0 },
    watched,
    still: false,
    ...more,
  });
  return seen;
}

test("on the sea a ring is about the island that was broken, and closes while that is measured", () => {
  const plain = sea(words.NOTHING);
  assert.equal(plain.strokes.filter((style) => style === "var(--danger)").length, 0);
  const seen = sea(WATCHED);
  assert.equal(seen.strokes.filter((style) => style === "var(--danger)").length, 1);
  // 4 of 16 s.
  assert.equal(seen.arcs.filter(({ share }) => Math.abs(share - 0.25) < 1e-9).length, 1);
  assert.ok(seen.words.includes("broken at 6.0 s"), String(seen.words));
  assert.ok(seen.words.includes("measured since the break: 4 of 16 s"), String(seen.words));
  const early = sea(WATCHED, { nowMs: 5_000 });
  assert.ok(early.words.includes("measured before the break: 4 s"), "it has ended, and is looked back at");
  assert.ok(!early.words.includes("broken at 6.0 s"));
  // A phone shows the ring and a short description.
  const small = sea(WATCHED, { sea: { width: 344, height: 250, islands: islands.length } });
  assert.ok(small.words.includes("since the break: 4 of 16 s") && !small.words.includes("broken at 6.0 s"));
});

function lanes(watched) {
  const { context, seen } = recording();
  const [width, leftPx, spanMs, nowMs] = [800, 80, 10_000, 10_000];
  const names = { fontPx: 12, leftPx };
  const more = { speed: 1, rows: 2, followed: null, chosen: null, still: false, height: 300 };
  drawLanes(context, { history: history(), islands, nowMs, spanMs, width, names, watched, ...more });
  const xOf = (ms) => leftPx + (1 - (nowMs - ms) / spanMs) * (width - leftPx - 30);
  return { seen, xOf };
}

test("on the lanes a line is where it was broken, and what is measured is shaded", () => {
  assert.equal(lanes(words.NOTHING).seen.strokes.filter((style) => style === "var(--danger)").length, 0);
  const { seen, xOf } = lanes(WATCHED);
  assert.equal(seen.strokes.filter((style) => style === "var(--danger)").length, 1);
  const isShaded = (from, until) =>
    seen.rects.some(
      ({ x, width, height, fill }) =>
        Math.abs(x - xOf(from)) < 1 &&
        Math.abs(width - (xOf(until) - xOf(from))) < 1 &&
        height > 200 &&
        fill === "var(--ink)",
    );
  assert.ok(isShaded(2_000, 6_000) && isShaded(6_000, 10_000), JSON.stringify(seen.rects));
  for (const text of ["broken at 6.0 s", "before the break: 4 s", "since the break: 4 of 16 s"])
    assert.ok(seen.words.includes(text), `${text}: ${seen.words}`);
});

test("on the chart of the loss both stretches are bands, and the break a line", () => {
  assert.deepEqual(marksOf(words.NOTHING, 10_000), { bands: [], moments: [] });
  assert.deepEqual(marksOf(WATCHED, 10_000), {
    bands: [
      { from: 2, until: 6, label: "before" },
      { from: 6, until: 10, label: "after" },
    ],
    moments: [{ at: 6, label: "broken at 6.0 s" }],
  });
  // A run that was restarted with a setting has no moment of a break.
  assert.deepEqual(marksOf({ ...WATCHED, breaches: [{ atMs: 0, island: null }] }, 10_000).moments, []);
});
