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

/** What each of these learners, which are seen together, is called: those of one name are told apart by number. */
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
