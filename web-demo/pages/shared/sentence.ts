/** The one sentence of a page that says what goes on. */
import { find, setAttribute, setText } from "./dom.js";

/** How things stand; `parts.css` has a colour for each. */
export type Tone = "going" | "waiting" | "held" | "trouble" | "done";

/** A sentence and its tone. */
export interface Sentence {
  readonly tone: Tone;
  readonly text: string;
  /** What follows the text and changes too often to be told, such as a countdown. */
  readonly untold?: string;
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
  #text = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(telling: Telling) {
    this.#telling = telling;
  }

  /** Something happened whose outcome shows after `afterMs`: it is told then. */
  tellIn(afterMs: number): void {
    this.#tellAtMs = performance.now() + afterMs;
  }

  /** Shows a sentence, and tells it: at once, or when readers have been left alone for long enough. */
  show({ tone, text, untold = "" }: Sentence): void {
    setAttribute(this.#shown, "data-tone", tone);
    setText(this.#shown, text + untold);
    this.#text = text;
    const isPressing = this.#telling.tonesAtOnce && tone !== this.#tone;
    this.#tone = tone;
    if (isPressing) this.#tell();
    else this.#tellInTime();
  }

  #tell(): void {
    if (this.#told.textContent !== this.#text) this.#tellAtMs = performance.now() + this.#telling.quietMs;
    setText(this.#told, this.#text);
  }

  /** Tells what is shown once it is time to; nobody may show it again until then. */
  #tellInTime(): void {
    clearTimeout(this.#timer);
    const waitMs = this.#tellAtMs - performance.now();
    if (waitMs <= 0) this.#tell();
    else this.#timer = setTimeout(() => this.#tellInTime(), waitMs);
  }
}
