/** The challenge: a run of a minute that is broken four times, with settings and deeds left to whoever takes it. */

import { milliseconds } from "../../shared/format.js";
import type { Action, Frame, LessonSpec } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { isDone, type Plan } from "../guide/own.js";

/** Settings that are free; everything else decides how hard it is. */
export const FREE = [
  "quorum",
  "grace",
  "syncEvery",
  "fragments",
  "roundsInFlight",
  "code",
  "merge",
  "apply",
] as const satisfies readonly (keyof LessonSpec)[];

/** What breaks by itself. */
const FAULTS: readonly Action[] = [
  { atMs: 10_000, island: 1, deed: "kill", factor: 1 },
  { atMs: 20_000, island: 3, deed: "slow", factor: 8 },
  { atMs: 30_000, island: 4, deed: "partition", factor: 1 },
  { atMs: 40_000, island: 0, deed: "kill", factor: 1 },
];

/** It is a stage like a chapter's, and links name it like one. */
export const CHALLENGE = {
  id: "challenge",
  title: phrase("challenge.title"),
  // Narrow links, and settings that could be better in every respect.
  stage: {
    islands: 5,
    kilobytesPerS: 40,
    latencyMs: 100,
    quorum: 5,
    grace: 0,
    fragments: 4,
    code: "f32",
    merge: "mean",
  } satisfies Partial<LessonSpec>,
  actions: FAULTS,
  speed: 1,
} as const;

/** When it is over. */
export const END_MS = 60_000;
/** Goodput has to be so high at the end, or the run does not count. */
export const GOODPUT_MIN = 0.9;
export const GOODPUT_MIN_SAID = `${100 * GOODPUT_MIN} %`;
/** As many deeds as anybody needs. */
export const DEEDS_MAX = 40;

/** What a run came to, rounded as links tell it. */
export interface Result {
  readonly loss: number;
  readonly goodput: number;
}

/** What a run came to, if this frame is its last one; `goodput` is what it had all in all. */
export function resultOf({ nowMs, run }: Frame, goodput: number | null): Result | null {
  if (nowMs < END_MS || run.heldOut === null || goodput === null) return null;
  return { loss: rounded(run.heldOut), goodput: rounded(goodput) };
}

/** Four digits: two runs of the same plan agree in all of them. */
function rounded(value: number): number {
  return Number(value.toFixed(4));
}

/** Whether it may be named among others. */
export function counts({ goodput }: Result): boolean {
  return goodput >= GOODPUT_MIN;
}

/** What somebody did, apart from what breaks by itself; `null` if not all of that is in it. */
export function deedsOf(actions: readonly Action[]): Action[] | null {
  const rest = [...actions];
  for (const fault of FAULTS) {
    const at = rest.findIndex((action) => action.atMs === fault.atMs && isDone(action, fault));
    if (at === -1) return null;
    rest.splice(at, 1);
  }
  return rest;
}

/** Whether a run is one of the challenge, whose own settings are `stage`. */
export function isAttempt({ spec, actions, changes }: Plan, stage: LessonSpec): boolean {
  const free: readonly (keyof LessonSpec)[] = FREE;
  const isSame = (Object.keys(stage) as (keyof LessonSpec)[]).every(
    (key) => free.includes(key) || spec[key] === stage[key],
  );
  const deeds = deedsOf(actions);
  return isSame && changes.length === 0 && deeds !== null && deeds.length <= DEEDS_MAX;
}

/** "At 20 s island 4 becomes 8 times slower." */
export function faultsInWords(): string[] {
  return FAULTS.map(({ atMs, island, deed, factor }) => {
    const values = { time: milliseconds(atMs), island: island + 1 };
    if (deed === "kill") return phrase("challenge.faults.kill", values);
    if (deed === "slow") return phrase("challenge.faults.slow", { ...values, factor });
    return phrase("challenge.faults.partition", values);
  });
}

/** What is asked for, in words. */
export const GOAL = phrase("challenge.goal", { time: milliseconds(END_MS), goodput: GOODPUT_MIN_SAID });
