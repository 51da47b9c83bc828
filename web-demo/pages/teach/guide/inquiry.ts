/** State of a chapter's inquiry: measuring, breaking as asked, measuring again, and the finding. */
import type { Action, Frame, LessonSpec, TwinFrame } from "../../shared/lesson.js";
import type { HeldOut, Live } from "../live.js";
import type { Chapter, Finding, ToDo } from "./chapter.js";
import { type Measure, Watch } from "./measure.js";
import { isDone, isOwn, isSet, type Plan, type Stage } from "./own.js";
import { type Breach, NOTHING, type Stretch, type Watched } from "./watched.js";

/** Rounds or time until measurement begins: before that, islands fetch the model. */
const SETTLED = { merges: 3, ms: 4_000 } as const;

export type Phase =
  | { readonly phase: "before" }
  /** The run is no longer the chapter's: nothing is measured. */
  | { readonly phase: "changed" }
  /** The break is in progress, with its first and last action at these moments; `left` is still to do. */
  | {
      readonly phase: "breaking";
      readonly fromMs: number;
      readonly untilMs: number;
      readonly left: readonly ToDo[];
      readonly before: Measure | null;
    }
  | { readonly phase: "after"; readonly before: Measure; readonly heldOutBefore: readonly HeldOut[] }
  | { readonly phase: "found"; readonly finding: Finding };

export class Inquiry {
  phase: Phase = { phase: "before" };
  readonly chapter: Chapter;
  /** The chapter's own run. */
  readonly #stage: Stage;
  #watch = new Watch(0);
  /** Whether the run has settled in and is being measured. */
  #settled = false;
  /** Whether the next run is this chapter's with the changed setting, without a new stage. */
  #breaking = false;
  /** Breaks of this run, and completed measurements. */
  #breaches: readonly Breach[] = [];
  #ended: readonly Stretch[] = [];

  constructor(chapter: Chapter, stage: Stage) {
    this.chapter = chapter;
    this.#stage = stage;
  }

  /** Takes a new run. */
  began(run: Plan): void {
    this.#watch = new Watch(run.spec.islands);
    this.#settled = false;
    this.#breaches = this.#breaking ? [{ atMs: 0, island: null }] : [];
    this.#ended = [];
    const isAsked = isOwn(run, this.#stage);
    // A finding stays while the visitor experiments further in other runs.
    if (!this.#breaking && (isAsked || this.phase.phase !== "found"))
      this.phase = { phase: isAsked ? "before" : "changed" };
    this.#breaking = false;
  }

  take(frame: Frame, live: Live): void {
    this.#watch.take(frame);
    const { now: begun } = this.#watch;
    if (!this.#settled && (begun.merges >= SETTLED.merges || begun.untilMs >= SETTLED.ms)) {
      this.#settled = true;
      this.#watch.cut();
    }
    this.#follow(frame.nowMs);
    if (this.phase.phase !== "after" || !this.#settled || this.measuredMs < this.chapter.afterMs) return;
    const { before, heldOutBefore } = this.phase;
    const after = this.#watch.now;
    this.#end("after", after);
    this.phase = { phase: "found", finding: this.chapter.find({ before, after, live, heldOutBefore }) };
  }

  takeTwin(frame: TwinFrame): void {
    this.#watch.takeTwin(frame);
  }

  /** Takes an action. An action other than the chapter's break makes it another run. */
  acted(action: Action): void {
    const { phase } = this;
    if (phase.phase === "found") return;
    const todo = this.chapter.break.kind === "deeds" ? this.chapter.break.deeds : [];
    const due = phase.phase === "breaking" ? phase.left : phase.phase === "before" && this.isWarm ? todo : [];
    const left = due.filter((one) => !isDone(action, one));
    if (left.length === due.length) return this.changed();
    this.#breaches = [...this.#breaches, { atMs: action.atMs, island: action.island }];
    if (phase.phase === "breaking") this.phase = { ...phase, untilMs: action.atMs, left };
    else this.phase = { phase: "breaking", fromMs: action.atMs, untilMs: action.atMs, left, before: null };
  }

  /** Takes a changed setting, which makes it another run. */
  changed(): void {
    if (this.phase.phase !== "found") this.phase = { phase: "changed" };
  }

  /**
   * Follows the break of a running run. The first measurement ends with the first action; the second begins after the
   * last action, or once its consequences show.
   */
  #follow(nowMs: number): void {
    const { phase } = this;
    if (phase.phase !== "breaking" || nowMs < phase.fromMs) return;
    const isOver = phase.left.length === 0 && nowMs >= phase.untilMs + (this.chapter.skipMs ?? 0);
    const before = phase.before ?? this.#watch.cut();
    if (!phase.before) this.#end("before", before);
    if (isOver && (phase.before || this.chapter.skipMs)) this.#watch.cut();
    this.phase = isOver ? { phase: "after", before, heldOutBefore: [] } : { ...phase, before };
  }

  /** Prepares for the change of the setting that the chapter asks for. */
  changing(heldOutBefore: readonly HeldOut[]): void {
    this.#breaking = true;
    this.phase = { phase: "after", before: this.#watch.cut(), heldOutBefore };
  }

  /** Records a completed measurement. */
  #end(of: Stretch["of"], { fromMs, untilMs }: Measure): void {
    this.#ended = [...this.#ended, { of, fromMs, untilMs, dueMs: this.#dueMs(of) }];
  }

  #dueMs(of: Stretch["of"]): number {
    return of === "before" ? this.chapter.beforeMs : this.chapter.afterMs;
  }

  /** Marks for the pictures. */
  get watched(): Watched {
    const { phase } = this.phase;
    if (phase === "changed") return NOTHING;
    const isOpen = this.#settled && (phase === "before" || phase === "after");
    if (!isOpen) return { breaches: this.#breaches, stretches: this.#ended };
    const open: Stretch = { of: phase, fromMs: this.#watch.now.fromMs, untilMs: null, dueMs: this.#dueMs(phase) };
    return { breaches: this.#breaches, stretches: [...this.#ended, open] };
  }

  /** Whether the stage has the changed setting that the chapter asked for. */
  get isRebuilt(): boolean {
    return this.chapter.break.kind === "setting" && (this.phase.phase === "after" || this.phase.phase === "found");
  }

  /** Whether these settings have the change that the chapter asks for next. */
  asksFor(spec: LessonSpec): boolean {
    const todo = this.chapter.break;
    if (todo.kind !== "setting" || this.phase.phase !== "before") return false;
    return this.isWarm && isSet(spec, this.#stage.spec, todo.change);
  }

  /** Whether the undisturbed run was measured long enough. */
  get isWarm(): boolean {
    return this.#settled && this.measuredMs >= this.chapter.beforeMs;
  }

  /** Virtual time of the current measurement, in milliseconds; 0 before the run has settled in. */
  get measuredMs(): number {
    const { now } = this.#watch;
    return this.#settled && this.phase.phase !== "breaking" ? now.untilMs - now.fromMs : 0;
  }
}
