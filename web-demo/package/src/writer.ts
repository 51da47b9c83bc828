/** Generates text with a run's parameters in a Worker of its own; needs no learner. */
import type { FromWorker, ToWorker } from "./messages.js";
import { start, wasmUrl } from "./sources.js";
import type { Sources } from "./types.js";
import { LearnerError } from "./types.js";

/** Options of {@link Writer.write}. */
export interface WriteOptions {
  /** 0 takes the likeliest token each time, 1 samples from the model's distribution; default 0.8. */
  readonly temperature?: number;
  /** Tokens to write, 1 to 100,000; default 200. */
  readonly tokens?: number;
  /** The same seed and parameters give the same text; random by default. */
  readonly seed?: number;
  /** Ends the text at once when it fires; the text so far stays. */
  readonly signal?: AbortSignal;
}

/** Parameters held by a writer. */
export interface ModelFacts {
  /** Number of parameters. */
  readonly params: number;
  /** Time of the fetch, on the clock of `performance.now()`. */
  readonly fetchedMs: number;
}

/** Limit of tokens in one call. */
const TOKENS_MAX = 100_000;

/** Handlers that wait for replies with one id. */
interface Waiting {
  hear(message: FromWorker): void;
  fail(error: LearnerError): void;
}

/** A model that writes. It fetches nothing before the first request. */
export class Writer {
  /** The current parameters; undefined before the first fetch. */
  facts: ModelFacts | undefined;
  /** Bytes fetched for parameters so far, including failed fetches. */
  fetchedBytes = 0;
  readonly #syncer: string;
  readonly #sources: Sources;
  readonly #waiting = new Map<number, Waiting>();
  #worker: Worker | undefined;
  #reading: Promise<ModelFacts> | undefined;
  #ids = 0;
  /** The id of the newest text. */
  #text = 0;

  /** `syncer` is the link that people share, including the invite after `#`. */
  constructor(syncer: string | URL, sources: Sources = {}) {
    this.#syncer = String(syncer);
    this.#sources = sources;
  }

  /**
   * Fetches the newest parameters, two bytes each, and ends any text in progress. Concurrent calls share one fetch.
   * Rejects with a {@link LearnerError}.
   */
  refresh({ signal }: { readonly signal?: AbortSignal } = {}): Promise<ModelFacts> {
    this.#reading ??= this.#read(signal).finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  #read(signal: AbortSignal | undefined): Promise<ModelFacts> {
    return new Promise((resolve, reject) => {
      const id = this.#begin({
        hear: (message) => {
          if (message.is === "fetched") this.fetchedBytes += message.bytes;
          if (message.is !== "read") return;
          end();
          this.facts = { params: message.params, fetchedMs: performance.now() };
          resolve(this.facts);
        },
        fail: (error) => {
          end();
          reject(error);
        },
      });
      const abort = () => {
        this.#worker?.postMessage({ do: "hush", id } satisfies ToWorker);
        end();
        reject(new LearnerError("aborted", "given up"));
      };
      const end = () => {
        this.#waiting.delete(id);
        signal?.removeEventListener("abort", abort);
      };
      if (signal?.aborted) return abort();
      signal?.addEventListener("abort", abort);
      this.#tell({ do: "read", id, wasmUrl: wasmUrl(this.#sources), syncer: this.#syncer });
    });
  }

  /**
   * Continues `prompt` and yields the text piece by piece. Fetches the parameters before the first text. A second
   * text ends the first. Throws a {@link LearnerError}.
   */
  async *write(prompt: string, options: WriteOptions = {}): AsyncGenerator<string, void> {
    const { temperature = 0.8, tokens = 200, seed = Math.floor(Math.random() * 2 ** 32), signal } = options;
    if (!(tokens >= 1 && tokens <= TOKENS_MAX)) {
      throw new LearnerError("options", `${tokens} tokens are out of range: give 1 to ${TOKENS_MAX}`);
    }
    if (prompt === "") throw new LearnerError("options", "the prompt is empty: give at least one letter");
    if (signal?.aborted) return;
    if (!this.facts) {
      try {
        await this.refresh(signal ? { signal } : {});
      } catch (error) {
        if (signal?.aborted) return;
        throw error;
      }
    }
    const pieces: string[] = [];
    let [ended, wake] = [false, () => {}];
    let error: LearnerError | undefined;
    const end = (failed?: LearnerError) => {
      [ended, error] = [true, failed];
      wake();
    };
    const id = this.#begin({
      hear: (message) => {
        if (message.is === "wrote") pieces.push(message.text);
        if (message.is === "written") end();
        wake();
      },
      fail: end,
    });
    // The Worker writes one text at a time.
    this.#waiting.get(this.#text)?.hear({ is: "written", id: this.#text });
    this.#text = id;
    const abort = () => end();
    signal?.addEventListener("abort", abort);
    try {
      this.#tell({ do: "write", id, prompt, temperature, tokens, seed });
      for (;;) {
        while (pieces.length > 0 && !signal?.aborted) yield pieces.shift() ?? "";
        if (error) throw error;
        if (ended) return;
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      this.#waiting.delete(id);
      this.#worker?.postMessage({ do: "hush", id } satisfies ToWorker);
    }
  }

  /** Ends the Worker and drops the parameters. A text in progress fails as `aborted`; the next starts a new Worker. */
  close(): void {
    this.#forget(new LearnerError("aborted", "the writer was closed"));
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #begin(waiting: Waiting): number {
    const id = ++this.#ids;
    this.#waiting.set(id, waiting);
    return id;
  }

  #tell(message: ToWorker): void {
    this.#worker ??= start(
      this.#sources,
      (heard) => this.#hear(heard),
      (error) => this.#forget(error),
    );
    this.#worker.postMessage(message);
  }

  #hear(message: FromWorker): void {
    const waiting = "id" in message && message.id !== undefined ? this.#waiting.get(message.id) : undefined;
    if (message.is === "failed") waiting?.fail(new LearnerError(message.code, message.message));
    else waiting?.hear(message);
  }

  /** The Worker has ended, and its parameters with it. */
  #forget(error: LearnerError): void {
    this.#worker?.terminate();
    this.#worker = undefined;
    this.facts = undefined;
    for (const waiting of [...this.#waiting.values()]) waiting.fail(error);
    this.#waiting.clear();
  }
}
