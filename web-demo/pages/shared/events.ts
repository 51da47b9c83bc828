/** The syncer's events as they come, through lost connections too. */
import type { ServerEvents } from "./api.js";

/** Whether events come. */
export type LinkState =
  | { readonly link: "opening" }
  | { readonly link: "open" }
  /** The next try begins in so many seconds. */
  | { readonly link: "lost"; readonly retryS: number }
  /** The page is not looked at; the stream is closed to leave its place to others. */
  | { readonly link: "resting" };

/** Who hears what. */
export type EventHandlers = { readonly [K in keyof ServerEvents]?: (data: ServerEvents[K]) => void };

/** Waits between tries, in seconds; the last one stays. */
const RETRY_S = [1, 2, 4, 8, 15, 30] as const;

/** A hidden page gives its stream back after this long, in milliseconds: a syncer has only so many. */
const REST_AFTER_MS = 60_000;

const NAMES = [
  "status",
  "rounds",
  "point",
  "evaluation",
  "sample",
  "lagged",
] as const satisfies readonly (keyof ServerEvents)[];

/** A stream of `/v1/events` that comes back by itself. */
export class EventLink {
  readonly #url: string;
  readonly #handlers: EventHandlers;
  readonly #changed: (state: LinkState) => void;
  #source: EventSource | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #tries = 0;

  /** `changed` hears of the connection; at each "open" whatever was missed is to be fetched. */
  constructor(url: string, handlers: EventHandlers, changed: (state: LinkState) => void) {
    this.#url = url;
    this.#handlers = handlers;
    this.#changed = changed;
    document.addEventListener("visibilitychange", () => this.#seen());
    window.addEventListener("online", () => this.#source ?? this.#open());
    this.#open();
  }

  #open(): void {
    clearTimeout(this.#timer);
    const source = new EventSource(this.#url);
    this.#source = source;
    this.#changed({ link: "opening" });
    source.onopen = () => {
      this.#tries = 0;
      this.#changed({ link: "open" });
    };
    source.onerror = () => {
      if (this.#source !== source) return;
      this.#close();
      const wait = RETRY_S[Math.min(this.#tries, RETRY_S.length - 1)] ?? 30;
      this.#tries += 1;
      this.#countDown(wait);
    };
    for (const name of NAMES) {
      source.addEventListener(name, (event: MessageEvent<string>) => this.#hear(name, event.data));
    }
  }

  #hear<K extends keyof ServerEvents>(name: K, data: string): void {
    // The server is the one that this page came from, and its types are generated with it.
    this.#handlers[name]?.(JSON.parse(data) as ServerEvents[K]);
  }

  #countDown(retryS: number): void {
    if (retryS <= 0) return this.#open();
    this.#changed({ link: "lost", retryS });
    this.#timer = setTimeout(() => this.#countDown(retryS - 1), 1_000);
  }

  #close(): void {
    this.#source?.close();
    this.#source = undefined;
    clearTimeout(this.#timer);
  }

  #seen(): void {
    if (!document.hidden) {
      if (!this.#source) this.#open();
      else clearTimeout(this.#timer);
    } else if (this.#source) {
      this.#timer = setTimeout(() => {
        this.#close();
        this.#changed({ link: "resting" });
      }, REST_AFTER_MS);
    }
  }
}
