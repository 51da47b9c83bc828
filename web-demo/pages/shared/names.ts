/** What people call learners. */
import type { LearnerView } from "./api.js";

/** What a browser calls itself whose visitor gave no name. */
export const NAMELESS = "browser";

type Named = Pick<LearnerView, "name" | "learner">;

/** Its name, or, as many have none, its number. */
export function nameOf({ name, learner }: Named): string {
  if (name === "") return `Learner ${learner}`;
  return name === NAMELESS ? `${name} #${learner}` : name;
}

/** Its name and its number, where two may have the same name. */
export function titleOf(learner: Named): string {
  const name = nameOf(learner);
  return name === learner.name ? `${name} #${learner.learner}` : name;
}
