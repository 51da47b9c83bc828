/**
 * A learner in a browser. Nothing happens on import; {@link join} starts a Worker that trains.
 *
 * ```js
 * import { join } from "@archipelago-train/learner";
 * const learner = join("https://host:7700/", { share: 0.5 });
 * const off = learner.on("progress", (report) => console.log(report.loss));
 * await learner.stop();
 * ```
 */

import type { FromWorker, ToWorker } from "./messages.js";
import { start, wasmUrl } from "./sources.js";
import type {
  ErrorCode,
  JoinOptions,
  LearnerEvent,
  LearnerEventMap,
  Measured,
  MeasureOptions,
  Report,
  Sources,
} from "./types.js";
import { LearnerError } from "./types.js";
import type { WriteOptions } from "./writer.js";
import { Writer } from "./writer.js";

export type { AdapterFacts, Capabilities } from "./check.js";
export { capabilities } from "./check.js";
export * from "./types.js";
export type { ModelFacts, WriteOptions } from "./writer.js";
export { Writer } from "./writer.js";

/**
 * Time for a stopped learner to send its last updates and say farewell, in milliseconds. Then its Worker ends. The
 * learner itself waits at most 10 s for a thin link, 3 s for the outcome of its updates, and 2 s for the farewell.
 */
const FAREWELL_MS = 15_500;

/** Default number of Workers for a learner: a batch has few windows, so more would not help. */
const WORKERS_MAX = 8;

/** A learner in a Worker of its own. */
export class Learner {
  /** Resolves with the last report when the learner has ended without an error. */
  readonly done: Promise<Report | undefined>;
  readonly #worker: Worker;
  readonly #syncer: string;
  readonly #sources: Sources;
  #writer: Writer | undefined;
  readonly #listeners = new Map<string, Set<(event: never) => void>>();
  readonly #unplug: (() => void)[] = [];
  #ended = false;
  #last: Report | undefined;
  #settle!: (outcome: { report: Report | undefined } | { error: LearnerError }) => void;

  /** Use {@link join}. */
  constructor(syncer: string, options: JoinOptions) {
    this.done = new Promise((resolve, reject) => {
      this.#settle = (outcome) => ("error" in outcome ? reject(outcome.error) : resolve(outcome.report));
    });
    // A page that ignores `done` must not see an unhandled rejection.
    this.done.catch(() => {});
    this.#syncer = syncer;
    this.#sources = options;
    this.#worker = start(
      options,
      (message) => this.#hear(message),
      (error) => this.#end({ error }),
    );
    const { name = "browser", engine = "auto", share = 1, contactMsMax = 20_000, remember = true } = options;
    const batch = options.batch === undefined || options.batch === "auto" ? null : options.batch;
    this.#tell({
      do: "join",
      wasmUrl: wasmUrl(options),
      options: { syncer, name, engine, helpers: helpers(options), share, batch, contactMsMax, remember },
    });
    this.#watchPage();
    const { signal } = options;
    if (signal) {
      const stop = () => void this.stop();
      if (signal.aborted) stop();
      else this.#plug(signal, "abort", stop);
    }
  }

  /** Calls `listener` for each event of that name. Call the returned function to unsubscribe. */
  on<K extends keyof LearnerEventMap>(name: K, listener: (event: LearnerEventMap[K]) => void): () => void {
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(listener));
    return () => void listeners.delete(listener);
  }

  /** Stops training after the current step; the connection stays. */
  pause(): void {
    this.#tell({ do: "pause" });
  }

  /** Resumes training. */
  resume(): void {
    this.#tell({ do: "resume" });
  }

  /** Limits computing to `share` of the time, above 0 and at most 1. */
  setShare(share: number): void {
    if (!(share > 0 && share <= 1)) {
      throw new LearnerError("options", `a share of ${share} is out of range: give a number above 0 and at most 1`);
    }
    this.#tell({ do: "setShare", share });
  }

  /** Reconnects now instead of at the planned time, if there is no connection. */
  reconnect(): void {
    this.#tell({ do: "reconnect" });
  }

  /**
   * Continues `prompt` with the newest merged parameters; see {@link Writer.write}. Fetches the parameters once, two
   * bytes each, while training goes on. Fails as `aborted` when the learner ends.
   */
  generate(prompt: string, options: WriteOptions = {}): AsyncGenerator<string, void> {
    if (this.#ended) throw new LearnerError("options", "the learner has ended: open a Writer of your own");
    this.#writer ??= new Writer(this.#syncer, this.#sources);
    return this.#writer.write(prompt, options);
  }

  /**
   * Stops training after the current step, sends the last updates, and says farewell, within `withinMs` milliseconds.
   * With 0 the learner ends at once. Resolves when nothing computes any more.
   */
  async stop(withinMs = FAREWELL_MS): Promise<Report | undefined> {
    if (!this.#ended) {
      this.#tell({ do: "stop" });
      const timer = setTimeout(() => this.#end({ report: this.#last }), Math.max(0, withinMs));
      await this.done.catch(() => {});
      clearTimeout(timer);
    }
    return this.done;
  }

  #tell(message: ToWorker): void {
    if (!this.#ended) this.#worker.postMessage(message);
  }

  #hear(message: FromWorker): void {
    if (message.is === "event") this.#emit(message.event);
    else if (message.is === "ended") this.#end({ report: message.report });
    else if (message.is === "failed") {
      const hint = message.code === "unreachable" ? originHint(this.#syncer) : "";
      this.#end({ error: new LearnerError(message.code, message.message + hint) });
    }
  }

  #emit(event: LearnerEvent): void {
    if (this.#ended) return;
    if (event.event === "progress") this.#last = event;
    for (const listener of this.#listeners.get(event.event) ?? []) {
      try {
        listener(event as never);
      } catch (error) {
        // An error in a listener is the page's, not the learner's.
        reportError(error);
      }
    }
  }

  #end(outcome: { report: Report | undefined } | { error: LearnerError }): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#worker.terminate();
    this.#writer?.close();
    for (const unplug of this.#unplug) unplug();
    this.#settle(outcome);
  }

  /** Reports a hidden page to the Worker, so that its long silences do not end the connection. */
  #watchPage(): void {
    const seen = () => this.#tell({ do: "setHidden", hidden: document.hidden });
    if (document.hidden) seen();
    this.#plug(document, "visibilitychange", seen);
    const back = () => this.reconnect();
    for (const name of ["online", "pageshow", "focus"]) this.#plug(window, name, back);
    this.#plug(document, "resume", back);
  }

  #plug(target: EventTarget, name: string, listener: () => void): void {
    target.addEventListener(name, listener);
    this.#unplug.push(() => target.removeEventListener(name, listener));
  }
}

/** A syncer of another origin may have refused this page; browsers do not report that to the page. */
function originHint(syncer: string): string {
  const { host } = new URL(/^[a-z]+:\/\//.test(syncer) ? syncer : `http://${syncer}`);
  const { origin } = location;
  return host === location.host ? "" : `, and that it was started with --allow-origin ${origin}, as this page needs`;
}

/** Joins the run behind `syncer`, the link that people share. Events report the progress. */
export function join(syncer: string | URL, options: JoinOptions = {}): Learner {
  return new Learner(String(syncer), options);
}

/** Measures how fast this browser trains a preset. Rejects with a {@link LearnerError}. */
export function measure(options: MeasureOptions): Promise<Measured> {
  const { engine, preset, trainMs = 1_000, signal } = options;
  return new Promise((resolve, reject) => {
    const end = (act: () => void) => {
      worker.terminate();
      signal?.removeEventListener("abort", abort);
      act();
    };
    const fail = (code: ErrorCode, message: string) => end(() => reject(new LearnerError(code, message)));
    const abort = () => fail("aborted", "given up");
    const hear = (message: FromWorker) => {
      if (message.is === "measured") end(() => resolve(message.measured));
      else if (message.is === "failed") fail(message.code, message.message);
    };
    const worker = start(options, hear, (error) => end(() => reject(error)));
    if (signal?.aborted) return abort();
    signal?.addEventListener("abort", abort);
    worker.postMessage({
      do: "measure",
      wasmUrl: wasmUrl(options),
      options: { engine, helpers: helpers(options), preset, trainMs },
    } satisfies ToWorker);
  });
}

/** Number of Workers that help a CPU engine. With more than two cores, one core stays free for the page. */
function helpers({ workers }: { readonly workers?: number }): number {
  const cores = navigator.hardwareConcurrency || 1;
  return (workers ?? Math.min(cores > 2 ? cores - 1 : cores, WORKERS_MAX)) - 1;
}
