/**
 * Goodput: trained tokens, as a share of those that the islands could train at full speed without a pause. An island
 * counts from its first step: the initial download is not the run's fault.
 */
import type { Frame, LessonSpec, TwinFrame } from "../shared/lesson.js";

/** An island's first step: its time, and the duration of a step then, in milliseconds. */
interface Begun {
  readonly atMs: number;
  readonly stepMs: number;
}

export class Goodput {
  readonly #spec: LessonSpec;
  readonly #begun: (Begun | undefined)[] = [];
  #twinBegunMs: number | undefined;
  #frame: Frame | undefined;

  constructor(spec: LessonSpec) {
    this.#spec = spec;
  }

  take(frame: Frame): void {
    this.#frame = frame;
    for (const mark of frame.marks) {
      const island = mark.kind === "step" && frame.islands[mark.island];
      if (island) this.#begun[mark.island] ??= { atMs: mark.fromMs, stepMs: island.stepMs };
    }
  }

  /** The lock-step run has the same islands, and steps of its own. */
  takeTwin(twin: TwinFrame): void {
    for (const mark of twin.marks) if (mark.kind === "step") this.#twinBegunMs ??= mark.fromMs;
  }

  /** Goodput of the decoupled run, 0 to 1; `null` before its first step. */
  get ours(): number | null {
    const frame = this.#frame;
    if (!frame) return null;
    const possible = this.#possible(frame.nowMs, (at) => {
      const { state, stopped } = frame.islands[at]!;
      // An island that disappears before its first step counts as missing too.
      const isGone = state === "dead" || stopped !== null;
      return this.#begun[at]?.atMs ?? (isGone ? 0 : frame.nowMs);
    });
    return share(frame.run.tokensTrained, possible);
  }

  /** Goodput of the lock-step run, 0 to 1; `null` before its first step. */
  of(twin: TwinFrame): number | null {
    const begunMs = this.#twinBegunMs;
    return begunMs === undefined
      ? null
      : share(
          twin.tokens,
          this.#possible(twin.nowMs, () => begunMs),
        );
  }

  /** Returns the tokens that all islands could have trained until now, each from the time that `sinceMs` returns. */
  #possible(nowMs: number, sinceMs: (at: number) => number): number {
    const frame = this.#frame;
    const trained = frame?.islands.find(({ steps }) => steps > 0);
    if (!frame || !trained) return 0;
    const { islands: count, late, lateMs } = this.#spec;
    const steps = frame.islands.map(({ stepMs, possibleSteps }, at) => {
      const comesMs = at >= count - late ? lateMs : 0;
      // Missed steps at the beginning count with the step duration at that time.
      const missed = Math.max(0, sinceMs(at) - comesMs) / (this.#begun[at]?.stepMs ?? stepMs);
      const since = Math.max(0, nowMs - comesMs) - Math.max(0, frame.nowMs - comesMs);
      return Math.max(0, possibleSteps + since / stepMs - missed);
    });
    return (trained.tokens / trained.steps) * steps.reduce((sum, one) => sum + one, 0);
  }
}

function share(tokens: number, possible: number): number | null {
  return possible > 0 ? Math.min(1, tokens / possible) : null;
}
