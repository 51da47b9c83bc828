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

/** What was carried in each of some slots of time, in the same unit in all strips of a finding. */
export interface Strip {
  readonly label: string;
  readonly bars: readonly number[];
}

/** Which of the answers the run gave, and what was seen, with its numbers. */
export interface Finding {
  readonly answer: number;
  readonly text: string;
  /** Lengths that are seen better than said, 1 for the longest that there is room for. */
  readonly arrows?: readonly { readonly label: string; readonly length: number }[];
  /** What links had to carry over time: bars, and a line at their mean. */
  readonly strips?: readonly Strip[];
}

export interface Chapter {
  /** Its name in links. */
  readonly id: string;
  readonly title: string;
  /** What somebody can do who was through it: "Say why …". */
  readonly goal: string;
  /** Time that a class takes for it, talk included. */
  readonly minutes: number;
  readonly stage: Partial<LessonSpec>;
  /** What happens by itself. */
  readonly actions?: readonly Action[];
  readonly speed: number;
  /** The fragment to follow, from 0; all, if it names none. */
  readonly follow?: number;
  readonly text: readonly string[];
  readonly question: string;
  readonly answers: readonly string[];
  /** Which of them its runs give, with hardly an exception; the page itself reads it off the run. */
  readonly usual: number;
  readonly break: Break;
  /** Virtual time that is watched before the break, and after it, in milliseconds. */
  readonly beforeMs: number;
  readonly afterMs: number;
  /** Virtual time after the last deed that is not measured, in milliseconds: what it leads to takes so long to come about. */
  readonly skipMs?: number;
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

/** The last measurement of a course at a moment. */
export function measuredBy(course: readonly HeldOut[], atMs: number): HeldOut | null {
  return course.findLast((one) => one.atMs <= atMs) ?? null;
}
