/** Messages between the page and its Workers. One Worker runs the lesson, one its twin in lock-step. */
import type { Action, Change, Frame, LessonSpec, TwinFrame } from "../../shared/lesson.js";

/** The run of a Worker. */
export type Kind = "lesson" | "twin";

/** A run from its seed. `run` is its number: answers to older runs are dropped. */
export interface Start {
  readonly ask: "start";
  readonly run: number;
  readonly spec: LessonSpec;
  readonly actions: readonly Action[];
  readonly changes: readonly Change[];
}

/** Page to Worker. */
export type Ask =
  | { readonly ask: "be"; readonly kind: Kind }
  | Start
  | { readonly ask: "advance"; readonly toMs: number }
  | { readonly ask: "act"; readonly action: Action }
  | { readonly ask: "change"; readonly change: Change }
  /** Advances to the next event that is more than a step, but not beyond `untilMs`. */
  | { readonly ask: "step"; readonly untilMs: number }
  | { readonly ask: "sample"; readonly bytes: number }
  | { readonly ask: "digest" };

/** Worker to page. */
export type Tell =
  | { readonly tell: "ready"; readonly defaults: LessonSpec }
  | { readonly tell: "frame"; readonly run: number; readonly frame: Frame | TwinFrame }
  | { readonly tell: "stepped"; readonly run: number; readonly toMs: number }
  | { readonly tell: "sample"; readonly run: number; readonly atMs: number; readonly text: string }
  | { readonly tell: "digest"; readonly run: number; readonly atMs: number; readonly digest: string }
  | { readonly tell: "failed"; readonly why: string };
