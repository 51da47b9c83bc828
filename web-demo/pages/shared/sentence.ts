/** The one sentence of a page that says what goes on. */
import { find, setAttribute, setText } from "./dom.js";

/** How things stand; `parts.css` has a colour for each. */
export type Tone = "going" | "waiting" | "held" | "trouble" | "done";

/** A sentence and its tone. */
export interface Sentence {
  readonly tone: Tone;
  readonly text: string;
}

/** When readers of screens are told. */
export interface Telling {
  /** How long readers are left alone after a sentence, in milliseconds. */
  readonly quietMs: number;
  /** Whether another tone is told at once. */
  readonly tonesAtOnce: boolean;
}

/** Shows sentences, and tells readers of screens those that matter. */
export class SentenceView {
  readonly #shown = find("sentence", HTMLElement);
  readonly #told = find("sentence-told", HTMLElement);
  readonly #telling: Telling;
  #tone: Tone | undefined;
  #tellAtMs = 0;

  constructor(telling: Telling) {
    this.#telling = telling;
  }

  /** Something happened whose outcome shows after `afterMs`: it is told then. */
  tellIn(afterMs: number): void {
    this.#tellAtMs = performance.now() + afterMs;
  }

  /** Shows a sentence, and after it what changes too often to be told, such as a countdown. */
  show({ tone, text }: Sentence, untold = ""): void {
    setAttribute(this.#shown, "data-tone", tone);
    setText(this.#shown, text + untold);
    const nowMs = performance.now();
    const isPressing = this.#telling.tonesAtOnce && tone !== this.#tone;
    this.#tone = tone;
    if (!isPressing && nowMs < this.#tellAtMs) return;
    if (this.#told.textContent !== text) this.#tellAtMs = nowMs + this.#telling.quietMs;
    setText(this.#told, text);
  }
}
