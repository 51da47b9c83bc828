/** What this machine gave to a run, and what it sent, received and fetched today, kept in this browser. */

/** What one machine gave to one run. */
export interface Given {
  /** Its tokens in the model. */
  readonly tokens: number;
  /** Time in training steps, in milliseconds. */
  readonly trainMs: number;
}

const GIVEN = "archipelago.given.";
const TRAFFIC = "archipelago.traffic";

/** What was given to `run` before, if this browser remembers. */
export function readGiven(run: string): Given {
  const kept = read(GIVEN + run) as Partial<Given> | null;
  return { tokens: number(kept?.tokens), trainMs: number(kept?.trainMs) };
}

export function keepGiven(run: string, given: Given): void {
  keep(GIVEN + run, given);
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

function dayOf(now: Date): string {
  return `${now.getFullYear()}-${now.getMonth() + 1}-${now.getDate()}`;
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
