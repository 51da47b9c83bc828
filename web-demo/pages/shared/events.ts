/** The syncer's events as they come, through lost connections too. */
import type { ServerEvents } from "./api.js";

/** Whether events come. */
export type LinkState =
  | { readonly link: "opening" }
  | { readonly link: "open" }
  /** The connection stands, and nothing has come for so many seconds: the syncer hangs, or the network does. */
  | { readonly link: "silent"; readonly forS: number }
  /** The next try begins in so many seconds. */
  | { readonly link: "lost"; readonly retryS: number }
  /** The page is not looked at; the stream is closed to leave its place to others. */
  | { readonly link: "resting" };

/** Who hears what. */
export type EventHandlers = { readonly [K in keyof ServerEvents]?: (data: ServerEvents[K]) => void };

/** Waits between tries, in seconds; the last one stays. */
const RETRY_S = [1, 2, 4, 8, 15, 30] as const;

/** The syncer says something each second; without a word for so long it is silent, in milliseconds. */
const SILENT_MS = 4_000;

/** A stream that has been silent for so long is opened anew, in milliseconds: its network may have gone without a word. */
const REOPEN_MS = 15_000;

/** A hidden page gives its stream back after this long, in milliseconds: a syncer has only so many. */
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

/** A stream of `/v1/events` that comes back by itself. */
export class EventLink {
  readonly #url: string;
  readonly #handlers: EventHandlers;
  readonly #changed: (state: LinkState) => void;
  #source: EventSource | undefined;
  /** Counts down to the next try. */
  #retryTimer: ReturnType<typeof setTimeout> | undefined;
  /** Counts down to the rest of a page that nobody looks at; tries in the meantime do not put it off. */
  #restTimer: ReturnType<typeof setTimeout> | undefined;
  #tries = 0;
  #heardMs = 0;
  #newsMs: number | undefined;
  #silent = false;

  /** `changed` hears of the connection; at each "open" whatever was missed is to be fetched. */
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

  /** Once a second while somebody looks (a hidden page's clock is slowed): whether there was a word of late. */
  #listen(): void {
    if (document.hidden) return;
    const silentMs = performance.now() - this.#heardMs;
    if (this.#source?.readyState !== EventSource.OPEN || silentMs < SILENT_MS) return;
    if (silentMs > REOPEN_MS) return this.#retry();
    this.#silent = true;
    this.#changed({ link: "silent", forS: Math.floor(silentMs / 1_000) });
  }

  /** A word came. */
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
    // The server is the one that this page came from, and its types are generated with it.
    this.#handlers[name]?.(JSON.parse(data) as ServerEvents[K]);
  }

  /** Gives the stream up, and opens another one after a while. */
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
