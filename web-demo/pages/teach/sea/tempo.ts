/**
 * Drawn times on the sea. A parcel of 30 ms would be invisible, so each is drawn for a minimum of wall time, and
 * its consequences are drawn that much later: the order of events stays.
 */
import type { Parcel } from "../timeline/history.js";

/** Least visible duration of a trip, in milliseconds of the wall clock. */
const HOP_MS = 550;
/** The same in the first round, which is shown slowly. */
const SLOW_HOP_MS = 1_600;

/** Drawn start and end of a trip, in virtual milliseconds. */
export interface Leg {
  readonly fromMs: number;
  readonly untilMs: number;
}

/** Returns the least drawn duration of a trip at this speed, in virtual milliseconds. */
export function hopMsOf(speed: number, slowly: boolean): number {
  return (slowly ? SLOW_HOP_MS : HOP_MS) * Math.min(speed, 4);
}

/** Returns the drawn start and end of a parcel's trip. */
export function legOf(parcel: Parcel, hopMs: number): Leg {
  const lasts = Math.max(parcel.untilMs - parcel.fromMs, hopMs);
  const fromMs = parcel.up ? parcel.fromMs : syncerMs(parcel.fromMs, hopMs);
  return { fromMs, untilMs: fromMs + lasts };
}

/** Returns the drawn time of a syncer's event at `atMs`: after the parcels sent to it have arrived. */
export function syncerMs(atMs: number, hopMs: number): number {
  return atMs + hopMs;
}

/** Returns the drawn time of an island's reaction: after the syncer's parcel has arrived. */
export function appliedMs(atMs: number, hopMs: number): number {
  return atMs + 2 * hopMs;
}
