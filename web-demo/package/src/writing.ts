/** The writer's side in its Worker: fetches parameters, and writes token by token until it is told to stop. */
import type { Writer as Model } from "../dist/wasm/plain/archipelago.js";
import type { ModelView } from "./generated.js";
import type { FromWorker, ToWrite } from "./messages.js";
import type { ErrorCode } from "./types.js";

/** The engine's part of it. */
interface Engine {
  readonly Writer: new (model: unknown, fragments: number) => Model;
  /** Where the syncer behind a link is, and the invite that the link brings. */
  placeOf(link: string): { readonly base: string; readonly invite: string | null };
}

/** Time that is written for before it is listened whether that is still wanted, in milliseconds. */
const SLICE_MS = 25;
/** Tokens of one slice at most: a text is to be seen growing. */
const SLICE_TOKENS_MAX = 100;
/** How often a busy syncer is asked for one thing, and the wait between, in milliseconds. */
const TRIES = 10;
const RETRY_MS = 2_000;
/** Tokens after which those before are not made text once more: the syncer takes 4 kB at a time. */
const SPELT_MAX = 300;

/** Where a run is, and what opens it. */
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

  /** Asks which run there is. */
  async find(signal: AbortSignal): Promise<void> {
    const status = await this.#answer("v1/status", { signal }, (answer) => answer.json());
    this.#run = (status as { run: string }).run;
  }

  /** What is at `path` of the run, as `read` takes it; with `body` that is sent there. */
  of<T>(path: string, read: (answer: Response) => Promise<T>, signal: AbortSignal, body?: string): Promise<T> {
    const how = body === undefined ? { signal } : { signal, method: "POST", body };
    return this.#answer(`v1/runs/${this.#run}/${path}`, how, read);
  }

  async bytes(path: string, signal: AbortSignal): Promise<Uint8Array> {
    const body = new Uint8Array(await this.of(path, (answer) => answer.arrayBuffer(), signal));
    this.#fetched(body.length);
    return body;
  }

  /** Asks again while the syncer is too busy. */
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

/** A model with its parameters, and what tokens mean to it. */
interface Table {
  readonly place: Place;
  readonly tokenIsByte: boolean;
  /** Tokens at which a text ends. */
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

/** Where a Worker writes. */
export class Desk {
  #table: Table | undefined;
  /** The id of the newest text. */
  #text = 0;
  /** What is under way, by id. */
  readonly #wanted = new Map<number, AbortController>();

  /** Fetches the newest parameters of the run at `syncer`; texts under way end. */
  async read(engine: Engine, syncer: string, id: number, tell: (message: FromWorker) => void): Promise<void> {
    const { signal } = this.#want(id);
    try {
      const table = await fetchTable(engine, syncer, signal, (bytes) => tell({ is: "fetched", id, bytes }));
      // The text under way is of the parameters before.
      this.hush(this.#text);
      this.#table?.model.free();
      this.#table = table;
      tell({ is: "read", id, params: table.params });
    } finally {
      this.#wanted.delete(id);
    }
  }

  /** Goes on with a text, and tells of it piece by piece. */
  async write({ id, prompt, temperature, tokens, seed }: ToWrite, tell: (message: FromWorker) => void): Promise<void> {
    const table = this.#table;
    if (!table) throw failure("options", "no parameters were fetched");
    this.hush(this.#text);
    this.#text = id;
    const { signal } = this.#want(id);
    try {
      await goOn(table, { id, prompt, temperature, tokens, seed }, signal, tell);
    } catch (error) {
      // What is not wanted any more cannot fail.
      if (!signal.aborted) throw error;
    } finally {
      this.#wanted.delete(id);
      tell({ is: "written", id });
    }
  }

  /** What was begun under `id` is not wanted any more. */
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

/** Makes tokens text where they are bytes: letters of several of them come when they are whole. */
function bytesSpeller() {
  const decoder = new TextDecoder();
  return async (tokens: readonly number[], last: boolean) => decoder.decode(Uint8Array.from(tokens), { stream: !last });
}

/** Makes tokens text where only the syncer knows how: those since the last whole letter at a time. */
function speller(place: Place, signal: AbortSignal) {
  let pending: number[] = [];
  let told = "";
  return async (tokens: readonly number[], last: boolean) => {
    pending = [...pending, ...tokens];
    const text = await place.of("text", (answer) => answer.text(), signal, JSON.stringify(pending));
    // Beyond the bound a letter may stay broken: a model can write bytes that are none for ever.
    const full = pending.length > SPELT_MAX;
    const whole = last || full ? text : text.replace(/\uFFFD+$/, "");
    // What was told stays told, even where a later token would have had it otherwise.
    const more = whole.startsWith(told) ? whole.slice(told.length) : "";
    told = more ? whole : told;
    if (full) [pending, told] = [[], ""];
    return more;
  };
}

/** An error with a code of the package's. */
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

/** What an answer that is none means to whoever asked. */
function codeOf(status: number): ErrorCode {
  if (status === 403) return "refused";
  return status >= 400 && status < 500 && status !== 404 ? "options" : "unreachable";
}
