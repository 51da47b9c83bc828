// Goal: numbers are readable, and moments are at the right places on the timeline.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { round } from "./canned.mjs";
import { load, root } from "./support.mjs";

test("numbers for people", async () => {
  const { bytes, count, duration, milliseconds, percent, plural } = await load("shared/format.ts");
  const check = (said, expected) => assert.equal(said, expected);
  check(count(0), "0");
  check(count(9_123), "9,123");
  check(count(9_999.6), "10.0 k");
  check(count(999_600), "1.00 M");
  check(count(null), "–");
  check(bytes(999), "999 B");
  check(bytes(1_234_567), "1.23 MB");
  check(duration(0), "0 s");
  check(duration(59.6), "1 min");
  check(duration(7_265), "2 h 1 min");
  check(duration(86_400 * 3 + 5), "3 d");
  check(percent(0), "0 %");
  check(percent(0.00123), "0.12 %");
  check(percent(0.9512), "95.1 %");
  check(percent(0.9999), "100 %");
  check(milliseconds(0.44), "0.4 ms");
  check(milliseconds(1_240), "1.24 s");
  check(milliseconds(125_000), "2 min 5 s");
  check(plural(1, "learner"), "1 learner");
  check(plural(1_200, "learner"), "1,200 learners");
});

test("a round is called by what people can read, whatever its number", async () => {
  const { roundName } = await load("dashboard/lanes.ts");
  const told = (epoch, serial) => roundName(String(epoch * 2n ** 32n + serial));
  assert.equal(told(0n, 12n), "12");
  // After a restart the syncer counts on from a power of two.
  for (const [epoch, serial] of [
    [1n, 0n],
    [2n, 87n],
    [7n, 4_000n],
  ])
    assert.equal(told(epoch, serial), String(serial));
});

test("who gave no name, or the name of another, is told apart by one number", async () => {
  const { nameOf, titlesOf } = await load("shared/names.ts");
  const check = (name, called) => assert.equal(nameOf({ name, learner: 7 }), called);
  check("Ada", "Ada");
  check("browser", "browser #7");
  check("", "Learner 7");
  const titled = (...names) => [...titlesOf(names.map((name, learner) => ({ name, learner }))).values()];
  assert.deepEqual(titled("Ada", "Ben", "lab", "lab-2"), ["Ada", "Ben", "lab", "lab-2"]);
  assert.deepEqual(titled("Ada", "Ben", "Ada"), ["Ada #0", "Ben", "Ada #2"]);
  assert.deepEqual(titled("browser", "browser", "", ""), ["browser #0", "browser #1", "Learner 2", "Learner 3"]);
});

test("the time scale of rounds grows, begins at launch and has room for all", async () => {
  const { TimeScale } = await load("dashboard/lanes.ts");
  const scale = new TimeScale([round(1), round(2, { mergeEndMs: 640 })], 10_000);
  const places = [0, 1, 10, 30, 100, 640].map((ms) => scale.at(ms));
  assert.equal(places[0], 0);
  assert.ok(
    places.every((place, index) => index === 0 || place > places[index - 1]),
    places.join(" "),
  );
  assert.ok(places.at(-1) <= 1);
  const ticks = scale.ticks(0.2);
  assert.ok(
    ticks.every((tick, index) => index === 0 || scale.at(tick) - scale.at(ticks[index - 1]) >= 0.2),
    ticks.join(" "),
  );
});

test("a round that waits for long does not squeeze the others", async () => {
  const { TimeScale } = await load("dashboard/lanes.ts");
  const waiting = round(3, {
    launchedMs: 0,
    decision: { decision: "awaitQuorum", missing: 1, until: 0 },
    merged: null,
    mergeStartMs: null,
    mergeEndMs: null,
  });
  assert.ok(new TimeScale([round(1), waiting], 3_600_000).endMs < 1_000);
});

test("what the owner did is said in the same words everywhere", async () => {
  const { reinOf, slowed } = await load("shared/rein.ts");
  assert.deepEqual([1, 0.5, 0.25, 0.125, 0.6].map(slowed), ["", "slowed ×2", "slowed ×4", "slowed ×8", "slowed ×1.7"]);
  assert.equal(reinOf({ share: 1, returnsS: null, trust: "trusted" }), "");
  assert.equal(reinOf({ share: 0.25, returnsS: null, trust: "suspect" }), "slowed ×4 by the owner");
  assert.equal(reinOf({ share: 1, returnsS: 11.2, trust: "probation" }), "dropped by the owner, may return in 12 s");
  assert.equal(reinOf({ share: 1, returnsS: 11.2, trust: "out" }), "sent away for harm, may return in 12 s");
  assert.equal(
    reinOf({ share: 1, returnsS: null, trust: "out" }),
    "sent away for harm, may return when the owner lets it",
  );
  const { trustOf } = await load("shared/rein.ts");
  assert.match(trustOf({ trust: "suspect", doubt: null }), /made the model worse once/);
  assert.equal(
    trustOf({ trust: "suspect", doubt: "Its updates show nothing: 78 looks." }),
    "Suspect: it does not seem to train, so its updates do not count until it does. Its updates show nothing: 78 looks.",
  );
});

test("the package's README lists every code of an error, and every event", async () => {
  const read = (name) => readFile(join(root, "package", name), "utf8");
  const [types, generated, readme] = await Promise.all(["src/types.ts", "src/generated.ts", "README.md"].map(read));
  const names = (found) => [...found].map(([, name]) => name).sort();
  /** Returns the first column's names in the tables below a heading. */
  const listed = (heading) => {
    const rows = readme
      .split(`\n## ${heading}\n`)[1]
      .split("\n## ")[0]
      .matchAll(/^\| (`[^|]+) \|/gm);
    return [...rows].flatMap(([, cell]) => names(cell.matchAll(/`(\w+)`/g))).sort();
  };
  const codes = /export type ErrorCode =([^;]+);/.exec(types)[1].matchAll(/\| "(\w+)"/g);
  assert.deepEqual(listed("Errors"), names(codes));
  const events = [types, generated].flatMap((text) => [...text.matchAll(/[{ ]"?event"?: "(\w+)"/g)]);
  assert.deepEqual(listed("Events"), names(events));
});
