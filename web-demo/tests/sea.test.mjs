// Goal: the sea is truthful: islands have room, delay shows as distance, consequences are drawn after their causes,
// and faults are visible.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { ISLAND, pretendPage } from "./island.mjs";
import { load } from "./support.mjs";

let chart, tempo, drawSea, History;

class Path {}

before(async () => {
  pretendPage(Path);
  chart = await load("teach/sea/chart.ts");
  tempo = await load("teach/sea/tempo.ts");
  ({ drawSea } = await load("teach/sea/draw.ts"));
  ({ History } = await load("teach/timeline/history.ts"));
});

const SEAS = [
  { width: 860, height: 330 },
  { width: 1_200, height: 640 },
  { width: 344, height: 250 },
  { width: 740, height: 210 },
  { width: 606, height: 170 },
];

test("islands have room on every sea, near and far", () => {
  for (const size of SEAS) {
    for (let islands = 1; islands <= 8; islands += 1) {
      const sea = { ...size, islands };
      const tower = chart.lighthouseOf(sea);
      for (const extraMs of [0, 490, 990]) {
        const all = Array.from({ length: islands }, (_, at) => chart.islandAt(sea, at, extraMs));
        all.forEach(({ x, y }, at) => {
          const said = `island ${at + 1} of ${islands} at ${x.toFixed()}, ${y.toFixed()} of ${size.width} × ${size.height}`;
          assert.ok(x > 20 && x < size.width - 20 && y > 20 && y < size.height - 20, said);
          assert.ok(Math.hypot(x - tower.x, y - tower.y) > 50, `${said} stands at the lighthouse`);
          for (const other of all.slice(at + 1))
            assert.ok(Math.hypot(x - other.x, y - other.y) > 2 * chart.radiusOf(sea), `${said} touches another`);
        });
      }
    }
  }
});

test("cables are cut where no other one is touched", () => {
  for (const size of SEAS) {
    for (let islands = 1; islands <= 8; islands += 1) {
      const sea = { ...size, islands };
      const all = Array.from({ length: islands }, (_, at) => chart.cutAt(sea, at, 0));
      all.forEach((cut, at) => {
        for (const other of all.slice(at + 1)) {
          const apart = Math.hypot(cut.x - other.x, cut.y - other.y);
          assert.ok(
            apart >= (cut.size + other.size) / 2 - 1,
            `${at + 1} of ${islands} on ${size.width} × ${size.height}`,
          );
        }
      });
    }
  }
});

test("where an island is put says how long its way is", () => {
  for (const size of SEAS) {
    const sea = { ...size, islands: 5 };
    for (let at = 0; at < 5; at += 1) {
      for (const extraMs of [0, 90, 490, 990])
        assert.equal(chart.extraMsAt(sea, at, chart.islandAt(sea, at, extraMs)), extraMs);
      assert.equal(chart.extraMsAt(sea, at, chart.lighthouseOf(sea)), 0);
      const { x, y } = chart.lighthouseOf(sea);
      const out = chart.islandAt(sea, at, 990);
      assert.equal(chart.extraMsAt(sea, at, { x: 3 * out.x - 2 * x, y: 3 * out.y - 2 * y }), 990);
    }
  }
});

test("what follows is drawn after what it follows from", () => {
  for (const tripMs of [10, 400, 3_000]) {
    const hopMs = tempo.hopMsOf(1, false);
    const up = tempo.legOf({ up: true, fromMs: 1_000, untilMs: 1_000 + tripMs }, hopMs);
    const mergedMs = tempo.syncerMs(1_000 + tripMs, hopMs);
    const down = tempo.legOf({ up: false, fromMs: 1_000 + tripMs, untilMs: 1_000 + 2 * tripMs }, hopMs);
    const appliedMs = tempo.appliedMs(1_000 + 2 * tripMs, hopMs);
    assert.ok(up.untilMs <= mergedMs && mergedMs <= down.fromMs && down.untilMs <= appliedMs);
    assert.ok(up.untilMs - up.fromMs >= hopMs && down.untilMs - down.fromMs >= hopMs);
  }
});

/** A context that records visible words and strokes. */
function recording() {
  const seen = { words: [], blocks: 0, boxes: [], strokes: [] };
  const state = {
    globalAlpha: 1,
    strokeStyle: "",
    measureText: (text) => ({ width: 6 * text.length }),
    createRadialGradient: () => ({ addColorStop() {} }),
    fillText: (text) => seen.words.push(text),
    strokeRect: (...box) => {
      seen.blocks += 1;
      seen.boxes.push(box);
    },
    stroke: () => state.globalAlpha > 0 && seen.strokes.push(state.strokeStyle),
  };
  const context = new Proxy(state, { get: (_, name) => (name in state ? state[name] : () => {}) });
  return { context, seen };
}

const update = {
  kind: "parcel",
  island: 0,
  up: true,
  what: "update",
  round: 1,
  fragment: 0,
  bytes: 9,
  glimpse: [7, -7],
};
const AT_SEA = { ...update, fromMs: 9_800, untilMs: 9_830 };

/** Returns the drawing at 10 s. */
function drawn({ islands = [ISLAND, ISLAND], marks = [], standing, ...more }) {
  const history = new History();
  history.reset(islands.length);
  history.take({ nowMs: 10_000, islands, marks, run: {} }, []);
  const { context, seen } = recording();
  const scene = {
    sea: { width: 860, height: 330, islands: islands.length },
    history,
    islands,
    nowMs: 10_000,
    speed: 1,
    hopMs: tempo.hopMsOf(1, false),
    latencyMs: 30,
    code: "int4",
    followed: null,
    told: null,
    held: null,
    knowledge: 0.5,
    harbour: { steps: 12, waitsFor: null, standstillS: 0 },
    watched: { breaches: [], stretches: [] },
    still: false,
    ...more,
  };
  drawSea(context, scene, standing);
  return seen;
}

test("those who want no motion see boats lie still for as long as others see them sail", () => {
  const whole = { marks: [AT_SEA], still: true };
  for (const nowMs of [9_810, 10_000, 10_300]) assert.equal(boats(drawn({ ...whole, nowMs })), 1, `${nowMs}`);
  assert.equal(boats(drawn({ ...whole, nowMs: 10_400 })), 0);
});

/** Number of blocks in addition to the permanent ones. */
const boats = (seen) => seen.blocks - drawn({}).blocks;
const red = (seen) => seen.strokes.filter((style) => style === "var(--danger)").length;

test("a boat is seen for longer than the parcel takes, and no longer than a moment", () => {
  assert.equal(boats(drawn({ marks: [AT_SEA] })), 1);
  assert.equal(boats(drawn({ marks: [AT_SEA], nowMs: 9_700 })), 0);
  assert.equal(boats(drawn({ marks: [AT_SEA], nowMs: 11_000 })), 0);
  // Requests are not boats.
  assert.equal(boats(drawn({ marks: [{ ...AT_SEA, what: "collect", glimpse: [] }] })), 0);
});

test("the first round has words", () => {
  const launched = { kind: "launched", round: 1, fragment: 0, atMs: 9_700 };
  assert.deepEqual(drawn({ marks: [launched, AT_SEA] }).words.length, 1);
  const told = drawn({ marks: [launched, AT_SEA], told: 1 });
  assert.ok(told.words.includes("what it learnt, 4 bits a number"), String(told.words));
});

test("words beside boats lie over all of them, and on no island, tower or other words", () => {
  const launched = { kind: "launched", round: 1, fragment: 0, atMs: 9_000 };
  const islands = Array.from({ length: 5 }, () => ISLAND);
  for (const { width, height } of SEAS) {
    const sea = { width, height, islands: 5 };
    const taken = islands.map((_, at) => ({ ...chart.islandAt(sea, at, 0), half: 0.9 * chart.radiusOf(sea) }));
    taken.push({ ...chart.lighthouseOf(sea), half: 26 });
    let labelled = 0;
    for (let fromMs = 9_400; fromMs < 9_900; fromMs += 50) {
      const marks = islands.flatMap((_, island) => [
        { ...AT_SEA, island, fromMs, untilMs: fromMs + 30 },
        { ...AT_SEA, island, fromMs, untilMs: fromMs + 30, up: false, what: "whole", glimpse: [] },
      ]);
      const seen = drawn({ marks: [launched, ...marks], told: 1, sea, islands });
      const labels = seen.boxes.filter(([, , , tall]) => tall === 20);
      labelled += labels.length;
      // Labels are framed last: no boat is drawn over them.
      assert.deepEqual(seen.boxes.slice(seen.boxes.length - labels.length), labels);
      labels.forEach(([left, top, wide, tall], at) => {
        const isApart = (x, y, w, h) => left >= x + w || x >= left + wide || top >= y + h || y >= top + tall;
        const said = `${left}, ${top} on ${width} × ${height}`;
        for (const { x, y, half } of taken) assert.ok(isApart(x - half, y - half, 2 * half, 2 * half), said);
        for (const other of labels.slice(at + 1)) assert.ok(isApart(...other), said);
        assert.ok(top >= 0 && top + tall <= height - 30, said);
      });
    }
    assert.ok(labelled > 5, `only ${labelled} words on ${width} × ${height}`);
  }
});

test("a small or crowded sea has short words", () => {
  const launched = { kind: "launched", round: 1, fragment: 0, atMs: 9_700 };
  const told = (width, height) =>
    drawn({ marks: [launched, AT_SEA], told: 1, sea: { width, height, islands: 2 } }).words;
  assert.ok(told(860, 330).includes("what it learnt, 4 bits a number"));
  for (const size of [
    [344, 250],
    [606, 170],
  ])
    assert.ok(
      !told(...size).includes("what it learnt, 4 bits a number") && told(...size).includes("sends"),
      String(size),
    );
  const check = (width, height, islands, isSmall) =>
    assert.equal(chart.isSmall({ width, height, islands }), isSmall, `${width} × ${height}, ${islands}`);
  check(860, 330, 8, false);
  check(600, 330, 5, false);
  check(600, 330, 8, true);
  check(606, 170, 2, true);
  check(344, 250, 2, true);
});

test("a cut cable is red, and the convoy that waits says for whom", () => {
  assert.equal(red(drawn({})), 0);
  assert.ok(red(drawn({ islands: [ISLAND, { ...ISLAND, partitioned: true }] })) > 0);
  assert.match(drawn({}).words.at(-1), /^In lock-step: 12 steps$/);
  const waits = drawn({ harbour: { steps: 12, waitsFor: 1, standstillS: 8 } });
  assert.ok(waits.words.includes("In lock-step: still for 8 s, waits for island 2"), String(waits.words));
});

test("what stands still is painted once, and anew when something of it changes", async () => {
  const { Backdrop } = await load("teach/sea/backdrop.ts");
  let painted = 0;
  const canvas = (name) => ({ name, width: 860, height: 330 });
  const contextOf = (canvas) =>
    new Proxy(recording().context, {
      get(context, name) {
        if (name === "canvas") return canvas;
        if (name === "createRadialGradient") painted += 1;
        return context[name];
      },
    });
  const make = document.createElement;
  document.createElement = (tag) =>
    tag === "canvas" ? { ...canvas("own"), getContext: () => contextOf(canvas("own")) } : make(tag);
  try {
    const backdrop = new Backdrop();
    const draw = (more = {}) => {
      painted = 0;
      drawn({ ...more, standing: (_, scene) => backdrop.draw(contextOf(canvas("shown")), scene) });
      return painted;
    };
    assert.equal(draw(), 1);
    // Time passes, boats sail, the lock-step run goes on.
    assert.equal(draw({ nowMs: 10_400, marks: [AT_SEA], harbour: { steps: 13, waitsFor: 1, standstillS: 2 } }), 0);
    const changed = {
      dead: { state: "dead" },
      cut: { partitioned: true },
      poisoned: { poisoned: true },
      far: { latencyMs: 400 },
    };
    for (const [name, change] of Object.entries(changed)) {
      assert.equal(draw({ islands: [ISLAND, { ...ISLAND, ...change }] }), 1, name);
      assert.equal(draw({ islands: [ISLAND, { ...ISLAND, ...change }] }), 0, name);
    }
    assert.equal(draw({ knowledge: 0.6 }), 1);
    assert.equal(draw({ knowledge: 0.6, held: { island: 0, extraMs: 200 } }), 1);
  } finally {
    document.createElement = make;
  }
});

test("the name of an island's button begins with what is shown on it", async () => {
  const { said } = await load("teach/sea/pins.ts");
  // A usual island shows only its conditions. Any other island shows its state.
  assert.equal(said("training", ["4× slower"], true), "4× slower, training");
  assert.equal(said("dead", ["0.2 s farther"], false), "dead, 0.2 s farther");
});
