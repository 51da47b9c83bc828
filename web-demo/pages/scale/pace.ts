/** How fast the picture of failures goes: so that one comes every few seconds, whatever the settings. */

import { count } from "../shared/format.js";
import { phrase } from "../words/phrase.js";

/** Failures of the picture come so far apart at most, in seconds. */
const GAP_S_MAX = 4;
/** And at least. */
const GAP_S_MIN = 0.4;

/** Mean time between two failures, as it is and as it is shown. */
export interface Pace {
  /** Between two in the picture, in seconds. */
  readonly shownS: number;
  /** The picture's time over the machine's. */
  readonly factor: number;
  readonly said: string;
}

/** The pace for a machine in which something breaks every `everyS` seconds. */
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
