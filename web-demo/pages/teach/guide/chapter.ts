/** Types of a chapter: a stage, a prediction, a break, and a finding that is measured in the run. */
import type { Action, Deed, LessonSpec } from "../../shared/lesson.js";
import type { HeldOut, Live } from "../live.js";
import type { Measure } from "./measure.js";

/** An action on an island. */
export interface ToDo {
  readonly island: number;
  readonly deed: Deed;
  readonly factor?: number;
}

/** The break: of islands during the run, or of a setting, which starts the run again. */
export type Break =
  | { readonly kind: "deeds"; readonly label: string; readonly deeds: readonly ToDo[] }
  | { readonly kind: "setting"; readonly label: string; readonly change: Partial<LessonSpec> };

/** Evidence of a chapter's run: measures before and after the break, and losses. */
export interface Evidence {
  readonly before: Measure;
  readonly after: Measure;
  readonly live: Live;
  /** Losses of the run before the change of a setting. */
  readonly heldOutBefore: readonly HeldOut[];
}

/** Traffic in several time slots, in the same unit in all strips of a finding. */
export interface Strip {
  readonly label: string;
  readonly bars: readonly number[];
}

/** The answer that the run gave, and a description with its numbers. */
export interface Finding {
  readonly answer: number;
  readonly text: string;
  /** Lengths to draw, 1 for the longest possible. */
  readonly arrows?: readonly { readonly label: string; readonly length: number }[];
  /** Traffic of links over time: bars, and a line at their mean. */
  readonly strips?: readonly Strip[];
}

export interface Chapter {
  /** Name in links. */
  readonly id: string;
  readonly title: string;
  /** Learning goal of the chapter: "Say why …". */
  readonly goal: string;
  /** Time that a class needs, including discussion. */
  readonly minutes: number;
  readonly stage: Partial<LessonSpec>;
  /** Actions that happen by themselves. */
  readonly actions?: readonly Action[];
  readonly speed: number;
  /** The fragment to follow, from 0; all fragments by default. */
  readonly follow?: number;
  readonly text: readonly string[];
  readonly question: string;
  readonly answers: readonly string[];
  /** The answer that its runs nearly always give; the page itself measures the answer in the run. */
  readonly usual: number;
  readonly break: Break;
  /** Virtual time of measurement before and after the break, in milliseconds. */
  readonly beforeMs: number;
  readonly afterMs: number;
  /** Virtual time after the last action that is not measured, in milliseconds, until its consequences show. */
  readonly skipMs?: number;
  /** Derives the finding from the run; nothing in it is fixed beforehand. */
  readonly find: (evidence: Evidence) => Finding;
  /** The lesson to remember. */
  readonly moral: string;
  /** A page with more information. */
  readonly more?: { readonly label: string; readonly href: string };
}

/** Returns the index of the first bound above `value`, or the number of bounds. */
export function bin(value: number, ...bounds: readonly number[]): number {
  const at = bounds.findIndex((bound) => value < bound);
  return at === -1 ? bounds.length : at;
}

/** Returns the last measurement of a series at or before a moment. */
export function measuredBy(course: readonly HeldOut[], atMs: number): HeldOut | null {
  return course.findLast((one) => one.atMs <= atMs) ?? null;
}
