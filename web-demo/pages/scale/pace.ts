/** Pace of the failure picture, so that a failure comes every few seconds with any settings. */

import { count } from "../shared/format.js";
import { phrase } from "../words/phrase.js";

/** Longest time between failures in the picture, in seconds. */
const GAP_S_MAX = 4;
/** Shortest time between failures in the picture, in seconds. */
const GAP_S_MIN = 0.4;

/** Mean time between two failures, real and displayed. */
export interface Pace {
  /** Time between two failures in the picture, in seconds. */
  readonly shownS: number;
  /** The picture's time over the machine's. */
  readonly factor: number;
  readonly said: string;
}

/** Returns the pace for a machine with a failure every `everyS` seconds. */
export function paceOf(everyS: number): Pace {
  const factors = [0.01, 0.1, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
  const factor = factors.find((one) => everyS / one <= GAP_S_MAX) ?? 1_000_000;
  const shownS = Math.max(GAP_S_MIN, everyS / factor);
  const said =
    factor === 1
      ? phrase("scale.picture.realTime")
      : factor > 1
        ? phrase("scale.picture.fast", { factor: count(factor) })
        : phrase("scale.picture.slow", { factor: count(1 / factor) });
  return { shownS, factor, said };
}
