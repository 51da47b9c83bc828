/** Runs the lesson, or its twin, in slices towards the page's target, and posts frames of it. */
import init, { Lesson, lessonDefaults, Twin } from "../../../lesson/dist/lesson.js";
import type { Change, Frame, Mark, TwinFrame, TwinMark } from "../../shared/lesson.js";
import type { Ask, Kind, Start, Tell } from "./messages.js";

/** Length of a slice between two checks for messages, in milliseconds of the wall clock. */
const SLICE_MS = 12;
/** Least time between two frames: 30 a second. */
const FRAME_MS = 33;
/** Parts of a training step by which one call advances. */
const GRAINS = 8;
/** Limit of training steps in a search for the next event. */
const STEP_SEARCH = 40;

const scope = self as unknown as {
  onmessage: (message: MessageEvent<Ask>) => void;
  postMessage(message: Tell): void;
};

/** Yields to the event loop without the throttling of timers. */
const turns = new MessageChannel();

class Runner {
  readonly #kind: Kind;
  #sim: Lesson | Twin | undefined;
  #run = 0;
  #nowMs = 0;
  #targetMs = 0;
  #grainMs = 1;
  #framed = 0;
  #turning = false;

  constructor(kind: Kind) {
    this.#kind = kind;
    turns.port1.onmessage = () => this.#turn();
  }

  hear(ask: Exclude<Ask, { ask: "be" }>): void {
    if (ask.ask === "start") return this.#start(ask);
    const sim = this.#sim;
    if (!sim) return;
    switch (ask.ask) {
      case "act":
        return sim.act(ask.action);
      case "change":
        return this.#change(sim, ask.change);
      case "advance":
        this.#targetMs = Math.max(this.#targetMs, ask.toMs);
        return this.#wake();
      case "step":
        return this.#step(sim, ask.untilMs);
      case "sample":
        return scope.postMessage({ tell: "sample", run: this.#run, atMs: this.#nowMs, text: sim.sample(ask.bytes) });
      case "digest":
        return scope.postMessage({ tell: "digest", run: this.#run, atMs: this.#nowMs, digest: sim.digest() });
    }
  }

  #start({ run, spec, actions, changes }: Start): void {
    this.#sim?.free();
    const sim = this.#kind === "lesson" ? new Lesson(spec) : new Twin(spec);
    this.#sim = sim;
    this.#run = run;
    this.#nowMs = this.#targetMs = 0;
    this.#grainMs = Math.max(1, spec.stepMs / GRAINS);
    for (const action of actions) sim.act(action);
    for (const change of changes) this.#change(sim, change);
    this.#post();
  }

  #change(sim: Lesson | Twin, change: Change): void {
    sim.change(change);
    // Grains fit the shortest steps of the run.
    if ("stepMs" in change.to) this.#grainMs = Math.max(1, Math.min(this.#grainMs, change.to.stepMs / GRAINS));
  }

  #wake(): void {
    if (this.#turning || this.#nowMs >= this.#targetMs) return;
    this.#turning = true;
    turns.port2.postMessage(null);
  }

  #turn(): void {
    this.#turning = false;
    const until = performance.now() + SLICE_MS;
    while (this.#nowMs < this.#targetMs && performance.now() < until)
      this.#advance(Math.min(this.#targetMs, this.#nowMs + this.#grainMs));
    if (this.#nowMs >= this.#targetMs || performance.now() - this.#framed >= FRAME_MS) this.#post();
    this.#wake();
  }

  #advance(toMs: number): void {
    this.#sim?.advance(toMs);
    this.#nowMs = toMs;
  }

  /** Advances by whole milliseconds until an event that is more than a training step. */
  #step(sim: Lesson | Twin, untilMs: number): void {
    const giveUpMs = Math.min(untilMs, this.#nowMs + STEP_SEARCH * GRAINS * this.#grainMs);
    this.#post();
    this.#nowMs = Math.floor(this.#nowMs);
    while (this.#nowMs < giveUpMs) {
      this.#advance(this.#nowMs + 1);
      const frame: Frame | TwinFrame = sim.frame();
      const marks: readonly (Mark | TwinMark)[] = frame.marks;
      const found = marks.some((mark) => mark.kind !== "step" && mark.kind !== "parcel" && mark.kind !== "heldOut");
      scope.postMessage({ tell: "frame", run: this.#run, frame });
      if (found) break;
    }
    this.#targetMs = Math.max(this.#targetMs, this.#nowMs);
    scope.postMessage({ tell: "stepped", run: this.#run, toMs: this.#nowMs });
    this.#wake();
  }

  #post(): void {
    if (!this.#sim) return;
    this.#framed = performance.now();
    scope.postMessage({ tell: "frame", run: this.#run, frame: this.#sim.frame() });
  }
}

let runner: Runner | undefined;

/** Reports a crashed module to the page. */
function guarded(act: () => void): void {
  try {
    act();
  } catch (error) {
    scope.postMessage({ tell: "failed", why: String(error) });
  }
}

scope.onmessage = ({ data }) => {
  if (data.ask !== "be") return guarded(() => runner?.hear(data));
  init().then(
    () => {
      runner = new Runner(data.kind);
      scope.postMessage({ tell: "ready", defaults: lessonDefaults() });
    },
    (error: unknown) => scope.postMessage({ tell: "failed", why: String(error) }),
  );
};
