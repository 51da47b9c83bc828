/** What a chapter is: a stage, a prediction to make, a thing to break, and what is read off the run afterwards. */
import type { Action, Deed, LessonSpec } from "../../shared/lesson.js";
import type { HeldOut, Live } from "../live.js";
import type { Measure } from "./measure.js";

/** Something to do to an island. */
export interface ToDo {
  readonly island: number;
  readonly deed: Deed;
  readonly factor?: number;
}

/** The thing to break: islands, while the run goes on, or a setting, which begins it anew. */
export type Break =
  | { readonly kind: "deeds"; readonly label: string; readonly deeds: readonly ToDo[] }
  | { readonly kind: "setting"; readonly label: string; readonly change: Partial<LessonSpec> };

/** What a chapter's run showed: before, after, and its losses. */
export interface Evidence {
  readonly before: Measure;
  readonly after: Measure;
  readonly live: Live;
  /** Losses of the run before a setting was changed. */
  readonly heldOutBefore: readonly HeldOut[];
}

/** Which of the answers the run gave, and what was seen, with its numbers. */
export interface Finding {
  readonly answer: number;
  readonly text: string;
}

export interface Chapter {
  /** Its name in links. */
  readonly id: string;
  readonly title: string;
  readonly stage: Partial<LessonSpec>;
  /** What happens by itself. */
  readonly actions?: readonly Action[];
  readonly speed: number;
  /** The fragment to follow, from 0; all, if it names none. */
  readonly follow?: number;
  readonly text: readonly string[];
  readonly question: string;
  readonly answers: readonly string[];
  readonly break: Break;
  /** Virtual time that is watched before the break, and after it, in milliseconds. */
  readonly beforeMs: number;
  readonly afterMs: number;
  /** Reads the finding off the run; nothing in it is known beforehand. */
  readonly find: (evidence: Evidence) => Finding;
  /** What to take along. */
  readonly moral: string;
  /** The page that tells more. */
  readonly more?: { readonly label: string; readonly href: string };
}

/** The number of the first bound that `value` does not reach; the number of bounds if it reaches all. */
export function bin(value: number, ...bounds: readonly number[]): number {
  const at = bounds.findIndex((bound) => value < bound);
  return at === -1 ? bounds.length : at;
}

/** The last loss of a course at a moment. */
export function lossAt(course: readonly HeldOut[], atMs: number): number | null {
  return course.findLast((one) => one.atMs <= atMs)?.loss ?? null;
}
