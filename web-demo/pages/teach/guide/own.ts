/** Tells whether a run is still its chapter's own: a chapter's question applies to no other run. */
import type { Action, Change, LessonSpec } from "../../shared/lesson.js";
import type { ToDo } from "./chapter.js";

/** Everything that determines a run. */
export interface Plan {
  /** Initial settings. */
  readonly spec: LessonSpec;
  /** Actions. */
  readonly actions: readonly Action[];
  /** Changes of settings during the run. */
  readonly changes: readonly Change[];
}

/** A chapter's or the challenge's own run: no setting changes during it. */
export type Stage = Omit<Plan, "changes">;

/** Whether `run` equals `stage`, with no actions but the chapter's own. */
export function isOwn(run: Plan, stage: Stage): boolean {
  const same = (one: Action, other: Action | undefined) => one.atMs === other?.atMs && isDone(other, one);
  return (
    isSet(run.spec, stage.spec) &&
    run.changes.length === 0 &&
    run.actions.length === stage.actions.length &&
    stage.actions.every((action, at) => same(action, run.actions[at]))
  );
}

/** Whether `spec` is `stage` with `change` alone. Seeds may differ. */
export function isSet(spec: LessonSpec, stage: LessonSpec, change: Partial<LessonSpec> = {}): boolean {
  const expected = { ...stage, ...change };
  return (Object.keys(expected) as (keyof LessonSpec)[]).every((key) => key === "seed" || spec[key] === expected[key]);
}

/** Whether `action` is the one to do. */
export function isDone(action: Action, todo: ToDo): boolean {
  return action.island === todo.island && action.deed === todo.deed && action.factor === (todo.factor ?? 1);
}
