/** The Worker's side of a writer: fetches parameters, and generates token by token until stopped. */
import type { Writer as Model } from "../dist/wasm/plain/archipelago.js";
import type { ModelView } from "./generated.js";
import type { FromWorker, ToWrite } from "./messages.js";
import type { ErrorCode } from "./types.js";

/** The engine's part of a writer. */
interface Engine {
  readonly Writer: new (model: unknown, fragments: number) => Model;
  /** Splits a link into the syncer's address and the invite. */
  placeOf(link: string): { readonly base: string; readonly invite: string | null };
}

/** Time of generation between two checks for cancellation, in milliseconds. */
const SLICE_MS = 25;
/** Limit of tokens in one slice, so that text appears steadily. */
const SLICE_TOKENS_MAX = 100;
/** Attempts for one request to a busy syncer, and the wait between them, in milliseconds. */
const TRIES = 10;
const RETRY_MS = 2_000;
/** Tokens that are decoded together; earlier ones are final. The syncer takes 4 kB at a time. */
const SPELT_MAX = 300;

/** Address of a run, with its invite. */
class Place {
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #fetched: (bytes: number) => void;
  #run = "";

  constructor(engine: Engine, link: string, fetched: (bytes: number) => void) {
    const { base, invite } = engine.placeOf(link);
    this.#base = base;
    this.#headers = invite === null ? {} : { "x-archipelago-invite": invite };
    this.#fetched = fetched;
  }

  /** Looks up the run's id. */
  async find(signal: AbortSignal): Promise<void> {
    const status = await this.#answer("v1/status", { signal }, (answer) => answer.json());
    this.#run = (status as { run: string }).run;
  }

  /** Fetches `path` of the run and reads the answer with `read`; posts `body` if given. */
  of<T>(path: string, read: (answer: Response) => Promise<T>, signal: AbortSignal, body?: string): Promise<T> {
    const how = body === undefined ? { signal } : { signal, method: "POST", body };
    return this.#answer(`v1/runs/${this.#run}/${path}`, how, read);
  }

  async bytes(path: string, signal: AbortSignal): Promise<Uint8Array> {
    const body = new Uint8Array(await this.of(path, (answer) => answer.arrayBuffer(), signal));
    this.#fetched(body.length);
    return body;
  }

  /** Retries while the syncer is too busy. */
  async #answer<T>(path: string, how: RequestInit, read: (answer: Response) => Promise<T>): Promise<T> {
    for (let left = TRIES; ; left -= 1) {
      try {
        const answer = await fetch(this.#base + path, { ...how, headers: this.#headers });
        if (answer.ok) return await read(answer);
        if (answer.status !== 503 || left <= 1) throw failure(codeOf(answer.status), (await answer.text()).trim());
      } catch (error) {
        if (error instanceof Failure) throw error;
        const why = error instanceof Error ? error.message : String(error);
        throw failure(how.signal?.aborted ? "aborted" : "unreachable", `the syncer does not answer (${why})`);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** A model with its parameters and its vocabulary. */
interface Table {
  readonly place: Place;
  readonly tokenIsByte: boolean;
  /** Tokens that end a text. */
  readonly stops: readonly number[];
  readonly model: Model;
  readonly params: number;
}

async function fetchTable(
  engine: Engine,
  syncer: string,
  signal: AbortSignal,
  fetched: (bytes: number) => void,
): Promise<Table> {
  const place = new Place(engine, syncer, fetched);
  await place.find(signal);
  const view: ModelView = await place.of("model", (answer) => answer.json(), signal);
  const model = new engine.Writer(view.model, view.fragments);
  try {
    let params = 0;
    for (let fragment = 0; fragment < view.fragments; fragment += 1) {
      const body = await place.bytes(`fragments/${fragment}/0`, signal);
      model.load(fragment, body);
      params += body.length / 2;
    }
    return { place, tokenIsByte: view.tokenIsByte, stops: view.stops ?? [], model, params };
  } catch (error) {
    model.free();
    throw error;
  }
}

/** Text generation in a Worker. */
export class Desk {
  #table: Table | undefined;
  /** The id of the newest text. */
  #text = 0;
  /** Requests in progress, by id. */
  readonly #wanted = new Map<number, AbortController>();

  /** Fetches the newest parameters of the run at `syncer`; ends any text in progress. */
  async read(engine: Engine, syncer: string, id: number, tell: (message: FromWorker) => void): Promise<void> {
    const { signal } = this.#want(id);
    try {
      const table = await fetchTable(engine, syncer, signal, (bytes) => tell({ is: "fetched", id, bytes }));
      // The text in progress uses the old parameters.
      this.hush(this.#text);
      this.#table?.model.free();
      this.#table = table;
      tell({ is: "read", id, params: table.params });
    } finally {
      this.#wanted.delete(id);
    }
  }

  /** Continues a text and reports it piece by piece. */
  async write({ id, prompt, temperature, tokens, seed }: ToWrite, tell: (message: FromWorker) => void): Promise<void> {
    const table = this.#table;
    if (!table) throw failure("options", "no parameters were fetched");
    this.hush(this.#text);
    this.#text = id;
    const { signal } = this.#want(id);
    try {
      await goOn(table, { id, prompt, temperature, tokens, seed }, signal, tell);
    } catch (error) {
      // A cancelled request cannot fail.
      if (!signal.aborted) throw error;
    } finally {
      this.#wanted.delete(id);
      tell({ is: "written", id });
    }
  }

  /** Cancels the request `id`. */
  hush(id: number): void {
    this.#wanted.get(id)?.abort();
    this.#wanted.delete(id);
  }

  #want(id: number): AbortController {
    const wanted = new AbortController();
    this.#wanted.set(id, wanted);
    return wanted;
  }
}

async function goOn(table: Table, text: ToWrite, signal: AbortSignal, tell: (message: FromWorker) => void) {
  const { place, tokenIsByte, stops, model } = table;
  const { id, prompt, temperature, seed } = text;
  const encoded: ArrayLike<number> = tokenIsByte
    ? new TextEncoder().encode(prompt)
    : ((await place.of("tokens", (answer) => answer.json(), signal, prompt)) as number[]);
  if (signal.aborted) return;
  model.begin(Uint32Array.from(encoded), temperature, seed);
  const spell = tokenIsByte ? bytesSpeller() : speller(place, signal);
  for (let left = text.tokens; left > 0 && !signal.aborted; ) {
    const until = performance.now() + SLICE_MS;
    const slice: number[] = [];
    while (left > 0 && slice.length < SLICE_TOKENS_MAX && performance.now() < until) {
      const token = model.next();
      if (token === undefined) return;
      left = stops.includes(token) ? 0 : left - 1;
      if (!stops.includes(token)) slice.push(token);
    }
    const more = await spell(slice, left === 0);
    if (!signal.aborted && more) tell({ is: "wrote", id, text: more });
    await new Promise((resolve) => setTimeout(resolve));
  }
}

/** Decodes byte tokens; a letter of several bytes appears once it is complete. */
function bytesSpeller() {
  const decoder = new TextDecoder();
  return async (tokens: readonly number[], last: boolean) => decoder.decode(Uint8Array.from(tokens), { stream: !last });
}

/** Decodes other tokens through the syncer, always from the last complete letter on. */
function speller(place: Place, signal: AbortSignal) {
  let pending: number[] = [];
  let told = "";
  return async (tokens: readonly number[], last: boolean) => {
    pending = [...pending, ...tokens];
    const text = await place.of("text", (answer) => answer.text(), signal, JSON.stringify(pending));
    // Beyond the bound a letter may stay broken: a model can emit invalid UTF-8 for ever.
    const full = pending.length > SPELT_MAX;
    const whole = last || full ? text : text.replace(/\uFFFD+$/, "");
    // Reported text stays, even if a later token would change its decoding.
    const more = whole.startsWith(told) ? whole.slice(told.length) : "";
    told = more ? whole : told;
    if (full) [pending, told] = [[], ""];
    return more;
  };
}

/** An error with one of the package's codes. */
class Failure extends Error {
  constructor(
    readonly code: ErrorCode,
    message: string,
  ) {
    super(message);
  }
}

function failure(code: ErrorCode, message: string): Failure {
  return new Failure(code, message);
}

/** Returns the error code for an answer that is not ok. */
function codeOf(status: number): ErrorCode {
  if (status === 403) return "refused";
  return status >= 400 && status < 500 && status !== 404 ? "options" : "unreachable";
}
