/** A Worker that computes gradients of windows for the learner's Worker; the two share no memory. */

/** Learner to helper. */
export type ToHelper =
  | { readonly do: "help"; readonly wasmUrl: string; readonly model: unknown; readonly windows: number }
  | {
      readonly do: "part";
      readonly id: number;
      readonly params: Float32Array;
      readonly tokens: Uint32Array;
      readonly count: number;
    };

/** Helper to learner. */
export type FromHelper =
  | { readonly is: "part"; readonly id: number; readonly part: Part }
  | { readonly is: "broken"; readonly message: string };

/** A helper's part of a step. */
export interface Part {
  /** Sum of the losses of its tokens. */
  readonly loss: number;
  /** Its part of the gradient. */
  readonly grad: Float32Array;
  /** Duration of the part, in microseconds. */
  readonly busyUs: number;
}

/** Number of intervals in a timeout, so that a machine that slept does not count as a slow helper. */
const PIECES = 10;

/**
 * Time that an idle helper stays, in milliseconds. A finished learner drops its helpers just before the page ends its
 * Worker. Chromium may keep a Worker for ever if it is ended while it ends one of its own. The delay lets the page end
 * both first.
 */
const LINGER_MS = 1_000;

/** The engine's method that the helper's Worker calls. */
interface Differentiator {
  differentiate(params: Float32Array, tokens: Uint32Array, count: number): number;
}

/** One helper, as the learner sees it. */
export class Helper {
  readonly #worker: Worker;
  #id = 0;
  #broken: Error | undefined;
  #wanted:
    | { readonly resolve: (part?: Part) => void; readonly reject: (error: Error) => void; readonly timer: number }
    | undefined;

  /** Starts a Worker from the script that this code runs in. */
  constructor(wasmUrl: string, model: unknown, windows: number) {
    this.#worker = new Worker(self.location.href, { type: "module", name: "helper" });
    this.#worker.onmessage = ({ data }: MessageEvent<FromHelper>) => {
      if (data.is === "broken") this.#break(data.message);
      else if (data.id === this.#id) this.#settle()?.resolve(data.part);
    };
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#break(event.message || "its Worker could not be loaded");
    };
    this.#worker.postMessage({ do: "help", wasmUrl, model, windows } satisfies ToHelper);
  }

  /** Begins a part and abandons any earlier one; resolves with undefined if the part takes too long. */
  begin(params: Float32Array, tokens: Uint32Array, count: number, patienceMs: number): Promise<Part | undefined> {
    this.#settle();
    return new Promise((resolve, reject) => {
      if (this.#broken) return reject(this.#broken);
      let pieces = PIECES;
      const timer = self.setInterval(() => {
        if (--pieces === 0) this.#settle()?.resolve();
      }, patienceMs / PIECES);
      this.#wanted = { resolve, reject, timer };
      const message: ToHelper = { do: "part", id: ++this.#id, params, tokens, count };
      this.#worker.postMessage(message, [params.buffer, tokens.buffer]);
    });
  }

  /** Ends the Worker after a while without work. */
  end(): void {
    this.#settle();
    self.setTimeout(() => this.#worker.terminate(), LINGER_MS);
  }

  #break(message: string): void {
    this.#broken = new Error(message);
    this.#settle()?.reject(this.#broken);
  }

  #settle() {
    const wanted = this.#wanted;
    this.#wanted = undefined;
    clearInterval(wanted?.timer);
    return wanted;
  }
}

/** Computes one part in the helper's Worker; the gradient reuses the memory of the parameters. */
export function answer(differentiator: Differentiator, task: Extract<ToHelper, { do: "part" }>): FromHelper {
  const start = performance.now();
  const loss = differentiator.differentiate(task.params, task.tokens, task.count);
  const busyUs = (performance.now() - start) * 1000;
  return { is: "part", id: task.id, part: { loss, grad: task.params, busyUs } };
}
