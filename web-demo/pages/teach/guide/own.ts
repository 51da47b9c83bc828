/** Whether a run is still its chapter's own: of any other run the chapter's question is not asked. */
import type { Action, Change, LessonSpec } from "../../shared/lesson.js";
import type { ToDo } from "./chapter.js";

/** What decides a run. */
export interface Plan {
  /** How it begins. */
  readonly spec: LessonSpec;
  /** What is done to it. */
  readonly actions: readonly Action[];
  /** Settings that change while it goes on. */
  readonly changes: readonly Change[];
}

/** What a chapter's own run is, or the challenge's: no setting of it changes. */
export type Stage = Omit<Plan, "changes">;

/** Whether `run` is what `stage` makes it, with nothing done to it but what the chapter does by itself. */
export function isOwn(run: Plan, stage: Stage): boolean {
  const same = (one: Action, other: Action | undefined) => one.atMs === other?.atMs && isDone(other, one);
  return (
    isSet(run.spec, stage.spec) &&
    run.changes.length === 0 &&
    run.actions.length === stage.actions.length &&
    stage.actions.every((action, at) => same(action, run.actions[at]))
  );
}

/** Whether `spec` is `stage` with `change`, and nothing else changed. One seed is as good as another. */
export function isSet(spec: LessonSpec, stage: LessonSpec, change: Partial<LessonSpec> = {}): boolean {
  const expected = { ...stage, ...change };
  return (Object.keys(expected) as (keyof LessonSpec)[]).every((key) => key === "seed" || spec[key] === expected[key]);
}

/** Whether `action` does what is to do. */
export function isDone(action: Action, todo: ToDo): boolean {
  return action.island === todo.island && action.deed === todo.deed && action.factor === (todo.factor ?? 1);
}
