/** Shows the sentence, and the invitation beside it; tells readers of screens what matters, when it matters. */
import { find, setAttribute, setText } from "../shared/dom.js";
import type { Frame } from "../shared/lesson.js";
import { isAway } from "./islands/words.js";
import type { Live } from "./live.js";
import { sentenceOf } from "./sentence.js";

/** How long readers are left alone after a sentence, in milliseconds, unless somebody acted. */
const QUIET_MS = 20_000;
/** A deed shows after a moment; it is told then, in milliseconds. */
const SOON_MS = 1_200;

/** The island that a new visitor is invited to kill: the third, if there are three. */
export function invitedOf(frame: Frame): number {
  return Math.min(2, frame.islands.length - 1);
}

export class SentenceView {
  readonly #shown = find("sentence", HTMLElement);
  readonly #told = find("sentence-told", HTMLElement);
  readonly #invite = find("invite", HTMLButtonElement);
  readonly #after = find("invited", HTMLElement);
  #tellAt = 0;

  /** Somebody did something: what comes of it is told soon. */
  urgent(): void {
    this.#tellAt = performance.now() + SOON_MS;
  }

  show(live: Live): void {
    const { tone, text } = sentenceOf(live);
    setAttribute(this.#shown, "data-tone", tone);
    setText(this.#shown, text);
    const killed = live.frame?.islands.findIndex(isAway) ?? -1;
    const at = live.frame ? invitedOf(live.frame) : 0;
    const invited = live.frame?.islands[at];
    setText(this.#invite, invited && isAway(invited) ? `Start island ${at + 1} again` : `Kill island ${at + 1}`);
    this.#after.hidden = killed === -1;
    const now = performance.now();
    if (now < this.#tellAt) return;
    this.#tellAt = now + QUIET_MS;
    setText(this.#told, text);
  }
}
