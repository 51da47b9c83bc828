// Goal: without motion, arrivals stay visible, and nothing on the timeline flashes and fades.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { ISLAND, pretendPage } from "./island.mjs";
import { load } from "./support.mjs";

let draw, History;

/** Combined paths; the recording context reports how they were drawn. */
class Path {
  calls = [];
  moveTo() {}
  lineTo() {}
  rect() {}
  closePath() {
    this.calls.push("triangle");
  }
}

before(async () => {
  pretendPage(Path);
  ({ draw } = await load("teach/timeline/draw.ts"));
  ({ History } = await load("teach/timeline/history.ts"));
});

/** A context that records visible drawing, with its opacity. */
function recording() {
  const seen = [];
  const state = {
    globalAlpha: 1,
    measureText: () => ({ width: 10 }),
    arc: (_x, _y, radius) => (state.radius = radius),
  };
  const paint =
    (what) =>
    (...at) =>
      state.globalAlpha > 0 && seen.push({ what, alpha: state.globalAlpha, radius: state.radius, at });
  for (const what of ["fill", "stroke", "fillRect", "strokeRect"]) state[what] = paint(what);
  state.beginPath = () => (state.radius = undefined);
  const context = new Proxy(state, { get: (_, name) => (name in state ? state[name] : () => {}) });
  return { context, seen };
}

const parcel = (more) => ({
  kind: "parcel",
  island: 0,
  up: true,
  what: "update",
  round: null,
  fragment: 0,
  bytes: 1,
  fromMs: 9_500,
  untilMs: 9_900,
  glimpse: [7, -7],
  ...more,
});

/** Returns the drawing at 10 s: a fragment just received, and a parcel. */
function drawn(still, of) {
  const history = new History();
  history.reset(2);
  history.take(
    {
      nowMs: 10_000,
      islands: [ISLAND, ISLAND],
      marks: [{ kind: "applied", island: 1, fragment: 0, atMs: 9_900 }, parcel(of)],
      run: {},
    },
    [],
  );
  const { context, seen } = recording();
  draw(context, {
    history,
    islands: [ISLAND, ISLAND],
    nowMs: 10_000,
    spanMs: 8_000,
    speed: 1,
    width: 800,
    height: 300,
    rows: 2,
    names: { fontPx: 12, leftPx: 80 },
    followed: null,
    chosen: null,
    watched: { breaches: [], stretches: [] },
    still,
  });
  return seen;
}

const rings = (seen) => seen.filter(({ what, radius }) => what === "stroke" && radius !== undefined);
const blocks = (seen) => seen.filter(({ what }) => what === "strokeRect");
const faded = (seen) =>
  seen.filter(({ what, alpha }) => ["stroke", "strokeRect"].includes(what) && ![1, 0.7].includes(alpha));

test("a ring where a fragment was taken in, and a glow where a parcel came in, for those who like it", () => {
  const seen = drawn(false, {});
  assert.equal(rings(seen).length, 1);
  assert.equal(blocks(seen).length, 1);
  assert.equal(faded(seen).length, 2);
});

test("neither ring nor glow without motion; what was taken in has its mark all the same", () => {
  const seen = drawn(true, {});
  assert.deepEqual([rings(seen), blocks(seen), faded(seen)], [[], [], []]);
  const marks = seen.filter(({ what, at }) => what === "fill" && at[0]?.calls?.includes("triangle"));
  assert.deepEqual(
    marks.map(({ alpha }) => alpha),
    [1],
  );
});

test("what is on its way is drawn in full, with motion or without", () => {
  for (const still of [false, true]) {
    const [block, ...others] = blocks(drawn(still, { untilMs: 10_400 }));
    assert.deepEqual([block.alpha, others.length], [1, 0]);
  }
});
