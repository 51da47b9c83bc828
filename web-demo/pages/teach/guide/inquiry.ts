/** What a chapter asks of its run: when that has been measured for long enough, broken as asked for, and has answered. */
import type { Action, Frame, LessonSpec, TwinFrame } from "../../shared/lesson.js";
import type { HeldOut, Live } from "../live.js";
import type { Chapter, Finding, ToDo } from "./chapter.js";
import { type Measure, Watch } from "./measure.js";
import { isDone, isOwn, isSet, type Plan, type Stage } from "./own.js";
import { type Breach, NOTHING, type Stretch, type Watched } from "./watched.js";

/** A run is measured once this many rounds are merged, or so much time is over: before, islands fetch the model. */
const SETTLED = { merges: 3, ms: 4_000 } as const;

export type Phase =
  | { readonly phase: "before" }
  /** It is not the chapter's run, or not any more: nothing is measured. */
  | { readonly phase: "changed" }
  /** It is being broken, by deeds of these moments; `left` is still to do. */
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
  /** What the chapter's own run is. */
  readonly #stage: Stage;
  #watch = new Watch(0);
  /** The run has settled in, and is measured since. */
  #settled = false;
  /** The run that begins next is this chapter's, broken: its stage was not set anew. */
  #breaking = false;
  /** When this run was broken, and what of it has been measured to its end. */
  #breaches: readonly Breach[] = [];
  #ended: readonly Stretch[] = [];

  constructor(chapter: Chapter, stage: Stage) {
    this.chapter = chapter;
    this.#stage = stage;
  }

  /** A run begins. */
  began(run: Plan): void {
    this.#watch = new Watch(run.spec.islands);
    this.#settled = false;
    this.#breaches = this.#breaking ? [{ atMs: 0, island: null }] : [];
    this.#ended = [];
    const isAsked = isOwn(run, this.#stage);
    // What was found stays while somebody tries what it says: that is another run, and no longer the question.
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

  /** Somebody did something to the run; perhaps it was what the chapter asks for. Anything else makes it another run. */
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

  /** A setting changed while the run goes on: then it is another one. */
  changed(): void {
    if (this.phase.phase !== "found") this.phase = { phase: "changed" };
  }

  /**
   * The run goes on while it is being broken: what was measured ends with the first deed, and begins anew with the last,
   * or once its consequences have come about.
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

  /** The setting that the chapter asks for is about to be changed. */
  changing(heldOutBefore: readonly HeldOut[]): void {
    this.#breaking = true;
    this.phase = { phase: "after", before: this.#watch.cut(), heldOutBefore };
  }

  /** A stretch has been measured for long enough. */
  #end(of: Stretch["of"], { fromMs, untilMs }: Measure): void {
    this.#ended = [...this.#ended, { of, fromMs, untilMs, dueMs: this.#dueMs(of) }];
  }

  #dueMs(of: Stretch["of"]): number {
    return of === "before" ? this.chapter.beforeMs : this.chapter.afterMs;
  }

  /** What the pictures mark. */
  get watched(): Watched {
    const { phase } = this.phase;
    if (phase === "changed") return NOTHING;
    const isOpen = this.#settled && (phase === "before" || phase === "after");
    if (!isOpen) return { breaches: this.#breaches, stretches: this.#ended };
    const open: Stretch = { of: phase, fromMs: this.#watch.now.fromMs, untilMs: null, dueMs: this.#dueMs(phase) };
    return { breaches: this.#breaches, stretches: [...this.#ended, open] };
  }

  /** Whether the chapter's stage is not what it was: a setting was changed, as it asked for. */
  get isRebuilt(): boolean {
    return this.chapter.break.kind === "setting" && (this.phase.phase === "after" || this.phase.phase === "found");
  }

  /** Whether these settings are the ones that the chapter asks for next. */
  asksFor(spec: LessonSpec): boolean {
    const todo = this.chapter.break;
    if (todo.kind !== "setting" || this.phase.phase !== "before") return false;
    return this.isWarm && isSet(spec, this.#stage.spec, todo.change);
  }

  /** Whether enough was measured of the undisturbed run. */
  get isWarm(): boolean {
    return this.#settled && this.measuredMs >= this.chapter.beforeMs;
  }

  /** Virtual time of the stretch that is measured, in milliseconds; 0 before the run has settled in. */
  get measuredMs(): number {
    const { now } = this.#watch;
    return this.#settled && this.phase.phase !== "breaking" ? now.untilMs - now.fromMs : 0;
  }
}
