/** The syncer's event stream, with reconnection. */
import type { ServerEvents } from "./api.js";

/** State of the stream. */
export type LinkState =
  | { readonly link: "opening" }
  | { readonly link: "open" }
  /** The connection is open, but nothing arrived for `forS` seconds: the syncer or the network hangs. */
  | { readonly link: "silent"; readonly forS: number }
  /** The next attempt begins in `retryS` seconds. */
  | { readonly link: "lost"; readonly retryS: number }
  /** The page is hidden; the stream is closed to free its slot. */
  | { readonly link: "resting" };

/** Handlers by event. */
export type EventHandlers = { readonly [K in keyof ServerEvents]?: (data: ServerEvents[K]) => void };

/** Waits between attempts, in seconds; the last one repeats. */
const RETRY_S = [1, 2, 4, 8, 15, 30] as const;

/** Time without events after which the stream is silent, in milliseconds; the syncer sends one each second. */
const SILENT_MS = 4_000;

/** Time of silence after which the stream is reopened, in milliseconds: a network may vanish without an error. */
const REOPEN_MS = 15_000;

/** Time after which a hidden page closes its stream, in milliseconds: a syncer has a limited number. */
const REST_AFTER_MS = 60_000;

const NAMES = [
  "status",
  "rounds",
  "point",
  "evaluation",
  "sample",
  "log",
  "lagged",
] as const satisfies readonly (keyof ServerEvents)[];

/** A stream of `/v1/events` that reconnects by itself. */
export class EventLink {
  readonly #url: string;
  readonly #handlers: EventHandlers;
  readonly #changed: (state: LinkState) => void;
  #source: EventSource | undefined;
  /** Counts down to the next attempt. */
  #retryTimer: ReturnType<typeof setTimeout> | undefined;
  /** Counts down to closing a hidden page's stream; attempts in the meantime do not delay that. */
  #restTimer: ReturnType<typeof setTimeout> | undefined;
  #tries = 0;
  #heardMs = 0;
  #newsMs: number | undefined;
  #silent = false;

  /** `changed` gets each state of the stream; at each "open" the caller fetches the missed events. */
  constructor(url: string, handlers: EventHandlers, changed: (state: LinkState) => void) {
    this.#url = url;
    this.#handlers = handlers;
    this.#changed = changed;
    document.addEventListener("visibilitychange", () => this.#seen());
    window.addEventListener("online", () => {
      if (!this.#source && !document.hidden) this.#open();
    });
    setInterval(() => this.#listen(), 1_000);
    this.#open();
  }

  /** Age of the last news in seconds; `null` before the first. */
  newsAgeS(): number | null {
    return this.#newsMs === undefined ? null : (performance.now() - this.#newsMs) / 1_000;
  }

  /** Checks for silence once a second, on a visible page only (a hidden page's clock is slowed). */
  #listen(): void {
    if (document.hidden) return;
    const silentMs = performance.now() - this.#heardMs;
    if (this.#source?.readyState !== EventSource.OPEN || silentMs < SILENT_MS) return;
    if (silentMs > REOPEN_MS) return this.#retry();
    this.#silent = true;
    this.#changed({ link: "silent", forS: Math.floor(silentMs / 1_000) });
  }

  /** Notes a message from the syncer. */
  #heard(): void {
    this.#heardMs = performance.now();
    if (!this.#silent) return;
    this.#silent = false;
    this.#changed({ link: "open" });
  }

  #open(): void {
    clearTimeout(this.#retryTimer);
    const source = new EventSource(this.#url);
    this.#source = source;
    this.#changed({ link: "opening" });
    source.onopen = () => {
      this.#tries = 0;
      this.#silent = false;
      this.#heardMs = performance.now();
      this.#changed({ link: "open" });
    };
    source.onerror = () => {
      if (this.#source === source) this.#retry();
    };
    for (const name of NAMES) {
      source.addEventListener(name, (event: MessageEvent<string>) => this.#hear(name, event.data));
    }
  }

  #hear<K extends keyof ServerEvents>(name: K, data: string): void {
    this.#heard();
    this.#newsMs = performance.now();
    // The server is the one that served this page, and the types are generated with it.
    this.#handlers[name]?.(JSON.parse(data) as ServerEvents[K]);
  }

  /** Closes the stream, and opens another one after a wait. */
  #retry(): void {
    this.#close();
    const wait = RETRY_S[Math.min(this.#tries, RETRY_S.length - 1)] ?? 30;
    this.#tries += 1;
    this.#countDown(wait);
  }

  #countDown(retryS: number): void {
    if (retryS <= 0) return this.#open();
    this.#changed({ link: "lost", retryS });
    this.#retryTimer = setTimeout(() => this.#countDown(retryS - 1), 1_000);
  }

  #close(): void {
    this.#source?.close();
    this.#source = undefined;
    clearTimeout(this.#retryTimer);
  }

  #seen(): void {
    clearTimeout(this.#restTimer);
    if (document.hidden) {
      this.#restTimer = setTimeout(() => {
        this.#close();
        this.#changed({ link: "resting" });
      }, REST_AFTER_MS);
    } else if (this.#source) {
      this.#heardMs = performance.now();
    } else {
      this.#open();
    }
  }
}
