/** What a run's owner does to single learners, in words that are the same for everybody. */
import { duration } from "./format.js";

/** The close code of a learner that the owner dropped. */
export const DROPPED = 4014;

/** "slowed ×4", or nothing at full pace. */
export function slowed(share: number): string {
  if (share >= 1) return "";
  return `slowed ×${Number((1 / share).toPrecision(2))}`;
}

/** What the owner did to a learner, or nothing: "slowed ×4 by the owner", "dropped by the owner, may return in 12 s". */
export function reinOf(learner: { readonly share: number; readonly returnsS: number | null }): string {
  const slow = slowed(learner.share);
  if (learner.returnsS !== null) {
    return `dropped by the owner, may return in ${duration(Math.ceil(learner.returnsS))}${slow && `; ${slow}`}`;
  }
  return slow && `${slow} by the owner`;
}
