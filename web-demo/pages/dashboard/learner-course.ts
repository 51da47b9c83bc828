/** How fast each learner has been since this page was opened. */
import type { LearnerView } from "../shared/api.js";
import { count } from "../shared/format.js";
import { Means } from "../shared/means.js";

/** Learners whose course is kept; of more, those that came first are forgotten. */
const LEARNERS_MAX = 200;

/** The courses of all learners that this page has heard of. */
export class LearnerCourses {
  readonly #speeds = new Map<number, Means>();

  /** Takes in what learners do now; one that is away does nothing. */
  take(learners: readonly LearnerView[]): void {
    for (const { learner, state, tokensPerS } of learners) {
      const speeds = this.#speeds.get(learner) ?? new Means();
      speeds.push(state === null ? 0 : tokensPerS);
      this.#speeds.set(learner, speeds);
      const [first] = this.#speeds.keys();
      if (this.#speeds.size > LEARNERS_MAX && first !== undefined) this.#speeds.delete(first);
    }
  }

  /** The speeds of one, in tokens a second. */
  of(learner: number): Means {
    return this.#speeds.get(learner) ?? new Means();
  }
}

/** The same in words. */
export function courseOf({ all, last }: Means): string {
  if (last === undefined) return "Its speed is not known yet.";
  const most = all.reduce((most, one) => Math.max(most, one), last);
  return `Its speed since this page was opened: ${count(last)} tokens a second at the end, ${count(most)} at most.`;
}
