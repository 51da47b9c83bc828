/** Curves of a run over time or merged tokens, smoothed or not, and the visible range. */
import type { SeriesView } from "../shared/api.js";

/** The columns of this run or of an earlier one. */
export type Run = Omit<SeriesView, "spanS" | "samples">;

/** A run without points. */
export function emptyRun(): Run {
  return {
    timeS: [],
    trainLoss: [],
    tokensPerS: [],
    participation: [],
    live: [],
    bytesUp: [],
    bytesDown: [],
    tokensMerged: [],
    rounds: [],
    evaluations: [],
  };
}

/** Quantity on the x axis: seconds since the first learner, or tokens merged. */
export type Axis = "time" | "tokens";

/** Source of a curve. */
export interface Source {
  /** Rows of the values: evaluations, or points by default. */
  readonly rows?: "evaluations";
  /** Returns one value for each row. */
  readonly values: (run: Run) => readonly (number | null)[];
}

/** Values by ascending `x`; `null` is a gap. */
export interface Curve {
  readonly x: number[];
  readonly y: (number | null)[];
}

/** The visible part: all, the newest seconds, or a range of the x axis. */
export type Shown = null | { readonly lastS: number } | Range;

export interface Range {
  readonly from: number;
  readonly to: number;
}

/** Smallest zoom range, as a share of the whole. */
const ZOOM_MIN = 1 / 1_000;

/** Time of the last point before the first learner, in seconds, at which charts begin. */
export function startOf({ timeS, live, trainLoss }: Run): number {
  const first = timeS.findIndex((_, at) => (live[at] ?? 0) > 0 || (trainLoss[at] ?? null) !== null);
  return timeS[first === -1 ? timeS.length - 1 : Math.max(0, first - 1)] ?? 0;
}

/**
 * Returns the curve of `source` in `run`. Points before the first learner collapse to the start. Of several values at
 * one position, or after a rollback of the syncer to its snapshot, the newest counts.
 */
export function curveOf(run: Run, source: Source, axis: Axis): Curve {
  const start = startOf(run);
  const of = (time: number, tokens: number) => (axis === "tokens" ? tokens : Math.max(0, time - start));
  const places =
    source.rows === "evaluations"
      ? run.evaluations.map(({ timeS, tokensMerged }) => of(timeS, tokensMerged))
      : run.timeS.map((time, at) => of(time, run.tokensMerged[at] ?? 0));
  const values = source.values(run);
  const [x, y]: [number[], (number | null)[]] = [[], []];
  places.forEach((place, at) => {
    const value = values[at] ?? null;
    if (value === null && place <= (x.at(-1) ?? -1)) return;
    while (x.length > 0 && x.at(-1)! >= place) {
      x.pop();
      y.pop();
    }
    x.push(place);
    y.push(value);
  });
  return { x, y };
}

/**
 * Returns a weighted mean of each value and all before it, with weights of `exp(−distance / reach)`.
 * Gaps stay gaps; a `reach` of 0 changes nothing.
 */
export function smoothed({ x, y }: Curve, reach: number): Curve {
  if (reach <= 0) return { x, y };
  let [sum, weight, last] = [0, 0, 0];
  const means = y.map((value, at) => {
    if (value === null) return null;
    const kept = Math.exp((last - x[at]!) / reach);
    last = x[at]!;
    sum = sum * kept + value;
    weight = weight * kept + 1;
    return sum / weight;
  });
  return { x, y: means };
}

/** Returns the range of `run` on the x axis. */
export function wholeOf(run: Run, axis: Axis): Range {
  const { x } = curveOf(run, { values: ({ live }) => live }, axis);
  return { from: x[0] ?? 0, to: x.at(-1) ?? 0 };
}

/** Returns the range that is `shown`, or `null` for the whole. */
export function rangeOf(shown: Shown, run: Run, axis: Axis): Range | null {
  if (shown === null || "from" in shown) return shown;
  const since = (run.timeS.at(-1) ?? 0) - shown.lastS;
  if (since <= startOf(run)) return null;
  const { to } = wholeOf(run, axis);
  const row = run.timeS.findIndex((time) => time >= since);
  const from = axis === "time" ? since - startOf(run) : (run.tokensMerged[row] ?? 0);
  // Before the first merge there is no such range of tokens.
  return from < to ? { from, to } : null;
}

/**
 * Scales `range` by `factor` around `about`, then moves it by `steps` of its width. The result stays within `whole`,
 * and is `null` if it covers the whole.
 */
export function moved(
  range: Range,
  whole: Range,
  { factor = 1, steps = 0, about = (range.from + range.to) / 2 },
): Range | null {
  const [old, all] = [range.to - range.from, whole.to - whole.from];
  const width = Math.max(all * ZOOM_MIN, old * factor);
  if (all <= 0 || old <= 0 || width >= all) return null;
  const wanted = about - ((about - range.from) / old) * width + steps * width;
  const from = Math.min(whole.to - width, Math.max(whole.from, wanted));
  return { from, to: from + width };
}

/** Growth per second of a cumulative column, `[points]`; `null` for the first. */
export function perSecond(timeS: readonly number[], total: readonly number[]): (number | null)[] {
  return total.map((value, index) => {
    const before = total[index - 1];
    const seconds = (timeS[index] ?? 0) - (timeS[index - 1] ?? 0);
    return before === undefined || seconds <= 0 ? null : Math.max(0, value - before) / seconds;
  });
}
