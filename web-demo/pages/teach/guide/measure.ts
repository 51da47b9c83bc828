/** What was measured over a stretch of a run: the chapters compare one before something broke with one after. */
import type { Frame, Mark, TwinFrame } from "../../shared/lesson.js";

/** Sums over a stretch. */
export interface Measure {
  readonly fromMs: number;
  readonly untilMs: number;
  /** Rounds that were merged, answers in them, and the time from their launches to their merges in all. */
  readonly merges: number;
  readonly answers: number;
  /** Merges of several answers, and the lengths of what came of them beside the mean length of what was in them, added up. */
  readonly joint: number;
  readonly lengths: number;
  readonly collectMs: number;
  /** Share of each island in all merges together: as many in all as there were merges. */
  readonly shares: readonly number[];
  /** Answers that came when no round on their fragment collected, and waited for the next. */
  readonly early: number;
  readonly refused: number;
  /** Updates sent, their bytes, the largest of them, and bytes down. */
  readonly updates: number;
  readonly updateBytes: number;
  readonly largestBytes: number;
  readonly downBytes: number;
  /** Bytes of the updates that were sent in each slot of the stretch. */
  readonly sent: readonly number[];
  /** Steps of each island, and of the twin. */
  readonly steps: readonly number[];
  readonly tokens: number;
  readonly tokensMerged: number;
  readonly twinSteps: number;
  readonly lossFrom: number | null;
  readonly lossUntil: number | null;
  /** When islands came in: fetched the model, and were merged for the first time after it. */
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

/** Measures from when it was made, or cut last. */
export class Watch {
  #sums: Sums;
  /** The stretch before: the twin has a Worker of its own, and what it did then may be heard later. */
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
        // Merges from before it was back do not count.
        sums.mergedMs[mark.island] = null;
        return;
      case "parcel":
        if (mark.what === "update") {
          sums.updates += 1;
          sums.updateBytes += mark.bytes;
          sums.largestBytes = Math.max(sums.largestBytes, mark.bytes);
          // What was sent just before the stretch began is told in it.
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

/** Length of a stretch in seconds. */
export function seconds(measure: Measure): number {
  return (measure.untilMs - measure.fromMs) / 1_000;
}

/** `value` for each second of a stretch. */
export function perSecond(measure: Measure, value: number): number {
  return seconds(measure) > 0 ? value / seconds(measure) : 0;
}

/** Answers in a merge, on average. */
export function answersPerMerge(measure: Measure): number {
  return measure.merges > 0 ? measure.answers / measure.merges : 0;
}

/** Length of what came of merges of several answers, beside the mean length of what was in them; `null` without any. */
export function lengthOfMerged(measure: Measure): number | null {
  return measure.joint > 0 ? measure.lengths / measure.joint : null;
}

/** Bytes of an update, on average. */
export function bytesPerUpdate(measure: Measure): number {
  return measure.updates > 0 ? measure.updateBytes / measure.updates : 0;
}
