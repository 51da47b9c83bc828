// Goal: the display runs steadily, never ahead of the events, and slows if the Workers are too slow.
import assert from "node:assert/strict";
import { before, beforeEach, test } from "node:test";
import { load } from "./support.mjs";

const FRAME_MS = 16;
let Clock, clock;

before(async () => ({ Clock } = await load("teach/run/clock.ts")));
beforeEach(() => {
  clock = new Clock();
  clock.playing = true;
  clock.reset(0);
});

/** Runs for `frames`; the Workers reach `reach` of the target. */
function play(frames, reach) {
  let reached = 0;
  for (let i = 0; i < frames; i += 1) {
    clock.tick(FRAME_MS, reached);
    assert.ok(clock.shownMs <= reached || clock.shownMs === 0, `${clock.shownMs} is shown, ${reached} has happened`);
    reached = reach(clock.targetMs, reached);
  }
}

test("Workers that keep up are shown at the chosen speed", () => {
  clock.speed = 4;
  play(250, (target) => target);
  assert.ok(Math.abs(clock.shownMs - 4 * 250 * FRAME_MS) < 4 * 400, String(clock.shownMs));
  assert.equal(clock.isSlow, false);
});

test("Workers that do not keep up slow the clock, and it says so", () => {
  clock.speed = 8;
  play(250, (target, reached) => Math.min(target, reached + 2 * FRAME_MS));
  assert.ok(Math.abs(clock.shownMs - 2 * 250 * FRAME_MS) < 800, String(clock.shownMs));
  assert.ok(clock.isSlow);
  assert.ok(Math.abs(clock.pace - 2) < 0.3, String(clock.pace));
  // Requests stay close ahead, so that an action takes effect soon.
  assert.ok(clock.targetMs - clock.shownMs < 8 * 1_000, String(clock.targetMs));
});

test("a page that slept goes on where it was", () => {
  play(10, (target) => target);
  const before = clock.targetMs;
  clock.tick(60_000, before);
  assert.equal(clock.isSlow, false, "the Workers are not to blame for a sleep");
  assert.ok(clock.targetMs - before < 500, String(clock.targetMs - before));
});

test("a pause comes to rest at a whole number that was asked for", () => {
  play(20, (target) => target);
  clock.playing = false;
  const rest = clock.targetMs;
  for (let i = 0; i < 100; i += 1) clock.tick(FRAME_MS, rest);
  assert.equal(clock.targetMs, rest);
  assert.equal(clock.shownMs, rest);
  assert.ok(Number.isInteger(rest));
});

test("it stops where the longest lesson ends", () => {
  const end = 24 * 3_600_000;
  clock.speed = 16;
  clock.reset(end - 10_000);
  play(250, (target) => target);
  assert.deepEqual([clock.targetMs, clock.shownMs], [end, end]);
});

test("it stops where this run ends, and so does whoever asks for more", () => {
  clock.endMs = 2_000;
  clock.reset(1_000);
  play(250, (target) => target);
  assert.deepEqual([clock.targetMs, clock.shownMs, clock.playing, clock.isOver], [2_000, 2_000, false, true]);
  clock.reset(9_000);
  assert.equal(clock.targetMs, 2_000);
});

test("a replay is shown as fast as it is there", () => {
  clock.playing = false;
  clock.reset(60_000);
  clock.tick(FRAME_MS, 20_000);
  assert.equal(clock.shownMs, 20_000);
  clock.tick(FRAME_MS, 60_000);
  assert.equal(clock.shownMs, 60_000);
});
