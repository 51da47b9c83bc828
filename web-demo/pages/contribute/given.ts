/** What this machine gave, by run and by day, and what it sent, received and fetched today, kept in this browser. */
import { dayOf } from "../shared/save.js";

/** What one machine gave. */
export interface Given {
  /** Its tokens in the model. */
  readonly tokens: number;
  /** Time in training steps, in milliseconds. */
  readonly trainMs: number;
}

/** What it gave on one day, to whatever run. */
export interface DayGiven extends Given {
  /** As 2026-11-23. */
  readonly day: string;
}

/** What this browser remembers of all runs. */
export interface Book {
  /** The runs that were given to last, the newest last. */
  readonly runs: readonly (Given & { readonly run: string })[];
  /** The days on which something was given, the newest last. */
  readonly days: readonly DayGiven[];
  /** All of it, that of days and runs that are forgotten too. */
  readonly all: Given & { readonly runs: number; readonly days: number };
}

/** Runs and days that are remembered one by one. */
export const [RUNS_MAX, DAYS_MAX] = [40, 31];

const GIVEN = "archipelago.given";
const TRAFFIC = "archipelago.traffic";
const LEARNER = "archipelago.learner";
const NOTHING: Given = { tokens: 0, trainMs: 0 };

/** What was given to `run` before, if this browser remembers. */
export function readGiven(run: string): Given {
  const { tokens, trainMs } = readBook().runs.find((known) => known.run === run) ?? NOTHING;
  return { tokens, trainMs };
}

/** What was given to all runs. */
export function readBook(): Book {
  const kept = (read(GIVEN) ?? {}) as Partial<Record<keyof Book, unknown>>;
  const all = (kept.all ?? {}) as Partial<Record<keyof Book["all"], unknown>>;
  return {
    runs: rowsOf(kept.runs, "run"),
    days: rowsOf(kept.days, "day"),
    all: { ...givenOf(all), runs: number(all.runs), days: number(all.days) },
  };
}

/** Notes what was given to `run`. What is more than was known of is booked for `now`'s day; `null` if nobody knows when. */
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

/** What was booked last, for browsers that keep nothing. */
let booked = { day: "", bytes: 0 };

/** Bytes sent, received and fetched on the day of `now` so far, by all tabs of this browser. */
export function readTraffic(now: Date): number {
  const day = dayOf(now);
  const kept = read(TRAFFIC) as { day?: unknown; bytes?: unknown } | null;
  const here = booked.day === day ? booked.bytes : 0;
  return Math.max(here, kept?.day === day ? number(kept.bytes) : 0);
}

/** Books `bytes` more for the day of `now`: what is booked is what was added, so that midnight and other tabs are no matter. */
export function addTraffic(now: Date, bytes: number): void {
  booked = { day: dayOf(now), bytes: readTraffic(now) + bytes };
  keep(TRAFFIC, booked);
}

/** The rows of a list that was kept, each with its name under `key`. */
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
    // No storage, or not ours: nothing is remembered.
    return null;
  }
}

function keep(key: string, value: unknown): void {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // It lasts as long as the page.
  }
}
