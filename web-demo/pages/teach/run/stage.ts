/** The run on stage: both Workers, the clock, and everything that was done to the run. */

import type { Action, Change, Deed, Frame, LessonSpec, Setting, TwinFrame } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import type { Plan } from "../guide/own.js";
import { type Stretch, stretchesOf } from "./changes.js";
import { Clock } from "./clock.js";
import type { Ask, Kind, Tell } from "./messages.js";

/** The Workers are asked to go on by no less at once, in milliseconds of the wall clock: each time costs all threads something. */
const ASKED_MS = 33;
/** Bytes of a text sample. */
const SAMPLE_BYTES = 240;

/** Who hears what. */
export interface Audience {
  /** A new run begins: everything shown of the old one goes. */
  began(): void;
  lesson(frame: Frame): void;
  twin(frame: TwinFrame): void;
  acted(action: Action): void;
  /** A setting changed, and the run goes on. */
  changed(): void;
  sampled(atMs: number, text: string): void;
  failed(why: string): void;
}

export class Stage {
  readonly clock = new Clock();
  defaults!: LessonSpec;
  /** What was done to this run, by time. */
  actions: Action[] = [];
  /** Settings that changed while it went on, by time. */
  changes: Change[] = [];
  #stretches: Stretch[] = [];
  readonly #audience: Audience;
  readonly #lesson: Worker;
  readonly #twin: Worker;
  readonly #reachedMs: Record<Kind, number> = { lesson: 0, twin: 0 };
  readonly #digests = new Map<Kind, (digest: string) => void>();
  #run = 0;
  #askedMs = 0;
  /** A step is to come, once the lesson's Worker has reached what was asked for before. */
  #stepWanted = false;
  /** The lesson's Worker looks for the next event, and may be ahead of what was asked for. */
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

  /** The settings that the run has come to. */
  get spec(): LessonSpec {
    return this.specAt(this.clock.targetMs);
  }

  /** The settings at a moment. */
  specAt(atMs: number): LessonSpec {
    return this.#stretches.findLast(({ fromMs }) => fromMs <= atMs)!.spec;
  }

  /** What decides this run, from its beginning. */
  get plan(): Plan {
    return { spec: this.specAt(0), actions: this.actions, changes: this.changes };
  }

  /** Begins a run from its seed, with what was done to it before `untilMs`, which is reached as fast as can be. */
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

  /** Once a frame of the screen. */
  tick(wallMs: number): void {
    if (this.#run === 0) return;
    this.clock.tick(wallMs, Math.min(this.#reachedMs.lesson, this.#reachedMs.twin));
    // Whoever plays on wants no single step any more.
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
   * Does something to an island, at a moment that neither Worker has reached: so a replay does the same. That moment is
   * asked for at once, so that it shows in a run that is paused.
   */
  act(island: number, deed: Deed, factor = 1): void {
    if (this.#stepping) return void this.#postponed.push(() => this.act(island, deed, factor));
    // Until it shows, somebody may well try again.
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

  /** Changes a setting in the run that goes on, as `act` does something to an island. */
  change(to: Setting): void {
    if (this.#stepping) return void this.#postponed.push(() => this.change(to));
    const change: Change = { atMs: this.#freeMs, to };
    if (change.atMs > this.clock.endMs) return;
    const { spec } = this.plan;
    // A link may hold changes that are still to come.
    this.changes = [...this.changes, change].sort((one, other) => one.atMs - other.atMs);
    this.#stretches = stretchesOf(spec, this.changes);
    this.clock.targetMs = change.atMs;
    this.#askBoth({ ask: "change", change });
    this.#audience.changed();
  }

  /** The first moment that neither Worker has reached, nor was asked for. */
  get #freeMs(): number {
    return Math.max(this.clock.targetMs, this.#askedMs) + 1;
  }

  /** On to the next event after all that was asked for, and no further. */
  step(): void {
    if (this.#stepping || this.#run === 0) return;
    this.clock.playing = false;
    this.#stepWanted = true;
  }

  sample(): void {
    this.#ask(this.#lesson, { ask: "sample", bytes: SAMPLE_BYTES });
  }

  /** Digests of both, at the moment that they have reached. */
  async digests(): Promise<Readonly<Record<Kind, string>>> {
    const of = (kind: Kind, worker: Worker) =>
      new Promise<string>((told) => {
        this.#digests.set(kind, told);
        this.#ask(worker, { ask: "digest" });
      });
    const [lesson, twin] = await Promise.all([of("lesson", this.#lesson), of("twin", this.#twin)]);
    return { lesson, twin };
  }

  /** Whether everything asked for is there and shown. */
  get isSettled(): boolean {
    return !this.#stepWanted && !this.#stepping && this.clock.shownMs >= this.clock.targetMs;
  }
}
