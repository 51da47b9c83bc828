/** The challenge: a run of one minute with four faults; the player chooses settings and actions. */

import { milliseconds } from "../../shared/format.js";
import type { Action, Frame, LessonSpec } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { isDone, type Plan } from "../guide/own.js";

/** Free settings; all others decide the difficulty. */
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

/** Faults of the challenge. */
const FAULTS: readonly Action[] = [
  { atMs: 10_000, island: 1, deed: "kill", factor: 1 },
  { atMs: 20_000, island: 3, deed: "slow", factor: 8 },
  { atMs: 30_000, island: 4, deed: "partition", factor: 1 },
  { atMs: 40_000, island: 0, deed: "kill", factor: 1 },
];

/** A stage like a chapter's, with the same form of links. */
export const CHALLENGE = {
  id: "challenge",
  title: phrase("challenge.title"),
  // Slow links, and settings that could all be better.
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

/** End of the run. */
export const END_MS = 60_000;
/** Least goodput at the end for a run that counts. */
export const GOODPUT_MIN = 0.9;
export const GOODPUT_MIN_SAID = `${100 * GOODPUT_MIN} %`;
/** Limit of actions, more than a player needs. */
export const DEEDS_MAX = 40;

/** Result of a run, rounded as in links. */
export interface Result {
  readonly loss: number;
  readonly goodput: number;
}

/** Returns the result of a run if this frame is its last; `goodput` is that of the whole run. */
export function resultOf({ nowMs, run }: Frame, goodput: number | null): Result | null {
  if (nowMs < END_MS || run.heldOut === null || goodput === null) return null;
  return { loss: rounded(run.heldOut), goodput: rounded(goodput) };
}

/** Rounds to four digits: two runs of the same plan agree in all of them. */
function rounded(value: number): number {
  return Number(value.toFixed(4));
}

/** Whether the result may enter the board. */
export function counts({ goodput }: Result): boolean {
  return goodput >= GOODPUT_MIN;
}

/** Returns the player's actions without the challenge's faults, or `null` if a fault is missing. */
export function deedsOf(actions: readonly Action[]): Action[] | null {
  const rest = [...actions];
  for (const fault of FAULTS) {
    const at = rest.findIndex((action) => action.atMs === fault.atMs && isDone(action, fault));
    if (at === -1) return null;
    rest.splice(at, 1);
  }
  return rest;
}

/** Whether a run belongs to the challenge, whose settings are `stage`. */
export function isAttempt({ spec, actions, changes }: Plan, stage: LessonSpec): boolean {
  const free: readonly (keyof LessonSpec)[] = FREE;
  const isSame = (Object.keys(stage) as (keyof LessonSpec)[]).every(
    (key) => free.includes(key) || spec[key] === stage[key],
  );
  const deeds = deedsOf(actions);
  return isSame && changes.length === 0 && deeds !== null && deeds.length <= DEEDS_MAX;
}

/** Returns "At 20 s island 4 becomes 8 times slower." */
export function faultsInWords(): string[] {
  return FAULTS.map(({ atMs, island, deed, factor }) => {
    const values = { time: milliseconds(atMs), island: island + 1 };
    if (deed === "kill") return phrase("challenge.faults.kill", values);
    if (deed === "slow") return phrase("challenge.faults.slow", { ...values, factor });
    return phrase("challenge.faults.partition", values);
  });
}

/** Describes the task. */
export const GOAL = phrase("challenge.goal", { time: milliseconds(END_MS), goodput: GOODPUT_MIN_SAID });
