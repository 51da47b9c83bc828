/** The run on stage: both Workers, the clock, and all actions on the run. */

import type { Action, Change, Deed, Frame, LessonSpec, Setting, TwinFrame } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import type { Plan } from "../guide/own.js";
import { type Stretch, stretchesOf } from "./changes.js";
import { Clock } from "./clock.js";
import type { Ask, Kind, Tell } from "./messages.js";

/** Least advance of one request to the Workers, in milliseconds of the wall clock: each request costs all threads time. */
const ASKED_MS = 33;
/** Bytes of a text sample. */
const SAMPLE_BYTES = 240;

/** Callbacks of the stage. */
export interface Audience {
  /** A new run begins: displays of the old one are cleared. */
  began(): void;
  lesson(frame: Frame): void;
  twin(frame: TwinFrame): void;
  acted(action: Action): void;
  /** A setting changed, and the run continues. */
  changed(): void;
  sampled(atMs: number, text: string): void;
  failed(why: string): void;
}

export class Stage {
  readonly clock = new Clock();
  defaults!: LessonSpec;
  /** Actions on this run, by time. */
  actions: Action[] = [];
  /** Changes of settings during the run, by time. */
  changes: Change[] = [];
  #stretches: Stretch[] = [];
  readonly #audience: Audience;
  readonly #lesson: Worker;
  readonly #twin: Worker;
  readonly #reachedMs: Record<Kind, number> = { lesson: 0, twin: 0 };
  readonly #digests = new Map<Kind, (digest: string) => void>();
  #run = 0;
  #askedMs = 0;
  /** Whether a step is due once the lesson's Worker has reached the last request. */
  #stepWanted = false;
  /** Whether the lesson's Worker looks for the next event, possibly beyond the last request. */
  #stepping = false;
  #postponed: (() => void)[] = [];

  constructor(audience: Audience) {
    this.#audience = audience;
    this.#lesson = this.#worker("lesson");
    this.#twin = this.#worker("twin");
  }

  /** Resolves once both Workers can run. */
  ready(): Promise<void> {
    return Promise.all([this.#isReady.lesson, this.#isReady.twin]).then(() => {});
  }

  readonly #isReady: Record<Kind, Promise<void>> = {} as Record<Kind, Promise<void>>;

  #worker(kind: Kind): Worker {
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: kind });
    this.#isReady[kind] = new Promise((ready) => {
      worker.onmessage = ({ data }: MessageEvent<Tell>) => {
        if (data.tell === "ready") {
          this.defaults = data.defaults;
          ready();
        } else this.#hear(kind, data);
      };
    });
    worker.onerror = (event) => {
      event.preventDefault();
      this.#audience.failed(event.message || phrase("failures.worker"));
    };
    this.#ask(worker, { ask: "be", kind });
    return worker;
  }

  #ask(worker: Worker, ask: Ask): void {
    worker.postMessage(ask);
  }

  #askBoth(ask: Ask): void {
    this.#ask(this.#lesson, ask);
    this.#ask(this.#twin, ask);
  }

  #hear(kind: Kind, tell: Exclude<Tell, { tell: "ready" }>): void {
    if (tell.tell === "failed") return this.#audience.failed(tell.why);
    if (tell.run !== this.#run) return;
    switch (tell.tell) {
      case "frame":
        this.#reachedMs[kind] = tell.frame.nowMs;
        if (kind === "lesson") this.#audience.lesson(tell.frame as Frame);
        else this.#audience.twin(tell.frame as TwinFrame);
        return;
      case "stepped":
        this.#stepping = false;
        this.clock.targetMs = Math.max(this.clock.targetMs, tell.toMs);
        for (const act of this.#postponed.splice(0)) act();
        return;
      case "sample":
        return this.#audience.sampled(tell.atMs, tell.text);
      case "digest":
        this.#digests.get(kind)?.(tell.digest);
        this.#digests.delete(kind);
    }
  }

  /** The current settings. */
  get spec(): LessonSpec {
    return this.specAt(this.clock.targetMs);
  }

  /** Returns the settings at a moment. */
  specAt(atMs: number): LessonSpec {
    return this.#stretches.findLast(({ fromMs }) => fromMs <= atMs)!.spec;
  }

  /** Everything that determines this run from its beginning. */
  get plan(): Plan {
    return { spec: this.specAt(0), actions: this.actions, changes: this.changes };
  }

  /** Begins a run from its seed with its actions before `untilMs`, and catches up to that moment at full speed. */
  begin({ spec, actions, changes }: Plan, untilMs = 0): void {
    this.actions = [...actions];
    this.changes = [...changes];
    this.#stretches = stretchesOf(spec, changes);
    this.#run += 1;
    this.#askedMs = 0;
    this.#stepWanted = this.#stepping = false;
    this.#postponed = [];
    this.#reachedMs.lesson = this.#reachedMs.twin = 0;
    this.clock.reset(untilMs);
    this.#audience.began();
    this.#askBoth({ ask: "start", run: this.#run, spec, actions, changes });
    this.#ask(this.#lesson, { ask: "sample", bytes: SAMPLE_BYTES });
  }

  /** Called once a frame of the screen. */
  tick(wallMs: number): void {
    if (this.#run === 0) return;
    this.clock.tick(wallMs, Math.min(this.#reachedMs.lesson, this.#reachedMs.twin));
    // Play cancels a pending step.
    if (this.clock.playing) this.#stepWanted = false;
    const { playing, targetMs, speed, endMs } = this.clock;
    const least = playing && targetMs < endMs ? ASKED_MS * speed : 0;
    if (targetMs > this.#askedMs + least) {
      this.#askedMs = this.clock.targetMs;
      this.#askBoth({ ask: "advance", toMs: this.#askedMs });
    } else if (this.#stepWanted && this.#reachedMs.lesson >= this.#askedMs) {
      this.#stepWanted = false;
      this.#stepping = true;
      this.#ask(this.#lesson, { ask: "step", untilMs: this.clock.endMs });
    }
  }

  /**
   * Carries out an action on an island, at a moment that neither Worker has reached, so that a replay is identical.
   * Requests that moment at once, so that the action shows in a paused run.
   */
  act(island: number, deed: Deed, factor = 1): void {
    if (this.#stepping) return void this.#postponed.push(() => this.act(island, deed, factor));
    // The visitor may repeat the action before it shows.
    const last = this.actions.findLast((one) => one.island === island && one.atMs <= this.clock.targetMs);
    if (last && last.atMs > this.#reachedMs.lesson && last.deed === deed && last.factor === factor) return;
    const action: Action = { atMs: this.#freeMs, island, deed, factor };
    // A lesson that is over stays as it is.
    if (action.atMs > this.clock.endMs) return;
    this.actions.push(action);
    this.clock.targetMs = action.atMs;
    this.#askBoth({ ask: "act", action });
    this.#audience.acted(action);
  }

  /** Changes a setting of the running run, as `act` acts on an island. */
  change(to: Setting): void {
    if (this.#stepping) return void this.#postponed.push(() => this.change(to));
    const change: Change = { atMs: this.#freeMs, to };
    if (change.atMs > this.clock.endMs) return;
    const { spec } = this.plan;
    // A link may hold later changes.
    this.changes = [...this.changes, change].sort((one, other) => one.atMs - other.atMs);
    this.#stretches = stretchesOf(spec, this.changes);
    this.clock.targetMs = change.atMs;
    this.#askBoth({ ask: "change", change });
    this.#audience.changed();
  }

  /** The first moment that neither Worker has reached or was asked for. */
  get #freeMs(): number {
    return Math.max(this.clock.targetMs, this.#askedMs) + 1;
  }

  /** Advances to the next event after the last request, and no further. */
  step(): void {
    if (this.#stepping || this.#run === 0) return;
    this.clock.playing = false;
    this.#stepWanted = true;
  }

  sample(): void {
    this.#ask(this.#lesson, { ask: "sample", bytes: SAMPLE_BYTES });
  }

  /** Returns digests of both runs, at the moments that they have reached. */
  async digests(): Promise<Readonly<Record<Kind, string>>> {
    const of = (kind: Kind, worker: Worker) =>
      new Promise<string>((told) => {
        this.#digests.set(kind, told);
        this.#ask(worker, { ask: "digest" });
      });
    const [lesson, twin] = await Promise.all([of("lesson", this.#lesson), of("twin", this.#twin)]);
    return { lesson, twin };
  }

  /** Whether all requested time is computed and shown. */
  get isSettled(): boolean {
    return !this.#stepWanted && !this.#stepping && this.clock.shownMs >= this.clock.targetMs;
  }
}
