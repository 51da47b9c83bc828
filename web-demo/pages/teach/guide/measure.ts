/** Measures of a stretch of a run: chapters compare a stretch before the break with one after. */
import type { Frame, Mark, TwinFrame } from "../../shared/lesson.js";

/** Sums over a stretch. */
export interface Measure {
  readonly fromMs: number;
  readonly untilMs: number;
  /** Merged rounds, answers in them, and the total time from launch to merge. */
  readonly merges: number;
  readonly answers: number;
  /** Number of merges of several answers, and the sum of their lengths relative to the answers' mean length. */
  readonly joint: number;
  readonly lengths: number;
  readonly collectMs: number;
  /** Sum of each island's merge shares; all islands together have the number of merges. */
  readonly shares: readonly number[];
  /** Answers that arrived while no round of their fragment was collecting, and waited for the next. */
  readonly early: number;
  readonly refused: number;
  /** Number of sent updates, their bytes, the largest update, and bytes down. */
  readonly updates: number;
  readonly updateBytes: number;
  readonly largestBytes: number;
  readonly downBytes: number;
  /** Bytes of updates sent in each slot of the stretch. */
  readonly sent: readonly number[];
  /** Steps of each island, and of the twin. */
  readonly steps: readonly number[];
  readonly tokens: number;
  readonly tokensMerged: number;
  readonly twinSteps: number;
  readonly lossFrom: number | null;
  readonly lossUntil: number | null;
  /** Times at which islands joined with the model, and were first merged after that. */
  readonly liveMs: readonly (number | null)[];
  readonly mergedMs: readonly (number | null)[];
}

/** Length of a slot, in milliseconds. */
export const SLOT_MS = 200;

type Sums = { -readonly [K in keyof Measure]: Measure[K] extends readonly (infer T)[] ? T[] : Measure[K] };

interface Base {
  readonly steps: readonly number[];
  readonly tokens: number;
  readonly tokensMerged: number;
}

/** Measures since its creation or the last cut. */
export class Watch {
  #sums: Sums;
  /** The previous stretch: the twin's Worker may report its events later. */
  #earlier: Sums | null = null;
  #base: Base | null = null;
  #frame: Frame | null = null;
  readonly #launchedMs = new Map<number, number>();

  constructor(islands: number) {
    this.#sums = blank(islands, 0);
  }

  take(frame: Frame): void {
    this.#frame = frame;
    this.#base ??= this.#basis();
    for (const mark of frame.marks) this.#mark(mark);
    const [sums, base] = [this.#sums, this.#base];
    sums.untilMs = frame.nowMs;
    sums.steps = frame.islands.map((island, at) => island.steps - (base.steps[at] ?? 0));
    sums.tokens = frame.run.tokensTrained - base.tokens;
    sums.tokensMerged = frame.run.tokensMerged - base.tokensMerged;
    sums.lossUntil = frame.run.heldOut ?? sums.lossUntil;
    sums.lossFrom ??= frame.run.heldOut;
  }

  takeTwin(twin: TwinFrame): void {
    for (const mark of twin.marks) {
      if (mark.kind !== "step") continue;
      const stretch = [this.#sums, this.#earlier].find((one) => one !== null && mark.untilMs > one.fromMs);
      if (stretch) stretch.twinSteps += 1;
    }
  }

  get now(): Measure {
    return this.#sums;
  }

  /** Ends this stretch and begins another. */
  cut(): Measure {
    const before = this.#sums;
    this.#earlier = before;
    this.#sums = blank(before.shares.length, before.untilMs);
    this.#sums.lossFrom = before.lossUntil;
    this.#base = this.#basis();
    return before;
  }

  #basis(): Base {
    const frame = this.#frame;
    return {
      steps: frame?.islands.map(({ steps }) => steps) ?? [],
      tokens: frame?.run.tokensTrained ?? 0,
      tokensMerged: frame?.run.tokensMerged ?? 0,
    };
  }

  #mark(mark: Mark): void {
    const sums = this.#sums;
    switch (mark.kind) {
      case "launched":
        return void this.#launchedMs.set(mark.round, mark.atMs);
      case "merged":
        sums.merges += 1;
        sums.answers += mark.shares.length;
        if (mark.shares.length > 1) {
          sums.joint += 1;
          sums.lengths += mark.length;
        }
        sums.collectMs += mark.atMs - (this.#launchedMs.get(mark.round) ?? mark.atMs);
        this.#launchedMs.delete(mark.round);
        for (const { island, share } of mark.shares) {
          sums.shares[island] = (sums.shares[island] ?? 0) + share;
          sums.mergedMs[island] ??= mark.atMs;
        }
        return;
      case "abandoned":
        return void this.#launchedMs.delete(mark.round);
      case "answered":
        if (mark.round === null) sums.early += 1;
        return;
      case "refused":
        return void (sums.refused += 1);
      case "live":
        sums.liveMs[mark.island] = mark.atMs;
        // Merges from before its return do not count.
        sums.mergedMs[mark.island] = null;
        return;
      case "parcel":
        if (mark.what === "update") {
          sums.updates += 1;
          sums.updateBytes += mark.bytes;
          sums.largestBytes = Math.max(sums.largestBytes, mark.bytes);
          // The first report of the stretch includes what was sent just before.
          const slot = Math.max(0, Math.floor((mark.fromMs - sums.fromMs) / SLOT_MS));
          while (sums.sent.length <= slot) sums.sent.push(0);
          sums.sent[slot] = (sums.sent[slot] ?? 0) + mark.bytes;
        } else sums.downBytes += mark.bytes;
    }
  }
}

function blank(islands: number, fromMs: number): Sums {
  const zeros = () => Array.from({ length: islands }, () => 0);
  const unknown = () => Array.from({ length: islands }, () => null);
  return {
    fromMs,
    untilMs: fromMs,
    merges: 0,
    answers: 0,
    joint: 0,
    lengths: 0,
    collectMs: 0,
    shares: zeros(),
    early: 0,
    refused: 0,
    updates: 0,
    updateBytes: 0,
    largestBytes: 0,
    downBytes: 0,
    sent: [],
    steps: zeros(),
    tokens: 0,
    tokensMerged: 0,
    twinSteps: 0,
    lossFrom: null,
    lossUntil: null,
    liveMs: unknown(),
    mergedMs: unknown(),
  };
}

/** Returns the length of a stretch in seconds. */
export function seconds(measure: Measure): number {
  return (measure.untilMs - measure.fromMs) / 1_000;
}

/** Returns `value` per second of a stretch. */
export function perSecond(measure: Measure, value: number): number {
  return seconds(measure) > 0 ? value / seconds(measure) : 0;
}

/** Returns the mean number of answers in a merge. */
export function answersPerMerge(measure: Measure): number {
  return measure.merges > 0 ? measure.answers / measure.merges : 0;
}

/** Returns the length of merges of several answers, relative to the answers' mean length; `null` without any. */
export function lengthOfMerged(measure: Measure): number | null {
  return measure.joint > 0 ? measure.lengths / measure.joint : null;
}

/** Returns the mean bytes of an update. */
export function bytesPerUpdate(measure: Measure): number {
  return measure.updates > 0 ? measure.updateBytes / measure.updates : 0;
}
