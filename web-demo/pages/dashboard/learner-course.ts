/** Speed of each learner since this page was opened. */
import type { LearnerView } from "../shared/api.js";
import { count } from "../shared/format.js";
import { Means } from "../shared/means.js";

/** Limit of stored series; the oldest are dropped. */
const LEARNERS_MAX = 200;

/** Speed series of all learners seen on this page. */
export class LearnerCourses {
  readonly #speeds = new Map<number, Means>();

  /** Takes the learners' current state; an absent learner has speed 0. */
  take(learners: readonly LearnerView[]): void {
    for (const { learner, state, tokensPerS } of learners) {
      const speeds = this.#speeds.get(learner) ?? new Means();
      speeds.push(state === null ? 0 : tokensPerS);
      this.#speeds.set(learner, speeds);
      const [first] = this.#speeds.keys();
      if (this.#speeds.size > LEARNERS_MAX && first !== undefined) this.#speeds.delete(first);
    }
  }

  /** Returns a learner's speeds, in tokens per second. */
  of(learner: number): Means {
    return this.#speeds.get(learner) ?? new Means();
  }
}

/** Describes the series in words. */
export function courseOf({ all, last }: Means): string {
  if (last === undefined) return "Its speed is not known yet.";
  const most = all.reduce((most, one) => Math.max(most, one), last);
  return `Its speed since this page was opened: ${count(last)} tokens a second at the end, ${count(most)} at most.`;
}
