/**
 * When things are drawn on the sea. A parcel that takes 30 ms could not be followed, so each is drawn on its way for a
 * moment of the onlooker's at least, and what follows from it is drawn that much later: everything keeps its order.
 */
import type { Parcel } from "../timeline/history.js";

/** A parcel can be seen on its way for so long at least, in milliseconds of the wall clock… */
const HOP_MS = 550;
/** …and in the first round, which is shown slowly, for so long. */
const SLOW_HOP_MS = 1_600;

/** From when until when something is drawn on its way, in virtual milliseconds. */
export interface Leg {
  readonly fromMs: number;
  readonly untilMs: number;
}

/** The least time that a parcel is drawn on its way, in virtual milliseconds, at this speed. */
export function hopMsOf(speed: number, slowly: boolean): number {
  return (slowly ? SLOW_HOP_MS : HOP_MS) * Math.min(speed, 4);
}

/** When a parcel is drawn on its way. */
export function legOf(parcel: Parcel, hopMs: number): Leg {
  const lasts = Math.max(parcel.untilMs - parcel.fromMs, hopMs);
  const fromMs = parcel.up ? parcel.fromMs : syncerMs(parcel.fromMs, hopMs);
  return { fromMs, untilMs: fromMs + lasts };
}

/** When something is drawn that the syncer did at `atMs`: after what was sent to it has come in. */
export function syncerMs(atMs: number, hopMs: number): number {
  return atMs + hopMs;
}

/** When something is drawn that an island did with what it got: after the syncer's parcel has come in. */
export function appliedMs(atMs: number, hopMs: number): number {
  return atMs + 2 * hopMs;
}
