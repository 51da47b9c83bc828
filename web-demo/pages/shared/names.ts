/** Display names of learners. */
import type { LearnerView } from "./api.js";

/** Name of a browser whose visitor gave none. */
export const NAMELESS = "browser";

type Named = Pick<LearnerView, "name" | "learner">;

/** Returns a learner's name, or its number if it has no name. */
export function nameOf({ name, learner }: Named): string {
  if (name === "") return `Learner ${learner}`;
  return name === NAMELESS ? `${name} #${learner}` : name;
}

/** Returns a display name for each learner shown together; learners with the same name also get their numbers. */
export function titlesOf(learners: readonly Named[]): ReadonlyMap<number, string> {
  const times = new Map<string, number>();
  for (const { name } of learners) times.set(name, (times.get(name) ?? 0) + 1);
  return new Map(
    learners.map((learner) => {
      const name = nameOf(learner);
      const isShared = name === learner.name && (times.get(name) ?? 0) > 1;
      return [learner.learner, isShared ? `${name} #${learner.learner}` : name];
    }),
  );
}
