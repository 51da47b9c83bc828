// Goal: a long run's series is as even as a short one's, takes no more room, and is the same in each replay.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { ISLAND } from "./island.mjs";
import { load } from "./support.mjs";

let Live, Means;

before(async () => {
  ({ Live } = await load("teach/live.ts"));
  ({ Means } = await load("shared/means.ts"));
});

const COUNT = 3_000;
const live = () => new Live({ islands: 2 });
const frame = (nowMs, marks = []) => ({ nowMs, marks, islands: [], run: {} });
const twin = (nowMs, marks = [], stalledBy = []) => ({ nowMs, marks, stalledBy });
const heldOut = (at) => ({ kind: "heldOut", atMs: 1_000 * at, loss: 5 - at / COUNT, tokens: at });
const step = (island, fromMs, untilMs) => ({ kind: "step", island, fromMs, untilMs });
const kill = (island, atMs) => ({ atMs, island, deed: "kill", factor: 1 });

test("a course of losses is bounded, even, and has its first and its last", () => {
  const told = live();
  for (let at = 0; at < COUNT; at += 1) {
    told.take(frame(1_000 * at, [heldOut(at)]), []);
    told.takeTwin(twin(1_000 * at, [heldOut(at)]));
    for (const course of [told.heldOut, told.twinHeldOut]) {
      assert.equal(course[0].atMs, 0);
      assert.equal(course.at(-1).atMs, 1_000 * at);
    }
  }
  for (const course of [told.heldOut, told.twinHeldOut]) {
    assert.ok(course.length > 200 && course.length <= 401, `${course.length}`);
    const gaps = course.slice(1).map(({ atMs }, at) => atMs - course[at].atMs);
    assert.deepEqual([...new Set(gaps.slice(0, -1))], [8_000]);
    assert.ok(gaps.at(-1) <= 8_000);
  }
});

test("a line of losses is bounded, and each of its points stands for as many values", () => {
  const means = new Means();
  for (let value = 0; value < COUNT; value += 1) means.push(value);
  assert.ok(means.all.length >= 300 && means.all.length < 600, `${means.all.length}`);
  assert.deepEqual(
    [...means.all],
    means.all.map((_, at) => 8 * at + 3.5),
  );
  assert.deepEqual([means.first, means.last], [0, COUNT - 1]);
});

test("a twin's standstills count from mark to mark, whenever it is looked at", () => {
  const stall = (fromMs, untilMs) => ({ kind: "stall", island: 1, fromMs, untilMs });
  const [seldom, often] = [live(), live()];
  seldom.takeTwin(twin(9_000, [stall(1_003, 1_010), stall(2_000, 4_500), stall(8_000, null)], [1]));
  often.takeTwin(twin(1_005, [stall(1_003, null)], [1]));
  often.takeTwin(twin(2_000, [stall(1_003, 1_010)], [1]));
  assert.deepEqual([often.stalledSinceMs, often.standstillMs], [2_000, 0]);
  often.takeTwin(twin(3_000, [stall(2_000, null)], [1]));
  often.takeTwin(twin(5_000, [stall(2_000, 4_500)]));
  assert.deepEqual([often.stalledSinceMs, often.standstillMs], [null, 0]);
  often.takeTwin(twin(9_000, [stall(8_000, null)], [1]));
  for (const told of [seldom, often])
    assert.deepEqual([told.stalledMs, told.stalledSinceMs, told.standstillMs], [2_507, 8_000, 1_000]);
});

test("decoupled training stands still when no island trains, whenever it is looked at", () => {
  const marks = [
    step(0, 60, 160),
    step(1, 70, 190),
    step(0, 160, 260),
    step(1, 190, 310),
    step(0, 260, 360),
    step(0, 500, 600),
  ];
  const actions = [kill(1, 250), kill(0, 300), { ...kill(0, 450), deed: "restart" }];
  for (const grain of [1, 7, 100, 550]) {
    const told = live();
    for (let from = 0; from < 550; from += grain) {
      const until = Math.min(550, from + grain);
      const begun = marks.filter(({ fromMs }) => fromMs > from && fromMs <= until);
      told.take(
        frame(until, begun),
        actions.filter(({ atMs }) => atMs <= until),
      );
    }
    // From the second death until a new step begins; before the first step there is no model to train.
    assert.equal(told.idleMs, 200, `looked at each ${grain} ms`);
  }
});

test("it is said why the run in lock-step may be ahead, where it is", async () => {
  const { noteOf } = await load("teach/figures/loss.ts");
  const note = (ours, twin, stalledSinceMs = null) => noteOf({ heldOut: ours, twinHeldOut: twin, stalledSinceMs });
  const at = (loss) => [{ atMs: 1_000, loss, tokens: 1 }];
  for (const plain of [note([], []), note(at(3), at(3)), note(at(2.5), at(3))])
    assert.match(plain, /^Loss: how badly the model guesses/);
  assert.match(note(at(3.3), at(2.9)), /^Lock-step is ahead for now: it shares what was learnt at every step/);
  assert.match(note(at(3.3), at(2.9), 5_000), /^Lock-step was ahead when it stopped/);
});

test("goodput counts each island from its first step, and whoever died before it from the beginning", () => {
  const island = (more) => ({ ...ISLAND, stepMs: 100, ...more });
  const spec = { islands: 3, late: 1, lateMs: 5_000 };
  const goodput = (islands, { marks = [step(0, 1_000, 1_100), step(1, 2_000, 2_100)], trained = 0 } = {}) => {
    const told = new Live(spec);
    told.take({ nowMs: 1_000, marks: [], islands, run: { tokensTrained: 0 } }, []);
    told.take({ nowMs: 6_000, marks, islands, run: { tokensTrained: trained } }, []);
    return told;
  };
  const on = island({ steps: 40, tokens: 400, possibleSteps: 60 });
  const joining = island({ steps: 0, tokens: 0, state: "joining", possibleSteps: 10 });
  assert.equal(goodput([joining, joining, joining], { marks: [] }).goodput, null);
  // Islands 1 and 2 could have taken 50 and 40 steps of 10 tokens; island 3 is still joining.
  assert.equal(goodput([on, on, joining], { trained: 450 }).goodput, 0.5);
  // Island 3 was due after 5 s, and could have taken 10 steps.
  assert.equal(goodput([on, on, { ...joining, state: "dead" }], { trained: 450 }).goodput, 0.45);
  const both = goodput([on, on, joining], { trained: 450 });
  both.takeTwin({ nowMs: 6_000, tokens: 0, stalledBy: [], marks: [] });
  assert.equal(both.twinGoodput, null);
  both.takeTwin({ nowMs: 6_000, tokens: 450, stalledBy: [], marks: [step(0, 2_000, 3_000)] });
  assert.equal(both.twinGoodput, 0.5);
  // From 4 s on steps take twice as long; island 1's missed first second counts at the earlier pace.
  const slower = { ...on, stepMs: 200, possibleSteps: 80 };
  both.take({ nowMs: 10_000, marks: [], islands: [slower, slower, joining], run: { tokensTrained: 650 } }, []);
  assert.equal(both.goodput, 0.5);
});
