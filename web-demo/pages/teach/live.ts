/** Current state of the run, and its series so far. */
import type { Action, Frame, LessonSpec, TwinFrame } from "../shared/lesson.js";
import { Course, type HeldOut } from "./course.js";
import { Goodput } from "./goodput.js";
import { Standstill } from "./standstill.js";

export type { HeldOut } from "./course.js";

export class Live {
  frame: Frame | null = null;
  twin: TwinFrame | null = null;
  /** Start of the twin's current standstill, or `null`. */
  stalledSinceMs: number | null = null;
  /** Duration of its earlier standstills. */
  stalledMs = 0;
  /** The current settings. */
  spec: LessonSpec;
  readonly #course = new Course();
  readonly #twinCourse = new Course();
  readonly #idle = new Standstill();
  readonly #goodput: Goodput;

  constructor(spec: LessonSpec) {
    this.spec = spec;
    this.#goodput = new Goodput(spec);
  }

  /** `actions` are all actions on the run. */
  take(frame: Frame, actions: readonly Action[]): void {
    this.frame = frame;
    for (const mark of frame.marks) if (mark.kind === "heldOut") this.#course.push(mark);
    this.#idle.take(frame, actions);
    this.#goodput.take(frame);
  }

  takeTwin(twin: TwinFrame): void {
    // An island that died at this moment is missing already, and stops all others from now on.
    let sinceMs = twin.stalledBy.length > 0 ? twin.nowMs : null;
    for (const mark of twin.marks) {
      if (mark.kind === "heldOut") this.#twinCourse.push(mark);
      if (mark.kind !== "stall") continue;
      if (mark.untilMs === null) sinceMs = mark.fromMs;
      else this.stalledMs += mark.untilMs - mark.fromMs;
    }
    this.stalledSinceMs = sinceMs;
    this.#goodput.takeTwin(twin);
    this.twin = twin;
  }

  /** Held-out losses of the decoupled run. */
  get heldOut(): readonly HeldOut[] {
    return this.#course.all;
  }

  /** Held-out losses of its twin. */
  get twinHeldOut(): readonly HeldOut[] {
    return this.#twinCourse.all;
  }

  /** Goodput of the decoupled run, 0 to 1. */
  get goodput(): number | null {
    return this.#goodput.ours;
  }

  /** Goodput of its twin, 0 to 1. */
  get twinGoodput(): number | null {
    return this.twin && this.#goodput.of(this.twin);
  }

  /** Duration of the twin's current standstill. */
  get standstillMs(): number {
    return this.stalledSinceMs === null ? 0 : Math.max(0, (this.twin?.nowMs ?? 0) - this.stalledSinceMs);
  }

  /** Total time in which no island of the decoupled run trained. */
  get idleMs(): number {
    return this.#idle.ms;
  }
}
