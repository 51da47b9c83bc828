/** Time without any training since the first step, by the planned times of steps, so that a run always has the same. */
import type { Action, Frame } from "../shared/lesson.js";

interface Step {
  readonly island: number;
  readonly fromMs: number;
  readonly untilMs: number;
}

export class Standstill {
  /** Total until the last frame. */
  ms = 0;
  /** End of the known time; `null` before the first step. */
  #nowMs: number | null = null;
  /** Steps in progress. */
  #open: Step[] = [];

  /** `actions` give the exact death of an island, which ends its step. */
  take(frame: Frame, actions: readonly Action[]): void {
    const begun = frame.marks.filter((mark) => mark.kind === "step");
    if (this.#nowMs === null && begun.length === 0) return;
    const sinceMs = this.#nowMs ?? Math.min(...begun.map(({ fromMs }) => fromMs));
    const kills = actions.filter(({ deed, atMs }) => deed === "kill" && atMs > sinceMs && atMs <= frame.nowMs);
    const steps = [...this.#open, ...begun].map((step): Step => {
      const kill = kills.find(
        ({ island, atMs }) => island === step.island && atMs >= step.fromMs && atMs < step.untilMs,
      );
      return { island: step.island, fromMs: step.fromMs, untilMs: kill?.atMs ?? step.untilMs };
    });
    let trainedMs = sinceMs;
    for (const { fromMs, untilMs } of steps.toSorted((a, b) => a.fromMs - b.fromMs)) {
      this.ms += Math.max(0, fromMs - trainedMs);
      trainedMs = Math.max(trainedMs, untilMs);
    }
    this.ms += Math.max(0, frame.nowMs - trainedMs);
    this.#open = steps.filter(({ untilMs }) => untilMs > frame.nowMs);
    this.#nowMs = frame.nowMs;
  }
}
