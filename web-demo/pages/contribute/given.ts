/** This machine's contributions by run and by day, and today's traffic, stored in this browser. */
import { dayOf } from "../shared/save.js";

/** Contribution of one machine. */
export interface Given {
  /** Its merged tokens. */
  readonly tokens: number;
  /** Time in training steps, in milliseconds. */
  readonly trainMs: number;
}

/** Contribution on one day, to any run. */
export interface DayGiven extends Given {
  /** As 2026-11-23. */
  readonly day: string;
}

/** This browser's record of all runs. */
export interface Book {
  /** The latest runs, newest last. */
  readonly runs: readonly (Given & { readonly run: string })[];
  /** The latest days with a contribution, newest last. */
  readonly days: readonly DayGiven[];
  /** Sum over all days and runs, including dropped ones. */
  readonly all: Given & { readonly runs: number; readonly days: number };
}

/** Limits of separate records of runs and days. */
export const [RUNS_MAX, DAYS_MAX] = [40, 31];

const GIVEN = "archipelago.given";
const TRAFFIC = "archipelago.traffic";
const LEARNER = "archipelago.learner";
const NOTHING: Given = { tokens: 0, trainMs: 0 };

/** Returns the recorded contribution to `run`, or zeros. */
export function readGiven(run: string): Given {
  const { tokens, trainMs } = readBook().runs.find((known) => known.run === run) ?? NOTHING;
  return { tokens, trainMs };
}

/** Returns the sum over all runs. */
export function readBook(): Book {
  const kept = (read(GIVEN) ?? {}) as Partial<Record<keyof Book, unknown>>;
  const all = (kept.all ?? {}) as Partial<Record<keyof Book["all"], unknown>>;
  return {
    runs: rowsOf(kept.runs, "run"),
    days: rowsOf(kept.days, "day"),
    all: { ...givenOf(all), runs: number(all.runs), days: number(all.days) },
  };
}

/** Records the contribution to `run`. The increase counts for `now`'s day, or for no day if `now` is `null`. */
export function keepGiven(run: string, given: Given, now: Date | null): void {
  const book = readBook();
  const before = book.runs.find((known) => known.run === run);
  const more = {
    tokens: Math.max(0, given.tokens - (before?.tokens ?? 0)),
    trainMs: Math.max(0, given.trainMs - (before?.trainMs ?? 0)),
  };
  const day = now && dayOf(now);
  const today = book.days.find((known) => known.day === day);
  const others = book.runs.filter((known) => known.run !== run);
  const otherDays = book.days.filter((known) => known.day !== day);
  const isNewDay = day !== null && !today;
  keep(GIVEN, {
    runs: [...others, { run, ...given }].slice(-RUNS_MAX),
    days: [...otherDays, ...(day ? [{ day, ...sum(today ?? NOTHING, more) }] : [])].slice(-DAYS_MAX),
    all: {
      ...sum(book.all, more),
      runs: book.all.runs + (before ? 0 : 1),
      days: book.all.days + (isNewDay ? 1 : 0),
    },
  } satisfies Book);
}

/** Stores this browser's learner number in `run`, to look up later what was merged after the page was closed. */
export function keepLearner(run: string, learner: number): void {
  keep(LEARNER, { run, learner });
}

/** Returns this browser's learner number in `run`, if `run` is the last run that it joined. */
export function readLearner(run: string): number | null {
  const kept = read(LEARNER) as { run?: unknown; learner?: unknown } | null;
  return kept?.run === run && typeof kept.learner === "number" ? kept.learner : null;
}

function sum(a: Given, b: Given): Given {
  return { tokens: a.tokens + b.tokens, trainMs: a.trainMs + b.trainMs };
}

/** Last recorded traffic, for browsers without storage. */
let booked = { day: "", bytes: 0 };

/** Returns bytes sent, received and fetched on the day of `now` so far, by all tabs of this browser. */
export function readTraffic(now: Date): number {
  const day = dayOf(now);
  const kept = read(TRAFFIC) as { day?: unknown; bytes?: unknown } | null;
  const here = booked.day === day ? booked.bytes : 0;
  return Math.max(here, kept?.day === day ? number(kept.bytes) : 0);
}

/** Adds `bytes` to the day of `now`. Recording increments keeps midnight and other tabs correct. */
export function addTraffic(now: Date, bytes: number): void {
  booked = { day: dayOf(now), bytes: readTraffic(now) + bytes };
  keep(TRAFFIC, booked);
}

/** Returns the valid rows of a stored list, each with its name under `key`. */
function rowsOf<K extends "run" | "day">(kept: unknown, key: K): (Given & { readonly [key in K]: string })[] {
  if (!Array.isArray(kept)) return [];
  return kept.flatMap((row: unknown) => {
    const name = (row as Partial<Record<K, unknown>> | null)?.[key];
    return typeof name === "string" ? [{ ...givenOf(row as object), [key]: name } as never] : [];
  });
}

function givenOf(kept: { readonly tokens?: unknown; readonly trainMs?: unknown }): Given {
  return { tokens: number(kept.tokens), trainMs: number(kept.trainMs) };
}

function number(kept: unknown): number {
  return typeof kept === "number" && kept >= 0 && Number.isFinite(kept) ? kept : 0;
}

function read(key: string): unknown {
  try {
    return JSON.parse(localStorage.getItem(key) ?? "null");
  } catch {
    // No storage, or invalid content: there is no record.
    return null;
  }
}

function keep(key: string, value: unknown): void {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // The record lasts as long as the page.
  }
}
