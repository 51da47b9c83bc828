/** Words for an owner's treatment of single learners, the same on all pages. */
import type { LearnerView, Trust } from "./api.js";
import { duration } from "./format.js";

/** Close code of a learner that the owner dropped. */
export const DROPPED = 4014;

/** Returns "slowed ×4", or an empty string at full pace. */
export function slowed(share: number): string {
  if (share >= 1) return "";
  return `slowed ×${Number((1 / share).toPrecision(2))}`;
}

/** Returns the notes on a learner's treatment. */
export interface Treated {
  readonly share: number;
  readonly returnsS: number | null;
  readonly trust: Trust;
}

/**
 * Returns the action of the owner or the run against a learner, or "": "slowed ×4 by the owner", "dropped by the
 * owner, may return in 12 s", "sent away for harm, may return in 9 min".
 */
export function reinOf(learner: Treated): string {
  const slow = slowed(learner.share);
  const also = slow && `; ${slow}`;
  const returns = learner.returnsS === null ? null : duration(Math.ceil(learner.returnsS));
  if (learner.trust === "out") {
    return `sent away for harm, may return ${returns === null ? "when the owner lets it" : `in ${returns}`}${also}`;
  }
  if (returns !== null) return `dropped by the owner, may return in ${returns}${also}`;
  return slow && `${slow} by the owner`;
}

/** Describes the run's trust in a learner, in a sentence or two. */
export function trustOf({ trust, doubt }: Pick<LearnerView, "trust" | "doubt">): string {
  switch (trust) {
    case "probation":
      return "On probation: its updates count little until it has taken part for a while.";
    case "trusted":
      return "Trusted: its updates count in full.";
    case "suspect":
      if (doubt !== null)
        return `Suspect: it does not seem to train, so its updates do not count until it does. ${doubt}`;
      return "Suspect: its updates made the model worse once, and were rolled back. It is on probation again.";
    case "out":
      return "Out: its updates made the model worse. None is accepted until it is readmitted.";
  }
}
