// Goal: a chapter reports the result of its run, whatever that is; nothing is fixed beforehand.
import assert from "node:assert/strict";
import { access } from "node:fs/promises";
import { join } from "node:path";
import { before, test } from "node:test";
import { ISLAND } from "./island.mjs";
import { load, root } from "./support.mjs";

let CHAPTERS, Watch, History, sentenceOf, isOwn, isSet, badgeOf, figuresOf, saidOf;

before(async () => {
  ({ CHAPTERS } = await load("teach/guide/chapters/index.ts"));
  ({ Watch } = await load("teach/guide/measure.ts"));
  ({ History } = await load("teach/timeline/history.ts"));
  ({ sentenceOf } = await load("teach/sentence.ts"));
  ({ isOwn, isSet } = await load("teach/guide/own.ts"));
  ({ badgeOf, figuresOf } = await load("teach/islands/words.ts"));
  ({ saidOf } = await load("teach/timeline/parcel.ts"));
});

/** Ten seconds of five islands, as measured by a chapter. */
function measure(more = {}) {
  return {
    fromMs: 0,
    untilMs: 10_000,
    merges: 10,
    answers: 50,
    joint: 10,
    lengths: 9,
    collectMs: 1_000,
    shares: [2, 2, 2, 2, 2],
    early: 0,
    refused: 0,
    updates: 50,
    updateBytes: 50_000,
    largestBytes: 1_000,
    downBytes: 50_000,
    sent: [0, 500, 0, 500],
    steps: [40, 40, 40, 40, 40, 20, 20, 20],
    tokens: 10_000,
    tokensMerged: 9_000,
    twinSteps: 40,
    lossFrom: 3,
    lossUntil: 2.9,
    liveMs: [],
    mergedMs: [],
    ...more,
  };
}

/** Falls to `loss` in ten seconds, before any chapter compares two runs. */
const course = (loss) => [
  { atMs: 0, loss: 5, tokens: 0 },
  { atMs: 10_000, loss, tokens: 1 },
];

/** Evidence for each answer of each chapter. */
const OUTCOMES = {
  lockstep: [{ twinSteps: 32 }, { twinSteps: 20 }, { twinSteps: 0 }],
  quorum: [{ merges: 10 }, { merges: 3 }, { merges: 0 }],
  grace: [{ answers: 50 }, { answers: 30 }, { answers: 11 }],
  weights: [{}, { shares: [2.3, 2.3, 2.3, 2.3, 0.8] }, { shares: [2.5, 2.5, 2.5, 2.5, 0] }],
  rda: [{ lengths: 12 }, { lengths: 9 }, { lengths: 5 }],
  fragments: [{}, { updateBytes: 400_000 }, { updateBytes: 6_000 }],
  int4: [{ mean: 4 }, {}, { mean: 5 }],
  rejoin: [{ steps: [10, 40, 10, 10, 10] }, {}, { lossUntil: 4 }],
  far: [{ shares: [2.4, 2.4, 2.4, 2.4, 0.4] }, {}, { merges: 3, shares: [0.6, 0.6, 0.6, 0.6, 0.6] }],
  liar: [{}, { mean: 3.5 }, { mean: 5.1 }],
  scavenging: [{ steps: [10, 10, 10, 10, 0, 0, 0, 0] }, { lossUntil: 4 }, { steps: [40, 40, 40, 40, 0, 0, 0, 0] }],
};

test("each answer of each chapter is what some run shows", () => {
  assert.deepEqual(
    Object.keys(OUTCOMES),
    CHAPTERS.map(({ id }) => id),
  );
  for (const chapter of CHAPTERS) {
    assert.equal(OUTCOMES[chapter.id].length, chapter.answers.length, chapter.id);
    OUTCOMES[chapter.id].forEach(({ mean = 3, ...after }, answer) => {
      const evidence = {
        before: measure(),
        after: measure(after),
        live: { heldOut: course(mean) },
        heldOutBefore: course(3),
      };
      const found = chapter.find(evidence);
      assert.equal(found.answer, answer, `${chapter.id} ${JSON.stringify(after)}: ${found.text}`);
      assert.doesNotMatch(found.text, /NaN|undefined|Infinity/, chapter.id);
    });
    // A run without events must not cause an error.
    const nothing = measure({
      untilMs: 0,
      merges: 0,
      answers: 0,
      joint: 0,
      lengths: 0,
      shares: [],
      updates: 0,
      updateBytes: 0,
      sent: [],
      steps: [],
      tokens: 0,
      twinSteps: 0,
      lossFrom: null,
      lossUntil: null,
    });
    assert.doesNotMatch(
      chapter.find({ before: nothing, after: nothing, live: { heldOut: [] }, heldOutBefore: [] }).text,
      /NaN|undefined|Infinity/,
    );
  }
});

test("a chapter that has more to tell says where, and there is such a page", async () => {
  const pages = CHAPTERS.flatMap(({ more }) => (more ? [more.href] : []));
  assert.deepEqual(pages, ["./scale.html"]);
  for (const href of pages) await access(join(root, "pages", href));
});

const island = (more = {}) => ({ ...ISLAND, ...more });
const frame = (nowMs, marks, islands = [island(), island()]) => ({
  nowMs,
  marks,
  islands,
  run: {
    heldOut: 3,
    floor: 1,
    tokensTrained: 100,
    tokensMerged: 50,
    participation: 0.5,
    goodput: 1,
    rounds: 1,
    live: 2,
    bytesUp: 1,
    bytesDown: 1,
    graceMs: 0,
    quorumMs: 0,
    refused: 2,
    late: 0,
  },
});

test("a stretch counts what is in it, and the next one begins at nothing", () => {
  const watch = new Watch(2);
  const round = (round, atMs, shares) => [
    { kind: "launched", round, fragment: 0, atMs },
    {
      kind: "parcel",
      island: 0,
      up: true,
      what: "update",
      round,
      fragment: 0,
      bytes: 300,
      fromMs: atMs,
      untilMs: atMs + 50,
      glimpse: [],
    },
    { kind: "merged", round, fragment: 0, atMs: atMs + 80, shares },
  ];
  watch.take(frame(0, []));
  watch.take(
    frame(
      1_000,
      round(1, 100, [
        { island: 0, share: 0.75 },
        { island: 1, share: 0.25 },
      ]),
      [island({ steps: 14 }), island({ steps: 12 })],
    ),
  );
  const first = watch.cut();
  assert.deepEqual([first.merges, first.answers, first.collectMs, first.updateBytes], [1, 2, 80, 300]);
  assert.deepEqual(
    [first.shares, first.steps],
    [
      [0.75, 0.25],
      [4, 2],
    ],
  );
  watch.take(
    frame(
      3_000,
      [
        ...round(2, 1_200, [{ island: 0, share: 1 }]),
        { kind: "live", island: 0, atMs: 2_000 },
        { kind: "answered", round: 2, fragment: 0, island: 0, atMs: 1_250 },
        { kind: "answered", round: null, fragment: 0, island: 1, atMs: 2_100 },
        ...round(3, 2_200, [{ island: 1, share: 1 }]),
      ],
      [island({ steps: 15 }), island({ steps: 20 })],
    ),
  );
  const { now } = watch;
  assert.deepEqual([now.fromMs, now.untilMs, now.merges, now.answers, now.early], [1_000, 3_000, 2, 2, 1]);
  assert.deepEqual(
    [now.shares, now.steps],
    [
      [1, 1],
      [1, 8],
    ],
  );
  assert.deepEqual(
    [now.liveMs, now.mergedMs],
    [
      [2_000, null],
      [null, 2_280],
    ],
  );
});

test("what was sent is told slot by slot, with its peaks and its mean", async () => {
  const { waysOf } = await load("teach/guide/strips.ts");
  const watch = new Watch(2);
  const sent = (fromMs, bytes) => ({ kind: "parcel", what: "update", fromMs, untilMs: fromMs + 30, bytes });
  watch.take(frame(0, []));
  watch.take(frame(1_000, [sent(10, 100), sent(150, 50), sent(650, 300)]));
  assert.deepEqual(watch.now.sent, [150, 0, 0, 300]);
  assert.deepEqual(waysOf([0, 300], 300), { bars: "M50.00 28V0.00h42.50V28z", mean: "M0 14.00H100" });
  assert.deepEqual(waysOf([], 300), { bars: "", mean: "" });
  const found = CHAPTERS.find(({ id }) => id === "fragments").find({ before: measure(), after: measure() });
  assert.match(found.strips[0].label, /^8 fragments: peak 2\.50 kB\/s, mean 5\.00 kB\/s$/);
});

test("steps of the twin count where they belong, however late they are heard of", () => {
  const watch = new Watch(2);
  const steps = (...all) => ({
    marks: all.map((untilMs) => ({ kind: "step", fromMs: untilMs - 100, computedMs: untilMs - 50, untilMs })),
  });
  watch.take(frame(0, []));
  watch.takeTwin(steps(100, 200));
  watch.take(frame(1_000, []));
  const before = watch.cut();
  watch.takeTwin(steps(300, 1_000, 1_100));
  watch.take(frame(2_000, []));
  assert.deepEqual([before.twinSteps, watch.now.twinSteps], [4, 1]);
});

test("what is remembered for drawing is bounded, and open rounds lie in rows of their own", () => {
  const history = new History();
  history.reset(2);
  for (let at = 0; at < 3_000; at += 1) {
    const ms = at * 500;
    history.take(
      frame(ms, [
        { kind: "step", island: 0, fromMs: ms, untilMs: ms + 500 },
        { kind: "launched", round: at, fragment: at % 8, atMs: ms },
        {
          kind: "parcel",
          island: 0,
          up: true,
          what: "update",
          round: at,
          fragment: 0,
          bytes: 1,
          fromMs: ms,
          untilMs: ms + 50,
          glimpse: [],
        },
        ...(at > 0 ? [{ kind: "merged", round: at - 1, fragment: 0, atMs: ms + 100, shares: [] }] : []),
      ]),
      [],
    );
  }
  assert.ok(
    history.parcels.length < 600 && history.rounds.length < 600 && history.steps[0].length < 600,
    `${history.parcels.length}`,
  );
  assert.deepEqual([...new Set(history.rounds.map(({ row }) => row))].sort(), [0, 1]);
});

test("an island is away from when it died until it is started again", () => {
  const history = new History();
  history.reset(2);
  history.take(
    frame(
      100,
      [
        { kind: "step", island: 1, fromMs: 0, untilMs: 250 },
        { kind: "left", island: 1, atMs: 95 },
      ],
      [island(), island({ state: "dead" })],
    ),
    [{ atMs: 90, island: 1, deed: "kill", factor: 1 }],
  );
  assert.deepEqual(history.steps[1], [{ fromMs: 0, untilMs: 90 }]);
  assert.deepEqual(history.absences, [{ island: 1, fromMs: 90, untilMs: null }]);
  history.take(frame(400, [], [island(), island({ state: "joining" })]), []);
  assert.equal(history.absences[0].untilMs, 400);
  const deeds = [
    { atMs: 500, island: 1, deed: "kill", factor: 1 },
    { atMs: 620, island: 1, deed: "restart", factor: 1 },
  ];
  history.take(frame(600, [], [island(), island({ state: "dead" })]), deeds);
  history.take(frame(900, [], [island(), island({ state: "joining" })]), deeds);
  assert.deepEqual(history.absences[1], { island: 1, fromMs: 500, untilMs: 620 });
});

test("the sentence", () => {
  const check = (islands, stalledS, expected) => {
    const live = {
      spec: { islands: islands.length, late: 0, lateMs: 0, latencyMs: 30 },
      frame: frame(10_000, [], islands),
      stalledSinceMs: stalledS === null ? null : 10_000 - 1_000 * stalledS,
      standstillMs: 1_000 * (stalledS ?? 0),
    };
    assert.equal(sentenceOf(live).text, expected);
  };
  const [on, dead] = [island(), island({ state: "dead" })];
  check(
    [on, on],
    null,
    "2 islands train one model, each at its own pace; the run in lock-step goes at the pace of the slowest.",
  );
  check(
    [on, on, dead, on, on],
    6,
    "Island 3 is gone. 4 others train on; the run in lock-step has stood still for 6 s.",
  );
  check(
    [on, dead, dead],
    6,
    "Islands 2 and 3 are gone. 1 other trains on; the run in lock-step has stood still for 6 s.",
  );
  check([dead, dead], 6, "Islands 1 and 2 are gone. No island trains: start one again.");
  check(
    [on, island({ slow: 4 })],
    null,
    "Island 2 is slowed down. 2 islands train; the run in lock-step goes at the pace of the slowest.",
  );
  check(
    [on, island({ partitioned: true })],
    1,
    "Island 2 is cut off, and trains alone. 1 other trains on; the run in lock-step has stood still for 1 s.",
  );
  check(
    [on, island({ latencyMs: 520 })],
    null,
    "Island 2 is far away: a round trip takes 1.04 s. 2 islands train; the run in lock-step waits for the farthest at each step.",
  );
  check(
    [on, on, on, dead, island({ partitioned: true })],
    1,
    "Island 4 is gone. Island 5 is cut off, and trains alone. 3 others train on; the run in lock-step has stood still for 1 s.",
  );
  check(
    [island({ partitioned: true })],
    1,
    "Island 1 is cut off, and trains alone. No other trains; the run in lock-step has stood still for 1 s.",
  );
  check([dead, island({ state: "joining" })], 6, "Island 1 is gone. Island 2 is fetching the model. No island trains.");
  const poisoner = { poisoned: true, state: "offline" };
  check(
    [on, island({ partitioned: true, state: "offline" })],
    1,
    "Island 2 is cut off, and has nothing to train on. 1 island trains; the run in lock-step has stood still for 1 s.",
  );
  check(
    [on, island({ ...poisoner, stopped: "refused" })],
    null,
    "Island 2 was sent away: 2 forged updates were refused. 1 other trains on; the run in lock-step goes at the pace of the slowest.",
  );
  check(
    [on, on, island({ state: "expected" })],
    null,
    "Island 3 comes later. 2 islands train; the run in lock-step goes at the pace of the slowest.",
  );
  check(
    [island({ partitioned: true, state: "offline" })],
    1,
    "Island 1 is cut off, and has nothing to train on. No island trains.",
  );
  check(
    [on, island({ poisoned: true })],
    null,
    "Island 2 sends poison: 2 refused so far. 2 islands train; the run in lock-step goes at the pace of the slowest.",
  );
  check(
    [on, island({ lies: true })],
    null,
    "Island 2 lies: it sends the opposite of what it learnt. 2 islands train; the run in lock-step goes at the pace of the slowest.",
  );
  assert.equal(sentenceOf(null).tone, "waiting");
});

test("a card says what an island does, and gives a speed only while it trains", () => {
  const check = (more, badge, figures) =>
    assert.deepEqual([badgeOf(island(more))[0], figuresOf(island(more))], [badge, figures]);
  check({}, "training", "loss 3.00 · 40 tok/s · 50 % merged");
  check({ slow: 4 }, "training", "loss 3.00 · 10 tok/s · 50 % merged");
  check({ partitioned: true }, "cut off", "loss 3.00 · 40 tok/s · 50 % merged");
  check({ partitioned: true, state: "offline" }, "cut off", "loss 3.00 · 50 % merged");
  check(
    { poisoned: true, state: "offline", stopped: "16 updates were refused" },
    "sent away",
    "sent away: 16 updates were refused",
  );
  assert.equal(badgeOf(island({ state: "expected", poisoned: true }))[0], "comes later");
  assert.equal(badgeOf(island({ lies: true }))[0], "lies");
  assert.equal(badgeOf(island({ state: "dead", partitioned: true }))[0], "dead");
});

test("a run is a chapter's own until somebody changes it", () => {
  const kill = { atMs: 2_000, island: 1, deed: "kill", factor: 1 };
  const stage = { spec: { seed: 1, islands: 5, code: "int4", grace: 0.8 }, actions: [kill], changes: [] };
  assert.ok(isOwn(stage, stage));
  assert.ok(isOwn({ ...stage, spec: { ...stage.spec, seed: 7 } }, stage), "any seed will do");
  assert.ok(!isOwn({ ...stage, spec: { ...stage.spec, islands: 2 } }, stage));
  assert.ok(!isOwn({ ...stage, actions: [] }, stage));
  assert.ok(!isOwn({ ...stage, changes: [{ atMs: 9, to: { grace: 0.5 } }] }, stage));
  assert.ok(!isOwn({ ...stage, actions: [{ ...kill, atMs: 2_001 }] }, stage));
  assert.ok(!isOwn({ ...stage, actions: [kill, { ...kill, island: 2 }] }, stage));
  assert.ok(isSet({ ...stage.spec, code: "f32" }, stage.spec, { code: "f32" }));
  assert.ok(!isSet({ ...stage.spec, code: "int1" }, stage.spec, { code: "f32" }));
  assert.ok(!isSet({ ...stage.spec, code: "f32", grace: 0 }, stage.spec, { code: "f32" }), "and nothing else");
});

test("what a joining island gets is a fragment as it is", () => {
  const parcel = {
    kind: "parcel",
    island: 1,
    up: false,
    what: "whole",
    round: null,
    fragment: 2,
    bytes: 15_440,
    fromMs: 100,
    untilMs: 131,
    glimpse: [],
  };
  assert.equal(
    saidOf(parcel, "int4"),
    "Fragment 3: all of it from the syncer to island 2, 15.4 kB in 31 ms. 32 bits per parameter, unrounded.",
  );
  assert.match(
    saidOf({ ...parcel, what: "merged", round: 7 }, "int4"),
    /^Fragment 3, round 7: merged change .* 4 bits per parameter/,
  );
});

test("the score tells what was tried, what came as predicted and what is left", async () => {
  const { scoreOf } = await load("teach/guide/ending.ts");
  const score = (...came) => scoreOf(new Map(came.map((one, at) => [String(at), one])), 4);
  assert.equal(score(), "You have not tried any of the 4 chapters yet.");
  assert.equal(score(false), "Of the one chapter that you tried, none came as you predicted; 3 are left.");
  assert.equal(score(true, false, true), "Of the 3 chapters that you tried, 2 came as you predicted; one is left.");
  assert.equal(score(true, true, true, false), "Of 4 chapters, 3 came as you predicted.");
});
