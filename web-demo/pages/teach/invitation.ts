/** The button that invites a new visitor to kill an island, and to start it again. */

import { find, setText } from "../shared/dom.js";
import type { Frame } from "../shared/lesson.js";
import { phrase } from "../words/phrase.js";
import { isAway } from "./islands/words.js";

/** The island to kill: the third, if there are three. */
export function invitedOf(frame: Frame): number {
  return Math.min(2, frame.islands.length - 1);
}

/** Shows the button's current action. */
export class Invitation {
  readonly #button = find("invite", HTMLButtonElement);
  readonly #after = find("invited", HTMLElement);

  constructor(onClick: () => void) {
    this.#button.addEventListener("click", onClick);
  }

  show(frame: Frame): void {
    const at = invitedOf(frame);
    const invited = frame.islands[at];
    const key = invited && isAway(invited) ? "opening.startAgain" : "opening.kill";
    setText(this.#button, phrase(key, { island: at + 1 }));
    this.#after.hidden = !frame.islands.some(isAway);
  }
}
