// Goal: a link describes a run completely; a damaged link keeps its valid parts and reports the rest.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { load } from "./support.mjs";

const spec = {
  seed: 1,
  islands: 5,
  quorum: 1,
  grace: 0.8,
  syncEvery: 24,
  fragments: 8,
  roundsInFlight: 2,
  code: "int4",
  merge: "radial",
  bounds: "on",
  apply: "keep",
  stepMs: 250,
  spread: 0.2,
  jitter: 0.1,
  latencyMs: 100,
  kilobytesPerS: 0,
  loss: 0,
  late: 0,
  lateMs: 0,
};
const stageOf = (chapter) => {
  if (chapter === null) return { spec, speed: 1, actions: [], followed: null };
  return chapter === "grace" ? { spec: { ...spec, spread: 0.3 }, speed: 2, actions: [], followed: 0 } : undefined;
};
/** The longest lesson. */
const DAY_MS = 24 * 3_600_000;
/** The open stage at its beginning. */
const OPEN = {
  spec,
  actions: [],
  changes: [],
  atMs: 0,
  speed: 1,
  chapter: null,
  followed: null,
  view: "map",
  presenter: false,
};
let read, write, leftOut;

before(async () => ({ read, write, leftOut } = await load("teach/run/address.ts")));

const placeOf = (hash) => read(hash, stageOf).place;

test("what is written is read back", () => {
  const actions = [
    { atMs: 3_401, island: 2, deed: "kill", factor: 1 },
    { atMs: 9_100, island: 2, deed: "restart", factor: 1 },
    { atMs: 9_200, island: 0, deed: "slow", factor: 20 },
    { atMs: 9_300, island: 1, deed: "partition", factor: 1 },
    { atMs: 9_400, island: 1, deed: "heal", factor: 1 },
    { atMs: 9_500, island: 3, deed: "poison", factor: 1 },
    { atMs: 9_600, island: 3, deed: "cure", factor: 1 },
    { atMs: 9_700, island: 4, deed: "far", factor: 50 },
    { atMs: 9_800, island: 4, deed: "lie", factor: 1 },
  ];
  const changes = [
    { atMs: 4_000, to: { quorum: 3 } },
    { atMs: 4_000, to: { merge: "mean" } },
    { atMs: 5_000, to: { grace: 0.5 } },
    { atMs: 6_000, to: { lockstep: "elastic" } },
    { atMs: 7_000, to: { kilobytesPerS: 0 } },
  ];
  const place = {
    spec: { ...spec, islands: 8, grace: 0.35, code: "e3m0", bounds: "off", kilobytesPerS: 120, lateMs: 2_500 },
    actions,
    changes,
    atMs: 12_345,
    speed: 0.25,
    chapter: null,
    followed: 7,
    view: "lanes",
    presenter: true,
  };
  assert.deepEqual(read(write(place, stageOf), stageOf), { place, notices: [] });
  for (const followed of [null, 0, 3]) {
    const inChapter = { ...place, spec: { ...spec, spread: 0.3 }, chapter: "grace", speed: 2, followed };
    assert.deepEqual(placeOf(write(inChapter, stageOf)), inChapter);
  }
});

test("links are short: only what differs is in them", () => {
  assert.equal(write(OPEN, stageOf), "#v=1");
  const killed = { ...OPEN, actions: [{ atMs: 3_401, island: 2, deed: "kill", factor: 1 }], atMs: 5_000 };
  assert.equal(write(killed, stageOf), "#v=1&a=k3@3401&t=5000");
  assert.equal(
    write({ ...OPEN, spec: { ...spec, spread: 0.3 }, speed: 2, chapter: "grace", followed: 0 }, stageOf),
    "#v=1&chapter=grace",
  );
});

test("no link is the open stage, and a chapter alone is its stage", () => {
  assert.deepEqual(read("", stageOf), { place: OPEN, notices: [] });
  assert.equal(placeOf("#chapter=grace").spec.spread, 0.3);
  assert.equal(placeOf("#chapter=grace").speed, 2);
  assert.equal(placeOf("#chapter=grace").followed, 0);
});

test("what cannot be is left out, and said", () => {
  const check = (hash, notice, holds) => {
    const { place, notices } = read(hash, stageOf);
    assert.equal(notices.length, 1, notices.join());
    assert.match(notices[0], notice);
    assert.ok(holds(place), JSON.stringify(place));
  };
  check("#v=1&m=99", /"99" is not valid for "Islands, M"; it is 5/, ({ spec }) => spec.islands === 5);
  check("#v=1&m=4.5", /Islands/, ({ spec }) => spec.islands === 5);
  check("#v=1&m=", /Islands/, ({ spec }) => spec.islands === 5);
  check("#v=1&g=NaN", /Grace/, ({ spec }) => spec.grace === 0.8);
  check("#v=1&c=int3", /Bits/, ({ spec }) => spec.code === "int4");
  check("#v=1&c=__proto__", /Bits/, ({ spec }) => spec.code === "int4");
  check("#v=1&chapter=nowhere", /no chapter "nowhere"/, ({ chapter }) => chapter === null);
  check("#v=1&a=k9@100", /left out/, ({ actions }) => actions.length === 0);
  check("#v=1&a=k2@100~zz", /"zz"/, ({ actions }) => actions.length === 1);
  check("#v=1&a=k2@99999999", /left out/, ({ actions }) => actions.length === 0);
  check("#v=1&a=s2x0.5@100", /left out/, ({ actions }) => actions.length === 0);
  check("#v=1&w=k:9@100", /"k:9@100" cannot change/, ({ changes }) => changes.length === 0);
  check("#v=1&w=p:4@100~k:2@100", /"p:4@100" cannot/, ({ changes }) => changes.length === 1);
  check("#v=1&w=r:none@100", /left out/, ({ changes }) => changes.length === 0);
  check("#v=1&w=k:2@99999999", /left out/, ({ changes }) => changes.length === 0);
  check("#v=1&w=k2@100", /left out/, ({ changes }) => changes.length === 0);
  check("#v=1&w=__proto__:2@100", /left out/, ({ changes }) => changes.length === 0);
  check("#v=1&t=-5", /moment/, ({ atMs }) => atMs === 0);
  check("#v=1&t=1e99", /moment/, ({ atMs }) => atMs === 0);
  check("#v=1&x=3", /"3" is not a speed of this page; it is 1\./, ({ speed }) => speed === 1);
  check("#v=1&follow=9", /no fragment "9" to follow/, ({ followed }) => followed === null);
  check("#v=1&p=2&follow=3", /no fragment "3" to follow/, ({ followed }) => followed === null);
  check("#v=1&chapter=grace&follow=one", /no fragment "one"/, ({ followed }) => followed === 0);
  check("#v=1&view=globe", /no picture "globe"; it is the map/, ({ view }) => view === "map");
  check("#v=1&presenter=yes", /"yes" is not valid for presenter mode; it is off/, ({ presenter }) => !presenter);
  check("#v=7&m=4", /another version/, ({ spec }) => spec.islands === 4);
  check(`#v=1&c=${"x".repeat(5_000)}`, /^.{0,120}$/, ({ spec }) => spec.code === "int4");
});

test("what is written is within what is read, and what is not written is said", () => {
  const deeds = (count, fromMs) =>
    Array.from({ length: count }, (_, at) => ({
      atMs: fromMs + at,
      island: at % 5,
      deed: at % 2 ? "restart" : "kill",
      factor: 1,
    }));
  const place = { ...OPEN, actions: deeds(200, 1_000), atMs: DAY_MS, speed: 16 };
  assert.deepEqual(read(write(place, stageOf), stageOf), { place, notices: [] });
  assert.equal(leftOut(place), null);
  const more = { ...place, actions: deeds(201, 1_000) };
  assert.deepEqual(read(write(more, stageOf), stageOf), { place, notices: [] });
  assert.match(leftOut(more), /^not all that was done to this run: a link holds 200 deeds/);
  const late = { ...place, actions: [...deeds(1, 1_000), ...deeds(2, DAY_MS)], atMs: DAY_MS + 1 };
  assert.deepEqual(read(write(late, stageOf), stageOf), {
    place: { ...place, actions: [...deeds(1, 1_000), ...deeds(1, DAY_MS)] },
    notices: [],
  });
  assert.match(leftOut(late), /done to this run.*, and not this moment: a run ends after 24 hours$/);
  const slow = { ...place, actions: [{ atMs: 1, island: 0, deed: "slow", factor: 10 / 3 }] };
  assert.deepEqual(read(write(slow, stageOf), stageOf).notices, []);
  const changed = { ...place, changes: Array.from({ length: 201 }, (_, at) => ({ atMs: at, to: { quorum: 2 } })) };
  assert.equal(read(write(changed, stageOf), stageOf).place.changes.length, 200);
  assert.match(leftOut(changed), /^not all that was done to this run/);
  const cut = read(`#v=1&a=${Array(201).fill("k1@5").join("~")}`, stageOf);
  assert.equal(cut.place.actions.length, 200);
  assert.deepEqual(cut.notices, ["This link has more than 200 deeds; the rest is left out."]);
});

test("a quorum is never of more islands than there are", () => {
  assert.equal(placeOf("#v=1&m=3&k=8").spec.quorum, 3);
  assert.equal(placeOf("#v=1&m=3&n=7").spec.late, 2);
});

test("the page on data centres reads and writes its settings", async () => {
  const { read, write, DEFAULTS } = await load("scale/settings.ts");
  const settings = { ...DEFAULTS, chips: 2_400_000, mtbiYears: 1 / 12, utilisation: 0.95 };
  assert.deepEqual(read(write(settings)), { settings, wrong: [] });
  assert.deepEqual(read("#v=1&chips=7&learners=many"), { settings: DEFAULTS, wrong: ["Chips", "Learners, M"] });
});
