/** The status sentence of a page. */
import { find, setAttribute, setText } from "./dom.js";

/** Tones of a sentence; `parts.css` has a colour for each. */
export type Tone = "going" | "waiting" | "held" | "trouble" | "done";

/** A sentence and its tone. */
export interface Sentence {
  readonly tone: Tone;
  readonly text: string;
  /** Suffix that changes too often to be announced, such as a countdown. */
  readonly untold?: string;
}

/** Timing of announcements to screen readers. */
export interface Telling {
  /** Quiet time after an announcement, in milliseconds. */
  readonly quietMs: number;
  /** Whether a change of tone is announced at once. */
  readonly tonesAtOnce: boolean;
}

/** Shows sentences, and announces the important ones to screen readers. */
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

  /** Delays the next announcement by `afterMs`, when the outcome of an event shows. */
  tellIn(afterMs: number): void {
    this.#tellAtMs = performance.now() + afterMs;
  }

  /** Shows a sentence, and announces it at once or after the quiet time. */
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

  /** Announces the displayed sentence when due; `show` may not be called again before that. */
  #tellInTime(): void {
    clearTimeout(this.#timer);
    const waitMs = this.#tellAtMs - performance.now();
    if (waitMs <= 0) this.#tell();
    else this.#timer = setTimeout(() => this.#tellInTime(), waitMs);
  }
}
